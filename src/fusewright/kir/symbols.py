"""Symbols and operands of Kernel IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fusewright.core.expr import ZERO, Expr, Var
from fusewright.core.node import Node
from fusewright.dtypes import DType
from fusewright.memory import Memory


class Buffer:
    """A symbol: a run of `size` elements of `dtype` in one memory. Equality is identity.

    LOCAL is per thread, SHARED per block, GLOBAL a kernel parameter. `alignment` in bytes is
    what the base is known to be aligned to.
    """

    __slots__ = ("alignment", "dtype", "memory", "name", "size")

    def __init__(
        self, name: str, dtype: DType, size: Expr, memory: Memory, alignment: int = 0
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.size = size
        self.memory = memory
        self.alignment = alignment or dtype.nbytes

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
