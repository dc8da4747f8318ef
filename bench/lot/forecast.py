"""What is known of a draw without a GPU: launches, bytes, sectors over the least, predicted time.

Bytes are those that launches bind, each once, and with the machine model also what a launch reads
again; sectors are those that the machine model counts of a few blocks, over the fewest that the
same requests need. Times are of the cost model (schedule/heuristics/cost.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import fusewright as fw
from bench.lot.draws import ARCHITECTURE, Draw, Least
from fusewright.kernel import Kernel, TensorInfo
from fusewright.program import Program
from fusewright.programs.model import Dispatch
from fusewright.schedule.heuristics.cost import Cost, cost
from fusewright.schedule.heuristics.rating import cost_of
from fusewright.schedule.heuristics.work import MovedArray, Work
from fusewright.sim.traffic import traffic
from fusewright.target import Target, target_of

SIGNIFICANT = 0.1
"""The share of a program's bytes, or half of a launch's even share of them if that is less, from
which on a launch counts for its sectors."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one draw. Ratios are over the least; `sectors` and `reread` are 0 where the machine model
    was not asked. `kernels`: what schedules each launch, its predicted time and its limit."""

    seed: int
    family: str
    what: str
    nbytes: int
    launches: int
    launches_least: int
    bytes_ratio: float
    reread: float
    sectors: float
    predicted_us: float
    floor_us: float
    limit: str
    seconds: float
    kernels: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def share(self) -> float:
        """The predicted time of a copy (or a read) of the least bytes over the program's."""
        return self.floor_us / self.predicted_us if self.predicted_us else 0.0

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "share": round(self.share, 4)}


def _scheduler(kernel: Kernel) -> str:
    if kernel.parts:
        return f"{len(kernel.parts)} side by side"
    return kernel.heuristic.scheduler if kernel.heuristic else "move"


def from_json(found: dict[str, Any]) -> Forecast:
    """The forecast that a JSON object of `as_json` describes."""
    plain = {k: v for k, v in found.items() if k != "share"}
    lists = {k: tuple(plain[k]) for k in ("kernels", "reasons")}
    return Forecast(**{**plain, **lists})


def compiled(draw: Draw) -> tuple[Program, float]:
    """The program of a draw, with its results in the orders in which a call of the fused function
    returns them, and the seconds of a processor that Python took for it."""
    begun = time.thread_time()
    fusion = draw.trace()
    program = fw.compile(fusion, ARCHITECTURE, out_layouts=draw.layouts(fusion))
    return program, time.thread_time() - begun


def forecast(
    draw: Draw,
    program: Program,
    seconds: float,
    *,
    with_machine: bool = False,
    target: Target | None = None,
) -> Forecast:
    """The forecast of a compiled draw, on a chip like the `target` (the architecture's own by
    default); `with_machine` asks the machine model for sectors."""
    least = draw.least(program.fusion)
    target = target or target_of(ARCHITECTURE)
    costs = [_cost(x, nbytes, target) for x, nbytes in _bound(program)]
    bound = [nbytes for _, nbytes in _bound(program)]
    reread, sectors = _moved(program, bound) if with_machine else (0.0, 0.0)
    slowest = max(costs, key=lambda c: c.us) if costs else None
    return Forecast(
        draw.seed,
        draw.family,
        draw.program.what,
        least.nbytes,
        len(program.launches),
        least.launches,
        round(sum(bound) / least.nbytes, 3),
        round(reread / least.nbytes, 3),
        round(sectors, 3),
        round(sum(c.us for c in costs), 2),
        round(floor_us(least, target), 2),
        slowest.limit if slowest else "",
        round(seconds, 3),
        tuple(
            f"{_scheduler(x.kernel)} {c.us:.1f} {c.limit}"
            for x, c in zip(program.launches, costs, strict=True)
        ),
        tuple(f"{r.tensor}: {r.rule}" for r in program.reasons),
    )


def predicted_us(program: Program, target: Target) -> float:
    """The predicted time of all launches."""
    return sum(_cost(x, nbytes, target).us for x, nbytes in _bound(program))


def floor_us(least: Least, target: Target) -> float:
    """The predicted time of what a draw is measured against: a copy, or a read, of its bytes."""
    written = 0 if least.is_read_mostly else least.nbytes // 2
    return cost(_copy(least.nbytes - written, written, target), target).us


def _copy(read: int, written: int, target: Target) -> Work:
    """The work of a kernel that moves bytes and does nothing else, in full blocks of 256 threads
    with 16 bytes a thread."""
    blocks = max(1, -(-max(read, written) // 4096))
    arrays = (
        MovedArray("source", read, (float(read),), False),
        MovedArray("copy", written, (float(written),), True),
    )
    lines = (read + written) / 128
    return Work(blocks, 256, 1, 0, arrays[: 2 if written else 1], lines, 0, 0, 0, 0, 1, 32, 40, 16)


def _bound(program: Program) -> list[tuple[Dispatch, int]]:
    """The launches with the bytes that they bind."""
    out: list[tuple[Dispatch, int]] = []
    for x in program.launches:
        sites = [*x.reads, *x.writes]
        out.append((x, sum(int(str(s.size)) * s.root.dtype.nbytes for s in sites)))
    return out


def _cost(launch: Dispatch, nbytes: int, target: Target) -> Cost:
    """The predicted time of a launch as it was scheduled, on a chip like the `target`; of one from
    a file, that of a copy."""
    kernel = launch.kernel
    if target != kernel.target:
        groups = [(k.segment, k.heuristic) for k in kernel.parts or (kernel,)]
        known = [(s.dataflow, h) for s, h in groups if s is not None and h is not None]
        found = cost_of(known, target) if len(known) == len(groups) else None
        if found is not None:
            return found
    if kernel.predicted is not None:
        return kernel.predicted
    written = sum(int(str(s.size)) * s.root.dtype.nbytes for s in launch.writes)
    return cost(_copy(nbytes - written, written, target), target)


def _moved(program: Program, bound: Sequence[int]) -> tuple[float, float]:
    """Bytes that launches move with what they read again, and the worst ratio of sectors of those
    launches that matter."""
    total, worst = 0.0, 0.0
    significant = sum(bound) * min(SIGNIFICANT, 0.5 / max(len(bound), 1))
    for x, nbytes in zip(program.launches, bound, strict=True):
        parts = x.kernel.parts or (x.kernel,)  # a few blocks of each show what all of them do
        own = [sum(map(_nbytes, (*k.inputs, *k.outputs))) for k in parts]
        for kernel, share in zip(parts, own, strict=True):
            found = traffic(kernel.ir, kernel.arguments())
            total += nbytes * share / sum(own) * max(1.0, found.byte_ratio)
            if nbytes >= significant:
                worst = max(worst, found.sector_ratio)
    return total, worst


def _nbytes(t: TensorInfo) -> int:
    return math.prod(int(str(n)) for n in t.shape) * t.dtype.nbytes
