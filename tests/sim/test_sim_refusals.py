"""What the simulator refuses to run: kernels that are incomplete, and statements without a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from sim_kernels import Builder

from fusewright import Sym
from fusewright.core.expr import Int, Var
from fusewright.dtypes import float32
from fusewright.errors import FusewrightError, SpecError, UnsupportedError, UserError
from fusewright.kir import ir
from fusewright.kir.traits import SyncStatement
from fusewright.memory import Memory
from fusewright.sim.machine import simulate

N = Sym("n")


@dataclass(frozen=True, slots=True, eq=False)
class Hum(ir.Statement):
    """A statement that nothing gives a meaning."""


@dataclass(frozen=True, slots=True, eq=False)
class Nap(SyncStatement):
    """A sync that nothing gives a meaning."""


def of(*statements: ir.Statement, symbols: tuple[Var, ...] = ()) -> ir.Kernel:
    b = Builder(1, 32)
    b.add(*statements)
    return b.kernel(symbols=symbols)


def v() -> ir.Reg:
    return ir.Reg(ir.Buffer("v", float32, Int(1), Memory.LOCAL), Int(0))


def sized(memory: Memory) -> ir.Alloc:
    return ir.Alloc(ir.Buffer("b", float32, N, memory, 16), 0)


def stray() -> ir.Load:
    return ir.Load(v(), ir.Buffer("x", float32, Int(32), Memory.GLOBAL, 16), Int(0))


def blocks(extent: object) -> ir.Kernel:
    k = of()
    grid = (ir.Dim(k.grid[0].var, extent),)  # type: ignore[arg-type]
    return ir.Kernel(k.name, k.params, (), (), grid, k.block, k.body)


REFUSED: list[tuple[Callable[[], ir.Kernel], type[FusewrightError], str]] = [
    (
        lambda: of(ir.Compute("copy", v(), (ir.Arg(ir.Argument("scale", float32)),))),
        SpecError,
        "argument scale is not declared by the kernel",
    ),
    (
        lambda: of(ir.Roles((ir.Compute("copy", v(), (ir.Imm(0.0, float32),)),))),  # type: ignore
        SpecError,
        r"`v\[0\] = copy\(0\.0:float32\)` stands directly in roles; only roles may",
    ),
    (lambda: of(stray()), SpecError, r"x is no parameter of the kernel, used in `v\[0\] = load x"),
    (lambda: of(sized(Memory.SHARED)), SpecError, "the size n of b is not constant; bind its symb"),
    (lambda: of(sized(Memory.LOCAL)), SpecError, "the size n of b is not constant; bind its symbo"),
    (lambda: blocks(N), SpecError, "the extent of bx is n, which symbols do not make constant"),
    (lambda: of(Hum()), UnsupportedError, "the simulator does not know the statement Hum"),
    (lambda: of(Nap(0, "")), UnsupportedError, "the simulator does not know the statement Nap"),
    (lambda: of(symbols=(N,)), UserError, "no value for the symbol n; pass symbols"),
]


@pytest.mark.parametrize(
    ("make", "error", "message"), REFUSED, ids=lambda x: x[:30] if isinstance(x, str) else ""
)
def test_refuses(make: Callable[[], ir.Kernel], error: type[FusewrightError], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate(make(), {})


def test_symbols_make_sizes_constant() -> None:
    k = of(sized(Memory.SHARED), symbols=(N,))
    assert simulate(k, {}, symbols={N: 64}).races == []


def test_threads_of_a_block_are_counted_at_the_limit() -> None:
    b = Builder(1, 1024)
    y = b.param("y", 1024)
    b.compute("copy", b.reg("v"), ir.Imm(2.0, float32))
    b.store(y, b.tx, b.reg("v"))
    out = np.zeros(1024, np.float32)
    k = b.kernel()
    simulate(k, {k.params[0]: out}, outputs=k.params)
    assert (out == 2.0).all()
