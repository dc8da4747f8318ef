"""The ways in which a kernel could have been scheduled, with predicted and measured times."""

from __future__ import annotations

from fusewright.report.subject import KernelLike
from fusewright.report.table import nbytes_text, table
from fusewright.schedule.heuristics.candidates import Refused
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.rating import Rated

HEADER = ("predicted us", "limit", "blocks", "in flight", "candidate", "")


def candidates_text(kernel: KernelLike) -> str:
    """One line a candidate in the order of the rules: predicted time, what limits it, and of a
    multiprocessor the blocks and the bytes of loads under way; then why it was not taken. Below,
    where the model overruled the rules, what tuning measured, and the ways in which the compiler
    spills registers. Empty for kernels without
    candidates."""
    found = kernel.candidates
    if not found:
        return ""
    times = {c.params: c.cost.us for c in found if isinstance(c, Rated)}
    own = times.get(kernel.heuristic) if kernel.heuristic is not None else None
    rows = [
        ("-", "", "", "", c.what, f"does not apply: {c.why}")
        if isinstance(c, Refused)
        else (
            f"{c.cost.us:.1f}",
            c.cost.limit,
            c.cost.resident,
            nbytes_text(c.cost.flight_nbytes),
            c.what,
            "chosen" if c.params == kernel.heuristic else _against(c.cost.us, own),
        )
        for c in found
    ]
    names = {c.params: c.what for c in found if isinstance(c, Rated)}
    return "\n".join(
        [table(HEADER, rows), *_overruled(kernel), *_tuned(kernel, names), *_spilled(kernel)]
    )


def _against(us: float, own: float | None) -> str:
    """How a time compares with that of the candidate that was chosen."""
    return "" if own is None else f"{100 * (us / own - 1):+.1f} %"


def _overruled(kernel: KernelLike) -> list[str]:
    """That the model chose another candidate than the rules, which take the first one that applies,
    and by which times; nothing where tuning chose."""
    rated = [c for c in kernel.candidates if isinstance(c, Rated)]
    chosen = next((c for c in rated if c.params == kernel.heuristic), None)
    if kernel.measured or chosen is None or chosen is rated[0]:
        return []
    first = rated[0]
    return [
        f"the model overruled the rules: {chosen.what}, predicted {chosen.cost.us:.1f} us, instead "
        f"of {first.what}, {first.cost.us:.1f} us"
    ]


def _tuned(kernel: KernelLike, names: dict[Params, str]) -> list[str]:
    """What was measured, fastest first."""
    if not kernel.measured:
        return []
    ordered = sorted(kernel.measured, key=lambda m: m[1])
    listed = "; ".join(f"{names.get(p, str(p))}: {us:.1f} us" for p, us in ordered)
    return [f"tuned: {listed}"]


def _spilled(kernel: KernelLike) -> list[str]:
    """The ways of which the compiler spilled registers, and what became of them."""
    return [
        f"{s.what}: the compiler spills {s.nbytes} bytes a thread; "
        + (
            "kept, as no way that spills less is predicted as fast"
            if s.is_kept
            else "left for that"
        )
        for s in kernel.spilled
    ]
