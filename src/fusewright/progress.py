"""How far a long compilation is: one line on stderr, only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")

AFTER = 5.0
"""Seconds after which a wait is long enough to be told about."""


def told(
    items: Iterable[T],
    total: int,
    what: str,
    *,
    stream: Callable[[], TextIO] = lambda: sys.stderr,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """The items; once it takes longer than `AFTER` seconds to be done with them, a line says how
    many of all are done, which is wiped at the end, also of a loop that is left by an exception.
    Nothing is written where the stream is no terminal."""
    began, width = clock(), 0
    try:
        for done, item in enumerate(items):
            spent = clock() - began
            if spent > AFTER and stream().isatty():
                line = f"fusewright: {what}, {done} of {total} done in {spent:.0f} s"
                stream().write(f"\r{line.ljust(width)}")
                stream().flush()
                width = len(line)
            yield item
    finally:
        if width:
            stream().write(f"\r{' ' * width}\r")
            stream().flush()
