"""The oracle: what a fusion means, computed with numpy.

Floats are float64 throughout and are rounded where the program casts and at the outputs; integers
are exact in their dtype. Kernels are compared against this.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeGuard, assert_never

import numpy as np
import numpy.typing as npt

from fusewright.core import atoms, expr, substitution
from fusewright.core.expr import Expr, Var
from fusewright.core.functions import FUNCTIONS, convert, reinterpret, round_tf32
from fusewright.core.identities import reduction_identity, scan_identity
from fusewright.dtypes import DType
from fusewright.errors import UserError, index_error
from fusewright.fusion import ir
from fusewright.fusion.call_numbers import (
    Lap,
    check_numbers,
    check_size_number,
    without_numbers,
)
from fusewright.fusion.constants import completed, constants_of
from fusewright.fusion.ir import Fusion, Scalar, Tensor
from fusewright.fusion.summed_products import (
    is_of_matrices,
    repeated_axes,
    sum_of_products,
    summed_products,
)

Array = npt.NDArray[Any]
Sizes = Mapping[Var, int]

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def evaluate(fusion: Fusion, *arrays: Array, stepwise: bool = False) -> list[Array]:
    """The outputs for numpy arrays (or scalars) that match the inputs' specs, in output order.

    `stepwise`: every op's result is rounded to its compute dtype, as a register would hold it.
    Then `trunc(log(x) / log(2))` steps where a machine's does, which may be beside the exact place.

    Raises UserError for arrays that do not match and for values that memory does not hold, and
    AxisError for an index outside its axis in a gather that does not fill.
    """
    given, numbers = without_numbers(fusion, arrays)
    arrays = tuple(completed(fusion.inputs, given, constants_of(fusion.inputs)))
    sizes = bind_sizes(fusion, *arrays, numbers=numbers)
    try:
        with np.errstate(all="ignore"):
            return _Evaluation(sizes, stepwise=stepwise).run(fusion, arrays)
    except MemoryError as e:
        raise UserError(
            f"evaluate: {e or 'out of memory'}; the numpy oracle keeps each value whole: evaluate "
            "smaller arrays, or compile the function and run it on a GPU"
        ) from None


class _Evaluation:
    """Computes fusions, and bodies of their regions, for sizes that are known."""

    def __init__(self, sizes: Sizes, *, stepwise: bool) -> None:
        self._sizes, self._stepwise = sizes, stepwise

    def run(self, fusion: Fusion, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, rounded to their dtypes."""
        values: dict[Tensor, Array] = {}
        regions: dict[object, list[Array]] = {}
        summed = {} if self._stepwise else summed_products(fusion)
        factors: dict[Tensor, tuple[Array, Array]] = {}
        for t, a in zip(fusion.inputs, arrays, strict=True):
            values[t] = carried(np.asarray(a), t.dtype)
        for t in fusion.values:
            if t in values:
                continue
            if t in factors:
                assert isinstance(t.op, ir.Reduce)
                values[t] = sum_of_products(*factors[t], t.op.axes)
                continue
            self._check_addressable(t)
            args = [values[o] for o in t.op.operands]
            if t in summed and is_of_matrices(*args):
                factors[summed[t]] = args[0], args[1]
                continue
            if isinstance(t.op, ir.Region):
                key = t.op.bodies, t.op.operands
                if key not in regions:
                    pairs = zip(args, t.op.operands, strict=True)
                    regions[key] = self._region(t.op, [rounded(a, o.dtype) for a, o in pairs])
                values[t] = carried(regions[key][t.op.result], t.dtype)
                continue
            if isinstance(t.op, ir.Take | ir.TakeAlong) and t.op.mode != "fill":
                _check_indices(args, t.op, t.op.place or str(t.source or t.name))
            found = _compute(t, args, self._sizes)
            if self._stepwise:
                found = carried(rounded(found, t.dtype.compute), t.dtype)
            values[t] = found
        return [rounded(values[t], t.dtype) for t in fusion.outputs]

    def _check_addressable(self, t: Tensor) -> None:
        """MemoryError for a value of more bytes than an address counts, of which numpy raises other
        errors, even where it would only repeat an element."""
        if math.prod(_shape(t, self._sizes)) * carrier(t.dtype).itemsize > sys.maxsize:
            raise MemoryError(f"{t!r} has more bytes than an address counts")

    def _region(self, op: ir.Region, args: list[Array]) -> list[Array]:
        """All results of a region, of operands as they are stored; carried values are rounded to
        their dtypes after each iteration."""
        if op.fn == "cond":
            return self.run(op.bodies[0 if args[0] else 1], args[1:])
        state, rest = args[: op.carried], args[op.carried :]
        if op.trips is None:
            condition, body = op.bodies
            while self.run(condition, [*state, *rest])[0]:
                state = self.run(body, [*state, *rest])
            return state
        trips = trip_count(op.fn, op.trips, self._sizes)
        sliced, shared = rest[: op.sliced], rest[op.sliced :]
        (body,) = op.bodies
        stacked = [
            np.empty([trips, *_shape(t, self._sizes)], t.dtype.numpy)
            for t in body.outputs[op.carried :]
        ]
        for i in reversed(range(trips)) if op.reverse else range(trips):
            given = [*state, *(x[i] for x in sliced), *shared]
            made = self._in_iteration(op.lap, i).run(body, given)
            state = made[: op.carried]
            for y, piece in zip(stacked, made[op.carried :], strict=True):
                y[i] = piece
        return [*state, *stacked]

    def _in_iteration(self, lap: Lap | None, number: int) -> _Evaluation:
        """What computes a body that may ask for the number of its iteration."""
        if lap is None:
            return self
        sizes = {**self._sizes, lap: number}
        return _Evaluation(sizes, stepwise=self._stepwise)


def trip_count(fn: str, trips: Expr, sizes: Sizes) -> int:
    """The iterations of a region for given sizes. Raises UserError for a negative number."""
    count = substitution.evaluate(trips, sizes)
    if count < 0:
        found = ", ".join(f"{v} = {sizes[v]}" for v in expr.variables(trips))
        raise UserError(
            f"{fn}: {trips} is {count} iterations where {found}; the upper bound must not lie "
            "below the lower one"
        )
    return count


# --- arguments ----------------------------------------------------------------------------------


def bind_sizes(
    fusion: Fusion, *arrays: Array, numbers: Mapping[Var, int] | None = None
) -> dict[Var, int]:
    """The value of every symbol, from the arrays' shapes and the numbers of the call.

    Raises UserError for a wrong number of arrays, a wrong dtype, rank or size, a symbol that gets
    two sizes, a size outside the symbol's bounds, or numbers that break a check.
    """
    if len(arrays) != len(fusion.inputs):
        names = ", ".join(t.name for t in fusion.inputs)
        raise UserError(
            f"{len(arrays)} arrays for {len(fusion.inputs)} inputs ({names}); give one per input"
        )
    sizes: dict[Var, int] = {}
    for t, a in zip(fusion.inputs, arrays, strict=True):
        _check_array(t, a)
        for axis, (extent, n) in enumerate(zip(t.shape, a.shape, strict=True)):
            _bind_size(t, axis, extent, n, sizes)
    if numbers:
        for v, n in numbers.items():
            check_size_number("evaluate", v, n, sizes.setdefault(v, n))
        check_numbers(fusion, sizes)
    return sizes


def _is_numpy(a: object) -> TypeGuard[Array]:
    return isinstance(a, np.ndarray | np.generic)


def plain_array(a: object, what: str) -> Array:
    """A numpy array or scalar without what its subclass adds. Raises UserError for anything else,
    and for masked arrays, whose mask would be lost."""
    if isinstance(a, np.ma.MaskedArray):
        raise UserError(f"{what} is a masked array; fill the mask first (array.filled())")
    if not _is_numpy(a):
        raise UserError(
            f"{what}: expected a numpy array, got {type(a).__name__}; convert it with numpy.asarray"
        )
    return np.asarray(a)


def _check_array(t: Tensor, a: object) -> None:
    a = plain_array(a, f"input {t.name}")
    if a.dtype != t.dtype.numpy:
        raise UserError(
            f"input {t.name}: dtype {a.dtype} does not match the spec's {t.dtype}; convert the "
            "array, or trace with its dtype"
        )
    if a.ndim != t.ndim:
        raise UserError(
            f"input {t.name}: shape {a.shape} has rank {a.ndim}, the spec {t!r} has rank {t.ndim}; "
            "reshape the array, or trace with its rank"
        )


def _bind_size(t: Tensor, axis: int, extent: Expr, n: int, sizes: dict[Var, int]) -> None:
    if not isinstance(extent, Var):
        if expr.constant_value(extent) != n:
            raise UserError(
                f"input {t.name}: axis {axis} has size {n}, the spec says {extent}; "
                "pass an array of that size, or make the size symbolic"
            )
        return
    if sizes.setdefault(extent, n) != n:
        raise UserError(
            f"input {t.name}: axis {axis} has size {n}, but {extent} is already {sizes[extent]}; "
            "axes that share a name share their size"
        )
    low, high = extent.interval
    if (low is not None and n < low) or (high is not None and n > high) or n % extent.multiple_of:
        top = "" if high is None else f" <= {high}"
        raise UserError(
            f"input {t.name}: axis {axis} has size {n}, which {extent} excludes ({low} <= "
            f"{extent}{top}, a multiple of {extent.multiple_of}); trace again for this size"
        )


# --- representation -----------------------------------------------------------------------------


def carrier(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype the oracle computes a dtype in."""
    if dtype.is_complex:
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def carried(a: Array, dtype: DType) -> Array:
    """An array of a dtype as the oracle holds it."""
    return a.astype(carrier(dtype), copy=False)


def rounded(a: Array, dtype: DType) -> Array:
    """A value of the oracle in its own dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(a).astype(dtype.numpy, copy=False)


def cast(a: Array, dtype: DType) -> Array:
    """A value of the oracle rounded to a dtype. Floats become integers by truncation, NaN as 0 and
    values out of range as the nearest integer; integers wrap."""
    return carried(convert(a, dtype), dtype)


def _literal(v: Scalar, dtype: DType) -> Array:
    return carried(np.asarray(v).astype(dtype.compute.numpy), dtype)


def _shape(t: Tensor, sizes: Sizes) -> tuple[int, ...]:
    return tuple(substitution.evaluate(s, sizes) for s in t.shape)


# --- ops ----------------------------------------------------------------------------------------


def _first_along(a: Array, axes: Collection[int]) -> Array:
    return a[tuple(slice(0, 1) if k in axes else slice(None) for k in range(a.ndim))]


def _compute(t: Tensor, args: list[Array], sizes: Sizes) -> Array:
    op = t.op
    match op:
        case ir.Input():
            raise UserError(f"{t.name} is an input that the fusion does not list; trace it again")
        case ir.Constant():
            return _literal(op.value, t.dtype)
        case ir.Size():
            return np.asarray(substitution.evaluate(op.expr, sizes)).astype(t.dtype.numpy)
        case ir.Iota():
            return _iota(t, op.axis, sizes)
        case ir.Pointwise():
            return _pointwise(t.dtype, op.fn, args)
        case ir.Broadcast():
            return _broadcast(args[0], op.axes, _shape(t, sizes))
        case ir.Permute():
            return np.transpose(args[0], op.axes)
        case ir.Reshape():
            return args[0].reshape(_shape(t, sizes))
        case ir.Resize():
            return _resize(t, op, args[0], sizes)
        case ir.Parts():
            return _parts(t, op, args[0])
        case ir.IndexMap():
            return _index_map(t, op, args[0], sizes)
        case ir.Concat():
            return np.concatenate(args, op.axis)
        case ir.Insert():
            return _insert(op, args, sizes)
        case ir.Reduce():
            return _reduce(op, args[0], t.dtype)
        case ir.Scan():
            return _scan(t, op, args[0])
        case ir.Sort():
            return np.sort(args[0], axis=op.axis)
        case ir.Take():
            return _take(t, args, op.axis)
        case ir.TakeAlong():
            return _take_along(t, args, op.axis)
        case ir.MatMul():
            if op.precision == "tf32":
                args = [round_tf32(a).astype(a.dtype) for a in args]
            return np.matmul(*args)
        case ir.OwnKernel():
            return _own_kernel(t, op, args)
        case ir.Region():
            raise AssertionError("a region is evaluated with its bodies")
        case _:
            assert_never(op)


def _insert(op: ir.Insert, args: list[Array], sizes: Sizes) -> Array:
    dest, block, *where = args
    at = {**sizes, **{p: int(a) for p, a in zip(ir.positions(len(where)), where, strict=True)}}
    out = dest.copy()
    starts = [substitution.evaluate(e, at) for e in op.start]
    lasts = [n - m for n, m in zip(dest.shape, block.shape, strict=True)]
    first = [max(0, min(s, last)) for s, last in zip(starts, lasts, strict=True)]
    out[tuple(slice(s, s + m) for s, m in zip(first, block.shape, strict=True))] = block
    return out


def _scan(t: Tensor, op: ir.Scan, a: Array) -> Array:
    if op.reverse:
        forward = dataclasses.replace(op, reverse=False)
        return np.flip(_scan(t, forward, np.flip(a, op.axis)), op.axis)
    prefixes = _UFUNCS[op.fn].accumulate(a, axis=op.axis, dtype=a.dtype)
    if not op.exclusive:
        return prefixes
    first = np.full_like(a.take([0], op.axis), scan_identity(op.fn, t.dtype.compute))
    before = prefixes.take(range(a.shape[op.axis] - 1), op.axis)
    return np.concatenate([first, before], op.axis)


def _own_kernel(t: Tensor, op: ir.OwnKernel, args: list[Array]) -> Array:
    """One result of a kernel that the user wrote, on operands as they are stored."""
    if op.body is None:
        raise UserError(
            f"{t.name}: {op.fn} is a kernel of the program's own, which a file holds as machine "
            "code only; run it on a GPU or with device='sim', or trace the program again"
        )
    stored = [rounded(a, o.dtype) for a, o in zip(args, op.operands, strict=True)]
    return carried(np.asarray(op.body.evaluate(stored)[op.result]), t.dtype)


def _iota(t: Tensor, axis: int, sizes: Sizes) -> Array:
    shape = _shape(t, sizes)
    along = np.arange(shape[axis]).astype(t.dtype.numpy)
    column = along.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return np.broadcast_to(column, shape)


def _pointwise(dtype: DType, fn: str, args: list[Array]) -> Array:
    """The same, computed once along axes on which no argument varies."""
    repeated = repeated_axes(args)
    if not repeated:
        return pointwise(dtype, fn, args)
    found = pointwise(dtype, fn, [_first_along(a, repeated) for a in args])
    return np.broadcast_to(found, args[0].shape)


def pointwise(dtype: DType, fn: str, args: list[Array]) -> Array:
    """A scalar function of arrays as the oracle holds them; `dtype` is the result's."""
    if fn == "cast":
        return cast(args[0], dtype)
    if fn == "bitcast":
        return carried(reinterpret(args[0], dtype), dtype)
    if fn == "nextafter":  # the neighbour depends on the dtype's own grid
        args = [rounded(a, dtype) for a in args]
    return carried(FUNCTIONS[fn].numpy(*args), dtype)


def _broadcast(a: Array, axes: tuple[int | None, ...], shape: tuple[int, ...]) -> Array:
    own = tuple(1 if k is None else a.shape[k] for k in axes)
    return np.broadcast_to(a.reshape(own), shape)


def _resize(t: Tensor, op: ir.Resize, a: Array, sizes: Sizes) -> Array:
    shape = _shape(t, sizes)
    out = np.full(shape, _literal(op.fill, t.dtype), carrier(t.dtype))
    low = [substitution.evaluate(e, sizes) for e in op.low]
    to = tuple(
        slice(max(lo, 0), max(min(lo + n, m), 0))
        for lo, n, m in zip(low, a.shape, shape, strict=True)
    )
    if all(s.start < s.stop for s in to):
        out[to] = a[tuple(slice(s.start - lo, s.stop - lo) for s, lo in zip(to, low, strict=True))]
    return out


def _parts(t: Tensor, op: ir.Parts, a: Array) -> Array:
    """The axes as one, longer where there are more places than elements, and cut in parts."""
    before, after = a.shape[: op.axes[0]], a.shape[op.axes[-1] + 1 :]
    flat = a.reshape((*before, op.partition.size, *after))
    missing = (*before, op.partition.missing, *after)
    fill = np.full(missing, _literal(op.fill, t.dtype), carrier(t.dtype))
    full = np.concatenate([flat, fill], len(before)) if op.partition.missing else flat
    return full.reshape((*before, *(n.value for n in op.partition.shape), *after))


def _index_map(t: Tensor, op: ir.IndexMap, a: Array, sizes: Sizes) -> Array:
    shape = _shape(t, sizes)
    if 0 in shape:
        return np.empty(shape, a.dtype)
    grid: dict[Var, Array | int] = dict(sizes)
    for k, (c, n) in enumerate(zip(op.coordinates, shape, strict=True)):
        grid[c] = np.arange(n).reshape([-1 if j == k else 1 for j in range(len(shape))])
    index = tuple(np.asarray(values_of(e, grid)) for e in op.index)
    for axis, (i, n) in enumerate(zip(index, a.shape, strict=True)):
        if i.min() < 0 or i.max() >= n:
            raise UserError(
                f"{t.name}: the index {op.index[axis]} reaches {i.min()} to {i.max()}, outside "
                f"axis {axis} of size {n}; an index map must stay inside its operand"
            )
    return np.broadcast_to(a[index], shape)


def _reduce(op: ir.Reduce, a: Array, dtype: DType) -> Array:
    """A reduction; over an axis that is empty it is the value that every reduction starts from."""
    if any(a.shape[k] == 0 for k in op.axes):
        kept = [n for k, n in enumerate(a.shape) if k not in op.axes]
        return np.full(kept, _literal(reduction_identity(op.fn, dtype), dtype))
    repeated = [k for k in repeated_axes([a]) if k in op.axes]
    one = _first_along(a, repeated) if repeated else a
    found = np.asarray(_UFUNCS[op.fn].reduce(one, axis=op.axes, dtype=a.dtype))
    return _combined(op.fn, found, math.prod(a.shape[k] for k in repeated))


def _combined(fn: str, a: Array, count: int) -> Array:
    """What a reduction makes of an element that stands `count` times in a row."""
    if count == 1 or fn not in ("add", "mul"):
        return a
    if fn == "add":
        return np.asarray(a * np.asarray(count).astype(a.dtype))
    if a.dtype.kind in "fc":
        return np.asarray(a ** float(count))
    wide = a.astype(np.uint64)  # products wrap, and so do those of the low bits alone
    return (wide ** np.uint64(count)).astype(a.dtype)


def _take(t: Tensor, args: list[Array], axis: int) -> Array:
    x, indices = args
    outside = _is_outside(indices, x.shape[axis])
    if x.shape[axis] == 0:
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return np.full(shape, _literal(t.dtype.outside, t.dtype))
    found = np.take(x, np.where(outside, 0, indices).astype(np.int64), axis=axis)
    spread = outside.reshape((*outside.shape, *(1,) * (x.ndim - axis - 1)))
    return np.where(spread, _literal(t.dtype.outside, t.dtype), found)


def _take_along(t: Tensor, args: list[Array], axis: int) -> Array:
    x, indices = args
    outside = _is_outside(indices, x.shape[axis])
    if x.shape[axis] == 0:
        return np.full(indices.shape, _literal(t.dtype.outside, t.dtype))
    at = np.where(outside, 0, indices).astype(np.int64)
    return np.where(
        outside, _literal(t.dtype.outside, t.dtype), np.take_along_axis(x, at, axis=axis)
    )


def _is_outside(indices: Array, n: int) -> Array:
    """Where an index is none of -n to n - 1."""
    return (indices < -n) | (indices >= n)


def _check_indices(args: list[Array], op: ir.Take | ir.TakeAlong, place: str) -> None:
    """AxisError for an index outside the axis."""
    indices, n = args[1], args[0].shape[op.axis]
    outside = _is_outside(indices, n)
    if outside.any():
        raise index_error(int(indices[outside][0]), op.axis, n, place, op.merged)


def values_of(e: Expr, at: Mapping[Var, Array | int]) -> Array | int:
    """An integer expression over arrays of coordinates, broadcast together."""
    match e:
        case expr.Int():
            return e.value
        case Var():
            return at[e]
        case expr.Sum():
            total: Array | int = e.constant
            for term in e.terms:
                product: Array | int = term.coefficient
                for a in term.atoms:
                    product = product * values_of(a, at)
                total = total + product
            return total
        case expr.FloorDiv():
            return values_of(e.numerator, at) // values_of(e.denominator, at)
        case expr.Mod():
            return values_of(e.numerator, at) % values_of(e.denominator, at)
        case atoms.Min():
            return np.minimum(values_of(e.left, at), values_of(e.right, at))
        case atoms.Max():
            return np.maximum(values_of(e.left, at), values_of(e.right, at))
        case atoms.Xor():
            return values_of(e.left, at) ^ values_of(e.right, at)
        case _:
            raise TypeError(f"not an integer expression: {type(e).__name__}")
