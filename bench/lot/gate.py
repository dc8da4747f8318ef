"""`python -m bench.lot.gate`: what draws may need over the least, and those known to need more.

The gate compares launches, bytes and sectors of the draws of `SEEDS` with the least, without a GPU.
A draw above a bound stands in known.json with what it needs today: more fails, and so does an entry
that is not needed any more. The command writes that file anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.lot.draws import Draw
from bench.lot.families import draw
from bench.lot.forecast import Forecast, compiled, forecast

KNOWN = Path(__file__).parent / "known.json"
LOW, HIGH = 32e6, 1e9
SEEDS = tuple(range(105))
"""Five draws of every family."""
SLACK = 1.01
"""What a figure may grow by unnoticed: sectors are counted on a few blocks."""
BETTER = 1.1
"""How far a figure has to fall before its entry counts as out of date."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a draw, over the least: launches, bytes that launches bind or read again, sectors."""

    launches: float
    nbytes: float
    sectors: float


BOUNDS = Figures(launches=1.0, nbytes=1.1, sectors=1.25)
Known = Mapping[int, Figures]


def figures_of(f: Forecast) -> Figures:
    """The figures that the gate compares."""
    launches = round(f.launches / f.launches_least, 3)
    return Figures(launches, max(f.bytes_ratio, f.reread), f.sectors)


def gated(seed: int) -> Draw:
    """A draw of the gate."""
    return draw(seed, LOW, HIGH)


def forecast_of(seed: int) -> Forecast:
    """The forecast of a draw of the gate, sectors counted."""
    d = gated(seed)
    program, seconds = compiled(d)
    return forecast(d, program, seconds, with_machine=True)


def known() -> Known:
    """The draws that are known to need more than the bounds."""
    return {int(seed): Figures(*row[1:4]) for seed, *row in json.loads(KNOWN.read_text())}


def is_above(found: Figures, limit: Figures) -> bool:
    """Whether some figure is above its limit."""
    return any(x > limit_x * SLACK for _, x, limit_x in _pairs(found, limit))


def problems(f: Forecast, exceeders: Known) -> list[str]:
    """What a draw needs more than it may; and that its entry is out of date."""
    found, entry = figures_of(f), exceeders.get(f.seed)
    name = f"draw {f.seed} ({f.family}: {f.what})"
    limits = _larger(BOUNDS, entry) if entry else BOUNDS
    out = [
        f"{name}: {what} {x:.3g} times the least; its limit is {limit:.3g}"
        for what, x, limit in _pairs(found, limits)
        if x > limit * SLACK
    ]
    if entry is not None and not out:
        pairs = zip(_pairs(found, limits), _pairs(BOUNDS, BOUNDS), strict=True)
        better = [
            what
            for (what, x, limit), (_, _, bound) in pairs
            if x * BETTER < limit and limit > bound
        ]
        if better:
            out.append(
                f"{name} needs less than known.json says ({', '.join(better)}): run "
                "python -m bench.lot.gate and keep what it writes"
            )
    return out


def _pairs(found: Figures, limits: Figures) -> Sequence[tuple[str, float, float]]:
    return (
        ("launches", found.launches, limits.launches),
        ("bytes", found.nbytes, limits.nbytes),
        ("sectors", found.sectors, limits.sectors),
    )


def _larger(a: Figures, b: Figures) -> Figures:
    return Figures(max(a.launches, b.launches), max(a.nbytes, b.nbytes), max(a.sectors, b.sectors))


def main() -> None:
    """Writes known.json from what the draws need now."""
    rows: list[str] = []
    for seed in SEEDS:
        f = forecast_of(seed)
        found = figures_of(f)
        if is_above(found, BOUNDS):
            rows.append(json.dumps([seed, f.family, found.launches, found.nbytes, found.sectors]))
    KNOWN.write_text("[\n " + ",\n ".join(rows) + "\n]\n")
    print(f"{len(rows)} of {len(SEEDS)} draws need more than {BOUNDS}")


if __name__ == "__main__":
    main()
