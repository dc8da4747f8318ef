"""Symbols and operands of Kernel IR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.expr import ZERO, Expr, Var
from fusewright.core.node import Node
from fusewright.dtypes import DType
from fusewright.kir.tiles import Tile
from fusewright.memory import Memory


class Buffer:
    """A symbol: a run of `size` elements of `dtype` in one memory. Equality is identity.

    LOCAL is per thread, SHARED per block, GLOBAL a kernel parameter. `alignment` in bytes is
    what the base is known to be aligned to. With a `tile` a SHARED buffer holds tiles of that
    layout, one behind the other.
    """

    __slots__ = ("alignment", "dtype", "memory", "name", "size", "tile")

    def __init__(
        self,
        name: str,
        dtype: DType,
        size: Expr,
        memory: Memory,
        alignment: int = 0,
        tile: Tile | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.size = size
        self.memory = memory
        self.tile = tile
        self.alignment = alignment or (tile.alignment if tile else dtype.nbytes)

    def __repr__(self) -> str:
        return self.name


class TensorMap:
    """A symbol: what the copy engine knows of a parameter. Dimension 0 varies fastest; `sizes` and
    `strides` are counted in elements, stride 0 is 1. A copy moves `box` elements of each dimension,
    which lie one behind the other in shared memory, the first dimension fastest, with chunks
    exchanged by `swizzle` (`kir/tiles.py`).
    """

    __slots__ = ("box", "buffer", "name", "sizes", "strides", "swizzle")

    def __init__(
        self,
        name: str,
        buffer: Buffer,
        sizes: tuple[Expr, ...],
        strides: tuple[Expr, ...],
        box: tuple[int, ...],
        swizzle: int = 0,
    ) -> None:
        self.name = name
        self.buffer = buffer
        self.sizes = sizes
        self.strides = strides
        self.box = box
        self.swizzle = swizzle

    @property
    def box_size(self) -> int:
        """Elements of a box."""
        return math.prod(self.box)

    @property
    def box_nbytes(self) -> int:
        """Bytes of a box: an mbarrier counts them all, also those beyond an edge."""
        return self.box_size * self.buffer.dtype.nbytes

    def __repr__(self) -> str:
        return self.name


class Argument:
    """A symbol: a scalar kernel parameter that the caller's program supplied."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.dtype = dtype

    def __repr__(self) -> str:
        return self.name


# --- operands of Compute ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Reg(Node):
    """Element `index` of a LOCAL buffer."""

    buffer: Buffer
    index: Expr = ZERO


@dataclass(frozen=True, slots=True, eq=False)
class Imm(Node):
    """A literal of a dtype."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Index(Node):
    """The value of an integer expression, as a dtype."""

    expr: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Arg(Node):
    """The value of a scalar parameter."""

    argument: Argument


Operand: TypeAlias = Reg | Imm | Index | Arg


def operand_dtype(o: Operand) -> DType:
    """The dtype of an operand's value."""
    match o:
        case Reg():
            return o.buffer.dtype
        case Imm() | Index():
            return o.dtype
        case Arg():
            return o.argument.dtype


class RegVar(Var):
    """An integer register used inside an index expression (a gathered position)."""

    __slots__ = ("reg",)

    def __init__(self, reg: Reg, lower: Expr | int | None, upper: Expr | int | None) -> None:
        super().__init__(
            f"{reg.buffer.name}[{reg.index}]", lower if lower is not None else 0, upper
        )
        self.reg = reg
