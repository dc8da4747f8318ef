"""Symbols and operands of Kernel IR."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from fusewright.core.expr import ZERO, Expr, Var, constant_value
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

    __slots__ = ("box", "buffer", "name", "rounding", "sizes", "strides", "swizzle")

    def __init__(
        self,
        name: str,
        buffer: Buffer,
        sizes: tuple[Expr, ...],
        strides: tuple[Expr, ...],
        box: tuple[int, ...],
        swizzle: int = 0,
        rounding: str = "",
    ) -> None:
        self.name = name
        self.buffer = buffer
        self.sizes = sizes
        self.strides = strides
        self.box = box
        self.swizzle = swizzle
        self.rounding = rounding

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


# --- lanes of an access -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lanes(Node):
    """Where the vector of an access begins, and which of its lanes exist; a value.

        x[8*t .. 8*t + 8]         Lanes()                    begins at a word of 8 elements
        x[8*t + 2 .. 8*t + 10]    Lanes(begins=2)            cut out of the two words that hold it
        x[9*r .. 9*r + 8]         Lanes(begins=None)         begins anywhere: the address tells
        x[8*t .. n]               Lanes(first=0, stop=n-8*t) the last words of a row of n elements

    `begins` counts elements from the word of the access's width that the vector begins in. With
    bounds only the lanes `first .. stop` exist, at least one where the access takes place; the
    others hold anything, and so do all where it does not. `inside`, where it is proved: all lanes
    lie in the buffer even where the access does not take place.
    """

    begins: int | None = 0
    first: Expr | None = None
    stop: Expr | None = None
    inside: bool = False

    @property
    def all_exist(self) -> bool:
        """Whether no lane is undefined."""
        return self.first is None

    @property
    def is_cut(self) -> bool:
        """Whether the vector is cut out of two words."""
        return self.begins != 0

    def everywhere(self, width: int) -> Lanes:
        """The lanes where the access is known to take place: a range of all is none."""
        if self.stop is None or self.first != ZERO or constant_value(self.stop) != width:
            return self
        return replace(self, first=None, stop=None, inside=False)


WHOLE = Lanes()


class RegVar(Var):
    """An integer register used inside an index expression (a gathered position)."""

    __slots__ = ("reg",)

    def __init__(self, reg: Reg, lower: Expr | int | None, upper: Expr | int | None) -> None:
        super().__init__(
            f"{reg.buffer.name}[{reg.index}]", lower if lower is not None else 0, upper
        )
        self.reg = reg
