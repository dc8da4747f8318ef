"""compile(): the one place that joins the stages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fusewright import knobs, logs
from fusewright.arguments import FLAG, NAMES, TEXT, instance_of, optional, takes
from fusewright.collection import without_collection
from fusewright.errors import FusewrightError, ScheduleError, UnsupportedError, UserError
from fusewright.finish import Made, Origin, finish
from fusewright.forms import chosen_form
from fusewright.fusion.ir import Fusion, Insert, OwnKernel, Region, Tensor
from fusewright.fusion.orders import Order, Orders, c_order
from fusewright.fusion.passes.check_indices import check_indices
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.fold_empty import is_empty
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.fusion.passes.own_outputs import own_outputs
from fusewright.fusion.passes.round_products import round_products
from fusewright.fusion.passes.spread_insertions import insertions_into, spread_insertions
from fusewright.fusion.passes.store_in_orders import store_in_orders
from fusewright.fusion.rules import FUSION, ORDERS, traced_first
from fusewright.host.control import call_of, compiled_bodies
from fusewright.host.fills import attach_fills
from fusewright.host.groups import Reason
from fusewright.host.halves import halves_of
from fusewright.host.in_place import Conflict, held_by, in_order
from fusewright.host.move_work import move_work
from fusewright.host.moves import Moves, move_kernel
from fusewright.host.naming import kernel_name, moves_name
from fusewright.host.place import Placed, place, unplaced_insertions
from fusewright.host.product_forms import sum_rule
from fusewright.host.product_rows import product_reasons
from fusewright.host.refused import tell_refused
from fusewright.host.segment import ScalarParameter, Segment, parameter, segments, structure_of
from fusewright.host.subspans import Subspan, natural
from fusewright.kernel import Kernel, TensorInfo
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.prediction import Prediction, predict
from fusewright.program import Program, program_of, started, tell_compiled
from fusewright.programs.early_launches import check_overlaps, overlapping
from fusewright.programs.join_launches import join_launches, joined_kernel
from fusewright.programs.model import Dispatch
from fusewright.programs.stand_together import stand_together
from fusewright.programs.views import shared_results
from fusewright.programs.whole_loops import Loops, loop_dispatch
from fusewright.progress import told
from fusewright.runtime.config import active
from fusewright.runtime.device import architecture, device_name, has_gpu
from fusewright.runtime.tuning_cache import TunedSchedule, TuningCache
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.passes import PassedSchedule as HandSchedule
from fusewright.schedule.heuristics.rating import Decisions, decided
from fusewright.schedule.order_checks import check_allocation_orders
from fusewright.schedule.products import has_instructions
from fusewright.schedule.shares import check_shared_out
from fusewright.spills import Way, without_spills
from fusewright.target import Target, target_of

_log = logging.getLogger("fusewright.tuned")
_compiled = logging.getLogger("fusewright.compile")


_PROGRAM = instance_of(
    Fusion,
    HandSchedule,
    words="a fusion, which fw.trace returns, or a fw.Schedule of one",
    hint=traced_first,
)


class Schedule(HandSchedule):
    """A schedule by hand: nvFuser's vocabulary, and the way down to a kernel."""

    @takes(ScheduleError, fusion=FUSION)
    def __init__(self, fusion: Fusion) -> None:
        super().__init__(_as_configured(fusion))

    @takes(name=TEXT)
    def lower(self, target: str | Target | None = "sm_90a", *, name: str = "kernel") -> Kernel:
        """The kernel of this schedule. Raises ScheduleError when it is not legal."""
        return by_hand(self, name, target_of(target))

    def predict(self, target: str | Target | None = "sm_90a") -> Prediction:
        """Threads, exact bytes of shared memory with and without reuse, registers, and the
        occupancy of the kernel that `lower` makes, which imposes it with launch bounds.

        Raises ScheduleError as `lower`.
        """
        kernel = self.lower(target)
        return predict(kernel.ir, kernel.target, requested=self.min_blocks)


def _as_configured(fusion: Fusion) -> Fusion:
    """The fusion as the caller's configuration asks: how products round, which indices count."""
    fusion = check_indices(fusion) if active().check_indices else fusion
    return round_products(fusion) if active().float32_matmul == "tf32" else fusion


def by_hand(schedule: HandSchedule, name: str, target: Target) -> Kernel:
    """The kernel of a schedule by hand, with the launch it asks for."""
    logs.start()
    asked, cluster = schedule.min_blocks, schedule.cluster
    origin = Origin(edits=schedule.log)
    return finish(
        schedule.flow, name, target, None, min_blocks=asked, cluster=cluster, origin=origin
    )


Kernels: TypeAlias = dict[object, Made]
"""Kernels by target and structure; programs that are compiled with one table share them."""

TunedOf: TypeAlias = Callable[[Segment], TunedSchedule | None]
"""The schedule that was measured to be best for a segment; None for the rules' choice."""


def no_tuned_schedule(segment: Segment) -> None:
    """The rules choose."""


def tuned_schedules(target: Target) -> TunedOf:
    """What `tune` kept for the GPU of this machine, where code is made for it."""
    wanted = knobs.TUNED.get() and knobs.CACHE.get() and has_gpu()
    if not wanted or architecture() != target.arch:
        return no_tuned_schedule
    return TuningCache(target, device_name()).get


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiles every structure once."""

    target: Target
    kernels: Kernels
    reasons: list[Reason]
    tuned_of: TunedOf
    made: list[Kernel]
    """The kernels made so far, which go into modules together."""
    decisions: Decisions
    """How groups are scheduled, as far as it is decided already."""
    loops: Loops
    """The kernels that run all iterations of a loop."""
    regions: dict[object, tuple[Program, ...]] = field(
        default_factory=dict[object, tuple[Program, ...]]
    )
    """The compiled bodies of regions, by these and the results that something reads."""

    def _make(self, segment: Segment, name: str, scalars: tuple[ScalarParameter, ...]) -> Made:
        """The kernel of a segment, by the schedule that was measured to be best, if there is one;
        one that this version does not know any more is left aside, and the log says so. Else by the
        rules' first candidate, unless another is clearly better."""
        tuned = self.tuned_of(segment)
        if tuned is not None:
            try:
                scheduled = self._scheduled(segment, tuned.params)
                origin = Origin(segment, tuned.measured, self.made)
                return self._finished(name, scalars, scheduled, origin)
            except ScheduleError as e:
                _log.warning("%s: a tuned schedule is ignored: %s", name, e)
        key, known = segment.decided_by, self.decisions
        scheduled = known.scheduled.pop((key, segment.spelled_by), None)
        if key not in known.made:
            known.made[key], scheduled = decided(segment.dataflow, self.target)
        better = known.made[key].better
        origin = Origin(segment, companions=self.made, cost=known.made[key].cost)
        if better is not None:
            try:
                if scheduled is None or scheduled[1] != better:
                    other = self._scheduled(segment, better)
                else:
                    other, scheduled = scheduled, None
                return self._settled(name, scalars, other, origin)
            except ScheduleError as e:
                _compiled.debug("%s: %s, predicted faster, is left: %s", name, better, e)
                origin = replace(origin, cost=None)
        return self._settled(name, scalars, scheduled or self._scheduled(segment), origin)

    def _settled(
        self,
        name: str,
        scalars: tuple[ScalarParameter, ...],
        scheduled: tuple[Dataflow, Params],
        origin: Origin,
    ) -> Made:
        """The kernel as it is scheduled, or by another way where the compiler spills registers."""

        def remade(segment: Segment, way: Way) -> Made:
            other = scheduled if way.params is None else self._scheduled(segment, way.params)
            return self._finished(name, scalars, other, origin, way.min_blocks)

        return without_spills(self._finished(name, scalars, scheduled, origin), remade)

    def _scheduled(self, segment: Segment, wanted: Params | None = None) -> tuple[Dataflow, Params]:
        """As wanted, or by the rules' first candidate."""
        flow = segment.dataflow()
        return flow, schedule_group(flow, self.target, wanted)

    def _finished(
        self,
        name: str,
        scalars: tuple[ScalarParameter, ...],
        scheduled: tuple[Dataflow, Params],
        origin: Origin,
        min_blocks: int = 0,
    ) -> Made:
        flow, params = scheduled
        if origin.segment is not None and len(origin.segment.writes) > 1:
            check_shared_out(flow)
        read = tuple(i for i, s in enumerate(flow.inputs) if flow.consumers(s))
        kernel = finish(flow, name, self.target, params, min_blocks=min_blocks, origin=origin)
        _compiled.debug("%s: scheduled as %s", name, params)
        own = len(kernel.argument_values) - len(origin.fills.values)
        named = zip(kernel.argument_values[:own], kernel.ir.arguments, strict=False)
        places = tuple(scalars.index(parameter(v, a.dtype)) for v, a in named)
        return Made(kernel, read, places)

    def launches(self, segment: Segment) -> list[Dispatch]:
        """The launches of a segment; when lowering refuses it, of its two halves."""
        if isinstance(segment.fusion.outputs[0].op, OwnKernel):
            return [self._own(segment)]
        if isinstance(segment.fusion.outputs[0].op, Region):
            return [self._region(segment)]
        structure, scalars = structure_of(segment.fusion)
        fills = segment.fills or Moves(())
        key = (self.target, structure, segment.layouts, fills.structure, active().deterministic)
        name = kernel_name(segment.fusion, key)
        try:
            if key not in self.kernels:
                self.kernels[key] = self._make(segment, name, scalars)
        except (ScheduleError, UnsupportedError) as e:
            tell_refused(name, segment.fusion, self.target, e)
            halves = halves_of(segment)
            products = [t for t in segment.fusion.values if has_instructions(t)]
            if halves is None and products:
                rule = sum_rule(products[0], str(e), self.target)
                self.reasons.append(Reason(segment.writes[-1].tensor.name, rule))
                return self.launches(replace(segment, fusion=decompose(segment.fusion)))
            if halves is None:
                raise
            _compiled.debug("%s: cut in two: %s", name, e)
            self.reasons.append(Reason(segment.writes[-1].tensor.name, f"cut in two: {e}"))
            out = [x for h in halves for x in self.launches(h)]
            return [*out, self.move(fills)] if fills.moves else out
        made = self.kernels[key]
        reads = (*(segment.reads[i] for i in made.read), *segment.places)
        values = (*(scalars[i].value for i in made.scalars), *fills.values)
        return [Dispatch(made.kernel, reads, (*segment.writes, *fills.writes), values)]

    def _own(self, segment: Segment) -> Dispatch:
        """The launch of a kernel of the program's own. Raises ScheduleError where it cannot be one,
        and for a result that nobody reads."""
        made = {
            t.op.result: s
            for t, s in zip(segment.fusion.outputs, segment.writes, strict=True)
            if isinstance(t.op, OwnKernel)
        }
        op = segment.fusion.outputs[0].op
        assert isinstance(op, OwnKernel)
        unused = set(range(len(op.body.results))) - set(made)
        if unused:
            raise ScheduleError(
                f"{op.fn}: nothing uses its result {min(unused)}, which the kernel would write; "
                "return only what is used"
            )
        kernel, read = op.body.kernel(self.target)
        at = dict(zip(segment.fusion.inputs, segment.reads, strict=True))
        reads = tuple(at[op.operands[k]] for k in read)
        writes = tuple(made[k] for k in sorted(made))
        return Dispatch(kernel, reads, writes, kernel.argument_values)

    def _region(self, segment: Segment) -> Dispatch:
        """The launches of a region, whose bodies are compiled as programs of their own."""
        at = dict(zip(segment.fusion.inputs, segment.reads, strict=True))
        made: dict[int, Subspan] = {}
        for t, site in zip(segment.fusion.outputs, segment.writes, strict=True):
            assert isinstance(t.op, Region)
            made[t.op.result] = site
        op = segment.fusion.outputs[0].op
        assert isinstance(op, Region)
        reads = tuple(at[o] for o in op.operands)
        used = tuple(sorted(made))
        aliased = frozenset(
            k for k in range(op.carried) if k in made and made[k].root is reads[k].root
        )
        call = call_of(op, used, aliased)
        key = op.bodies, op.fn, call.stacked
        if key not in self.regions:
            self.regions[key] = tuple(
                compile_in_place(b, self.target, held, self.tuned_of, self.kernels, is_body=True)
                for b, held in compiled_bodies(op, call.stacked)
            )
        bodies, writes = self.regions[key], tuple(made[k] for k in used)
        x = loop_dispatch(call, bodies, reads, writes, self.loops)
        name = segment.writes[0].tensor.name
        self.reasons.extend(Reason(name, rule) for rule in x.rules)
        inside = (r for b in bodies for r in b.reasons)
        self.reasons.extend(Reason(f"{name} ({op.fn})", str(r)) for r in inside)
        return x.dispatch

    def joined(self, parts: tuple[Kernel, ...]) -> Kernel:
        """The kernel in whose launch the blocks of all parts stand side by side."""
        key = (self.target, *parts)
        if key not in self.kernels:
            self.made[:] = [k for k in self.made if k not in parts]
            self.kernels[key] = Made(joined_kernel(parts, self.made), (), ())
        return self.kernels[key].kernel

    def all_launches(self, fusion: Fusion, placed: Placed) -> list[Dispatch]:
        """The launches of a placed cut, in its order."""
        out: list[Dispatch] = []
        items = attach_fills(segments(fusion, placed.items, placed.sites, placed.joined))
        stand_together(items, self.decisions, self.target)
        for item in told(items, len(items), "compiling kernels"):
            if isinstance(item, Moves):
                out.append(self.move(item))
            elif not all(is_empty(s.tensor) for s in item.writes):
                out.extend(self.launches(item))
        return out

    def move(self, moves: Moves) -> Dispatch:
        """The launch that copies and fills what no kernel computes."""
        key = (self.target, moves.structure)
        if key not in self.kernels:
            lowered = move_kernel(moves, moves_name(key))
            final = run_pipeline(lowered, self.target)
            named = zip(final.params, (*moves.reads, *moves.writes), strict=True)
            infos = [TensorInfo(b.name, s.shape, b.dtype, s.strides) for b, s in named]
            count = len(moves.reads)
            arrays = tuple(infos[:count]), tuple(infos[count:])
            found = cost(move_work(moves), self.target)
            kernel = Kernel(
                final, self.target, *arrays, moves.values, "", companions=self.made,
                lowered=lowered, cost=found,
            )  # fmt: skip
            self.kernels[key] = Made(kernel, (), ())
        return Dispatch(self.kernels[key].kernel, moves.reads, moves.writes, moves.values)


@takes(
    fusion=_PROGRAM, dynamic=FLAG, donate=NAMES, out_layouts=optional(ORDERS), alias_results=FLAG
)
def compile(
    fusion: Fusion | HandSchedule,
    target: str | Target | None = "sm_90a",
    dynamic: bool = False,
    donate: Sequence[str] = (),
    out_layouts: Sequence[Order | None] | None = None,
    alias_results: bool = False,
) -> Program:
    """The program of a fusion (or of one schedule by hand): kernels, host program, reasons.

    `dynamic` asks that no size of the arguments costs a compile: a fusion without symbolic sizes,
    which serves its own sizes only, is then refused. Kernels over symbolic sizes are the general,
    multi-pass ones in any case; where sizes are specialised on, `fuse` decides it. Needs no GPU.
    `donate` names inputs whose memory may hold a result of the same shape, dtype and C order. What
    such an array holds after a call is undefined, unless it is the result: `fw.insert` then writes
    only its block. Where the old content is still needed the result gets memory of its own, and
    `host.stats["not_placed"]` says why; an argument that holds no result then takes what kernels
    store for each other, once nobody reads it any more (`host.stats["lent"]`).
    `out_layouts`: the order of axes in memory that is required of each result, slowest first, None
    for C order; without it no order is promised, and `layouts` says which one was made.
    `alias_results`: results may share memory with arguments that are not donated, and with each
    other: those that are views of them, such as `x.T` and `x[1:]`, are, and cost no launch.
    Raises no UnsupportedError: what one kernel cannot hold becomes several. Raises UserError for a
    donated name that is no input, for `dynamic` without a symbolic size, for `out_layouts` that are
    no orders of the results' axes or stand beside `alias_results`, as a view lies as its array
    does, and under `fw.config(early_launches=True)` for a target whose launches cannot overlap;
    ScheduleError where a schedule by hand stores a result in another order than required.
    """
    chosen = target_of(target)
    original = fusion.original if isinstance(fusion, HandSchedule) else fusion
    if dynamic and not original.symbols:
        raise UserError(
            "compile(dynamic=True): no size of this fusion is symbolic; give the axes that change "
            'names in the specs, as in TensorSpec(("n", 64), "float32"), or leave dynamic out'
        )
    if alias_results and out_layouts is not None:
        raise UserError(
            "compile(alias_results=True, out_layouts=..): a result that is a view lies as its "
            "array does; leave one of the two out"
        )
    if isinstance(fusion, HandSchedule):
        if donate or alias_results:
            given = "alias_results=True" if alias_results else f"donate={tuple(donate)!r}"
            raise UserError(
                f"{given}: a schedule by hand writes results of its own; compile the fusion instead"
            )
        return _of_schedule(fusion, chosen, out_layouts)
    names = {t.name: k for k, t in enumerate(fusion.inputs)}
    for name in donate:
        if name not in names:
            raise UserError(f"donate: there is no input {name!r}; use some of {', '.join(names)}")
    donated = {names[name]: None for name in donate}
    return compile_in_place(
        fusion, chosen, donated, out_layouts=out_layouts, alias_results=alias_results
    )


def _of_schedule(
    schedule: HandSchedule, target: Target, out_layouts: Sequence[Order | None] | None
) -> Program:
    if out_layouts is not None:
        check_allocation_orders(schedule, out_layouts)
    kernel = by_hand(schedule, "kernel", target)
    whole, flow = own_outputs(schedule.original, each=True), schedule.flow
    pairs = zip(whole.inputs, flow.inputs, strict=True)
    read = tuple(t for t, s in pairs if flow.consumers(s))
    reads = tuple(natural(t) for t in read)
    infos = zip(whole.outputs, kernel.outputs, strict=True)
    writes = tuple(natural(t, i.strides) for t, i in infos)
    launch = Dispatch(kernel, reads, writes, kernel.argument_values)
    orders = Orders(required=_required(whole, out_layouts))
    return started(Program(whole, (launch,), (), target, orders=orders))


def _required(fusion: Fusion, orders: Sequence[Order | None] | None) -> dict[str, Order]:
    """By the names of results the orders that are required of them."""
    pairs = zip(fusion.outputs, orders or (), strict=orders is not None)
    return {t.name: o or c_order(t.ndim) for t, o in pairs}


@without_collection()
def compile_in_place(
    fusion: Fusion,
    target: Target,
    donated: Mapping[int, int | None] | None = None,
    tuned_of: TunedOf | None = None,
    kernels: Kernels | None = None,
    out_layouts: Sequence[Order | None] | None = None,
    alias_results: bool = False,
    *,
    is_body: bool = False,
) -> Program:
    """The program of a fusion whose donated inputs, by position, may hold a result: the output at
    a position, or any that fits where that is None. Kernels are scheduled as `tuned_of` says of
    their segments, by default as `tune` found to be best on this machine. Those in `kernels` are
    taken from there, others added. `out_layouts` and `alias_results` as those of `compile`, but
    that views lie in no order that is asked for. Code of a body of a region is not made yet.

    Blocks at places that only the device knows are written alone where what is around them lies in
    a donated input already; where that fails, all around them is written too.
    """
    logs.start()
    began = time.perf_counter()
    donated = donated or {}
    shared = None
    if alias_results:
        shared = shared_results(fusion, [fusion.inputs[k].name for k in donated])
    if shared is not None:
        fusion, out_layouts = shared.rest, shared.computed(out_layouts)
        donated = {k: shared.place_of(at) for k, at in donated.items()}
    fusion = _as_configured(store_in_orders(fusion, out_layouts))
    given = [fusion.inputs[k] for k in donated]
    known: Kernels = {} if kernels is None else kernels
    moving = {t.name for t in insertions_into(fusion, given)}
    spread: dict[str, str] = {}
    while True:
        tuned, together = tuned_of or tuned_schedules(target), list[Kernel]()
        compiler = _Compiler(target, known, [], tuned, together, Decisions(), Loops(together))
        whole = spread_insertions(fusion, moving - spread.keys())
        made = _in_place(whole, compiler, donated, out_layouts, spread)
        if isinstance(made, Program):
            made = made if is_body else _overlapping(made)
            started(made, with_code=not is_body)
            if shared is not None:
                made.shared = shared
                made.reasons += tuple(Reason(*r) for r in shared.reasons)
            tell_compiled(made, time.perf_counter() - began)
            return made
        spread |= made


def _overlapping(program: Program) -> Program:
    """The program with launches that begin early, where the caller chose that. A body of a region
    is another program, before and behind which all launches have ended."""
    if not active().early_launches:
        return program
    check_overlaps(program.target)
    launches, reasons = overlapping(program.launches, program.assembled.launches)
    model = replace(program, launches=tuple(launches), reasons=(*program.reasons, *reasons))
    return program_of(model)


def _in_place(
    fusion: Fusion,
    compiler: _Compiler,
    donated: Mapping[int, int | None],
    out_layouts: Sequence[Order | None] | None,
    spread: Mapping[str, str],
) -> Program | dict[str, str]:
    """The program of a fusion, or the insertions in it that are not to be written alone, by name,
    with the reasons. `spread`: those that were in it before."""
    target = compiler.target
    given = [fusion.inputs[k] for k in donated]
    form = chosen_form(fusion, target, given=given, decisions=compiler.decisions)
    whole, cut = form.fusion, form.formation
    required = _required(whole, out_layouts)
    permuted = {n: o for n, o in required.items() if o != c_order(len(o))}
    choices = held_by(whole, donated, permuted)
    refused = {x.name: "no result has its shape, dtype and C order" for x in choices}
    while True:
        held: dict[Tensor, Tensor] = {}
        for x, outputs in choices.items():
            free = next((t for t in outputs if t not in held), None)
            if free is not None:
                held[free] = x
        compiler.reasons.clear()
        placed = place(whole, cut, held)
        if unplaced := unplaced_insertions(whole, placed, held, refused):
            return unplaced
        launches = compiler.all_launches(whole, placed)
        calls = [x.call for x in launches]
        order = in_order(calls, placed.versions) if held else range(len(launches))
        if not isinstance(order, Conflict):
            break
        given_up = next((t for t, x in held.items() if x is order.argument), None)
        if given_up is None:
            return {t.name: order.why for t in whole.values if isinstance(t.op, Insert)}
        choices[order.argument].remove(given_up)
        refused[order.argument.name] = order.why
    kept = {x.name for x in held.values()}
    not_placed = {n: f"not written in place: {why}" for n, why in refused.items() if n not in kept}
    not_placed |= {n: f"all around its block is written: {why}" for n, why in spread.items()}
    pieces = replace(placed.pieces, not_placed={**placed.pieces.not_placed, **not_placed})
    forms = (Reason(*x) for x in product_reasons(narrow_products(fusion), target))
    reasons = (*forms, *cut.reasons, *pieces.reasons, *compiler.reasons)
    ordered = tuple(join_launches([launches[k] for k in order], compiler.joined))
    stored = [s.tensor.name for x in ordered for s in x.writes]
    orders = replace(form.orders.of(stored), required=required, permuted=permuted)
    free = [whole.inputs[k] for k, at in donated.items() if at is None]
    lenders = tuple(x for x in free if x.name not in kept)
    return Program(whole, ordered, reasons, target, pieces, held, orders, lenders)


__all__ = ["FusewrightError", "Schedule", "compile"]
