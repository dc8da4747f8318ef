"""A program in one screen: what was fused, what it moves, how long it should take, and why not
less. No kernel is compiled for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.core.expr import Expr, constant_value
from fusewright.fusion.ir import Broadcast, Tensor
from fusewright.report.cut import every_band, every_launch, op_text
from fusewright.report.facts import geometry_text, reasons_of
from fusewright.report.predicted import Measured, early_us, timed
from fusewright.report.subject import ProgramLike
from fusewright.report.table import plural, table
from fusewright.report.traffic import LaunchTraffic, nbytes_of, size_text, traffic
from fusewright.target import target_of

COSTLIEST = 3
MAX_REASONS = 5
OPS_WIDTH = 72
SLOW = 4.0
"""Times what moving its bytes takes from which a kernel is called slow."""
SLOW_US = 20.0
"""Microseconds below which nothing is called slow: launches and waits are most of it."""
HEADER = ("costliest kernels", "times", "predicted us", "limit", "launch", "shared", "syncs")


@dataclass(frozen=True, slots=True, eq=False)
class KernelSummary:
    """One kernel. `us` and `limit`: the predicted time of a launch and what takes longest in it,
    None and "" where no heuristic made the kernel; `bound_us`: what moving its bytes takes."""

    name: str
    launches: int
    ops: str
    us: float | None
    limit: str
    bound_us: float | None
    launch: str
    shared_nbytes: int
    syncs: tuple[tuple[str, str], ...]

    @property
    def total_us(self) -> float:
        """The predicted time of all its launches; 0 where it is not known."""
        return self.launches * (self.us or 0.0)

    @property
    def is_slow(self) -> bool:
        """Whether it takes much longer than its bytes need."""
        if self.us is None or self.bound_us is None:
            return False
        return bool(self.us > max(SLOW_US, SLOW * self.bound_us))


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One program: its kernels in the order of their first launch, and what the user may ask
    first. Sizes that are symbols count as 4096 in predicted times. `early_us`: what launches save
    that begin before the one before them has ended, as predicted."""

    title: str
    target: str
    traffic: LaunchTraffic
    kernels: tuple[KernelSummary, ...]
    reasons: tuple[str, ...]
    symbols: tuple[str, ...]
    measured: Measured | None = None
    early_us: float = 0.0

    @property
    def nlaunches(self) -> int:
        return sum(k.launches for k in self.kernels)

    @property
    def us(self) -> float | None:
        """The predicted time of the program; None where that of a kernel is not known."""
        if any(k.us is None for k in self.kernels):
            return None
        return sum(k.total_us for k in self.kernels) - self.early_us

    @property
    def costliest(self) -> list[KernelSummary]:
        """The kernels by predicted time, longest first."""
        return sorted(self.kernels, key=lambda k: -k.total_us)


def summarise(program: ProgramLike, title: str, measured: Measured | None = None) -> Summary:
    """The summary of a program, and what was measured of it."""
    launches = every_launch(program)
    times = Counter(id(x.kernel) for x in launches)
    bands = every_band(program)
    first = {id(x.kernel): x for x in reversed(launches)}
    kernels: list[KernelSummary] = []
    for k in program.kernels:
        x = first[id(k)]
        cost = k.predicted
        kernels.append(
            KernelSummary(
                name=k.name,
                launches=times[id(k)],
                ops=_ops(bands.get(k.name, ())),
                us=None if cost is None else cost.us,
                limit="" if cost is None else cost.limit,
                bound_us=_bound_us(x.inputs, x.outputs, program),
                launch=geometry_text(k),
                shared_nbytes=k.launch.shared_nbytes,
                syncs=tuple((s.kind, s.why) for s in k.syncs),
            )
        )
    return Summary(
        title,
        _arch(program),
        traffic(program),
        tuple(kernels),
        reasons_of(program),
        tuple(v.name for v in program.fusion.symbols),
        measured,
        early_us(timed(program)) if any(k.ir.begins_early for k in program.kernels) else 0.0,
    )


def _arch(program: ProgramLike) -> str:
    return str(getattr(getattr(program, "target", None), "arch", ""))


def _ops(values: Sequence[Tensor]) -> str:
    """The operations of a kernel in order, each once, as far as they fit a line."""
    words = list(dict.fromkeys(op_text(t) for t in values if not isinstance(t.op, Broadcast)))
    out: list[str] = []
    for k, word in enumerate(words):
        if len(", ".join([*out, word])) > OPS_WIDTH:
            return f"{', '.join(out)} and {len(words) - k} more"
        out.append(word)
    return ", ".join(out) or "copies"


def _bound_us(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], program: ProgramLike
) -> float | None:
    """Microseconds that a launch and moving its bytes take; None for symbolic sizes."""
    read, written = (constant_value(nbytes_of(dict.fromkeys(x))) for x in (inputs, outputs))
    if read is None or written is None:
        return None
    target = target_of(_arch(program) or None)
    known = target.calibration
    return known.launch_us + (read + known.write_weight * written) / target.memory_nbytes_per_us


# --- text ---------------------------------------------------------------------------------------


def summary_text(s: Summary) -> str:
    """The first screen."""
    syncs = sum(len(k.syncs) for k in s.kernels)
    head = f"{s.title}: {plural(len(s.kernels), 'kernel')}, {plural(syncs, 'sync')}"
    blocks = [head, _numbers(s)]
    blocks += [f"SLOW: {line}" for line in _slow(s)]
    if s.kernels:
        blocks.append("what was fused\n" + _fused(s))
        rows = [_row(k) for k in s.costliest[:COSTLIEST]]
        blocks.append(table(HEADER, rows))
    if s.reasons:
        blocks.append(_reasons(s))
    return "\n\n".join(blocks)


def _numbers(s: Summary) -> str:
    lines = summary_numbers(s)
    wide = max(len(label) for label, _ in lines)
    return "\n".join(f"  {label.ljust(wide)}  {value}" for label, value in lines)


def summary_numbers(s: Summary) -> list[tuple[str, str]]:
    """The program's numbers as (label, value) lines."""
    lines = [
        ("launches", str(s.nlaunches)),
        ("bytes moved", size_text(s.traffic.moved)),
        ("least possible", size_text(s.traffic.least)),
    ]
    if s.traffic.ratio is not None:
        lines.append(("moved / least", f"{s.traffic.ratio:.2f}"))
    if s.us is not None and s.kernels:
        note = f" ({', '.join(s.symbols)} counted as 4096)" if s.symbols else ""
        note += f"; {s.early_us:.1f} us less, as launches begin early" if s.early_us else ""
        limit = s.costliest[0].limit
        lines.append(("predicted", f"{s.us:.1f} us on {s.target}, limited by {limit}{note}"))
    if s.measured is not None:
        lines.append(("measured", f"{s.measured.us:.1f} us on {s.measured.device}"))
    return lines


def _slow(s: Summary) -> list[str]:
    """A line for each kernel that takes much longer than its bytes need."""
    out: list[str] = []
    for k in s.costliest:
        if k.is_slow and k.us is not None and k.bound_us is not None:
            out.append(
                f"{k.name} is predicted at {k.us:,.0f} us, {k.us / k.bound_us:.0f} times what "
                f"moving its bytes takes; {k.limit} limits it ({k.ops})"
            )
    return out


def _fused(s: Summary) -> str:
    shown = s.kernels[: 2 * COSTLIEST]
    lines = [f"  {k.name}: {k.ops}" for k in shown]
    if len(shown) < len(s.kernels):
        lines.append(f"  and {plural(len(s.kernels) - len(shown), 'kernel')} more")
    return "\n".join(lines)


def _row(k: KernelSummary) -> tuple[str, ...]:
    us = "-" if k.us is None else f"{k.us:.1f}"
    shared = size_text(k.shared_nbytes)
    return k.name, str(k.launches), us, k.limit or "-", k.launch, shared, str(len(k.syncs))


def _reasons(s: Summary) -> str:
    lines = [f"  - {r}" for r in s.reasons[:MAX_REASONS]]
    if len(s.reasons) > MAX_REASONS:
        lines.append(f"  and {len(s.reasons) - MAX_REASONS} more")
    return "why it is not one fast kernel\n" + "\n".join(lines)


# --- data ---------------------------------------------------------------------------------------


def summary_record(s: Summary) -> dict[str, Any]:
    """The summary for programs: numbers, and texts where sizes are symbols."""
    return {
        "title": s.title,
        "target": s.target,
        "launches": s.nlaunches,
        "bytes_moved": _number(s.traffic.moved),
        "bytes_least": _number(s.traffic.least),
        "moved_over_least": s.traffic.ratio,
        "predicted_us": s.us,
        "measured_us": None if s.measured is None else s.measured.us,
        "limit": s.costliest[0].limit if s.kernels else "",
        "reasons": list(s.reasons),
        "kernels": [
            {
                "name": k.name,
                "launches": k.launches,
                "ops": k.ops,
                "predicted_us": k.us,
                "bytes_us": k.bound_us,
                "limit": k.limit,
                "slow": k.is_slow,
                "launch": k.launch,
                "shared_nbytes": k.shared_nbytes,
                "syncs": [{"kind": kind, "why": why} for kind, why in k.syncs],
            }
            for k in s.kernels
        ],
    }


def _number(e: Expr) -> int | str:
    found = constant_value(e)
    return str(e) if found is None else found
