"""When Python looks for cycles of garbage: not in the middle of a program.

A kernel is scheduled and lowered with some hundred thousand small objects, nearly all of which are
freed by their counts of references: 36 kernels of an optimiser leave 20,000 to be found, a few
megabytes. Each few hundred of them that live make Python look through the youngest for cycles, and
now and then through all objects of the process: a seventh of the time of compiling, a third where
much else is alive (`tests/test_compile_work.py` counts the runs).
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Generator[None]:
    """No search for cycles until the end, if there was any. Of several of these at a time, nested
    or in threads, the one that began first ends it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
