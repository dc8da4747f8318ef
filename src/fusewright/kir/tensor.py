"""Kernel IR: matrix products and what feeds them, one doc line a node.

The copy engine moves boxes through tensor maps: elements beyond an edge of the tensor are zeros in
shared memory and are dropped on the way out. An `index` of a box or of an operand counts elements
before the exchange of chunks that the swizzle makes; loads, stores and `LdMatrix` name the place
behind it (`kir/tiles.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core.conditions import TRUE, Cond
from fusewright.core.expr import Expr
from fusewright.core.node import Node
from fusewright.kir.symbols import Buffer, Reg, Statement, TensorMap
from fusewright.kir.tiles import Descriptor, Major

# --- boxes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BoxLoad(Statement):
    """Thread `issuer` copies the box at `coordinates` of a tensor to `dst[index ..]` in the async
    proxy; the bytes of the whole box are counted by phase of the mbarrier `barrier[slot]`."""

    dst: Buffer
    index: Expr
    map: TensorMap
    coordinates: tuple[Expr, ...]
    barrier: Buffer
    slot: Expr
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class BoxStore(Statement):
    """Thread `issuer` copies `src[src_index ..]` to the box at `coordinates` of a tensor in the
    async proxy; completes with its group of kind BULK."""

    map: TensorMap
    coordinates: tuple[Expr, ...]
    src: Buffer
    src_index: Expr
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class BoxReduce(Statement):
    """`tensor = fn(tensor, src)` for the elements of a box, as `BoxStore`; `fn`
    in add, min, max."""

    fn: str
    map: TensorMap
    coordinates: tuple[Expr, ...]
    src: Buffer
    src_index: Expr
    issuer: int


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchMap(Statement):
    """Thread `issuer` fetches a tensor map into the cache that the copy engine reads it from."""

    map: TensorMap
    issuer: int


# --- products of a warpgroup ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Node):
    """An operand of a product in shared memory: 16 columns of k from `buffer[index]` on, in the
    layout of the buffer's tile."""

    major: Major
    buffer: Buffer
    index: Expr

    @property
    def descriptor(self) -> Descriptor:
        """How the instruction steps through it."""
        assert self.buffer.tile is not None
        return self.buffer.tile.descriptor(self.major)


@dataclass(frozen=True, slots=True, eq=False)
class Mma(Statement):
    """`dst = a @ b`, plus `dst` where `accumulate` holds: 64 x n of a warpgroup, 16 deep, in the
    async proxy; completes with its group of kind MMA.

    Register `4 j + 2 h + e` from `dst` on of lane l of warp w is row `16 w + 8 h + l // 4`, column
    `8 j + 2 (l % 4) + e`. An `a` in registers has elements `4 j + 2 h + e` in the same order, for
    columns of k. `n` is a multiple of 8 up to 256.
    """

    dst: Reg
    a: Reg | Matrix
    b: Matrix
    n: int
    accumulate: Cond = TRUE


@dataclass(frozen=True, slots=True, eq=False)
class WarpMma(Statement):
    """`dst += a @ b` of a warp, 16 x 8, 16 deep: 4 registers of float32 from `dst` on, 8 elements
    of `a` and 4 of `b`."""

    dst: Reg
    a: Reg
    b: Reg


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


@dataclass(frozen=True, slots=True, eq=False)
class StMatrix(Statement):
    """Stores `count` matrices of 8 x 8 elements from `src[i .. i+2 count)`, as `LdMatrix`."""

    dst: Buffer
    index: Expr
    src: Reg
    count: int
    transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SetMaxRegisters(Statement):
    """The threads of a warpgroup give registers back, or with `grows` wait for more, until each has
    `count`."""

    count: int
    grows: bool = False
