"""Arrays of a body's kernels that lie in shared memory, and the accesses that become theirs."""

from __future__ import annotations

from dataclasses import replace

from fusewright.core.conditions import TRUE, Cond, all_of, less, less_equal
from fusewright.core.expr import ZERO, Expr, Var, add, as_expr, is_multiple, mul
from fusewright.dtypes import DType
from fusewright.kir.ir import Alloc, Body, Buffer, For, Imm, Load, Memory, Reg, Statement, Store
from fusewright.target import MAX_VECTOR_NBYTES


class SharedPlaces:
    """So many places of an array of `count` elements in shared memory, `size` elements apart."""

    def __init__(self, name: str, dtype: DType, count: int, places: int) -> None:
        lanes = MAX_VECTOR_NBYTES // dtype.nbytes
        self.count, self.size = count, -(-count // lanes) * lanes
        size = as_expr(places * self.size)
        self.buffer = Buffer(name, dtype, size, Memory.SHARED, MAX_VECTOR_NBYTES)
        self.nbytes = places * self.size * dtype.nbytes

    def loads(self, s: Load, begins: Expr, behind: Expr) -> list[Statement]:
        """A load of an array that begins `begins` elements behind the first one of a place, which
        is `behind` elements away."""
        is_whole = s.lanes.begins == 0 and s.lanes.all_exist
        if is_whole and is_multiple(begins, s.width):
            return [replace(s, src=self.buffer, index=add(behind, begins, s.index))]
        return [self._lane(s, k, add(behind, begins)) for k in range(s.width)]

    def _lane(self, s: Load, k: int, begins: Expr) -> Statement:
        exists: Cond = TRUE
        if s.lanes.first is not None and s.lanes.stop is not None:
            exists = all_of((less_equal(s.lanes.first, k), less(k, s.lanes.stop)))
        predicate = all_of((s.predicate, exists))
        fill = s.fill
        if fill is None and exists != TRUE:
            fill = zero_of(s.src.dtype)
        dst = Reg(s.dst.buffer, add(s.dst.index, k))
        at = add(begins, s.index, k)
        return Load(dst, self.buffer, at, predicate=predicate, fill=fill)

    def stores(self, s: Store, begins: Expr, behind: Expr) -> list[Statement]:
        """A store into an array, by elements where it begins inside of vectors."""
        if is_multiple(begins, s.width):
            at = add(behind, begins, s.index)
            return [Store(self.buffer, at, s.src, s.width, s.predicate)]
        return [
            Store(
                self.buffer,
                add(behind, begins, s.index, k),
                Reg(s.src.buffer, add(s.src.index, k)),
                1,
                s.predicate,
            )
            for k in range(s.width)
        ]

    def filled(self, source: Buffer, thread: Expr, nthreads: int) -> Body:
        """Copies an array to the first place."""
        return self._copied(source, self.buffer, ZERO, thread, nthreads)

    def stored(self, result: Buffer, behind: Expr, thread: Expr, nthreads: int) -> Body:
        """Copies a place to an array."""
        return self._copied(self.buffer, result, behind, thread, nthreads)

    def _copied(
        self, source: Buffer, target: Buffer, first: Expr, thread: Expr, nthreads: int
    ) -> Body:
        """Copies all elements, in vectors where the count allows it."""
        lanes = MAX_VECTOR_NBYTES // source.dtype.nbytes
        aligned = all(b.alignment >= MAX_VECTOR_NBYTES for b in (source, target))
        width = lanes if aligned and self.count % lanes == 0 else 1
        words = self.count // width
        moved = Buffer(f"{self.buffer.name}_word", source.dtype, as_expr(width), Memory.LOCAL,
                       width * source.dtype.nbytes)  # fmt: skip
        trips = -(-words // nthreads)
        trip = Var("word", 0, trips - 1)
        word = add(mul(trip, nthreads), thread)
        inside = TRUE if words % nthreads == 0 else less(word, words)
        fill = None if inside == TRUE else zero_of(source.dtype)
        at = mul(word, width)
        body = (
            Alloc(moved),
            Load(Reg(moved), source, add(first, at), width, inside, fill),
            Store(target, at, Reg(moved), width, inside),
        )
        return (For(trip, as_expr(trips), body),)


def zero_of(dtype: DType) -> Imm:
    """Zero of a dtype; False of bool."""
    return Imm(0.0 if dtype.is_float else 0, dtype)
