"""A run of the lot as text and as a page: families, distribution, the worst, and each draw."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.lot.forecast import Forecast
from bench.outcome import Outcome, geometric_mean
from bench.page import STYLE, html_table

WORST = 10
WITHIN = 0.15
"""Of the measured time, that a prediction should be off at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A draw: what was predicted, and what was measured if it was; `is_right`: whether the
    results were those of the reference."""

    forecast: Forecast
    outcome: Outcome | None = None
    is_right: bool = True

    @property
    def share(self) -> float | None:
        """The copy's time over ours: as measured, or as predicted where nothing was."""
        if self.outcome is None:
            return self.forecast.share
        return self.outcome.share("fusewright")

    def speedup(self, peer: str) -> float | None:
        """A peer's time over ours; None where either did not run."""
        times = self.outcome.times_us if self.outcome else {}
        ours = times.get("fusewright")
        return times[peer] / ours if ours and peer in times else None

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        found = {"forecast": self.forecast.as_json(), "right": self.is_right}
        return {**found, "outcome": self.outcome.as_json() if self.outcome else None}


Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A title, the heads of the columns, the cells of the rows."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """What a run says: the summary first, one line a draw last."""
    measured = any(r.outcome for r in rows)
    out = [_distribution(rows), _families(rows), _worst(rows)]
    out += [_predictions(rows)] if measured else [_structure(rows)]
    return [*out, _draws(rows)]


def _peers(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(p for r in rows if r.outcome for p in r.outcome.times_us)
    return [p for p in names if p != "fusewright"]


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share q of the values lie; nan for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else math.nan


def _distribution(rows: Sequence[Row]) -> Table:
    def line(name: str, values: Sequence[float]) -> list[str]:
        deciles = [f"{quantile(values, k / 10):.2f}" for k in range(1, 10)]
        least = f"{min(values, default=math.nan):.2f}"
        return [name, str(len(values)), f"{geometric_mean(values):.3f}", least, *deciles]

    lines = [line("share of the copy", [s for r in rows if (s := r.share)])]
    for p in _peers(rows):
        lines.append(line(f"times {p}", [s for r in rows if (s := r.speedup(p))]))
    head = ["", "draws", "geometric mean", "worst", *(f"{k}0 %" for k in range(1, 10))]
    return "Distribution", head, lines


def _families(rows: Sequence[Row]) -> Table:
    peers = _peers(rows)
    lines: list[list[str]] = []
    for family in dict.fromkeys(r.forecast.family for r in rows):
        own = [r for r in rows if r.forecast.family == family]
        shares = [s for r in own if (s := r.share)]
        cells = [family, str(len(own)), _mean(shares), f"{min(shares, default=math.nan):.2f}"]
        cells += [_mean([s for r in own if (s := r.speedup(p))]) for p in peers]
        cells.append(_mean([r.forecast.share for r in own]))
        cells.append(f"{sum(r.forecast.launches > r.forecast.launches_least for r in own)}")
        lines.append([*cells, f"{sum(not r.is_right for r in own)}"])
    head = ["family", "draws", "share of the copy", "worst", *(f"times {p}" for p in peers)]
    return "Families", [*head, "predicted share", "more launches", "wrong"], lines


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.3f}" if values else "-"


def _worst(rows: Sequence[Row]) -> Table:
    found = sorted((r for r in rows if r.share), key=lambda r: r.share or 0)[:WORST]
    lines = [
        [
            f"{r.share or 0:.2f}",
            f"{r.forecast.share:.2f}",
            r.forecast.limit,
            f"{r.forecast.launches}/{r.forecast.launches_least}",
            f"{r.forecast.bytes_ratio:.2f}",
            f"{r.forecast.seed} {r.forecast.family}: {r.forecast.what}",
            "; ".join(r.forecast.kernels[:4]),
        ]
        for r in found
    ]
    head = ["share", "predicted", "limit", "launches", "bytes", "draw", "kernels"]
    return "The worst", head, lines


def _predictions(rows: Sequence[Row]) -> Table:
    """How far predicted times are off, ours over measured."""
    ratios = {
        r: r.forecast.predicted_us / t
        for r in rows
        if r.outcome and (t := r.outcome.times_us.get("fusewright")) and r.forecast.predicted_us
    }
    close = sum(abs(x - 1) <= WITHIN for x in ratios.values())
    head = ["predicted over measured", "limit", "draw"]
    far = sorted(ratios, key=lambda r: -abs(math.log(ratios[r])))[:WORST]
    lines = [
        [f"{ratios[r]:.2f}", r.forecast.limit, f"{r.forecast.seed} {r.forecast.what}"] for r in far
    ]
    title = f"Predictions: {close} of {len(ratios)} within {WITHIN:.0%}; the farthest"
    return title, head, lines


def _structure(rows: Sequence[Row]) -> Table:
    """Of how many draws a figure is above a bound, without a GPU."""
    bounds: tuple[tuple[str, Callable[[Forecast], bool]], ...] = (
        ("more launches than the least", lambda f: f.launches > f.launches_least),
        ("bound bytes above 1.1 of the least", lambda f: f.bytes_ratio > 1.1),
        ("bytes read again above 1.1 of the least", lambda f: f.reread > 1.1),
        ("sectors above 1.25 of the least", lambda f: f.sectors > 1.25),
        ("more than 0.3 s of Python", lambda f: f.seconds > 0.3),
        ("more than 1 s of Python", lambda f: f.seconds > 1.0),
    )
    lines = [[name, str(sum(is_above(r.forecast) for r in rows))] for name, is_above in bounds]
    return f"Structure of {len(rows)} draws", ["", "draws"], lines


def _draws(rows: Sequence[Row]) -> Table:
    peers = _peers(rows)
    head = ["draw", "MB", "launches", "bytes", "sectors", "share", "predicted", "us", "floor us"]
    return (
        "Draws",
        [*head, *(f"times {p}" for p in peers), "notes"],
        [cells(r, peers) for r in rows],
    )


def cells(r: Row, peers: Sequence[str]) -> list[str]:
    """One draw."""
    f, o = r.forecast, r.outcome
    us = o.times_us.get("fusewright") if o else f.predicted_us
    notes = [] if r.is_right else [f"WRONG {o.errors if o else ''}"]
    notes += [f"{k}: {v}" for k, v in o.failures.items()] if o else []
    return [
        f"{f.seed} {f.family}: {f.what}",
        f"{f.nbytes / 1e6:.1f}",
        f"{f.launches}/{f.launches_least}",
        f"{max(f.bytes_ratio, f.reread):.2f}",
        f"{f.sectors:.2f}" if f.sectors else "-",
        f"{r.share:.2f}" if r.share else "-",
        f"{f.share:.2f}",
        f"{us:.1f}" if us else "-",
        f"{o.floor_us if o else f.floor_us:.1f}",
        *(f"{s:.2f}" if (s := r.speedup(p)) else "-" for p in peers),
        "; ".join(notes),
    ]


def text(rows: Sequence[Row], *, draws: bool = True) -> str:
    """All tables as lines, columns apart; the lines of the draws come first, the summary last."""
    found = tables(rows)
    ordered = [*found[-1:], *found[:-1]] if draws else found[:-1]
    return "\n\n".join(_lines(*t) for t in ordered)


def _lines(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [min(90, max(len(r[k]) for r in (head, *rows))) for k in range(len(head))]
    shown = [
        "  ".join(c[:w].ljust(w) for c, w in zip(r, widths, strict=True)).rstrip()
        for r in (head, *rows)
    ]
    return "\n".join([title, *shown])


def page(report: dict[str, Any], rows: Sequence[Row]) -> str:
    """One HTML file, whole in itself."""
    facts = ", ".join(f"{k} {v}" for k, v in report["environment"].items())
    parts = [
        "<h1>The lot</h1>",
        f"<p>{html.escape(str(report['date']))}: {html.escape(facts)}.</p>",
        f"<p>{html.escape(report['method'])}</p>",
    ]
    for title, head, lines in tables(rows):
        parts += [f"<h2>{html.escape(title)}</h2>", html_table(head, lines)]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>fusewright: the lot</title>"
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
