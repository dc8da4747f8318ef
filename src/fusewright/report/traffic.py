"""Bytes that a program moves, against the least that any program for this fusion must move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusewright.core.expr import Expr, add, as_expr, constant_value, mul
from fusewright.fusion.ir import Tensor
from fusewright.report.subject import ProgramLike
from fusewright.report.table import nbytes_text


@dataclass(frozen=True, slots=True)
class LaunchTraffic:
    """Bytes between kernels and global memory; expressions where sizes are symbolic.

    `moved`: every launch reads each of its inputs once and writes each of its outputs once.
    `least`: the fusion's arguments that are used are read once, its results are written once.
    """

    moved: Expr
    least: Expr

    @property
    def ratio(self) -> float | None:
        """`moved` over `least`; None where sizes are symbolic or nothing moves."""
        moved, least = constant_value(self.moved), constant_value(self.least)
        return moved / least if moved is not None and least else None


def traffic(program: ProgramLike) -> LaunchTraffic:
    """The traffic of a program."""
    touched = [t for x in program.launches for t in (*x.inputs, *x.outputs)]
    used = {o for t in program.fusion.values for o in t.op.operands}
    ends = (*(t for t in program.fusion.inputs if t in used), *program.fusion.outputs)
    return LaunchTraffic(nbytes_of(touched), nbytes_of(dict.fromkeys(ends)))


def nbytes_of(tensors: Iterable[Tensor]) -> Expr:
    """The bytes of values, each as often as it is listed."""
    total = as_expr(0)
    for t in tensors:
        size = as_expr(t.dtype.nbytes)
        for extent in t.shape:
            size = mul(size, extent)
        total = add(total, size)
    return total


def size_text(nbytes: Expr | int) -> str:
    """Bytes with a unit; an expression in the shape symbols as it stands."""
    constant = constant_value(nbytes)
    return nbytes_text(constant) if constant is not None else f"{nbytes} B"
