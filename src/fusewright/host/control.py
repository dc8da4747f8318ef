"""Regions of a host program: which launches of their bodies run, over which memory, in which order.

A region is one launch to the program around it: it reads its operands, writes its results, and has
scratch of its own. `steps` says what it does as a row of runs of its bodies, copies, and questions
about a condition that lies in memory; the simulator and the runtime do these same steps.

    x1 = body(x0); x2 = body(x1); x3 = body(x2)     is, where no iteration can write over its input,
    r = body(operand); second = body(r); r = body(second)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.atoms import maximum
from fusewright.core.conditions import less, prove
from fusewright.core.expr import ONE, ZERO, Expr, Var, constant_value, is_multiple
from fusewright.core.extremes import largest
from fusewright.dtypes import DType, bool_, uint8
from fusewright.fusion import ir
from fusewright.fusion.build import element_count
from fusewright.fusion.call_numbers import Lap
from fusewright.fusion.evaluate import trip_count
from fusewright.fusion.ir import Fusion, Input, Region, Shape, Tensor
from fusewright.host.subspans import VECTOR_ALIGNMENT
from fusewright.kir.ir import Buffer, Kernel
from fusewright.memory import Memory


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """Memory of a region: an "operand", a "result" or "scratch", by position; of an array that is
    sliced the slice of a number."""

    kind: str
    position: int
    slice: int | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Puts what lies in one place, the carried value or result `output`, into another."""

    source: RegionMemory
    target: RegionMemory
    output: int


@dataclass(frozen=True, slots=True)
class BodyRun:
    """Runs a body over the places of its arguments, then those of its results that no argument
    holds, then its arena, if it has one. `lap`: the number of the iteration, of a loop that tells
    its body."""

    body: int
    roots: tuple[RegionMemory, ...]
    lap: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks whether a bool in memory is true."""

    place: RegionMemory


Step: TypeAlias = Copy | BodyRun | Ask
Steps: TypeAlias = Generator[Step, bool | None, None]


@dataclass(frozen=True, slots=True)
class RegionBody:
    """What a region knows of a body: for each different result the position of the argument in
    whose memory it is made, or None; for each output the position of its result; the bytes of its
    arena."""

    holders: tuple[int | None, ...]
    places: tuple[int, ...]
    arena_nbytes: Expr


@dataclass(frozen=True, slots=True, eq=False)
class HostRegion:
    """A region over `operands` operands, of which the first `carried` change and the next `sliced`
    are taken by slices. `results`: where each lies; `second`: for each carried value that no
    iteration can write over, another place; `staged`: for each stacked result that cannot be made
    in its slice, where it is made; `aliased`: the carried values whose operand lies where the
    result does; `flag`: where the condition lies. `scratch`: types of the scratch. `index`: what
    stands in the body for the number of an iteration."""

    fn: str
    operands: int
    carried: int
    sliced: int
    trips: Expr | None
    reverse: bool
    bodies: tuple[RegionBody, ...]
    results: tuple[RegionMemory, ...]
    second: tuple[RegionMemory | None, ...]
    staged: tuple[RegionMemory | None, ...]
    arena: RegionMemory | None
    flag: RegionMemory | None
    aliased: frozenset[int]
    scratch: tuple[tuple[Shape, DType], ...]
    index: Lap | None

    @property
    def replaced(self) -> dict[int, tuple[int, ...]]:
        """For the results that are carried values, by position, the operand that each replaces."""
        carried = enumerate(self.results[: self.carried])
        return {p.position: (k,) for k, p in carried if p.kind == "result"}

    def is_in_place(self, k: int) -> bool:
        """Whether an iteration writes a carried value over itself."""
        body = self.bodies[-1]
        return body.holders[body.places[k]] == k

    def steps(self, sizes: Mapping[Var, int]) -> Steps:
        """The steps for sizes. Raises UserError for a negative number of iterations."""
        if self.fn == "cond":
            return self._cond()
        if self.trips is None:
            return self._while()
        return self._loop(trip_count(self.fn, self.trips, sizes))

    def sizes_in(self, sizes: Mapping[Var, int], lap: int | None) -> Mapping[Var, int]:
        """The sizes, and the number of an iteration where its body asks for it."""
        return sizes if self.index is None or lap is None else {**sizes, self.index: lap}

    def branch(self, number: int) -> list[Copy | BodyRun]:
        """The steps of a branch of a `cond`."""
        inputs = [RegionMemory("operand", k) for k in range(1, self.operands)]
        return list(self._run(number, inputs, self.results))

    def lap(self) -> tuple[list[Copy | BodyRun], list[Copy | BodyRun], list[Copy | BodyRun]]:
        """A `while_loop` in steps that are the same in every iteration: what comes before the loop,
        what computes the condition, and the body, which ends with the carried values in the places
        of their results."""
        assert self.flag is not None
        places, shared = list(self.results), self._shared()
        apart = [k for k in range(self.carried) if k not in self.aliased]
        first = [Copy(RegionMemory("operand", k), self.results[k], k) for k in apart]
        targets = [self.second[k] or self.results[k] for k in range(self.carried)]
        back = [
            Copy(target, self.results[k], k)
            for k, target in enumerate(targets)
            if target != self.results[k]
        ]
        body = [*self._run(1, [*places, *shared], targets), *back]
        return [*first], [*self._run(0, [*places, *shared], [self.flag])], body

    def _cond(self) -> Steps:
        answer = yield Ask(RegionMemory("operand", 0))
        yield from self.branch(0 if answer else 1)

    def _while(self) -> Steps:
        assert self.flag is not None
        current = yield from self._begin()
        shared = self._shared()
        while True:
            yield from self._run(0, [*current, *shared], [self.flag])
            if not (yield Ask(self.flag)):
                break
            targets = [self._other(k, now) for k, now in enumerate(current)]
            yield from self._run(1, [*current, *shared], targets)
            current = targets
        for k, now in enumerate(current):
            if now != self.results[k] and not (now.kind == "operand" and k in self.aliased):
                yield Copy(now, self.results[k], k)

    def _loop(self, trips: int) -> Steps:
        current = yield from self._begin()
        shared = self._shared()
        for n in range(trips):
            i = trips - 1 - n if self.reverse else n
            targets = [self._target(k, trips - 1 - n) for k in range(self.carried)]
            for k, target in enumerate(targets):
                second = self.second[k]
                if n == 0 and k in self.aliased and target == self.results[k] and second:
                    yield Copy(target, second, k)
                    current[k] = second
            slices = range(self.carried, self.carried + self.sliced)
            stacked = [RegionMemory(r.kind, r.position, i) for r in self.results[self.carried :]]
            inputs = [*current, *(RegionMemory("operand", k, i) for k in slices), *shared, *stacked]
            yield from self._run(0, inputs, [*targets, *stacked], None if self.index is None else i)
            current = targets
        if not trips:
            for k, now in enumerate(current):
                if now != self.results[k] and k not in self.aliased:
                    yield Copy(now, self.results[k], k)

    def _begin(self) -> Generator[Step, bool | None, list[RegionMemory]]:
        """Where the carried values lie before the first iteration: those that are written over in
        the memory of their results."""
        current = [RegionMemory("operand", k) for k in range(self.carried)]
        for k in range(self.carried):
            if self.is_in_place(k):
                if k not in self.aliased:
                    yield Copy(current[k], self.results[k], k)
                current[k] = self.results[k]
        return current

    def _target(self, k: int, left: int) -> RegionMemory:
        """Where an iteration makes a carried value, `left` iterations before the last one."""
        second = self.second[k]
        return self.results[k] if second is None or left % 2 == 0 else second

    def _other(self, k: int, now: RegionMemory) -> RegionMemory:
        """Where an iteration makes a carried value that lies at a place, of a while loop."""
        second = self.second[k]
        is_result = now == self.results[k] or (now.kind == "operand" and k in self.aliased)
        return second if second is not None and is_result else self.results[k]

    def _shared(self) -> list[RegionMemory]:
        first = self.carried + self.sliced
        return [RegionMemory("operand", k) for k in range(first, self.operands)]

    def _run(
        self,
        number: int,
        inputs: Sequence[RegionMemory],
        targets: Sequence[RegionMemory],
        lap: int | None = None,
    ) -> Iterator[Copy | BodyRun]:
        """A run of a body that ends with its outputs at the targets."""
        body = self.bodies[number]
        made: dict[int, RegionMemory] = {}
        for k, (d, target) in enumerate(zip(body.places, targets, strict=True)):
            holder = body.holders[d]
            staged = self.staged[k - self.carried] if k >= self.carried and self.staged else None
            made.setdefault(d, inputs[holder] if holder is not None else staged or target)
        outputs = [made[d] for d, h in enumerate(body.holders) if h is None]
        arena = [self.arena] if self.arena is not None and body.arena_nbytes != ZERO else []
        yield BodyRun(number, (*inputs, *outputs, *arena), lap)
        for k, (d, target) in enumerate(zip(body.places, targets, strict=True)):
            if made[d] != target:
                yield Copy(made[d], target, k)


# --- made of an operation -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegionCall:
    """One call of a region: which it is, and the types of operands and of all results. `used`: the
    results that something reads, which the region writes in this order."""

    fn: str
    carried: int
    sliced: int
    trips: Expr | None
    reverse: bool
    operands: tuple[tuple[Shape, DType], ...]
    results: tuple[tuple[Shape, DType], ...]
    used: tuple[int, ...]
    aliased: frozenset[int]
    lap: Lap | None

    @property
    def stacked(self) -> tuple[int, ...]:
        """The results that are stacked and that something reads."""
        return tuple(k for k in self.used if k >= self.carried and self.trips is not None)


def call_of(op: Region, used: tuple[int, ...], aliased: frozenset[int]) -> RegionCall:
    """The call of an operation of which something reads the results `used`; `aliased`: the carried
    values whose operand lies where the result does."""
    results: list[tuple[Shape, DType]] = []
    for k, t in enumerate(op.bodies[-1].outputs):
        is_stacked = op.trips is not None and k >= op.carried
        lead = (op.trips,) if is_stacked and op.trips is not None else ()
        results.append(((*lead, *t.shape), t.dtype))
    operands = tuple((t.shape, t.dtype) for t in op.operands)
    return RegionCall(
        op.fn, op.carried, op.sliced, op.trips, op.reverse, operands, tuple(results), used, aliased,
        op.lap,
    )  # fmt: skip


def host_region(call: RegionCall, bodies: Sequence[RegionBody]) -> HostRegion:
    """The region of a call whose bodies are compiled; of what is stacked they make what something
    reads."""
    scratch: list[tuple[Shape, DType]] = []

    def place(shape: Shape, dtype: DType) -> RegionMemory:
        scratch.append((shape, dtype))
        return RegionMemory("scratch", len(scratch) - 1)

    made = [*range(call.carried), *call.stacked] if call.fn != "cond" else range(len(call.results))
    at = {k: RegionMemory("result", n) for n, k in enumerate(call.used)}
    results = tuple(at[k] if k in at else place(*call.results[k]) for k in made)
    body = bodies[-1]
    is_short = call.trips is not None and prove(less(ONE, call.trips)) is False
    second = tuple(
        None
        if body.holders[body.places[k]] == k or (is_short and k not in call.aliased)
        else place(*call.operands[k])
        for k in range(call.carried)
    )
    staged = tuple(
        place(shape[1:], dtype) if _is_staged(body, call.carried + n) else None
        for n, (shape, dtype) in enumerate(call.results[k] for k in call.stacked)
    )
    flag = place((), bool_) if call.fn == "while_loop" else None
    nbytes = bodies[0].arena_nbytes
    for b in bodies[1:]:
        nbytes = maximum(nbytes, b.arena_nbytes)
    if call.lap is not None:
        nbytes = largest(nbytes, call.lap)
    arena = None if nbytes == ZERO else place((nbytes,), uint8)
    return HostRegion(
        call.fn, len(call.operands), call.carried, call.sliced, call.trips, call.reverse,
        tuple(bodies), results, second, staged, arena, flag, call.aliased, tuple(scratch),
        call.lap,
    )  # fmt: skip


def _is_staged(body: RegionBody, output: int) -> bool:
    """Whether no argument holds a slice of what is stacked, or another output's."""
    d = body.places[output]
    return body.holders[d] is None and body.places.index(d) == output


def stand_in(name: str, call: RegionCall, region: HostRegion) -> Kernel:
    """The parameters of a region as those of a kernel without statements: operands, results, then
    scratch."""
    types = [*call.operands, *(call.results[k] for k in call.used)]
    arrays = [_buffer(f"p{k}", *t) for k, t in enumerate(types)]
    scratch = tuple(_buffer(f"s{k}", *t) for k, t in enumerate(region.scratch))
    return Kernel(name, (*arrays, *scratch), (), (), (), (), (), scratch=scratch)


def _buffer(name: str, shape: Shape, dtype: DType) -> Buffer:
    return Buffer(name, dtype, element_count(shape), Memory.GLOBAL)


def compiled_bodies(op: Region, stacked: Sequence[int]) -> list[tuple[Fusion, dict[int, int]]]:
    """The fusions that are compiled for the bodies of a region of which something reads the results
    `stacked`, and which argument of each may hold which of its outputs."""
    return [_compiled_body(op, k, stacked) for k in range(len(op.bodies))]


def _compiled_body(
    op: Region, number: int, stacked: Sequence[int]
) -> tuple[Fusion, dict[int, int]]:
    """The fusion that is compiled for a body, and which argument may hold which of its outputs. The
    body of a loop gets an argument behind the others for each slice that it makes, and stacks only
    what something reads.

    rewrite:  c, x -> c', y   ->   c, x, place of y -> c', y     with y in its place
    checks:   slices are as aligned as the bytes of one allow
    """
    body = op.bodies[number]
    if op.fn == "cond" or (op.fn == "while_loop" and number == 0):
        return body, {}
    held = {k: k for k in range(op.carried)}
    if op.trips is None:
        return body, held
    outputs = (*body.outputs[: op.carried], *(body.outputs[k] for k in stacked))
    new: dict[Tensor, Tensor] = {}
    for k, t in enumerate(body.inputs):
        is_slice = op.carried <= k < op.carried + op.sliced
        assert isinstance(t.op, Input)
        alignment = slice_alignment(t) if is_slice else t.op.alignment
        new[t] = Tensor(t.name, t.shape, t.dtype, Input((), k, t.op.strides, alignment), t.source)
    taken = {t.name for t in body.values}
    slots: list[Tensor] = []
    for k, y in enumerate(outputs[op.carried :]):
        name = f"{y.name}_slice"
        while name in taken:
            name += "_"
        taken.add(name)
        position = len(body.inputs) + k
        strides = ir.contiguous_strides(y.shape)
        slots.append(
            Tensor(name, y.shape, y.dtype, Input((), position, strides, slice_alignment(y)))
        )
        held[position] = op.carried + k
    for t in ir.topological(outputs, body.inputs):
        if t not in new:
            new[t] = t.with_op(ir.with_operands(t.op, tuple(new[o] for o in t.op.operands)))
    inputs = (*(new[t] for t in body.inputs), *slots)
    results = tuple(new[t] for t in outputs)
    return Fusion(inputs, results, ir.topological(results, inputs)), held


def slice_alignment(t: Tensor) -> int:
    """The bytes that surely divide the address of each slice like this of an array."""
    nbytes = element_count(t.shape) * t.dtype.nbytes
    out = VECTOR_ALIGNMENT
    while out > t.dtype.nbytes and not is_multiple(nbytes, out):
        out //= 2
    return out


_WAITS = "and waits for it, but where execution='graph' makes it a node of a CUDA graph"


def described(region: HostRegion) -> list[str]:
    """What a region does, in words: how often its bodies run, who decides that, and which values
    need a second place."""
    fn = region.fn
    if fn == "cond":
        return [f"cond runs the launches of one branch: the host reads the condition, {_WAITS}"]
    if region.trips is None:
        lines = [
            f"{fn} runs its body as long as its condition holds: the host reads that before each "
            f"iteration, {_WAITS}"
        ]
    else:
        n = constant_value(region.trips)
        lines = [f"{fn} runs its body {'once' if n == 1 else f'{region.trips} times'}"]
    second = [k for k, place in enumerate(region.second) if place is not None]
    if second:
        listed = ", ".join(map(str, second))
        lines.append(
            f"{fn}: carried values {listed} have a second place: an iteration reads what it has "
            "written over"
        )
    staged = [k for k, place in enumerate(region.staged) if place is not None]
    if staged:
        listed = ", ".join(map(str, staged))
        lines.append(f"{fn}: stacked results {listed} are copied into their slices")
    return lines
