"""What measuring a case gives, as JSON and as lines of a table. Needs no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Medians in microseconds per peer, relative errors, and the floor's; `of` names the case that
    this one is a neighbour of, "" for a case of the table itself; `facts` are kept in the JSON."""

    name: str
    nbytes: int
    floor_us: float
    times_us: dict[str, float]
    errors: dict[str, float]
    kernels: list[str]
    failures: dict[str, str]
    of: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def share(self, peer: str) -> float | None:
        """The floor's time over a peer's; None when it did not run."""
        return self.floor_us / self.times_us[peer] if peer in self.times_us else None

    def as_json(self) -> dict[str, Any]:
        """A JSON object, numbers rounded."""
        ours = self.times_us.get("fusewright")
        return {
            "case": self.name,
            "of": self.of,
            "bytes": self.nbytes,
            "floor_us": round(self.floor_us, 2),
            "times_us": {k: round(v, 2) for k, v in self.times_us.items()},
            "of_floor": {k: round(self.floor_us / v, 4) for k, v in self.times_us.items()},
            "speedup": {k: round(v / ours, 4) for k, v in self.times_us.items()} if ours else {},
            "errors": self.errors,
            "kernels": self.kernels,
            "failures": self.failures,
            "facts": self.facts,
        }


def from_json(found: dict[str, Any]) -> Outcome:
    """The outcome that a JSON object of `as_json` describes."""
    return Outcome(
        found["case"],
        found["bytes"],
        found["floor_us"],
        found["times_us"],
        found["errors"],
        found["kernels"],
        found["failures"],
        found.get("of", ""),
        found.get("facts", {}),
    )


def said_plan(plan: Mapping[str, Any]) -> str:
    """The plan of a product (`bench.product_suite.plan_of`) in a few words."""
    words = [f"operand {i} copied" for i in plan["copied"]]
    words += ["operands exchanged"] if plan["exchanged"] else []
    words += [f"{plan['factor']} parts by {plan['mode']}"] if plan["factor"] > 1 else []
    for k in plan["kernels"]:
        if "tile" in k:
            words.append(f"{k['scheduler']} {k['tile']}")
            words += [f"{k['stages']} stages"] if "stages" in k else []
            words += [f"cluster {k['cluster']}"] if "cluster" in k else []
    return ", ".join(words or ["no matrix instructions"])


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; nan for none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def peers_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The peers that ran at least once, in order."""
    return list(dict.fromkeys(p for o in outcomes for p in o.times_us))


def kept_share(o: Outcome, outcomes: Sequence[Outcome], peer: str) -> float | None:
    """How much of its case's share of the floor a neighbour keeps; None where either is missing."""
    own = next((c.share(peer) for c in outcomes if c.name == o.of), None)
    share = o.share(peer)
    return share / own if own and share else None


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a case, neighbours below theirs: floor, then each peer's time and share of the
    floor, for neighbours also against the case's own share; summaries are of cases alone."""
    names = peers_of(outcomes)
    lines = [f"{'case':36s} {'floor':>9s} " + " ".join(f"{p:>20s}" for p in names)]
    lines += [line(o, outcomes, names) for o in outcomes]
    cases = [o for o in outcomes if not o.of]
    for p in names:
        shares = [s for o in cases if (s := o.share(p))]
        if shares:
            lines.append(f"{p}: {geometric_mean(shares):.1%} of the floor, worst {min(shares):.1%}")
    kept = [k for o in outcomes if o.of and (k := kept_share(o, outcomes, "fusewright"))]
    if kept:
        lines.append(f"neighbours keep {geometric_mean(kept):.1%}, worst {min(kept):.1%}")
    return "\n".join(lines)


def line(o: Outcome, outcomes: Sequence[Outcome], names: Sequence[str]) -> str:
    """One line of the table."""
    cells = [
        f"{t:10.1f} us {o.floor_us / t:6.1%}" if (t := o.times_us.get(p)) else f"{'-':>20s}"
        for p in names
    ]
    kept = kept_share(o, outcomes, "fusewright")
    wrong = {k: f"{v:.1e}" for k, v in o.errors.items() if not v <= 2e-2}
    return (
        f"{'  ' + o.name if o.of else o.name:36s} {o.floor_us:9.1f} "
        + " ".join(f"{c:>20s}" for c in cells)
        + f" err {o.errors.get('fusewright', math.nan):.1e}"
        + (f" keeps {kept:.0%}" if kept else "")
        + (f" WRONG {wrong}" if wrong else "")
        + (f" {o.failures}" if o.failures else "")
    )
