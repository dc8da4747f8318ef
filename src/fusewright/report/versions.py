"""Two versions of a program side by side: their figures, and where their kernels differ.

Kernels are paired by name, which says what they compute, then in the order of their launches. A
page shows the loop nests and the CUDA text of a pair with the lines that only one of them has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from fusewright.report.facts import KernelReport, ReportFacts, numbers
from fusewright.report.html import document, html_table
from fusewright.report.predicted import serial_us
from fusewright.report.table import table

Pair = tuple[KernelReport | None, KernelReport | None]

_FIGURES = ("predicted us", "registers", "shared", "syncs", "launch")
_TEXTS = ("loop nest", "CUDA")
_CONTEXT = 2
_NUMBERED = re.compile(r"\bt\d+\b")


def pairs(a: ReportFacts, b: ReportFacts) -> list[Pair]:
    """The kernels of both, paired; None where the other one has no counterpart."""
    theirs = {k.name: k for k in b.kernels}
    named = {k.name for k in a.kernels} & set(theirs)
    rest_a = [k for k in a.kernels if k.name not in named]
    rest_b = [k for k in b.kernels if k.name not in named]
    out: list[Pair] = [(k, theirs[k.name]) for k in a.kernels if k.name in named]
    for i in range(max(len(rest_a), len(rest_b))):
        out.append((_at(rest_a, i), _at(rest_b, i)))
    return out


def _at(kernels: Sequence[KernelReport], i: int) -> KernelReport | None:
    return kernels[i] if i < len(kernels) else None


def versions_text(a: ReportFacts, b: ReportFacts) -> str:
    """Figures of both, of each pair of kernels, and the lines of loop nests that differ."""
    parts = [f"{a.title} and {b.title}", table(("", a.title, b.title), _program_rows(a, b))]
    for x, y in pairs(a, b):
        parts.append(table((_heading(x, y), a.title, b.title), _kernel_rows(x, y)))
        changes = _changes(x, y)
        if changes:
            parts.append("\n".join(changes))
    return "\n\n".join(parts)


def _program_rows(a: ReportFacts, b: ReportFacts) -> list[tuple[str, str, str]]:
    found = [dict((*numbers(f), ("predicted us", _predicted(f)))) for f in (a, b)]
    return [(k, found[0][k], found[1].get(k, "-")) for k in found[0]]


def _predicted(f: ReportFacts) -> str:
    """The time of all launches; "-" where that of a kernel, such as one by hand, is not known."""
    if any(k.cost is None for k in f.kernels):
        return "-"
    return f"{serial_us(f.host.launches):.1f}"


def _heading(x: KernelReport | None, y: KernelReport | None) -> str:
    names = dict.fromkeys(k.name for k in (x, y) if k is not None)
    return " and ".join(names)


def _kernel_rows(x: KernelReport | None, y: KernelReport | None) -> list[tuple[str, str, str]]:
    left, right = _figures(x), _figures(y)
    return list(zip(_FIGURES, left, right, strict=True))


def _figures(k: KernelReport | None) -> tuple[str, ...]:
    """The values of `_FIGURES`; "-" where there is no kernel or nothing is known."""
    if k is None:
        return ("-",) * len(_FIGURES)
    us = "-" if k.cost is None else f"{k.cost.us:.1f}"
    registers = "-" if k.resources is None else str(k.resources.registers)
    return us, registers, k.shared_nbytes, str(len(k.syncs)), k.launch


def _changes(x: KernelReport | None, y: KernelReport | None) -> list[str]:
    """The lines of the loop nests that only one has, with some around them."""
    if x is None or y is None:
        return []
    before, after = x.schedule.splitlines(), y.schedule.splitlines()
    out: list[str] = []
    for group in _matcher(before, after).get_grouped_opcodes(_CONTEXT):
        out.append("..")
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                out.extend(f"  {line}" for line in before[i:i_end])
                continue
            out.extend(f"- {line}" for line in before[i:i_end])
            out.extend(f"+ {line}" for line in after[j:j_end])
    return out


def _matcher(before: Sequence[str], after: Sequence[str]) -> difflib.SequenceMatcher[str]:
    """What two texts have in common; values are numbered as they come, which is no difference."""
    keys = [[_NUMBERED.sub("t", line) for line in lines] for lines in (before, after)]
    return difflib.SequenceMatcher(None, *keys, autojunk=False)


# --- the page -----------------------------------------------------------------------------------


def versions_html(a: ReportFacts, b: ReportFacts) -> str:
    """A whole HTML document."""
    parts = [
        html_table(("", a.title, b.title), _program_rows(a, b)),
        *(line for x, y in pairs(a, b) for line in _pair_html(a, b, x, y)),
    ]
    return document(f"{a.title} and {b.title}", parts)


def _pair_html(
    a: ReportFacts, b: ReportFacts, x: KernelReport | None, y: KernelReport | None
) -> Iterator[str]:
    yield f"<h2>{escape(_heading(x, y))}</h2>"
    yield html_table(("", a.title, b.title), _kernel_rows(x, y))
    for title in _TEXTS:
        texts = [_text(k, title).splitlines() for k in (x, y)]
        left, right = _marked(*texts)
        yield f"<h3>{title}</h3>"
        if _matcher(*texts).ratio() == 1:
            yield "<p>The same.</p>"
            continue
        yield '<div class="panes">'
        for name, lines in ((a.title, left), (b.title, right)):
            yield f'<div><p class="quiet">{escape(name)}</p><pre>{"".join(lines)}</pre></div>'
        yield "</div>"


def _text(k: KernelReport | None, title: str) -> str:
    if k is None:
        return ""
    return k.schedule if title == "loop nest" else k.cuda


def _marked(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines of both; those that only one has stand out, and blank ones keep both level."""
    left: list[str] = []
    right: list[str] = []
    for tag, i, i_end, j, j_end in _matcher(before, after).get_opcodes():
        is_same = tag == "equal"
        count = max(i_end - i, j_end - j)
        left.extend(_lines(before[i:i_end], "" if is_same else "gone", count))
        right.extend(_lines(after[j:j_end], "" if is_same else "new", count))
    return left, right


def _lines(lines: Sequence[str], kind: str, count: int) -> Iterable[str]:
    opening = f'<span class="{kind}">' if kind else "<span>"
    yield from (f"{opening}{escape(line)}</span>" for line in lines)
    yield from ["<span></span>"] * (count - len(lines))
