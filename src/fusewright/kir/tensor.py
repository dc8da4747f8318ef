"""Kernel IR: matrix products and what feeds them, one doc line a node.

The copy engine moves boxes through tensor maps: elements beyond an edge of the tensor are zeros in
shared memory and are dropped on the way out. An `index` of a box or of an operand counts elements
before the exchange of chunks that the swizzle makes; loads, stores and `LdMatrix` name the place
behind it (`kir/tiles.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fusewright.core.conditions import FALSE, TRUE, Cond, all_of, less, less_equal, prove
from fusewright.core.expr import ONE, ZERO, Expr, Int, Var, floordiv, mod
from fusewright.core.node import Node
from fusewright.dtypes import DType, float32
from fusewright.kir.asynchronous import BULK_REDUCTIONS
from fusewright.kir.rules import is_misaligned, lives_in, same_dtype
from fusewright.kir.symbols import Buffer, Reg, TensorMap
from fusewright.kir.tiles import CHUNK_NBYTES, GROUP_ROWS, Descriptor, Major, Tile
from fusewright.kir.traits import (
    AT_ONCE,
    WITH_PHASE,
    Act,
    AsyncKind,
    Completes,
    MbarrierUse,
    MemoryUse,
    RegisterUse,
    Statement,
    Team,
    with_group,
)
from fusewright.memory import Memory
from fusewright.target import (
    BOX_ALIGNMENT,
    BULK_ALIGNMENT,
    MAX_CLUSTER,
    MAX_MMA_COLUMNS,
    MAX_SET_REGISTERS,
    MIN_SET_REGISTERS,
    MMA_COLUMNS_UNIT,
    MMA_DEPTH_NBYTES,
    MMA_ROWS,
    REGISTER_UNIT,
    TRANSPOSED_NBYTES,
    Feature,
)

MMA_DTYPES = ("bfloat16", "float16", "float8_e4m3", "float8_e5m2", "float32")
"""Of float32 the instructions multiply 10 bits of the mantissa, and ignore the others."""
WARP_MMA_DTYPES = ("bfloat16", "float16")
FRAGMENT = 8
"""Registers of an operand of 16 columns."""
WARP_MMA_REGISTERS = (4, 8, 4)
_MATRIX_COUNTS = (1, 2, 4)

# --- boxes ----------------------------------------------------------------------------------------


class _Box(Statement):
    """What copies of boxes have in common: one thread issues them, the async proxy does them."""

    __slots__ = ()

    map: TensorMap
    coordinates: tuple[Expr, ...]
    issuer: int

    def issuing_thread(self) -> int:
        return self.issuer

    def feature(self) -> Feature:
        return Feature.BULK

    def _shared_use(
        self, buffer: Buffer, index: Expr, done: Completes, *, writes: bool
    ) -> MemoryUse:
        return MemoryUse(
            buffer, writes, index, self.map.box_size, issuer=self.issuer, completes=done,
            in_async_proxy=True, step=_box_step(buffer.dtype),
        )  # fmt: skip

    def _global_use(self, done: Completes, *, writes: bool) -> MemoryUse:
        """The rows of a box; of one that is written those that lie in the tensor, in pieces where
        its edge may cut them, as boxes beside each other would meet beyond it."""
        m, whole = self.map, BULK_ALIGNMENT // self.map.buffer.dtype.nbytes
        step = math.gcd(whole, m.box[0], m.sizes[0].divisor, self.coordinates[0].divisor)
        last = self.coordinates[0] + m.box[0]
        is_whole = not writes or prove(less_equal(last, m.sizes[0])) is True
        width = m.box[0] if is_whole else step
        run = _box_rows(m.box_size // width)
        index, inner, inside = ZERO, 1, list[Cond]()
        steps = (width, *(1 for _ in m.box[1:]))
        counts = (m.box[0] // width, *m.box[1:])
        strides = (ONE, *m.strides[1:])
        axes = zip(self.coordinates, counts, steps, strides, m.sizes, strict=False)
        for c, count, by, stride, size in axes:
            at = c + mod(floordiv(run, inner), count) * by
            index = index + at * stride
            if writes:
                inside.append(less(at, size))
            inner *= count
        return MemoryUse(
            m.buffer, writes, index, width, all_of(inside), issuer=self.issuer, completes=done,
            in_async_proxy=True, step=step, run=run,
        )  # fmt: skip

    def _operand_problems(self, buffer: Buffer, index: Expr) -> Iterator[str]:
        m = self.map
        yield from lives_in(buffer, Memory.SHARED)
        yield from same_dtype(buffer.dtype, m.buffer.dtype, "a copy keeps the dtype")
        if len(self.coordinates) != len(m.box):
            yield f"{len(self.coordinates)} coordinates for the {len(m.box)} dimensions of {m}"
        swizzle = 0 if buffer.tile is None else buffer.tile.swizzle
        if swizzle != m.swizzle:
            yield (
                f"{m} has swizzle {m.swizzle}, the tile of {buffer} swizzle {swizzle}; what one "
                "puts apart the other would not find"
            )
        elif m.swizzle and buffer.tile is not None and m.box[0] != buffer.tile.panel:
            have = buffer.tile.panel
            yield f"{m} has rows of {m.box[0]} elements, a panel of {buffer} has {have}"
        step = max(_box_step(buffer.dtype), GROUP_ROWS * m.swizzle // buffer.dtype.nbytes)
        if is_misaligned(index, step):
            yield f"the index {index} is not a multiple of {step}, where the exchange begins anew"


@lru_cache(maxsize=64)
def _box_rows(count: int) -> Var:
    """The number of a row of a box, one variable for all boxes of as many, as that of a panel."""
    return Var("box_row", 0, count - 1)


@lru_cache(maxsize=64)
def _panels(count: int) -> Var:
    """The number of a panel, one variable for all operands of as many: what they use is told by
    its index, and found again behind passes that left the statement as it was."""
    return Var("panel", 0, count - 1)


def _box_step(dtype: DType) -> int:
    """Elements between places in shared memory where a box may begin."""
    return BOX_ALIGNMENT // dtype.nbytes


class _BoxOut(_Box):
    """Copies of boxes from shared to global memory, which complete with their group."""

    __slots__ = ()

    src: Buffer
    src_index: Expr

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        read = with_group(AsyncKind.BULK, is_read=True)
        source = self._shared_use(self.src, self.src_index, read, writes=False)
        return source, self._global_use(with_group(AsyncKind.BULK), writes=True)

    def group(self) -> AsyncKind:
        return AsyncKind.BULK

    def problems(self) -> Iterator[str]:
        yield from self._operand_problems(self.src, self.src_index)
        if self.map.rounding:
            yield f"{self.map} rounds what is read to {self.map.rounding}; store through another"


@dataclass(frozen=True, slots=True, eq=False)
class BoxLoad(_Box):
    """Thread `issuer` copies the box at `coordinates` of a tensor to `dst[index ..]` in the async
    proxy; the bytes of the whole box are counted by phase of the mbarrier `barrier[slot]`, which
    `materialise_rings` gives to those that have none. Of several `blocks` it goes to the same place
    in each of the cluster's first ones, and is counted by the mbarrier of each."""

    dst: Buffer
    index: Expr
    map: TensorMap
    coordinates: tuple[Expr, ...]
    issuer: int
    barrier: Buffer | None = None
    slot: Expr = ZERO
    blocks: int = 1

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        done = AT_ONCE if self.barrier is None else WITH_PHASE
        source = self._global_use(done, writes=False)
        target = self._shared_use(self.dst, self.index, done, writes=True)
        if self.barrier is None:
            return source, *self._in_blocks(target)
        counts = MemoryUse(
            self.barrier, False, self.slot, 1, issuer=self.issuer, in_async_proxy=True
        )
        return source, *self._in_blocks(target), *self._in_blocks(counts)

    def _in_blocks(self, use: MemoryUse) -> tuple[MemoryUse, ...]:
        """A use of shared memory in each of the blocks that the box goes to."""
        if self.blocks == 1:
            return (use,)
        return tuple(replace(use, rank=Int(k)) for k in range(self.blocks))

    def mbarrier_use(self) -> MbarrierUse | None:
        if self.barrier is None:
            return None
        nbytes = self.map.box_nbytes
        return MbarrierUse(
            Act.DELIVER, self.barrier, self.slot, nbytes=nbytes, blocks=self.blocks
        )  # fmt: skip

    def feature(self) -> Feature:
        return Feature.BULK if self.blocks == 1 else Feature.CLUSTER

    def problems(self) -> Iterator[str]:
        yield from self._operand_problems(self.dst, self.index)
        if not 1 <= self.blocks <= MAX_CLUSTER:
            yield f"it goes to {self.blocks} blocks; a cluster has 1 to {MAX_CLUSTER}"


@dataclass(frozen=True, slots=True, eq=False)
class BoxStore(_BoxOut):
    """Thread `issuer` copies `src[src_index ..]` to the box at `coordinates` of a tensor in the
    async proxy; completes with its group of kind BULK."""

    map: TensorMap
    coordinates: tuple[Expr, ...]
    src: Buffer
    src_index: Expr
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class BoxReduce(_BoxOut):
    """`tensor = fn(tensor, src)` for the elements of a box, as `BoxStore`; `fn`
    in add, min, max."""

    fn: str
    map: TensorMap
    coordinates: tuple[Expr, ...]
    src: Buffer
    src_index: Expr
    issuer: int

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        source, target = _BoxOut.memory_uses(self)
        target = replace(target, is_atomic=True)
        return source, replace(target, writes=False), target

    def problems(self) -> Iterator[str]:
        yield from _BoxOut.problems(self)
        if self.map.buffer.dtype.name not in BULK_REDUCTIONS.get(self.fn, ()):
            yield f"there is no bulk reduction '{self.fn}' of {self.map.buffer.dtype}"


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchMap(Statement):
    """Thread `issuer` fetches a tensor map into the cache that the copy engine reads it from."""

    map: TensorMap
    issuer: int

    def issuing_thread(self) -> int:
        return self.issuer

    def feature(self) -> Feature:
        return Feature.BULK


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchBox(_Box):
    """Thread `issuer` fetches the box at `coordinates` of a tensor into the second-level cache, for
    copies that come later. Nobody sees it: what of the box lies outside of the tensor is left, and
    who copies the box does not wait for it."""

    map: TensorMap
    coordinates: tuple[Expr, ...]
    issuer: int

    def problems(self) -> Iterator[str]:
        if len(self.coordinates) != len(self.map.box):
            n, m = len(self.coordinates), self.map
            yield f"{n} coordinates for the {len(m.box)} dimensions of {m}"


# --- products of a warpgroup ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Node):
    """An operand of a product in shared memory: 32 bytes of each row of k from `buffer[index]` on,
    in the layout of the buffer's tile."""

    major: Major
    buffer: Buffer
    index: Expr

    @property
    def descriptor(self) -> Descriptor:
        """How the instruction steps through it."""
        assert self.buffer.tile is not None
        return self.buffer.tile.descriptor(self.major)

    def use(self, extent: int) -> MemoryUse:
        """The rows of panels in which its elements lie, `extent` of m or n."""
        tile = self.buffer.tile or Tile(GROUP_ROWS, 1, self.buffer.dtype.nbytes)  # a spec problem
        panel, run = tile.panel, None
        index = floordiv(self.index, panel) * panel
        size = extent * panel
        if self.major is Major.MN:
            size = MMA_DEPTH_NBYTES // tile.itemsize * panel
            run = _panels(max(1, extent // panel))
            index = index + run * (tile.rows * panel)
        return MemoryUse(
            self.buffer, False, index, size, completes=with_group(AsyncKind.MMA),
            in_async_proxy=True, step=panel, run=run,
        )  # fmt: skip

    def problems(self, extent: int) -> Iterator[str]:
        """What keeps an instruction from reading `extent` rows of m or n here."""
        b, tile = self.buffer, self.buffer.tile
        yield from lives_in(b, Memory.SHARED)
        if tile is None or not tile.swizzle:
            yield f"{b} has no swizzled tile; give it one: tile 64 x 64 swizzle 128"
            return
        depth = MMA_DEPTH_NBYTES // tile.itemsize
        if self.major is Major.K:
            yield from self._k_major_problems(tile, extent, depth)
        elif tile.itemsize != TRANSPOSED_NBYTES:
            yield (
                f"rows of {b} are m or n; of {b.dtype} they are k, as only elements of "
                f"{TRANSPOSED_NBYTES} bytes are read across"
            )
        elif extent % tile.panel or tile.rows % GROUP_ROWS:
            yield f"{extent} columns are not whole panels of {tile.panel} of {b}"
        elif is_misaligned(self.index, GROUP_ROWS * tile.panel):
            yield f"the index {self.index} is not at a multiple of {GROUP_ROWS} rows of a panel"

    def _k_major_problems(self, tile: Tile, extent: int, depth: int) -> Iterator[str]:
        if extent > tile.rows:
            yield f"{extent} rows, but a tile of {self.buffer} has {tile.rows}"
        if is_misaligned(self.index, depth):
            yield f"the index {self.index} is not at a multiple of {depth} columns"
        group = GROUP_ROWS * tile.panel
        if prove(less(mod(self.index, group), tile.panel)) is not True:
            yield f"the index {self.index} may lie off the first row of a group of {GROUP_ROWS}"


@dataclass(frozen=True, slots=True, eq=False)
class Mma(Statement):
    """`dst = a @ b`, plus `dst` where `accumulate` holds: 64 x n of a warpgroup, 32 bytes of both
    deep, in the async proxy; completes with its group of kind MMA. Operands of 8 bits may differ.

    Register `4 j + 2 h + e` from `dst` on of lane l of warp w is row `16 w + 8 h + l // 4`, column
    `8 j + 2 (l % 4) + e`. An `a` in registers has elements `4 j + 2 h + e` in the same order, for
    columns of k. `n` is a multiple of 8 up to 256.
    """

    dst: Reg
    a: Reg | Matrix
    b: Matrix
    n: int
    accumulate: Cond = TRUE

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        pairs = ((self.a, MMA_ROWS), (self.b, self.n))
        return tuple(m.use(extent) for m, extent in pairs if isinstance(m, Matrix))

    def register_uses(self) -> tuple[RegisterUse, ...]:
        done, total = with_group(AsyncKind.MMA), self.accumulate == FALSE
        found = RegisterUse(self.dst, not total, True, self.n // 2, total, completes=done)
        if not isinstance(self.a, Reg):
            return (found,)
        return found, RegisterUse(self.a, True, False, FRAGMENT, completes=done)

    def group(self) -> AsyncKind:
        return AsyncKind.MMA

    def executed_by(self) -> Team:
        return Team.WARPGROUP

    def problems(self) -> Iterator[str]:
        if not MMA_COLUMNS_UNIT <= self.n <= MAX_MMA_COLUMNS or self.n % MMA_COLUMNS_UNIT:
            yield (
                f"{self.n} columns are not a multiple of {MMA_COLUMNS_UNIT} from "
                f"{MMA_COLUMNS_UNIT} to {MAX_MMA_COLUMNS}"
            )
        if self.dst.buffer.dtype is not float32:
            yield f"accumulators are float32, {self.dst.buffer} is {self.dst.buffer.dtype}"
        yield from _factor_problems(self.a.buffer, self.b.buffer, MMA_DTYPES)
        if isinstance(self.a, Matrix):
            yield from self.a.problems(MMA_ROWS)
        elif self.a.buffer.dtype.nbytes != TRANSPOSED_NBYTES:
            yield (
                f"{self.a.buffer} is {self.a.buffer.dtype}; operands in registers have "
                f"{TRANSPOSED_NBYTES} bytes"
            )
        yield from self.b.problems(self.n)


@dataclass(frozen=True, slots=True, eq=False)
class WarpMma(Statement):
    """`dst += a @ b` of a warp, 16 x 8, 16 deep: 4 registers of float32 from `dst` on, 8 elements
    of `a` and 4 of `b`."""

    dst: Reg
    a: Reg
    b: Reg

    def register_uses(self) -> tuple[RegisterUse, ...]:
        d, a, b = WARP_MMA_REGISTERS
        return (
            RegisterUse(self.dst, True, True, d),
            RegisterUse(self.a, True, False, a),
            RegisterUse(self.b, True, False, b),
        )

    def executed_by(self) -> Team:
        return Team.WARP

    def problems(self) -> Iterator[str]:
        if self.dst.buffer.dtype is not float32:
            yield f"accumulators are float32, {self.dst.buffer} is {self.dst.buffer.dtype}"
        yield from _factor_problems(self.a.buffer, self.b.buffer, WARP_MMA_DTYPES)


@dataclass(frozen=True, slots=True, eq=False)
class LdMatrix(Statement):
    """Loads `count` (1, 2 or 4) matrices of 8 x 8 elements of 2 bytes to `dst[i .. i+2 count)`:
    lane `8 m + r` names row r of matrix m, 16 bytes from `src[index]` on. Lane l receives elements
    `2 (l % 4)` and the next of row `l // 4`, or with `transposed` of column `l // 4`."""

    dst: Reg
    src: Buffer
    index: Expr
    count: int
    transposed: bool = False

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.src, False, self.index, FRAGMENT),)

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (RegisterUse(self.dst, False, True, 2 * self.count, is_total=True),)

    def executed_by(self) -> Team:
        return Team.WARP

    def problems(self) -> Iterator[str]:
        return _matrix_problems(self.src, self.dst.buffer, self.count)


@dataclass(frozen=True, slots=True, eq=False)
class StMatrix(Statement):
    """Stores `count` matrices of 8 x 8 elements from `src[i .. i+2 count)`, as `LdMatrix`."""

    dst: Buffer
    index: Expr
    src: Reg
    count: int
    transposed: bool = False

    def memory_uses(self) -> tuple[MemoryUse, ...]:
        return (MemoryUse(self.dst, True, self.index, FRAGMENT),)

    def register_uses(self) -> tuple[RegisterUse, ...]:
        return (RegisterUse(self.src, True, False, 2 * self.count),)

    def executed_by(self) -> Team:
        return Team.WARP

    def feature(self) -> Feature:
        return Feature.BULK

    def problems(self) -> Iterator[str]:
        return _matrix_problems(self.dst, self.src.buffer, self.count)


@dataclass(frozen=True, slots=True, eq=False)
class SetMaxRegisters(Statement):
    """The threads of a warpgroup give registers back, or with `grows` wait for more, until each has
    `count`."""

    count: int
    grows: bool = False

    def executed_by(self) -> Team:
        return Team.WARPGROUP

    def feature(self) -> Feature:
        return Feature.WGMMA

    def problems(self) -> Iterator[str]:
        low, high, unit = MIN_SET_REGISTERS, MAX_SET_REGISTERS, REGISTER_UNIT
        if not low <= self.count <= high or self.count % unit:
            yield f"{self.count} registers are not a multiple of {unit} from {low} to {high}"


def _factor_problems(a: Buffer, b: Buffer, known: Sequence[str]) -> Iterator[str]:
    if a.dtype.nbytes != 1 or b.dtype.nbytes != 1:
        yield from same_dtype(a.dtype, b.dtype, "the operands of a product have one dtype")
    for x in dict.fromkeys((a, b)):
        if x.dtype.name not in known:
            yield f"{x} is {x.dtype}; products take {' and '.join(known)}"


def _matrix_problems(memory: Buffer, register: Buffer, count: int) -> Iterator[str]:
    yield from lives_in(memory, Memory.SHARED)
    yield from same_dtype(register.dtype, memory.dtype, "a copy keeps the dtype")
    if memory.dtype.nbytes * FRAGMENT != CHUNK_NBYTES:
        yield f"{memory} is {memory.dtype}; matrices have elements of 2 bytes"
    if count not in _MATRIX_COUNTS:
        yield f"{count} matrices are not one of {', '.join(map(str, _MATRIX_COUNTS))}"
    if memory.alignment % CHUNK_NBYTES:
        yield f"{memory} is aligned to {memory.alignment} bytes, rows of matrices to {CHUNK_NBYTES}"
