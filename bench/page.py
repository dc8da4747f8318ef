"""`python -m bench.page results.json page.html`: one HTML file with plots, from a run's JSON."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.outcome import Outcome, from_json, geometric_mean, kept_share, peers_of, said_plan

COLOURS = ("#1b6ca8", "#d1603d", "#8d99ae", "#5f8d4e", "#8e5ea2", "#b8860b", "#444444")
BAR = 14
LABELS = 300
WIDTH = 560
TITLE = "Memory-bound cases"
MOST = 1.1
"""The share of the floor at the right end of a plot."""

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}svg text{font:12px system-ui,sans-serif}"
)


def write_page(source: Path, target: Path) -> Path:
    """Write the page of a run; the path written. Raises ValueError for a file with no cases."""
    report = json.loads(source.read_text())
    if not report.get("cases"):
        raise ValueError(f"{source} has no cases; measure some with python -m bench.run --out")
    target.write_text(page(report))
    return target


def page(report: dict[str, object]) -> str:
    """The HTML of a run's JSON, whole in itself."""
    found = report["cases"]
    assert isinstance(found, list)
    outcomes = [from_json(c) for c in found]
    cases = [o for o in outcomes if not o.of]
    peers = peers_of(outcomes)
    where = report["environment"]
    assert isinstance(where, dict)
    facts = ", ".join(f"{k} {v}" for k, v in where.items())
    parts = [
        f"<h1>{escaped(report.get('title', TITLE))}</h1>",
        f"<p>{escaped(report['date'])}: {escaped(facts)}.</p>",
        f"<p>{escaped(report['method'])}</p>",
        "<h2>Share of the floor</h2>",
        summary(cases, peers),
        bars(cases, peers),
        "<h2>Neighbours</h2>" + neighbour_table(outcomes) if len(cases) < len(outcomes) else "",
        "<h2>Figures</h2>",
        figures(outcomes, peers),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>fusewright bench</title>"
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def summary(cases: Sequence[Outcome], peers: Sequence[str]) -> str:
    """Each peer's geometric mean and worst case."""
    rows: list[list[str]] = []
    for p in peers:
        shares = {o.name: s for o in cases if (s := o.share(p))}
        worst = min(shares, key=lambda name: shares[name], default="")
        mean = geometric_mean(list(shares.values()))
        rows.append([p, str(len(shares)), f"{mean:.1%}", f"{shares.get(worst, 0):.1%} ({worst})"])
    return html_table(["peer", "cases", "geometric mean", "worst"], rows)


def bars(cases: Sequence[Outcome], peers: Sequence[str]) -> str:
    """One bar a peer for every case, as SVG; the line stands at the floor."""
    step = BAR * len(peers) + 12
    height = 30 + step * len(cases)
    out = [f'<svg width="{LABELS + WIDTH + 60}" height="{height}" role="img">']
    for i, p in enumerate(peers):
        x = LABELS + 110 * i
        out.append(f'<rect x="{x}" y="4" width="12" height="12" fill="{_colour(i)}"/>')
        out.append(f'<text x="{x + 16}" y="14">{escaped(p)}</text>')
    for row, o in enumerate(cases):
        top = 30 + row * step
        middle = top + BAR * len(peers) / 2 + 4
        out.append(
            f'<text x="{LABELS - 8}" y="{middle}" text-anchor="end">{escaped(o.name)}</text>'
        )
        for i, p in enumerate(peers):
            share = o.share(p)
            if share is None:
                continue
            width = WIDTH * min(share, MOST) / MOST
            y = top + i * BAR
            out.append(
                f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR - 2}" '
                f'fill="{_colour(i)}"><title>{escaped(p)}: {o.times_us[p]:.1f} us</title></rect>'
            )
            out.append(f'<text x="{LABELS + width + 4:.1f}" y="{y + 11}">{share:.0%}</text>')
    floor = LABELS + WIDTH / MOST
    out.append(f'<line x1="{floor:.1f}" x2="{floor:.1f}" y1="24" y2="{height}" stroke="#000"/>')
    return "".join([*out, "</svg>"])


def neighbour_table(outcomes: Sequence[Outcome]) -> str:
    """What neighbours keep of their case's share."""
    rows = [
        [o.name, f"{share:.1%}", f"{kept:.1%}" if kept else "-"]
        for o in outcomes
        if o.of and (share := o.share("fusewright"))
        for kept in [kept_share(o, outcomes, "fusewright")]
    ]
    return html_table(["neighbour", "of the floor", "of its case's share"], rows)


def figures(outcomes: Sequence[Outcome], peers: Sequence[str]) -> str:
    """All times, in microseconds, what did not run, and where plans are known these, with the time
    that was predicted for them."""
    planned = any("plan" in o.facts for o in outcomes)
    rows = [
        [
            o.name,
            f"{o.nbytes / 1e6:.1f}",
            f"{o.floor_us:.1f}",
            *(f"{o.times_us[p]:.1f}" if p in o.times_us else o.failures.get(p, "-") for p in peers),
            *(_planned(o) if planned else ()),
        ]
        for o in outcomes
    ]
    behind = ["predicted", "plan"] if planned else []
    return html_table(["case", "MB", "floor", *peers, *behind], rows)


def _planned(o: Outcome) -> tuple[str, str]:
    """The predicted microseconds and the plan."""
    us, plan = o.facts.get("predicted_us"), o.facts.get("plan")
    return (f"{us:.1f}" if us else "-", said_plan(plan) if plan else "-")


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Escaped cells."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escaped(c)}</{tag}>" for c in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(r, "td") for r in rows) + "</table>"


def escaped(value: object) -> str:
    return html.escape(str(value))


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


if __name__ == "__main__":
    print(write_page(Path(sys.argv[1]), Path(sys.argv[2])))
