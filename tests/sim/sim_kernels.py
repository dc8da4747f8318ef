"""Small kernels built by hand, with and without the syncs they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from fusewright.core.conditions import TRUE, Cond, equal
from fusewright.core.expr import Expr, Int, Var, as_expr
from fusewright.dtypes import DType, float32
from fusewright.kir import ir
from fusewright.memory import Memory


class Builder:
    """Collects statements; `drop` lists numbers of syncs to leave out."""

    def __init__(self, nblocks: int = 1, nthreads: int = 64, drop: Iterable[int] = ()) -> None:
        self.bx = Var("bx", 0, nblocks - 1)
        self.tx = Var("tx", 0, nthreads - 1)
        self.nblocks, self.nthreads = nblocks, nthreads
        self.params: list[ir.Buffer] = []
        self.body: list[ir.Statement] = []
        self.drop = frozenset(drop)
        self.ids: Iterator[int] = count()
        self.copies = False
        self.halves: ir.Buffer | None = None
        self.registers: dict[tuple[str, DType], ir.Buffer] = {}

    def param(self, name: str, size: int, dtype: DType = float32) -> ir.Buffer:
        self.params.append(ir.Buffer(name, dtype, Int(size), Memory.GLOBAL, 16))
        return self.params[-1]

    def shared(self, name: str, size: int, dtype: DType = float32, offset: int | None = None):
        buffer = ir.Buffer(name, dtype, Int(size), Memory.SHARED, 16)
        self.body.append(ir.Alloc(buffer, offset))
        return buffer

    def reg(
        self, name: str, index: Expr | int = 0, size: int = 1, dtype: DType = float32
    ) -> ir.Reg:
        buffer = self.registers.setdefault(
            (name, dtype), ir.Buffer(name, dtype, Int(size), Memory.LOCAL)
        )
        return ir.Reg(buffer, as_expr(index))

    def add(self, *statements: ir.Statement) -> None:
        self.body.extend(statements)

    def load(
        self, dst: ir.Reg, src: ir.Buffer, index: Expr | int, width: int = 1, **keywords: object
    ) -> None:
        self.add(ir.Load(dst, src, as_expr(index), width, **keywords))  # type: ignore[arg-type]

    def store(
        self, dst: ir.Buffer, index: Expr | int, src: ir.Reg, width: int = 1, predicate: Cond = TRUE
    ) -> None:
        self.add(ir.Store(dst, as_expr(index), src, width, predicate))

    def compute(self, fn: str, dst: ir.Reg, *operands: ir.Operand, predicate: Cond = TRUE) -> None:
        self.add(ir.Compute(fn, dst, operands, predicate))

    def sync(self, node: type[ir.SyncStatement] = ir.BlockSync, why: str = "") -> None:
        number = next(self.ids)
        if number not in self.drop:
            self.add(node(number, why))

    def nested(self) -> Builder:
        """A builder for an inner body that shares everything but the statements."""
        inner = object.__new__(Builder)
        inner.__dict__.update(self.__dict__)
        inner.body = []
        return inner

    def loop(self, var: Var, extent: Expr | int, inner: Builder) -> None:
        self.add(ir.For(var, as_expr(extent), tuple(inner.body)))

    def kernel(self, name: str = "k", symbols: tuple[Var, ...] = ()) -> ir.Kernel:
        grid = (ir.Dim(self.bx, Int(self.nblocks)),)
        block = (ir.Dim(self.tx, Int(self.nthreads)),)
        return ir.Kernel(name, tuple(self.params), (), symbols, grid, block, tuple(self.body))


def softmax(
    rows: int, cols: int, nthreads: int = 128, width: int = 4, drop: Iterable[int] = ()
) -> ir.Kernel:
    """One row a block; the maximum and the sum share a workspace. Needs all three of its syncs."""
    b = Builder(rows, nthreads, drop)
    x, y = b.param("x", rows * cols), b.param("y", rows * cols)
    per_thread = cols // nthreads
    work = b.shared("work", nthreads // 32)
    t = b.reg("t")

    def element(k: int) -> ir.Reg:
        return b.reg("r", k, per_thread)

    def reduce(fn: str, to: ir.Reg) -> None:
        for distance in (16, 8, 4, 2, 1):
            b.add(ir.Shuffle(t, to, "xor", Int(distance)))
            b.compute(fn, to, to, t)
        b.store(work, b.tx // 32, to, predicate=equal(b.tx % 32, 0))
        b.sync(why="RAW work")
        b.load(to, work, 0)
        for i in range(1, nthreads // 32):
            b.load(t, work, i)
            b.compute(fn, to, to, t)

    where = [b.bx * cols + b.tx * width + k * nthreads for k in range(0, per_thread, width)]
    for i, at in enumerate(where):
        b.load(element(i * width), x, at, width)
    m, s = b.reg("m"), b.reg("s")
    b.compute("copy", m, element(0))
    for k in range(1, per_thread):
        b.compute("max", m, m, element(k))
    reduce("max", m)
    b.compute("copy", s, ir.Imm(0.0, float32))
    for k in range(per_thread):
        b.compute("sub", element(k), element(k), m)
        b.compute("exp", element(k), element(k))
        b.compute("add", s, s, element(k))
    b.sync(why="WAR work")
    reduce("add", s)
    for k in range(per_thread):
        b.compute("div", element(k), element(k), s)
    for i, at in enumerate(where):
        b.store(y, at, element(i * width), width)
    return b.kernel("softmax")
