"""Pointwise groups: everything inlined under one flat loop over the largest output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fusewright.axes.contiguity import Fit, order_of
from fusewright.core.expr import Expr, Int, Var, variables
from fusewright.core.substitution import estimate
from fusewright.fusion.ir import Concat
from fusewright.fusion.row_alignment import are_short
from fusewright.schedule.copies import copy_before
from fusewright.schedule.edits import set_loops
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.heuristics.aligned_rows import even_rows
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused, distinct
from fusewright.schedule.heuristics.common import (
    SMALL,
    GlobalAccess,
    Params,
    accessors,
    cache_inputs,
    full_width,
    global_accesses,
    merge_all,
    numel,
    reference_output,
    split,
    vectorize_accesses,
)
from fusewright.schedule.heuristics.crossed_orders import crossed_orders
from fusewright.schedule.heuristics.reuse_order import ReadAgain, read_again, reuse_first
from fusewright.schedule.heuristics.window_rows import WindowRows, window_rows
from fusewright.schedule.heuristics.work import element_instructions
from fusewright.schedule.inline import consumers_of, inline_most, load_first
from fusewright.schedule.nest import computed
from fusewright.schedule.parallel import Loop, Parallel
from fusewright.schedule.precision import fast_forms
from fusewright.schedule.propagate import transform_like
from fusewright.target import (
    INSTRUCTION_NBYTES,
    MAX_VECTOR_NBYTES,
    SMALL_BLOCK,
    WARP_SIZE,
    Target,
)

THREADS = SMALL_BLOCK
LARGE_BLOCKS = (256, 512)
MAX_VECTORS = 8
BYTES_IN_FLIGHT = 16
"""Bytes that a thread should load before it uses the first: with 2,048 threads a multiprocessor
that covers latency times bandwidth. More, measured on an H200, is never faster (notes/measured)."""
REUSED = 4
"""Vectors of a thread where they need the same elements of small tensors."""
MAX_APART = 512 * THREADS
"""Vectors between those of a thread that meet the same elements: a megabyte at most."""
TIMES = {Fit.WORDS: 1, Fit.CUT: 2, Fit.TAKEN: 2, Fit.PIECES: 8}
"""Accesses to a word of lanes: cut out of two, and, of two rows, two of these, which it takes as
many instructions again to put together."""
STORED_APART = {1: 1.0, 2: 2.4, 3: 3.7, 4: 3.0, 8: 6.4}
"""How long lanes that each store so many words, and so store them that far apart, take, over words
side by side (one H200, 2026-11-26, `fw.tune` of stores)."""
STORE_CLOCKS = 26 / 4
"""Clocks in which a multiprocessor stores a word a lane, side by side, at the speed of memory, 4.6
TB/s measured for all of them, over those in which it issues an access."""
ROUNDS = 16
"""Rounds of blocks that share small tensors, so that the last, ragged one is a small part."""


def _is_joined(flow: Dataflow, s: Stage) -> bool:
    """Whether a value becomes a piece of a join, element by element: however small, each of its
    elements is read once."""
    count, found, todo = numel(s.shape), {s}, [s]
    while todo:
        for reader in flow.consumers(todo.pop()):
            if isinstance(reader.op, Concat):
                return True
            if reader not in found and numel(reader.shape) == count:
                found.add(reader)
                todo.append(reader)
    return False


@dataclass(frozen=True, slots=True)
class Flat:
    """Elements of a vector, vectors of a thread, threads of a block, how many vectors lie between
    those of a thread (0: as many as a block has threads), which of the ways over all elements it
    takes, and of how many neighbouring rows of a window a thread has a vector each."""

    width: int
    vectors: int
    threads: int
    apart: int = 0
    walk: int = 0
    rows: int = 1

    @property
    def params(self) -> Params:
        """The parameters by name."""
        return Params.of(
            "pointwise",
            vector=self.width,
            vectors=self.vectors,
            threads=self.threads,
            apart=self.apart or None,
            walk=self.walk or None,
            rows=self.rows if self.rows > 1 else None,
        )


class PointwiseScheduler:
    """Flattens the largest output, gives every thread a few vectors, inlines everything but the
    loads: those of all vectors of a thread stand first, so that they are in flight together."""

    def __init__(self, flow: Dataflow, target: Target) -> None:
        self.flow = flow
        self._target = target
        self._held = cache_inputs(flow)
        self._reference = reference_output(flow)
        plain = _walks(flow, self._reference, target)
        read = read_again(flow, self._reference) if plain else None
        self._walks = plain
        self._rows: WindowRows | None = None
        if read is not None:
            self._walks = _with_reuse(flow, self._reference, read, target, plain)
            width, is_plain = plain[0].width, self._walks[0] is plain[0]
            piece = None if is_plain else width * THREADS
            rows = window_rows(flow, self._reference, read, width, piece)
            self._rows = rows if rows is not None and self._fills(width * rows.count) else None

    def candidates(self) -> Iterator[Listed[Flat | None]]:
        """Neighbouring rows of a window, what covers latency, then more and fewer vectors a thread,
        larger blocks, narrower vectors, and other ways over all elements; None for a single
        element."""
        if not self._walks:
            yield Candidate("one element", Params.of("pointwise", elements=1), None)
            return
        first = self._walks[0]
        if self._rows is not None:
            yield _candidate(Flat(first.width, 1, THREADS, rows=self._rows.count))
        yield from distinct(self._flat_candidates(first))
        for k, other in enumerate(self._walks[1:], start=1):
            vectors, apart = self._vectors_a_thread(other)
            yield _candidate(Flat(other.width, vectors, THREADS, apart, k))

    def _flat_candidates(self, walk: Walk) -> Iterator[Listed[Flat | None]]:
        width = walk.width
        vectors, apart = self._vectors_a_thread(walk)
        yield _candidate(Flat(width, vectors, THREADS, apart))
        for n in (1, 2, 4, MAX_VECTORS):
            if n == 1 or self._fills(n * width):
                yield _candidate(Flat(width, n, THREADS, apart if n > 1 else 0))
            else:
                yield Refused(f"{n} vectors a thread", "too few blocks for the multiprocessors")
        for threads in LARGE_BLOCKS:
            yield _candidate(Flat(width, vectors, threads, apart))
        if width > 1:
            yield _candidate(Flat(width // 2, vectors, THREADS, apart))

    def _vectors_a_thread(self, walk: Walk) -> tuple[int, int]:
        """Enough that a thread has `BYTES_IN_FLIGHT` under way, a piece of a join counted for its
        part of the elements, and of a tensor that several accesses read no more than it has, as
        each byte comes from memory for one of them; or that several vectors share what they read of
        small tensors where that is most of the reading; as long as the grid fills the chip. And how
        far apart they lie for it."""
        size, width = max(1, numel(self._reference.shape)), walk.width
        whole, large_by_tensor, small = 0, dict[Stage, float](), dict[Stage, int]()
        direct = [s for s in self.flow.outputs if any(o.is_input for o in s.operands)]
        for s in dict.fromkeys((*self._held, *direct)):
            own = s.dtype.nbytes * width
            if numel(s.operands[0].shape) * SMALL > size or _is_joined(self.flow, s):
                source = s.operands[0]
                asked = large_by_tensor.get(source, 0.0) + own * min(1.0, numel(s.shape) / size)
                large_by_tensor[source] = min(asked, own * numel(source.shape) / size)
                whole = max(whole, own)
            else:
                small[s] = own
        large = max(sum(large_by_tensor.values()), whole)
        wanted, apart = max(1, round(BYTES_IN_FLIGHT / max(large, 1))), 0
        if sum(n for s, n in small.items() if THREADS % _period(s, width) == 0) >= 2 * large:
            wanted = REUSED
        elif sum(small.values()) >= 2 * large:
            apart = self._meeting(walk, small, 2 * large)
            wanted = REUSED if apart else wanted
        most = min(wanted, MAX_VECTORS)
        if most > 1:
            most = min(
                most, self._target.calibration.code_nbytes // max(1, self._code_nbytes() * width)
            )
        vectors = 1
        while 2 * vectors <= most and self._fills(2 * vectors * width):
            vectors *= 2
        return vectors, apart if vectors > 1 else 0

    def _meeting(self, walk: Walk, small: Mapping[Stage, int], least: float) -> int:
        """How many vectors lie between those that read the same `least` bytes or more of small
        tensors: whole blocks of them, where no thread has to find out in which round it is, else
        no fewer than a block has, so that neighbours read side by side; 0 where that is too far."""
        period = math.lcm(*(_period(s, walk.width) for s in small))
        for apart in (math.lcm(period, THREADS), period * -(-THREADS // period)):
            shared = self._shared(walk, apart)
            if sum(n for s, n in small.items() if s.operands[0] in shared) >= least:
                return apart
        return 0

    def _code_nbytes(self) -> int:
        """Bytes of machine code for an element."""
        stages = self.flow.stages
        forms = fast_forms(stages, consumers_of(self.flow))
        code = sum(element_instructions(s, forms.get(s)) for s in computed(stages))
        return round(code * INSTRUCTION_NBYTES)

    def _shared(self, walk: Walk, apart: int) -> set[Stage]:
        """The inputs of which the vectors of a thread read the same elements where they lie so many
        vectors apart; none where that is far, or leaves the last round ragged."""
        flow, reference = self.flow, self._reference
        round_size = walk.width * REUSED * apart
        if apart > MAX_APART or numel(reference.shape) < ROUNDS * round_size:
            return set()
        several = Var("several", 0, 1)
        with flow.trial():
            reference.loops = _loops(flow, walk.loop, Flat(walk.width, 2, THREADS, apart))
            transform_like(flow, reference, accessors(flow), align=True)
            found = global_accesses(flow, reference.loops[2].axis, several, by_data=True)
        moving = {a.tensor for a in found if several in variables(a.address)}
        return {a.tensor for a in found} - moving

    def _fills(self, elements: int) -> bool:
        """Whether threads of so many elements leave blocks for every multiprocessor."""
        size = numel(self._reference.shape)
        return size // (elements * THREADS) >= self._target.multiprocessors * 8

    def apply(self, plan: Flat | None) -> bool:
        """Binds the flat loop."""
        flow, reference = self.flow, self._reference
        if plan is None or not self._walks:
            set_loops(flow, reference, ())
            transform_like(flow, reference, align=True)
            inline_most(flow)
            return True
        has_several = plan.vectors * plan.rows > 1
        moved = _moved_results(flow) if has_several else ()
        held = [*self._held, *(copy_before(flow, y) for y in moved)]
        loop, rows = self._walks[plan.walk].loop, None
        if plan.rows > 1 and self._rows is not None:
            loop, rows = self._rows.around, self._rows.rows
        set_loops(flow, reference, _loops(flow, loop, plan, rows))
        transform_like(flow, reference, align=True)
        if plan.width > 1:
            vectorize_accesses(flow, reference)
        inline_most(flow)
        if has_several:
            load_first(flow, held)
        return True


def _moved_results(flow: Dataflow) -> list[Stage]:
    """The results that read inputs themselves, as those of a crop do: no register holds what one
    vector brings until the others are under way, too."""
    return [y for y in flow.outputs if any(o.is_input for o in y.operands)]


def _candidate(plan: Flat) -> Candidate[Flat | None]:
    many = "a vector" if plan.vectors == 1 else f"{plan.vectors} vectors"
    many += f", {plan.apart} apart," if plan.apart else ""
    many += f" in each of {plan.rows} rows of a window," if plan.rows > 1 else ""
    what = f"{many} of {plan.width} a thread, blocks of {plan.threads}"
    what += f", way {plan.walk + 1} over all elements" if plan.walk else ""
    return Candidate(what, plan.params, plan)


def _loops(flow: Dataflow, flat: Loop, plan: Flat, rows: Loop | None = None) -> tuple[Loop, ...]:
    """Blocks, threads, the vectors of a thread, in `rows` of a window if there are any, lanes. With
    `apart` vectors between those of a thread: the number of a vector is (a, several, c), that of
    its thread (a, c)."""
    outer, lanes = split(flow, flat, plan.width) if plan.width > 1 else (flat, None)
    several = rows
    if rows is None and plan.vectors > 1:
        rounds, inside = split(flow, outer, plan.apart or plan.threads)
        rounds, several = split(flow, rounds, plan.vectors)
        outer = Loop(flow.graph.merge(rounds.axis, inside.axis))
    blocks, threads = split(flow, outer, plan.threads)
    loops = [Loop(blocks.axis, Parallel.BIDX), Loop(threads.axis, Parallel.TIDX)]
    if several is not None:
        loops.append(Loop(several.axis, Parallel.UNROLL))
    if lanes is not None:
        loops.append(Loop(lanes.axis))
    return tuple(loops)


def _period(small: Stage, width: int) -> int:
    """How many vectors there are before one starts where a small tensor does again."""
    elements = max(1, numel(small.operands[0].shape))
    return elements // math.gcd(elements, width)


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over all elements, the lanes that its accesses may have, and how well they do: whether
    those to large tensors all have them (`is_wide`), the bytes that are accessed in whole words
    (`aligned`), cut or taken out of several, with what these bring beside (`cut`), or element by
    element (`narrow`), and the `accesses` that a thread makes for its lanes, to small tensors as
    well: `is_least` where none takes more than one."""

    loop: Loop
    width: int
    is_wide: bool = False
    aligned: int = 0
    cut: int = 0
    narrow: int = 0
    accesses: float = 0.0
    is_least: bool = False

    @property
    def all_accesses(self) -> float:
        """Accesses of all threads together."""
        return self.accesses * (estimate(self.loop.axis.extent) // self.width)


def _walks(flow: Dataflow, reference: Stage, target: Target) -> list[Walk]:
    """Loops over all axes, the one that the rules prefer first; none for a single element.

    As elements lie in the result where that allows vectors of more than a quarter of 16 bytes
    everywhere, unless rows that are each counted from an aligned address take half of the accesses,
    as where vectors that run from one row into the next read small tensors element by element. Else
    such rows, if then nothing large is read element by element, and half of it in whole words.
    Rows whose ends take more accesses than lanes that are put together of two rows do not come
    first. Beside these, for the model to choose from, what such rows replace, and whole words of
    the result of which each element is read alone.
    """
    flat = merge_all(flow, reference.loops)
    if flat is None:
        return []
    full = _full_width(flow, reference, target)
    plain: list[Walk] = []
    for width in (w for w in (16, 8, 4, 2) if w <= full):
        plain.append(_measured(flow, reference, flat, width))
        if plain[-1].is_wide and plain[-1].is_least:
            break  # narrower lanes take as many accesses for fewer elements
    wide = [w for w in plain if w.is_wide]
    plain_walk = Walk(flat, 1)
    best = min(wide, key=lambda w: (w.accesses / w.width, w.width), default=plain_walk)
    is_short = are_short(best.width, full) or best.narrow or best.cut
    if full == 1 or not (is_short or best.accesses > best.width):
        return [best]
    even = [
        _measured(flow, reference, x, full, row=x.axis.digits[-1].extent)
        for x in even_rows(flow, reference, full)
    ]
    known = _strays(flow, reference, plain[0])
    usable = [w for w in even if not w.narrow and _strays(flow, reference, w) <= known]
    if not is_short:
        return [*[w for w in usable if 2 * w.all_accesses <= best.all_accesses][:1], best]
    wider = max(usable, key=lambda w: w.aligned, default=best)
    is_first = wider.aligned >= max(wider.cut, best.aligned) and (
        best.width == 1 or wider.all_accesses <= best.all_accesses
    )
    found = [wider if is_first else best, best, plain[0], wider]
    if not wide:
        across = crossed_orders(flow, reference, full)
        found += [_measured(flow, reference, loop, width) for loop, width in across]
    return list(dict.fromkeys(found))


def _with_reuse(
    flow: Dataflow, reference: Stage, read: ReadAgain, target: Target, walks: list[Walk]
) -> list[Walk]:
    """The walks, and first of all the order of blocks that finds in the cache what several accesses
    read far apart, where it allows the accesses that the first one has."""
    if len(reference.loops) < 2:
        return walks
    first = walks[0]
    loop = reuse_first(flow, reference, read, first.width, first.width * THREADS, target)
    if loop is None or _strays(flow, reference, replace(first, loop=loop)):
        return walks
    found = _measured(flow, reference, loop, first.width)
    return [found, *walks] if found.narrow <= first.narrow else walks


def _full_width(flow: Dataflow, reference: Stage, target: Target) -> int:
    """Lanes that the smallest input or output allows, and fewer where the chip would not be
    full."""
    inputs = [o for s in computed(flow.stages) for o in s.operands if o.is_input]
    tensors = [*inputs, *flow.outputs]
    best = full_width(tensors, tensors)
    while best > 1 and numel(reference.shape) // best < target.multiprocessors * 32:
        best //= 2
    return best


def _measured(
    flow: Dataflow, reference: Stage, flat: Loop, width: int, *, row: Expr | None = None
) -> Walk:
    """What a loop over all elements allows, or one over rows of whole vectors, which have `row`
    elements and end in vectors that are not full."""
    lane = flow.graph.variable("lane", Int(width))
    with flow.trial():
        reference.loops = split(flow, flat, width)
        transform_like(flow, reference, accessors(flow), align=True)
        found = global_accesses(flow, reference.loops[-1].axis, lane, by_data=True)
    size = numel(reference.shape)
    nbytes = dict.fromkeys(Fit, 0)
    large: list[bool] = []
    accesses = 0.0
    for a in found:
        elements = min(numel(a.tensor.shape), numel(a.stage.shape))
        fit = a.fit(lane, width)
        accesses += _accesses(a, *a.lanes(lane, width), fit)
        if row is not None and a.tensor is a.stage:
            accesses += min(1.0, WARP_SIZE * width / estimate(row)) * _in_parts(a, width)
        if elements * SMALL > size:
            nbytes[fit] += int(elements * a.tensor.dtype.nbytes * _spread(a, lane, width, fit))
        if elements >= size // 2:
            large.append(fit is not Fit.NARROW)
    all_large = bool(large) and all(large)
    put_together = nbytes[Fit.CUT] + nbytes[Fit.TAKEN] + nbytes[Fit.PIECES]
    by_fit = (nbytes[Fit.WORDS], put_together, nbytes[Fit.NARROW])
    return Walk(flat, width, all_large, *by_fit, accesses, accesses == len(found))


def _strays(flow: Dataflow, reference: Stage, walk: Walk) -> set[Stage]:
    """The stages that cannot follow a loop over all elements."""
    with flow.trial():
        reference.loops = split(flow, walk.loop, walk.width)
        return set(transform_like(flow, reference, align=True))


def _accesses(a: GlobalAccess, lane: Var, width: int, fit: Fit) -> float:
    """How many accesses bring the lanes of a thread. Stores of several words count for as many as
    the multiprocessor issues while it waits for them: each leaves half of its sectors to another.
    """
    if lane not in variables(a.address):
        return 1
    words = -(-width * a.tensor.dtype.nbytes // MAX_VECTOR_NBYTES)
    each = 1.0
    if a.tensor is a.stage:
        each += STORE_CLOCKS * (STORED_APART[words] - 1)
    return TIMES[fit] * words * each if fit in TIMES else width


def _spread(a: GlobalAccess, lane: Var, width: int, fit: Fit) -> float:
    """The elements that words bring for each one that is taken out of them: steps bring what is
    between them. Rows of steps by aligned words took 1.2 to 1.3 times as long as one by one (five
    crops, one H100, 2026-11-26)."""
    lane, width = a.lanes(lane, width)
    order = order_of(a.address, lane, width, width) if fit is Fit.TAKEN else None
    return 1.0 if order is None else max(1.0, order.span / width)


def _in_parts(a: GlobalAccess, width: int) -> int:
    """The stores of a vector that is not full (`kir/choose_lanes`); a warp takes all of them where
    one of its vectors ends a row."""
    halves = 2 if width > 4 and width * a.tensor.dtype.nbytes == MAX_VECTOR_NBYTES else 0
    return halves + width
