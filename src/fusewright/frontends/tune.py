"""`fw.tune`: a few candidates of every kernel are measured, and the fastest are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewright import knobs
from fusewright.arguments import FUNCTION, ArgumentRule, Unfit, optional, takes
from fusewright.driver import TunedOf, compile_in_place, no_tuned_schedule
from fusewright.errors import UserError
from fusewright.frontends.fuse import Fused
from fusewright.fusion.ir import Fusion
from fusewright.fusion.orders import Order
from fusewright.fusion.passes.store_in_orders import store_in_orders
from fusewright.host.segment import Segment, structure_of
from fusewright.kernel import Kernel
from fusewright.program import Program
from fusewright.report.table import table
from fusewright.runtime.arrays import ArrayInfo
from fusewright.runtime.clock import Clock, DeviceClock
from fusewright.runtime.device import has_gpu
from fusewright.runtime.tuning_cache import TunedSchedule, TuningCache
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.rating import Rated
from fusewright.target import Target

MOST = 6
"""Candidates of a kernel that are measured: the rules' choice, and the fastest by prediction."""
LEAST_GAIN = 0.01
"""Of the program's time, by which a candidate must be faster to replace the rules' choice."""


@dataclass(eq=False)
class TrialRun:
    """A program in which one kernel follows another candidate; a call enqueues it. `kernel` and
    `what` name both, `params` are the candidate's; `arguments` and `numbers` are those of the
    call."""

    program: Program
    kernel: str
    what: str
    params: Params
    arguments: Sequence[ArrayInfo]
    numbers: Sequence[int] = ()
    _enqueue: Callable[[], None] | None = field(default=None, repr=False)

    def __call__(self) -> None:
        if self._enqueue is None:
            self._enqueue = self.program.calls.bind_memory(self.arguments, self.numbers)
        self._enqueue()


@dataclass(frozen=True, slots=True)
class Timed:
    """One measured candidate: times of the whole program, and of the kernel as predicted."""

    kernel: str
    what: str
    us: float
    predicted_us: float
    is_default: bool
    is_winner: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` measured; `str` of it is a table. `left_out`: candidates that do not compile."""

    device: str
    timed: tuple[Timed, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        rows = [
            (t.kernel, f"{t.us:.1f}", f"{t.predicted_us:.1f}", t.what, _mark(t)) for t in self.timed
        ]
        header = ("kernel", "program us", "kernel us, predicted", "candidate", "")
        lines = [f"tuned on {self.device}", table(header, rows)]
        return "\n".join([*lines, *(f"left out: {x}" for x in self.left_out)])


def _clock(value: Any) -> Any:
    if not callable(value) or not isinstance(getattr(value, "device", None), str):
        raise Unfit
    return value


CLOCK = ArgumentRule(
    "a clock: an object with the name of a device as `device`, called with a list of programs, "
    "which returns microseconds for each",
    _clock,
)


def _mark(t: Timed) -> str:
    if t.is_winner:
        return "kept, by the rules too" if t.is_default else "kept"
    return "by the rules" if t.is_default else ""


@takes(fn=FUNCTION, clock=optional(CLOCK))
def tune(fn: Callable[..., Any], *args: Any, clock: Clock | None = None, **kwargs: Any) -> Tuning:
    """Measures a few candidates for every kernel that a call with these arguments runs, and keeps
    the fastest in the disk cache: later calls of `fw.fuse` and `fw.compile` on this kind of device
    use them, in this process and others; of a function that `fw.fuse` made at once.

    Every candidate is a schedule like any other: its syncs are inferred, checked and, from run to
    run, its results are bitwise equal. Between schedules the order of sums may differ.

    `clock` measures instead of CUDA events on the first GPU. Raises UserError without a GPU, and
    where the cache cannot be written.
    """
    if not knobs.CACHE.get():
        raise UserError(
            f"tune keeps what it measures in the disk cache, which {knobs.CACHE.name}=0 turns off; "
            "unset it"
        )
    if clock is None:
        if not has_gpu():
            raise UserError(
                "tune measures on a GPU, and no CUDA device was found; explain() gives predicted "
                "times without one, and clock= takes times from elsewhere"
            )
        clock = DeviceClock()
    return _tuned(fn if isinstance(fn, Fused) else Fused(fn), args, kwargs, clock)


def tune_rest(fused: Fused, args: tuple[Any, ...], clock: Clock) -> Tuning:
    """`tune`, but what was measured before on this kind of device, by any process, is not measured
    again."""
    return _tuned(fused, args, {}, clock, again=False)


def _tuned(
    fused: Fused,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    clock: Clock,
    *,
    again: bool = True,
) -> Tuning:
    session = Session(clock)

    def tuned(
        fusion: Fusion,
        orders: Sequence[Order | None],
        target: Target,
        arguments: Sequence[ArrayInfo],
        numbers: Sequence[int],
    ) -> Program:
        kept = TuningCache(target, clock.device)
        known: TunedOf = no_tuned_schedule if again else kept.get
        stored = store_in_orders(fusion, orders)
        best = session.measure(stored, target, arguments, known, numbers)
        for segment, fastest in best:
            kept.put(segment, fastest)
        table = {_key(segment): fastest for segment, fastest in best}
        return build(fusion, target, lambda s: table.get(_key(s)) or known(s), orders)

    fused.recompile(args, kwargs, tuned)
    return session.tuning()


def build(
    fusion: Fusion,
    target: Target,
    tuned_of: TunedOf,
    orders: Sequence[Order | None] | None = None,
) -> Program:
    """The program of a fusion, its arguments left as they are, its results in these orders."""
    return compile_in_place(fusion, target, {}, tuned_of, out_layouts=orders)


class Session:
    """The candidates of programs, those of one program measured together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timed: list[Timed] = []
        self._left_out: list[str] = []

    def tuning(self) -> Tuning:
        """What was measured so far."""
        return Tuning(self._clock.device, tuple(self._timed), tuple(self._left_out))

    def measure(
        self,
        fusion: Fusion,
        target: Target,
        arguments: Sequence[ArrayInfo],
        known: TunedOf = no_tuned_schedule,
        numbers: Sequence[int] = (),
    ) -> list[tuple[Segment, TunedSchedule]]:
        """The fastest candidate of each kernel of a fusion's program that has several, and of which
        it is not `known`."""
        usual = build(fusion, target, no_tuned_schedule)
        asked = [k for k in usual.kernels if k.segment is None or known(k.segment) is None]
        groups = {k: c for k in asked if len(c := _worth_measuring(k)) > 1}
        runs: list[TrialRun] = []
        for kernel, chosen in groups.items():
            runs += self._runs(fusion, usual, kernel, chosen, (arguments, numbers))
        times = self._clock(runs) if runs else []
        out: list[tuple[Segment, TunedSchedule]] = []
        for kernel, chosen in groups.items():
            own = [(r, us) for r, us in zip(runs, times, strict=True) if r.kernel == kernel.name]
            assert kernel.segment is not None
            out.append((kernel.segment, self._winner(kernel, chosen, own)))
        return out

    def _runs(
        self,
        fusion: Fusion,
        usual: Program,
        kernel: Kernel,
        chosen: Sequence[Rated],
        given: tuple[Sequence[ArrayInfo], Sequence[int]],
    ) -> list[TrialRun]:
        """Programs that differ in the candidate of one kernel, the usual one first."""
        assert kernel.segment is not None
        key = _key(kernel.segment)
        out = [TrialRun(usual, kernel.name, chosen[0].what, chosen[0].params, *given)]
        for c in chosen[1:]:
            fastest = TunedSchedule(c.params, ())
            made = build(fusion, usual.target, lambda s, w=fastest: w if _key(s) == key else None)
            found = next((k for k in made.kernels if k.name == kernel.name), None)
            if found is None or found.heuristic != c.params:
                self._left_out.append(f"{kernel.name}, {c.what}: lowering refuses it")
                continue
            out.append(TrialRun(made, kernel.name, c.what, c.params, *given))
        return out

    def _winner(
        self, kernel: Kernel, chosen: Sequence[Rated], own: Sequence[tuple[TrialRun, float]]
    ) -> TunedSchedule:
        """The fastest by more than noise; the first is what the rules chose."""
        usual = own[0][1]
        best, us = min(own, key=lambda found: found[1])
        if us > (1 - LEAST_GAIN) * usual:
            best = own[0][0]
        predicted = {c.params: c.cost.us for c in chosen}
        for run, t in own:
            first, won = run is own[0][0], run is best
            self._timed.append(Timed(kernel.name, run.what, t, predicted[run.params], first, won))
        return TunedSchedule(best.params, tuple((r.params, t) for r, t in own))


def _key(segment: Segment) -> object:
    """What kernels are told apart by."""
    places = segment.layouts
    return structure_of(segment.fusion)[0], places


def _worth_measuring(kernel: Kernel) -> list[Rated]:
    """What the rules chose, then the others that are predicted fastest."""
    rated = [c for c in kernel.candidates if isinstance(c, Rated)]
    first = [c for c in rated if c.params == kernel.heuristic]
    others = sorted((c for c in rated if c not in first), key=lambda c: c.cost.us)
    return [*first, *others[: MOST - 1]] if first else []
