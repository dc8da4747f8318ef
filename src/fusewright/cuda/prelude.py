"""The device functions that emitted kernels may call, in small pieces; a kernel carries only the
pieces it names.

A file `prelude/*.cuh` is a list of pieces, each after a line `//: name`; names begin with `fw_` or
`FW_`. Text that mentions the name of a piece needs the piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "prelude"
_FILES = ("convert", "vector", "policy", "integer", "float", "approximate", "memory", "tensor")
_NAME = re.compile(r"\b(?:fw|FW)_\w+")
_MARK = re.compile(r"^//: (\w+)\n", re.MULTILINE)


@cache
def pieces() -> dict[str, str]:
    """Every piece by name, in the order in which they must be defined."""
    found: dict[str, str] = {}
    for file in _FILES:
        parts = _MARK.split((_FOLDER / f"{file}.cuh").read_text(encoding="utf-8"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found[name] = body.strip() + "\n"
    return found


@cache
def _reserved() -> frozenset[str]:
    return frozenset(name for text in pieces().values() for name in _mentions(text))


def is_reserved(name: str) -> bool:
    """Whether the prelude uses a name, so that no symbol of a program may be spelled so."""
    return name in pieces() or name in _reserved()


def needed(text: str) -> tuple[str, ...]:
    """The pieces that a text needs, directly or through other pieces, in definition order."""
    table = pieces()
    wanted = {name for name in _mentions(text) if name in table}
    pending = list(wanted)
    while pending:
        for name in _mentions(table[pending.pop()]):
            if name in table and name not in wanted:
                wanted.add(name)
                pending.append(name)
    return tuple(name for name in table if name in wanted)


def _mentions(text: str) -> Iterable[str]:
    return dict.fromkeys(_NAME.findall(text))


def prelude(text: str) -> str:
    """The definitions that must stand before `text`, ready to print."""
    table = pieces()
    return "\n".join(table[name] for name in needed(text))
