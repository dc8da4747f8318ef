"""The user's handle on a schedule: nvFuser's vocabulary in Python spelling.

A `Schedule` owns a derived copy of the fusion's dataflow; the fusion itself never changes.
Axis arguments are ints into the tensor's current loop domain, negative allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from fusewright.arguments import takes
from fusewright.core.expr import Int, constant_value
from fusewright.errors import ScheduleError, UserError
from fusewright.fusion.ir import Fusion, Reduce
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.fold_empty import fold_empty
from fusewright.fusion.rules import FUSION
from fusewright.memory import Memory
from fusewright.schedule.copies import copy_after, copy_before, recompute
from fusewright.schedule.edits import EditCall, calls_of, replay
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.grid_requests import work_of_request
from fusewright.schedule.inline import adopt_prefix, consumers_of, inline_most
from fusewright.schedule.instructions import (
    check_box,
    check_instruction,
    check_registers,
    check_staging,
    mma_loops,
    warp_loops,
)
from fusewright.schedule.nest import build_nest, reduced_loops
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.permutations import permutation_of
from fusewright.schedule.persistent import walk_over_tiles
from fusewright.schedule.products import has_instructions, view_in_place
from fusewright.schedule.propagate import transform_like
from fusewright.schedule.render import print_schedule
from fusewright.schedule.rfactor import rfactor
from fusewright.schedule.rules import (
    LOG,
    ON_SCHEDULES,
    ON_TENSORS,
    check_by,
    check_call,
    checked,
)
from fusewright.schedule.tensor_passes import TensorPasses
from fusewright.target import MAX_CLUSTER


@checked(ON_TENSORS)
class ScheduledTensor(TensorPasses):
    """One tensor of a schedule. Every method edits the schedule and raises ScheduleError, leaving
    it as it was, when the edit is not legal."""

    __slots__ = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The current loop domain, one entry a loop: extent and binding."""
        return tuple(f"{x.parallel.value}{{{x.axis.extent}}}" for x in self.stage.loops)

    @property
    def memory(self) -> Memory:
        return self.stage.memory

    def __repr__(self) -> str:
        return f"{self.name}[{', '.join(self.axes)}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduledTensor) and other.stage is self.stage

    def __hash__(self) -> int:
        return hash(self.stage)

    # --- loops ----------------------------------------------------------------------------------

    def split(self, axis: int, factor: int, inner: bool = True) -> ScheduledTensor:
        """`[.., E, ..] -> [.., ceil(E/factor), factor, ..]`, or with inner=False exactly `factor`
        outer parts: `[.., factor, ceil(E/factor), ..]`."""
        i = self._editable(axis, "split")
        if factor < 1:
            raise ScheduleError(
                f"split({self.name}, axis={axis}, factor={factor}): a loop has at least one "
                "iteration; use a factor from 1 on"
            )
        loop = self.stage.loops[i]
        outer, inside = self._schedule.flow.graph.split(loop.axis, factor, inner)
        self._set(i, 1, (Loop(outer, loop.parallel), Loop(inside)))
        return self

    def merge(self, axis: int, axis2: int | None = None) -> ScheduledTensor:
        """`[.., A, B, ..] -> [.., A*B, ..]`; `axis2` defaults to the next axis. The merged loop
        stands where the outer one stood."""
        i = self._editable(axis, "merge")
        j = self._editable(axis2 if axis2 is not None else i + 1, "merge")
        if i == j:
            raise ScheduleError(
                f"merge({self.name}, {axis}, {axis2}): both are loop {i}; give two loops"
            )
        loops = list(self.stage.loops)
        merged = self._schedule.flow.graph.merge(loops[i].axis, loops[j].axis)
        loops[i] = Loop(merged, loops[i].parallel)
        del loops[j]
        self._commit(tuple(loops))
        return self

    def reorder(self, order: Mapping[int, int] | Sequence[int]) -> ScheduledTensor:
        """Moves loop `k` to position `order[k]`; loops not named keep their relative order. A
        sequence is a permutation: position j takes loop `order[j]`."""
        n = len(self.stage.loops)
        permutation = permutation_of(self.name, order, n, lambda k: self._axis(k, "reorder"))
        first = next((j for j, k in enumerate(permutation) if j != k), n)
        if first < self.stage.inline_depth:
            raise ScheduleError(
                f"reorder({self.name}): loop {first} is shared with its readers; transform first, "
                "inline after"
            )
        self._commit(tuple(self.stage.loops[k] for k in permutation))
        return self

    def swizzle(self, axis: int, axis2: int) -> ScheduledTensor:
        """`(a, b) -> (a, b ^ a)` on two loops whose extents are equal powers of two."""
        i, j = self._editable(axis, "swizzle"), self._editable(axis2, "swizzle")
        loops = list(self.stage.loops)
        sizes = [constant_value(loops[k].axis.extent) for k in (i, j)]
        if None in sizes or sizes[0] != sizes[1] or not math.log2(sizes[0] or 3).is_integer():
            raise ScheduleError(
                f"swizzle({self.name}, {axis}, {axis2}): extents {sizes[0]} and {sizes[1]} must "
                "be the same power of two"
            )
        a, b = self._schedule.flow.graph.swizzle(loops[i].axis, loops[j].axis)
        loops[i], loops[j] = Loop(a, loops[i].parallel), Loop(b, loops[j].parallel)
        self._commit(tuple(loops))
        return self

    def serpentine(self, axis: int, by: int) -> ScheduledTensor:
        """`(b, a) -> (b, a)` with `a` run backwards where `b` is odd: where one run of `a` ends the
        next begins."""
        i, j = self._editable(axis, "serpentine"), self._editable(by, "serpentine")
        if i == j:
            raise ScheduleError(
                f"serpentine({self.name}, axis={axis}, by={by}): both are loop {i}; give two loops"
            )
        loop, other = self.stage.loops[i], self.stage.loops[j]
        turned = self._schedule.flow.graph.serpentine(loop.axis, other.axis)
        self._set(i, 1, (Loop(turned, loop.parallel),))
        return self

    def parallelize(self, axis: int, parallel: Parallel) -> ScheduledTensor:
        """Binds a loop. One loop of a tensor a dimension; a Vectorize loop is innermost and of a
        constant extent."""
        i = self._axis(axis, "parallelize")
        check_instruction(self.stage, i, f"parallelize({self.name}, axis={axis}, {parallel.value})")
        loops = list(self.stage.loops)
        if parallel is Parallel.MMA and not self.stage.is_staged:
            raise ScheduleError(
                f"parallelize({self.name}, axis={axis}, Mma): the loops inside of a matrix "
                "instruction are made together; call mma()"
            )
        if parallel is Parallel.BULK:
            check_box(self.stage, i)
        taken = [x for k, x in enumerate(loops) if x.parallel is parallel and k != i]
        if taken and not parallel.is_serial and parallel not in (Parallel.BULK, Parallel.MMA):
            raise ScheduleError(
                f"parallelize({self.name}, axis={axis}, {parallel.value}): another loop of "
                f"{self.name} is bound to {parallel.value} already; merge them first"
            )
        size = constant_value(loops[i].axis.extent)
        if parallel is Parallel.CLUSTERX and (size is None or not 2 <= size <= MAX_CLUSTER):
            raise ScheduleError(
                f"parallelize({self.name}, axis={axis}, ClusterX): extent {loops[i].axis.extent} "
                f"is not a constant from 2 to {MAX_CLUSTER}, the blocks a cluster may have; split "
                "the loop by such a number first"
            )
        if parallel is Parallel.VECTORIZE and not isinstance(loops[i].axis.extent, Int):
            raise ScheduleError(
                f"parallelize({self.name}, axis={axis}, Vectorize): extent {loops[i].axis.extent} "
                "is not constant; split by the vector width first"
            )
        loops[i] = Loop(loops[i].axis, parallel)
        self._commit(tuple(loops))
        return self

    # --- place ----------------------------------------------------------------------------------

    def inline_at(self, consumer: ScheduledTensor, axis: int) -> ScheduledTensor:
        """Computes this tensor inside the first `axis` loops of `consumer` (-1: all of them), which
        it then shares with all its readers."""
        reader = consumer.stage
        if self.stage not in reader.operands:
            raise ScheduleError(f"inline_at: {consumer.name} does not read {self.name}")
        depth = axis if axis >= 0 else len(reader.loops) + 1 + axis
        if not 0 <= depth <= len(reader.loops):
            raise ScheduleError(
                f"inline_at({self.name}, {consumer.name}, {axis}): {consumer.name} has "
                f"{len(reader.loops)} loops to share; use 0..{len(reader.loops)}, or -1 for all"
            )
        self._commit(adopt_prefix(self._schedule.flow, self.stage, reader, depth))
        self.stage.inline_depth = depth
        self._schedule.check()
        return self

    def set_memory(self, memory: Memory) -> ScheduledTensor:
        """Keeps the tensor in registers (`fw.LOCAL`), shared memory, or global memory."""
        if self.stage.is_input or self.stage in self._schedule.flow.outputs:
            raise ScheduleError(
                f"set_memory({self.name}): inputs and outputs live in global memory; "
                "cache_after or cache_before makes a copy that can live elsewhere"
            )
        if memory is Memory.GLOBAL:
            raise ScheduleError(
                f"set_memory({self.name}, GLOBAL): an intermediate in global memory crosses "
                "blocks; make it an output, or let compile() cut the fusion there"
            )
        if memory is not Memory.SHARED:
            self.stage.promote, self.stage.copied, self.stage.stages = False, None, 1
        was_virtual = self.stage.is_virtual
        self.stage.memory = memory
        if was_virtual:  # a literal is tied to nothing; now it is a value with loops of its own
            self._schedule.flow.retie()
        return self

    def promote_reuse(self, on: bool = True) -> ScheduledTensor:
        """Asks for a sync, where none is, that frees this tensor's memory after its last use."""
        if on and self.stage.memory is not Memory.SHARED:
            raise ScheduleError(
                f"promote_reuse({self.name}): it lives in {self.stage.memory.value} memory, only "
                "shared memory is reused; call set_memory(fw.SHARED) first"
            )
        self.stage.promote = on
        return self

    @property
    def promotes_reuse(self) -> bool:
        """Whether promote_reuse was asked for."""
        return self.stage.promote

    def set_allocation_order(self, order: Sequence[int]) -> ScheduledTensor:
        """Stores the tensor with axis `order[0]` outermost. For outputs it is the order in memory
        of the array that is returned."""
        if sorted(order) != list(range(len(self.stage.shape))):
            raise ScheduleError(
                f"set_allocation_order({self.name}, {tuple(order)}): not a permutation of "
                f"{len(self.stage.shape)} axes"
            )
        self.stage.allocation_order = tuple(order)
        return self

    # --- dataflow -------------------------------------------------------------------------------

    def cache_after(
        self,
        by: str | None = None,
        readers: Iterable[ScheduledTensor] | None = None,
        memory: Memory = Memory.LOCAL,
    ) -> ScheduledTensor:
        """`t -> c = copy(t)`; every reader of t, or those given, read c. Returns c, in registers,
        or in shared `memory`; `by` "cp_async" or "bulk" in shared memory, filled by copies that
        pass by the registers, of a view by strides of an input from where the input lies."""
        check_by(self.stage, by, ("cp_async", "bulk"))
        flow = self._schedule.flow
        users = flow.consumers(self.stage)
        chosen = users if readers is None else [r.stage for r in readers]
        strange = [r.name for r in chosen if r not in users]
        if strange:
            raise ScheduleError(
                f"cache_after({self.name}): {', '.join(strange)} does not read it; its readers are "
                f"{', '.join(r.name for r in users)}"
            )
        if not chosen:
            raise ScheduleError(f"cache_after({self.name}): nothing reads it; use cache_before")
        s = self.stage
        if by is not None:
            s = view_in_place(flow, s, chosen) or s
        if by is not None and not s.is_input and not s.is_viewed:
            raise ScheduleError(
                f"cache_after({self.name}, by={by!r}): asynchronous copies read global memory, and "
                f"{self.name} is computed here; use by=None"
            )
        if memory is Memory.GLOBAL:
            raise ScheduleError(
                f"cache_after({self.name}, memory=fw.GLOBAL): a copy is nearer than global memory; "
                "use fw.LOCAL or fw.SHARED"
            )
        c = copy_after(flow, s, readers=chosen, memory=memory)
        if by is not None:
            c.memory, c.copied = Memory.SHARED, by
        return ScheduledTensor(self._schedule, c)

    def cache_before(self, by: str | None = None) -> ScheduledTensor:
        """`t = op(..) -> c = op(..); t = copy(c)`. Returns c, in registers, with the loops of t;
        `by` "stmatrix", for an output that is a copy, in a tile of shared memory, stored there by
        matrices, of 4-byte elements by pairs: bind its last three loops to Mma, and the last two
        of t to Bulk."""
        check_by(self.stage, by, ("stmatrix",))
        s, flow = self.stage, self._schedule.flow
        if by is not None:
            check_staging(flow.outputs, self.stage, by)
        if s.is_input:
            raise ScheduleError(f"cache_before({self.name}): it is an input; use cache_after")
        c = copy_before(flow, s)
        if by is not None:
            c.memory, c.is_staged, s.copied = Memory.SHARED, True, "bulk"
        return ScheduledTensor(self._schedule, c)

    def recompute(self) -> list[ScheduledTensor]:
        """A clone per reader, so that each may inline its own. Returns the clones, this first."""
        s = self.stage
        if s.is_input:
            raise ScheduleError(
                f"recompute({self.name}): it is an input, which nothing computes; use cache_after"
            )
        clones = recompute(self._schedule.flow, s)
        return [ScheduledTensor(self._schedule, c) for c in clones]

    def rfactor(self, axes: Sequence[int] | int) -> ScheduledTensor:
        """Reduces the loops `axes` in a tensor of their own; this one reduces the rest of them.
        Returns the new tensor, nvFuser's rFactor."""
        if not isinstance(self.stage.op, Reduce):
            raise ScheduleError(
                f"rfactor({self.name}): it is no reduction; call it on a sum, a maximum, ..."
            )
        chosen = [axes] if isinstance(axes, int) else list(axes)
        positions = [self._axis(a, "rfactor") for a in chosen]
        reducing = reduced_loops(self._schedule.flow.graph, self.stage)
        for a, i in zip(chosen, positions, strict=True):
            if i not in reducing:
                raise ScheduleError(
                    f"rfactor({self.name}, {a}): loop {a} does not reduce; those that do are "
                    f"{', '.join(map(str, reducing))}"
                )
        if set(positions) == set(reducing):
            raise ScheduleError(
                f"rfactor({self.name}, {chosen}): these are all its reducing loops; leave one"
            )
        partial = rfactor(self._schedule.flow, self.stage, positions)
        return ScheduledTensor(self._schedule, partial)

    def circular_buffer(
        self,
        stages: int,
        prefetch: int | None = None,
        warp_specialized: bool = False,
        registers: tuple[int, int] | None = None,
        ping_pong: bool = False,
    ) -> ScheduledTensor:
        """Keeps `stages` tiles of this tensor in shared memory, and copies `prefetch` (default
        stages - 1) of them before they are used. A tile is what one iteration of the serial loop
        reads in which this tensor is computed.

        `warp_specialized`: a warp of its own issues the copies; `registers` are those that each
        thread of its warpgroup keeps, and that each of the others gets. In `ping_pong` a second
        warpgroup computes every other iteration of the outermost serial loop, in registers and
        shared memory of its own, so that what follows a tile stands beside the next one's copies
        and products."""
        what = f"circular_buffer({self.name}, {stages})"
        if warp_specialized and self.stage.copied != "bulk":
            raise ScheduleError(
                f"{what}: warps of their own issue copies of the copy engine only; make it with "
                "cache_after(by='bulk'), or leave warp_specialized out"
            )
        if registers is not None:
            check_registers(what, warp_specialized, registers)
        if ping_pong and not warp_specialized:
            raise ScheduleError(
                f"{what}: warpgroups take tiles in turn that warps of their own copy; give "
                "warp_specialized=True, or leave ping_pong out"
            )
        if self.stage.copied is None:
            raise ScheduleError(
                f"circular_buffer({self.name}): only asynchronous copies run ahead; make it with "
                "cache_after(by='cp_async') or cache_after(by='bulk')"
            )
        ahead = stages - 1 if prefetch is None else prefetch
        if stages < 2 or not 1 <= ahead < stages:
            raise ScheduleError(
                f"circular_buffer({self.name}, {stages}, prefetch={ahead}): at least 2 stages, of "
                "which at least 1 and all but one at most are copied ahead"
            )
        self.stage.stages, self.stage.ahead = stages, ahead
        self.stage.warp_specialized = warp_specialized
        self.stage.registers, self.stage.ping_pong = registers or (), ping_pong
        return self

    def request_serial_grid_reduction(
        self,
        mode: str = "vector",
        work_dtype: object = None,
        read_back: str = "vector",
        stream: bool = False,
    ) -> ScheduledTensor:
        """Lets the blocks over which this reduction runs combine their parts in one kernel, in a
        fixed order. `mode` "vector": a block after the other adds its part to scratch in global
        memory, by accesses of whole vectors, and the last one keeps the result; "tma": the copy
        engine adds parts from shared memory to it, and the last block loads them by vectors, or
        gets them into shared memory by the copy engine (`read_back` "bulk"). What reads the result
        runs in the last block; with `n` blocks the sum waits for `n - 1` hand-overs. In both a sum
        that is an output as it is, in its own dtype, is added up there, without scratch. "slices":
        every block leaves its part, waits for the others, and finishes a share of the sum and of
        what reads it; the blocks are
        neighbours along BIDx, and at most as many as there are multiprocessors. Of a scan over
        blocks, each gets the totals of the parts of all, in this mode only. "all": the same, but
        every block adds up all parts, so that all of them may read the sum; threads of a block may
        reduce, too, and products may not be asked for it. Where the loop is bound to ClusterX
        instead, "slices" goes through the blocks' shared memory: no scratch and no semaphores, for
        at most 8 blocks; where loops are bound to both, clusters reduce first, and each block
        leaves a slice of the share that it has finished. `work_dtype`, float16 or bfloat16 for
        sums that accumulate in float32, is what parts are rounded to on the way, for half the
        traffic; by default they stay what they are. With `stream` (Stream-K) blocks walk over the
        tiles of a product: the outermost loop is serial, over waves of tiles, one over the tiles of
        a wave is bound to BIDx, and in the last wave that one is serial instead, and as many parts
        of the first loop over the depth are bound to BIDx and combined, while all earlier tiles are
        whole. In modes "vector", "tma" and "slices", for constant sizes, outside of clusters."""
        work = work_of_request(self.stage, mode, work_dtype, read_back, stream=stream)
        self.stage.grid_mode = mode
        self.stage.read_back = read_back
        self.stage.work_dtype, self.stage.streams = work, stream
        return self

    def mma(
        self,
        warpgroups: int | None = None,
        warps: tuple[int, int] | None = None,
        *,
        by_lanes: bool = False,
    ) -> ScheduledTensor:
        """Computes a product by the matrix instructions of warpgroups, or of single `warps`. Its
        last three loops run over a tile of rows, of columns and of the axis that is summed over:

            [.., m, n, k]  ->  [.., TIDx{128 warpgroups}, k/16, 16, m/(64 warpgroups), n/8, 2, 2]

        of which the last six are inside of instructions; the last four count a thread's registers.
        Thread 128 g + 32 w + l holds row 64 (m/64/warpgroups g + i) + 16 w + 8 h + l // 4, column
        8 j + 2 (l % 4) + e. `warpgroups` share the rows, by default 64 each. `warps` (a, b) share
        rows and columns; TIDx has 32 a b threads, m/(16 a) follows, and warp b v + w has rows
        m/a v + 16 i and columns n/b w + 8 j on. With `by_lanes` the same threads of warpgroups
        have three loops, TIDz{4 warpgroups}, TIDy{8} (l // 4) and TIDx{4} (l % 4), so that
        reductions of results run over rows, or columns, of a warp's lanes.
        """
        s, graph = self.stage, self._schedule.flow.graph
        if warps is not None and warpgroups is not None:
            raise ScheduleError(
                f"mma({self.name}, warpgroups={warpgroups}, warps={warps}): instructions are those "
                "of warpgroups or of single warps; give one of the two"
            )
        if warps is not None and by_lanes:
            raise ScheduleError(
                f"mma({self.name}, warps={warps}, by_lanes=True): only the threads of warpgroups "
                "have loops of their own; leave one of the two out"
            )
        by_groups = mma_loops(graph, s, warpgroups, by_lanes=by_lanes) if warps is None else ()
        loops = by_groups if warps is None else warp_loops(graph, s, warps)
        if s.inline_depth > len(s.loops) - 3:
            raise ScheduleError(f"mma({self.name}): its tile is shared with readers; inline after")
        self._commit(loops)
        s.warps = warps or ()
        return self


@checked(ON_SCHEDULES)
class Schedule:
    """How a fusion loops, where its values live, and what is bound to the grid and the block.

    `schedule["h"]` is the tensor named h; `print(schedule)` shows the loop nest.
    """

    @takes(ScheduleError, fusion=FUSION)
    def __init__(self, fusion: Fusion) -> None:
        self.original = fusion
        self._begin(Dataflow(decompose(fold_empty(fusion), keeps=has_instructions)))

    def _begin(self, flow: Dataflow) -> None:
        self.flow = flow
        self.min_blocks = 0
        self.cluster: int | None = None

    @classmethod
    def of(cls, flow: Dataflow) -> Schedule:
        """The same handle on a dataflow that exists; heuristics schedule through it."""
        s = cls.__new__(cls)
        s.original = flow.fusion()
        s._begin(flow)
        return s

    @property
    def tensors(self) -> tuple[ScheduledTensor, ...]:
        """All tensors, operands before users."""
        return tuple(ScheduledTensor(self, s) for s in self.flow.stages)

    @property
    def inputs(self) -> tuple[ScheduledTensor, ...]:
        return tuple(ScheduledTensor(self, s) for s in self.flow.inputs)

    @property
    def outputs(self) -> tuple[ScheduledTensor, ...]:
        return tuple(ScheduledTensor(self, s) for s in self.flow.outputs)

    def __getitem__(self, key: object) -> ScheduledTensor:
        name = key if isinstance(key, str) else getattr(key, "name", None)
        for s in self.flow.stages:
            if s.name == name:
                return ScheduledTensor(self, s)
        names = ", ".join(s.name for s in self.flow.stages)
        raise UserError(f"no tensor {name!r} in this schedule; it has {names}")

    def transform_like(
        self,
        t: ScheduledTensor,
        others: Iterable[ScheduledTensor] | None = None,
        *,
        align: bool = False,
    ) -> Schedule:
        """Gives the loops of `t` to the others (default all); a tensor drops the axes it lacks.
        With `align` it keeps loops bound to the grid or the block that stand in front of others,
        so that it can be computed inside of them."""
        self._check_own(t, *(others or ()))
        chosen = None if others is None else [o.stage for o in others]
        transform_like(self.flow, t.stage, chosen, align=align)
        return self

    def inline_most(self, selected: Iterable[ScheduledTensor] | None = None) -> Schedule:
        """Inlines every tensor (or the selected) as deep as is legal."""
        self._check_own(*(selected or ()))
        inline_most(self.flow, None if selected is None else [t.stage for t in selected])
        return self

    def launch(
        self,
        *,
        min_blocks: int | None = None,
        cluster: int | None = None,
        max_sms: int | None = None,
    ) -> Schedule:
        """Launch wishes: blocks a multiprocessor must hold; the blocks of a cluster, which lowering
        compares with the loops bound to ClusterX (1: none is); and for products, whose loops are
        bound by now, the most blocks of the grid, each of which then walks over several tiles.
        Raises UnsupportedError for `max_sms` of other kernels."""
        if cluster is not None:
            if not 1 <= cluster <= MAX_CLUSTER:
                raise ScheduleError(
                    f"launch(cluster={cluster}): a cluster has 1 to {MAX_CLUSTER} blocks"
                )
            self.cluster = cluster
        if min_blocks is not None:
            self.min_blocks = min_blocks
        if max_sms is not None:
            walk_over_tiles(self.flow, max_sms)
        return self

    def _check_own(self, *tensors: ScheduledTensor) -> None:
        for t in tensors:
            if t.stage not in self.flow.stages:
                raise ScheduleError(
                    f"{t.name} is not a tensor of this schedule; take it from there: s[{t.name!r}]"
                )

    @property
    def log(self) -> tuple[EditCall, ...]:
        """The calls that have made this schedule of its fusion; `replay` makes them again."""
        return calls_of(self.flow)

    @takes(ScheduleError, log=LOG)
    def replay(self, log: Sequence[EditCall]) -> Schedule:
        """Makes the calls of the log of another schedule of the same fusion. Raises ScheduleError
        as they do, and then leaves this schedule as it was."""
        for call in log:
            check_call(call)
        with self.flow.trial() as trial:
            replay(self, log)
            trial.keep()
        return self

    def fusion(self) -> Fusion:
        """The derived dataflow as a fusion; `evaluate` of it is the schedule's meaning."""
        return self.flow.fusion()

    def check(self) -> None:
        """Raises ScheduleError when the loops do not form a legal tree."""
        build_nest(self.flow.graph, self.flow.stages, consumers_of(self.flow))

    def __str__(self) -> str:
        return print_schedule(self.flow)

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.flow.stages)
        return f"<Schedule of {names}: print it to see the loop nest>"
