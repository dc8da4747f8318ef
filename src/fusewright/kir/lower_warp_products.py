"""Products on the instructions of single warps: operands come from tiles in shared memory by loads
of matrices, sums stay in registers.

    for k in steps of 16:  a[0..16, 16] <- tile;  b[16, 0..8] <- tile;  sums += a @ b

The operands of a step are loaded before the products of the step before it, so that these hide
their way.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core.expr import Expr, Int, Var, add, constant_value, floordiv, mod, mul
from fusewright.core.substitution import substitute
from fusewright.errors import ScheduleError
from fusewright.kir.ir import Alloc, Buffer, LdMatrix, Reg, Statement, WarpMma
from fusewright.kir.lower_operands import OperandReader
from fusewright.kir.lower_storage import Storage
from fusewright.kir.rules import is_misaligned
from fusewright.kir.tensor import FRAGMENT, WARP_MMA_REGISTERS
from fusewright.memory import Memory
from fusewright.schedule.graph import Stage
from fusewright.schedule.views import operand
from fusewright.target import WARP_SIZE

_MATRICES = 4
_ROWS = 8
"""Rows and columns of a matrix that is loaded."""
_SUMS, _, _OF_SECOND = WARP_MMA_REGISTERS


@dataclass(frozen=True, slots=True)
class _ProductLoops:
    """The variables of a product's loops from that over threads on."""

    thread: Expr
    step: Expr
    inside: Expr
    several: Expr
    word: Expr
    half: Expr
    element: Expr


def warp_instructions(storage: Storage, s: Stage, values: tuple[Expr, ...]) -> list[Statement]:
    """The matrix instructions of a product at one place: for each step of the tile's depth, one for
    every 16 rows and 8 columns of a warp. Raises ScheduleError for operands that no loads of
    matrices bring."""
    loops = _ProductLoops(*values[-7:])
    steps, _, rows, columns, *_ = (constant_value(x.axis.extent) or 1 for x in s.loops[-6:])
    sides = tuple(_FragmentSide(storage, s, values, loops, position) for position in (0, 1))
    sums = storage.context.buffers[s]
    out: list[Statement] = []
    held = [_loaded(storage, s, sides, (rows, columns // 2), 0, out)]
    for k in range(steps):
        if k + 1 < steps:
            held.append(_loaded(storage, s, sides, (rows, columns // 2), k + 1, out))
        a, b = held[k]
        for i in range(rows):
            for j in range(columns):
                total = Reg(sums, Int((i * columns + j) * _SUMS))
                first, second = Reg(a, Int(i * FRAGMENT)), Reg(b, Int(j * _OF_SECOND))
                out.append(WarpMma(total, first, second))
    return out


def _loaded(
    storage: Storage,
    s: Stage,
    sides: tuple[_FragmentSide, ...],
    counts: tuple[int, ...],
    step: int,
    out: list[Statement],
) -> tuple[Buffer, ...]:
    """Registers with the fragments of both operands of a step, which `out` loads."""
    found: list[Buffer] = []
    for side, count in zip(sides, counts, strict=True):
        registers = storage.temporary(s, side.buffer.dtype, count * FRAGMENT)
        out.append(Alloc(registers))
        for n in range(count):
            to = Reg(registers, Int(n * FRAGMENT))
            index = side.index(step, n)
            out.append(LdMatrix(to, side.buffer, index, _MATRICES, side.is_across))
        found.append(registers)
    return tuple(found)


class _FragmentSide:
    """An operand of a product: where the lanes of a warp find the rows of its matrices.

    A fragment is four matrices: of the first operand those of both halves of the rows, then the
    same for the second half of the depth; of the second operand those of both halves of the depth,
    then the same for the next eight columns. Lane 8 m + r names row r of matrix m: a row of the
    tile, or where the tile lies across (`is_across`) a place of the depth.
    """

    def __init__(
        self,
        storage: Storage,
        s: Stage,
        values: tuple[Expr, ...],
        loops: _ProductLoops,
        position: int,
    ) -> None:
        p = s.operands[position]
        if p.memory is not Memory.SHARED or p.boxed:
            raise ScheduleError(
                f"{s.name} multiplies {p.name} by instructions of single warps, which find it in "
                "a tile of shared memory that threads copy; make it with "
                "cache_after(by='cp_async')"
            )
        reader = OperandReader(storage, s, values)
        self._loops, self._is_first = loops, position == 0
        self._at = reader.element(p, operand(storage.graph, reader.view, position))
        innermost = storage.places(p)[-1]
        self.buffer = storage.context.buffers[p]
        self.is_across = not storage.graph.depends(innermost, s.frame.reduced)
        self._check(s, p)

    def _check(self, s: Stage, p: Stage) -> None:
        lane = Var("in_row", 0, _ROWS - 1)
        along = substitute(self._at, self._place(0, 0, lane, in_row=True))
        first = substitute(along, {lane: 0})
        if along != add(first, lane) or is_misaligned(first, _ROWS):
            raise ScheduleError(
                f"{s.name} multiplies {p.name}, of which {_ROWS} neighbours do not lie together "
                f"(at {along}); matrices are loaded by rows of {_ROWS}: vectorise the copy, and "
                "store it by vectors"
            )

    def index(self, step: int, n: int) -> Expr:
        """Where a lane finds its row of fragment `n` of a step."""
        row = Var("row", 0, _ROWS - 1)
        place = self._place(step, n, row, in_row=False)
        lane = mod(self._loops.thread, WARP_SIZE)
        found = {
            row: mod(lane, _ROWS),
            _LOW: mod(floordiv(lane, _ROWS), 2),
            _HIGH: floordiv(lane, 2 * _ROWS),
            _WARP: floordiv(self._loops.thread, WARP_SIZE),
        }
        return substitute(substitute(self._at, place), found)

    def _place(self, step: int, n: int, r: Var, *, in_row: bool) -> dict[Var, Expr]:
        """What the variables of the product's loops are for the row `r` of a matrix, or for
        element `r` of its first row."""
        x, warp = self._loops, mul(_WARP, WARP_SIZE)
        deep = self.is_across != in_row
        k = add(mul(_HIGH if self._is_first else _LOW, _ROWS), r if deep else 0)
        if self._is_first:
            thread = add(warp, Int(0) if deep else mul(r, WARP_SIZE // _ROWS))
            own = {x.several: Int(n), x.half: _LOW}
        else:
            pair, element = (Int(0), Int(0)) if deep else (floordiv(r, 2), mod(r, 2))
            thread = add(warp, pair)
            own = {x.word: add(_HIGH, 2 * n), x.element: element}
        place = {x.thread: thread, x.step: Int(step), x.inside: k, **own}
        return {v: e for v, e in place.items() if isinstance(v, Var)}


_WARP = Var("warp", 0, None)
_LOW, _HIGH = Var("low", 0, 1), Var("high", 0, 1)
"""Which half of the four matrices, and of two of them, a lane names a row of."""
