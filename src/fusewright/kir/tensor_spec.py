"""Checks of tensor maps, tiles, accumulators and register pools; `kir/spec.py` lists all checks."""

from __future__ import annotations

from collections.abc import Iterator

from fusewright.core.conditions import Cond
from fusewright.core.expr import Expr, constant_value, variables
from fusewright.dtypes import float32
from fusewright.kir.analysis.uniformity import all_agree, threads_of
from fusewright.kir.checks import Check, KernelFacts, Problem
from fusewright.kir.ir import (
    Alloc,
    BoxLoad,
    Kernel,
    Matrix,
    Mma,
    Role,
    SetMaxRegisters,
    Statement,
    TensorMap,
)
from fusewright.kir.tiles import SWIZZLES
from fusewright.kir.traits import Team
from fusewright.memory import Memory
from fusewright.target import (
    BULK_ALIGNMENT,
    MAX_BOX_EXTENT,
    MAX_BOX_RANK,
    WARPGROUP_SIZE,
    equal_registers,
)

ROUNDINGS = ("", "tf32")

# --- maps and tiles -------------------------------------------------------------------------------


def _maps(facts: KernelFacts) -> Iterator[Problem]:
    for m in facts.kernel.maps:
        yield from ((None, f"tensor map {m}: {p}") for p in _map_problems(m, facts.kernel))


def _map_problems(m: TensorMap, kernel: Kernel) -> Iterator[str]:
    itemsize, rank = m.buffer.dtype.nbytes, len(m.box)
    if m.buffer not in kernel.params:
        yield f"{m.buffer} is no parameter of the kernel"
    if not 1 <= rank <= MAX_BOX_RANK or not rank == len(m.sizes) == len(m.strides):
        yield (
            f"{len(m.sizes)} sizes, {len(m.strides)} strides and a box of {rank} dimensions; give "
            f"the same number of each, 1 to {MAX_BOX_RANK}"
        )
        return
    strange = [v for e in (*m.sizes, *m.strides) for v in variables(e) if v not in kernel.symbols]
    if strange:
        yield f"sizes and strides mention {strange[0]}, which is no symbol"
    if constant_value(m.strides[0]) != 1:
        yield f"the fastest dimension has stride {m.strides[0]}; it is contiguous, stride 1"
    for stride in m.strides[1:]:
        if stride.divisor * itemsize % BULK_ALIGNMENT:
            yield f"the stride of {stride} elements is not known to be {BULK_ALIGNMENT}-byte steps"
    for extent in m.box:
        if not 1 <= extent <= MAX_BOX_EXTENT:
            yield f"{extent} elements of a box are not 1 to {MAX_BOX_EXTENT}"
    if m.buffer.alignment % BULK_ALIGNMENT:
        yield f"{m.buffer} is aligned to {m.buffer.alignment} bytes, not to {BULK_ALIGNMENT}"
    if m.rounding not in ROUNDINGS:
        yield f"it rounds to {m.rounding!r}, which is not one of {', '.join(ROUNDINGS[1:])}"
    elif m.rounding and m.buffer.dtype is not float32:
        yield f"it rounds {m.buffer.dtype} to {m.rounding}; only float32 is rounded"
    yield from _row_problems(m)


def _row_problems(m: TensorMap) -> Iterator[str]:
    nbytes = m.box[0] * m.buffer.dtype.nbytes
    if m.swizzle not in SWIZZLES:
        yield f"swizzle {m.swizzle} is not one of {', '.join(map(str, SWIZZLES))}"
    elif m.swizzle and nbytes != m.swizzle:
        yield f"rows of {nbytes} bytes, but swizzle {m.swizzle} exchanges within {m.swizzle} bytes"
    elif nbytes % BULK_ALIGNMENT:
        yield f"rows of {nbytes} bytes are not a multiple of {BULK_ALIGNMENT}"


def _tiles(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.places:
        s = place.statement
        if not isinstance(s, Alloc) or s.buffer.tile is None:
            continue
        b, tile = s.buffer, s.buffer.tile
        yield from ((s, p) for p in tile.problems())
        if b.memory is not Memory.SHARED:
            yield s, f"{b} lives in {b.memory.value} memory; tiles lie in shared memory"
        if (constant_value(b.size) or 0) % tile.size:
            yield s, f"{b.size} elements are not whole tiles of {tile.size}"
        if b.alignment % tile.alignment:
            yield s, f"{b} is aligned to {b.alignment} bytes, its tiles to {tile.alignment}"


# --- warpgroups -----------------------------------------------------------------------------------


def _warpgroups(facts: KernelFacts) -> Iterator[Problem]:
    k = facts.kernel
    for place in facts.acting:
        s = place.statement
        if s.executed_by() is not Team.WARPGROUP:
            continue
        threads = threads_of(place.role, k)
        if threads.start % WARPGROUP_SIZE or threads.stop % WARPGROUP_SIZE:
            yield (
                s,
                f"a warpgroup is four warps from a multiple of four on, but threads "
                f"{threads.start} .. {threads.stop - 1} come here",
            )
            continue
        operands: list[Expr | Cond] = (
            [m.index for m in (s.a, s.b) if isinstance(m, Matrix)] if isinstance(s, Mma) else []
        )
        if isinstance(s, Mma):
            operands.append(s.accumulate)
        for e in (*place.conditions, *operands):
            if not all_agree(e, k, threads, WARPGROUP_SIZE):
                yield s, f"the threads of a warpgroup meet here, but may disagree on {e}"


def _accumulators(facts: KernelFacts) -> Iterator[Problem]:
    """Products under way may share an accumulator only as a whole: then they are done in order."""
    seen: list[tuple[Statement, object, int, int]] = []
    for place in facts.acting:
        s = place.statement
        if not isinstance(s, Mma):
            continue
        first = constant_value(s.dst.index)
        if first is None:
            yield s, f"the accumulator {s.dst.buffer}[{s.dst.index}] has no literal index"
            continue
        mine = (first, first + s.n // 2)
        for _, buffer, low, high in seen:
            meets = buffer is s.dst.buffer and low < mine[1] and mine[0] < high
            if meets and (low, high) != mine:
                yield (
                    s,
                    f"its registers {mine[0]} .. {mine[1] - 1} of {s.dst.buffer} overlap "
                    f"{low} .. {high - 1} of another product; two share all or none",
                )
        seen.append((s, s.dst.buffer, *mine))


# --- registers ------------------------------------------------------------------------------------


def launch_registers(nthreads: int, min_blocks: int) -> int:
    """Registers that each thread has when it begins, in blocks of which a multiprocessor holds so
    many."""
    return equal_registers(nthreads * max(1, min_blocks))


def _register_pool(facts: KernelFacts) -> Iterator[Problem]:
    k, begin = facts.kernel, launch_registers(facts.kernel.nthreads, facts.kernel.min_blocks)
    held: dict[int, int] = {}
    last: Statement | None = None
    for place in facts.places:
        s = place.statement
        if not isinstance(s, SetMaxRegisters):
            continue
        last = s
        if not k.min_blocks:
            yield s, "the kernel has no min_blocks, so that its registers at launch are not known"
        if s.grows is not (s.count > begin):
            way = "grows" if s.count > begin else "gives registers back"
            yield s, f"each thread begins with {begin} registers; {s.count} of them {way}"
        held |= dict.fromkeys(_groups(place.role, k), s.count)
    groups = -(-k.nthreads // WARPGROUP_SIZE)
    wanted = sum(held.values()) + (groups - len(held)) * begin
    if last is not None and wanted > groups * begin:
        yield (
            last,
            f"{groups} warpgroups want {wanted * WARPGROUP_SIZE} registers together, the block has "
            f"{groups * begin * WARPGROUP_SIZE}: somebody waits for ever",
        )


def _groups(role: Role | None, kernel: Kernel) -> range:
    threads = threads_of(role, kernel)
    return range(threads.start // WARPGROUP_SIZE, -(-threads.stop // WARPGROUP_SIZE))


def _maps_in_scope(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        m = getattr(place.statement, "map", None)
        if isinstance(m, TensorMap) and m not in facts.kernel.maps:
            yield place.statement, f"tensor map {m} is not in the header of the kernel"


def _counted(facts: KernelFacts) -> Iterator[Problem]:
    for place in facts.acting:
        s = place.statement
        if isinstance(s, BoxLoad) and s.barrier is None:
            yield s, "no mbarrier counts the bytes of the box; materialise_rings gives it one"


TENSOR_CHECKS: tuple[Check, ...] = (
    Check("tensor maps", "lowered", _maps),
    Check("tensor maps in scope", "lowered", _maps_in_scope),
    Check("tiles", "lowered", _tiles),
    Check("warpgroups", "lowered", _warpgroups),
    Check("counted boxes", "expanded", _counted),
    Check("accumulators", "final", _accumulators),
    Check("register pool", "lowered", _register_pool),
)
