"""A model as one HTML page: where the time of its graphs would go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fusewright.frontends.torch.model_times import PartTime
from fusewright.report.html import document, html_table

_HEADER = ("what", "calls", "launches", "us", "share", "operators", "torch's, because")
_NOTE = (
    "Microseconds are predicted for {target}, for all calls of a row. Those of torch's operators "
    "are the least in which memory moves their arguments and results, or the matrix instructions "
    "do their products: what torch takes is more. Launches of torch's are not known."
)

Graph = tuple[str, Sequence[PartTime]]
"""A graph's name, and its calls, the dearest first."""


def model_page(graphs: Sequence[Graph], target: str, report: str) -> str:
    """The page of a model's graphs, whole in itself; `report` is what `explain` says as text."""
    return document("Where the time of a model would go", _parts(graphs, target, report))


def _parts(graphs: Sequence[Graph], target: str, report: str) -> Iterable[str]:
    yield f'<p class="quiet">{escape(_NOTE.format(target=target))}</p>'
    whole = sum(_us(times) for _, times in graphs)
    rows = [_sums(name, times, whole) for name, times in graphs]
    header = ("graph", "us", "share", "of which fused", "launches of ours", "calls of torch's")
    yield html_table(header, rows)
    for name, times in graphs:
        yield f"<h2>{escape(name)}</h2>"
        yield html_table(_HEADER, [_row(t, _us(times)) for t in times])
    yield f"<details><summary>What was taken</summary><pre>{escape(report)}</pre></details>"


def _sums(name: str, times: Sequence[PartTime], whole: float) -> tuple[str, ...]:
    us, ours = _us(times), [t for t in times if _is_own(t)]
    launches = sum(t.launches or 0 for t in ours)
    calls = sum(t.count for t in times) - sum(t.count for t in ours)
    return name, f"{us:.1f}", _share(us, whole), f"{_us(ours):.1f}", str(launches), str(calls)


def _row(t: PartTime, whole: float) -> tuple[str, ...]:
    us = "not known" if t.us is None else f"{t.us:.1f}" if _is_own(t) else f"at least {t.us:.1f}"
    launches = "" if t.launches is None else str(t.launches)
    operators = t.operators if _is_own(t) else ""
    return t.name, str(t.count), launches, us, _share(t.us or 0.0, whole), operators, t.why


def _is_own(t: PartTime) -> bool:
    return t.launches is not None


def _us(times: Sequence[PartTime]) -> float:
    return sum(t.us or 0.0 for t in times)


def _share(us: float, whole: float) -> str:
    return f"{us / whole:.1%}" if whole else ""
