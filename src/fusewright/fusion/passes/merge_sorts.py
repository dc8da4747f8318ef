"""Sorts of rows that no block holds in terms of merges of sorted runs.

    sort(x)  ->  sorts of runs, as long as a block holds; passes that merge runs two by two

An element of a merged pair finds by bisection how many of the elements up to it come from the first
run; it then is the lesser of the next elements of both runs. A pass reads its runs through gathers
and is one kernel, or a few where the bisection is long. Source: Green, McColl and Bader, GPU merge
path (2012).
"""

from __future__ import annotations

from fusewright import dtypes
from fusewright.core.expr import Expr, Int, constant_value
from fusewright.fusion import build, ir
from fusewright.fusion.ir import Fusion, Tensor
from fusewright.fusion.passes.rebuild import rebuild
from fusewright.target import BLOCK

ELEMENTS = 16
"""Elements of a row for each thread that sorts it: four steps of comparisons for each time that
they are in registers, 32 of these for 64 bits."""
MOST_SORTED = ELEMENTS * BLOCK
"""Elements of a row that a block sorts at most: 256 threads, 22 rounds. Rounds are compared with
each other for hazards, so that code of 8192 elements takes a minute to make."""


def merge_sorts(fusion: Fusion, most: int = MOST_SORTED) -> Fusion:
    """Writes sorts of more than `most` elements as sorts of runs and passes of merges.

    checks:   afterwards no Sort has more
    order:    before what shares and hoists values, for it makes gathers and literals
    """

    def replace(t: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
        if not isinstance(t.op, ir.Sort):
            return None
        size = constant_value(t.shape[t.op.axis])
        assert size is not None, "fw.sort asks for an integer"
        return _merges(operands[0], t.op.axis, size, most) if size > most else None

    return rebuild(fusion, replace)


def _merges(t: Tensor, axis: int, size: int, most: int) -> Tensor:
    count = -(-size // most)
    full = count * most
    ends = [full - size if k == axis else 0 for k in range(t.ndim)]
    last = t.dtype.integer_range[1]
    padded = build.resize(t, [0] * t.ndim, ends, last)
    before, after = t.shape[:axis], t.shape[axis + 1 :]
    runs = build.value((*before, Int(count), Int(most), *after), t.dtype, ir.Reshape((padded,)))
    runs = build.sort(runs, axis + 1)
    t = build.value(padded.shape, t.dtype, ir.Reshape((runs,)))
    run = most
    while run < full:
        t = _merged(t, axis, run, full)
        run *= 2
    return build.resize(t, [0] * t.ndim, [-n for n in ends], 0)


def _merged(t: Tensor, axis: int, run: int, size: int) -> Tensor:
    """The value with its runs of `run` elements merged two by two."""
    at = _Positions(t.shape, axis)
    place = at.coordinate()
    first = at.call("mul", at.call("floordiv", place, at.number(2 * run)), at.number(2 * run))
    second = at.call("min", at.call("add", first, at.number(run)), at.number(size))
    end = at.call("min", at.call("add", first, at.number(2 * run)), at.number(size))
    # `taken` is the last element of the first run that comes before `place`, which is bisected
    # for: the candidate at `taken + step` does where it is not above the element of the second
    # run that would come before `place` in its stead.
    before = at.call("sub", place, at.call("sub", end, second))
    taken = at.call("sub", at.call("max", before, first), at.number(1))
    last = at.call("sub", at.call("min", place, second), at.number(1))
    mirror = at.call("add", place, at.call("sub", second, at.number(1)))
    step = _power_below(run)
    while step:
        candidate = at.call("add", taken, at.number(step))
        rival = at.call("sub", mirror, candidate)
        wins = build.pointwise("le", at.gather(t, candidate), at.gather(t, rival))
        inside = build.pointwise("le", candidate, last)
        taken = build.pointwise("where", build.pointwise("and", inside, wins), candidate, taken)
        step //= 2
    own = at.call("add", taken, at.number(1))
    other = at.call("add", mirror, at.call("sub", at.number(1), own))
    is_own = build.pointwise(
        "and",
        build.pointwise("lt", own, second),
        build.pointwise(
            "or",
            build.pointwise("ge", other, end),
            build.pointwise("le", at.gather(t, own), at.gather(t, other)),
        ),
    )
    return at.gather(t, build.pointwise("where", is_own, own, other))


def _power_below(n: int) -> int:
    """The greatest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


class _Positions:
    """Computes with positions along an axis, in every element of a shape."""

    def __init__(self, shape: tuple[Expr, ...], axis: int) -> None:
        self._shape = shape
        self._axis = axis

    def coordinate(self) -> Tensor:
        return build.iota(self._shape, self._axis, dtypes.int32)

    def number(self, n: int) -> Tensor:
        return build.full(self._shape, n, dtypes.int32)

    def call(self, fn: str, a: Tensor, b: Tensor) -> Tensor:
        return build.pointwise(fn, a, b)

    def gather(self, t: Tensor, at: Tensor) -> Tensor:
        return build.value(t.shape, t.dtype, ir.TakeAlong((t, at), self._axis, "fill"))
