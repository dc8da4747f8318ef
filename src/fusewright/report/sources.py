"""The lines of the user's program that values come from."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass

from fusewright.fusion.ir import Tensor

_CONTEXT = 1
MAX_LINES = 200


@dataclass(frozen=True, slots=True, eq=False)
class SourceLine:
    """A line of a file and the values that it makes."""

    number: int
    text: str
    values: tuple[Tensor, ...]


def source_lines(values: Iterable[Tensor]) -> dict[str, list[SourceLine]]:
    """By file, the lines around those that make values. Files that cannot be read are left out."""
    made: dict[str, dict[int, list[Tensor]]] = {}
    for t in values:
        if t.source is not None:
            made.setdefault(t.source.file, {}).setdefault(t.source.line, []).append(t)
    out: dict[str, list[SourceLine]] = {}
    for file, lines in made.items():
        around = {n + d for n in lines for d in range(-_CONTEXT, _CONTEXT + 1) if n + d > 0}
        texts = [(n, linecache.getline(file, n).rstrip("\n")) for n in sorted(around)]
        if any(text for _, text in texts):
            shown = texts[:MAX_LINES]
            out[file] = [SourceLine(n, text, tuple(lines.get(n, ()))) for n, text in shown]
    return out
