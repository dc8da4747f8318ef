"""nvFuser as a peer: a traced fusion told to its direct front end, op by op.

Its wheel (nvfuser-cu130-torch210) brings the module `nvfuser_direct`; `make` raises `Absent` where
that is not installed, or has no op for one of the program's. As its own users write it, values of
16 and 8 bits are widened where they are read and rounded where they are results, and nowhere
between; products are `linear` or `matmul`. NVFUSER_ENABLE=fuse_matmul and
NVFUSER_DISABLE=matmul_expr_eval let it make kernels of products instead of calling cuBLAS.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.peers import Absent
from fusewright.core.expr import Expr, Var, constant_value, variables
from fusewright.fusion import ir
from fusewright.fusion.evaluate import values_of

SAME = """abs add atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil cos cosh div eq erf exp
exp2 expm1 floor ge gt isfinite isinf isnan le log log1p log2 logical_not lt mul ne neg pow
reciprocal round rsqrt sign sin sinh sqrt sub tan tanh trunc where"""
OTHERS = {"and": "logical_and", "or": "logical_or", "max": "maximum", "min": "minimum"}
POINTWISE = {name: name for name in SAME.split()} | OTHERS
"""Its name of a scalar function. Integer quotients, remainders and shifts are left out: it rounds
and bounds them otherwise."""
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
SCANS = {"add": "cumsum", "mul": "cumprod", "max": "cummax", "min": "cummin"}
DTYPES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16",
    "float8_e4m3": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
    "int64": "Int", "int32": "Int32", "bool": "Bool",
}  # fmt: skip
ENVIRONMENT = {"NVFUSER_ENABLE": "fuse_matmul", "NVFUSER_DISABLE": "matmul_expr_eval"}
MOST_RUNS = 4
"""Of neighbouring elements that one axis of an index map is joined of."""

Value = Any
"""A tensor of its front end, or a Python number for a constant."""


def make(fusion: ir.Fusion, arrays: Sequence[Any]) -> Callable[..., list[Any]]:
    """A function of such arrays that runs the fusion by nvFuser. Raises Absent."""
    os.environ.update(ENVIRONMENT)
    try:
        module = importlib.import_module("nvfuser_direct")
    except ImportError as e:
        raise Absent(f"nvFuser is not installed: {e}") from e
    absent: Absent | None = None
    with module.FusionDefinition() as definition:
        try:
            _Told(definition, module.DataType).program(fusion, arrays)
        except Absent as e:  # which leaves the definition as an error would be printed there
            absent = e
    if absent is not None:
        raise absent
    return lambda *a: definition.execute(list(a))


class _Told:
    """A definition, and the values that it holds so far."""

    def __init__(self, definition: Any, dtypes: Any) -> None:
        self._definition, self._ops, self._dtypes = definition, definition.ops, dtypes
        self._values: dict[ir.Tensor, Value] = {}

    def program(self, fusion: ir.Fusion, arrays: Sequence[Any]) -> None:
        """All values of a fusion of these arrays, and its results."""
        has_products = any(isinstance(t.op, ir.MatMul) for t in fusion.values)
        told = {"static_sizes": True} if not has_products else {}  # of these it finds no end
        for t in fusion.values:
            if isinstance(t.op, ir.Input):
                self._values[t] = self._definition.from_pytorch(arrays[t.op.position], **told)
            else:
                self._values[t] = self._value(t, [self._values[o] for o in t.op.operands])
        for t in fusion.outputs:
            self._definition.add_output(self._ops.cast(self._tensor(t), self._dtype(t)))

    def _tensor(self, t: ir.Tensor) -> Value:
        """A value as a tensor, also where it is a number."""
        v = self._values[t]
        if isinstance(v, bool | int | float):
            scalar = self._definition.define_scalar(v)
            return self._ops.full(list(_shape(t)), scalar, self._dtype(t))
        return v

    def _dtype(self, t: ir.Tensor) -> Any:
        name = DTYPES.get(t.dtype.name)
        if name is None:
            raise Absent(f"nvFuser has no {t.dtype.name}")
        return getattr(self._dtypes, name)

    def _wide(self, t: ir.Tensor, v: Value) -> Value:
        """A value of `t` in the dtype in which it is computed."""
        is_narrow = t.dtype.is_float and t.dtype.nbytes <= 2
        if isinstance(v, bool | int | float) or not is_narrow:
            return v
        return self._ops.cast(v, self._dtypes.Float)

    def _value(self, t: ir.Tensor, args: list[Value]) -> Value:
        match t.op:
            case ir.Constant(value=value):
                return value
            case ir.Broadcast():
                return self._broadcast(t, t.op, args[0])
            case ir.Pointwise() | ir.Reduce() | ir.Scan() | ir.Iota():
                return self._computed(t, args)
            case ir.Take() | ir.TakeAlong():
                return self._taken(t, args)
            case ir.MatMul():
                return self._product(t, t.op, args)
            case _:
                return self._moved(t, args)

    def _computed(self, t: ir.Tensor, args: list[Value]) -> Value:
        wide = [self._wide(o, v) for o, v in zip(t.op.operands, args, strict=True)]
        match t.op:
            case ir.Pointwise(fn="cast"):
                is_narrow = t.dtype.is_float and t.dtype.nbytes <= 2
                return self._ops.cast(wide[0], self._dtypes.Float if is_narrow else self._dtype(t))
            case ir.Pointwise(fn="copy" | "segment_set"):
                return wide[0]
            case ir.Pointwise(fn=fn):
                if all(isinstance(v, bool | int | float) for v in wide):
                    raise Absent(f"{fn} of numbers alone is not told to nvFuser")
                return getattr(self._ops, _name(POINTWISE, fn))(*wide)
            case ir.Reduce(fn=fn, axes=axes):
                got = getattr(self._ops, _name(REDUCTIONS, fn))(wide[0], list(axes))
                return self._ops.cast(got, self._dtype(t)) if t.dtype.is_integer else got
            case ir.Scan(fn=fn, axis=axis, exclusive=exclusive, reverse=reverse):
                if exclusive or reverse:
                    raise Absent("nvFuser has no scan that is exclusive or goes backwards")
                return getattr(self._ops, _name(SCANS, fn))(wide[0], axis)
            case ir.Iota(axis=axis):
                shape = _shape(t)
                line = self._ops.iota(shape[axis], 0, 1, self._dtype(t))
                return self._ops.broadcast_in_dim(line, list(shape), [axis])
            case _:
                raise AssertionError(t.op)

    def _broadcast(self, t: ir.Tensor, op: ir.Broadcast, v: Value) -> Value:
        if isinstance(v, bool | int | float):
            return v
        places = [j for j, axis in enumerate(op.axes) if axis is not None]
        return self._ops.broadcast_in_dim(v, list(_shape(t)), places)

    def _taken(self, t: ir.Tensor, args: list[Value]) -> Value:
        source, index = args
        if isinstance(t.op, ir.TakeAlong):
            return self._ops.take_along_axis(source, index, t.op.axis)
        assert isinstance(t.op, ir.Take)
        if len(t.op.operands[1].shape) != 1:
            raise Absent("nvFuser selects by a line of indices")
        return self._ops.index_select(source, index, t.op.axis)

    def _product(self, t: ir.Tensor, op: ir.MatMul, args: list[Value]) -> Value:
        a, b = op.operands
        transposed = b.op if isinstance(b.op, ir.Permute) and len(b.shape) == 2 else None
        if transposed is not None and len(a.shape) == 2:
            return self._ops.linear(args[0], self._values[transposed.operands[0]])
        return self._ops.matmul(*args)

    def _moved(self, t: ir.Tensor, args: list[Value]) -> Value:
        shape = list(_shape(t))
        match t.op:
            case ir.Permute(axes=axes):
                return self._ops.permute(args[0], list(axes))
            case ir.Reshape():
                return self._ops.reshape(args[0], shape)
            case ir.Concat(axis=axis):
                return self._ops.cat([self._tensor(o) for o in t.op.operands], axis)
            case ir.Resize():
                return self._resized(t, t.op, args[0])
            case ir.IndexMap():
                return self._picked(t, t.op, args[0])
            case _:
                raise Absent(f"nvFuser has nothing for {type(t.op).__name__}")

    def _resized(self, t: ir.Tensor, op: ir.Resize, v: Value) -> Value:
        """First what is cropped, then what is padded."""
        low, high = (tuple(map(_number, x)) for x in (op.low, op.high))
        shape = _shape(op.operands[0])
        if any(n < 0 for n in (*low, *high)):
            start = [max(0, -n) for n in low]
            stop = [n - max(0, -h) for n, h in zip(shape, high, strict=True)]
            v = self._ops.slice(v, start, stop)
        if any(n > 0 for n in (*low, *high)):
            sides = [(max(0, a), max(0, b)) for a, b in zip(low, high, strict=True)]
            widths = list(itertools.chain(*reversed(sides)))
            v = self._ops.pad(v, widths, self._definition.define_scalar(op.fill, self._dtype(t)))
        return v

    def _picked(self, t: ir.Tensor, op: ir.IndexMap, v: Value) -> Value:
        """An index map whose axes are a few runs of neighbours each: slices, joined."""
        whole = _shape(op.operands[0])
        for axis, (c, index) in enumerate(zip(op.coordinates, op.index, strict=True)):
            places = _places(index, c, _shape(t)[axis])
            cuts = np.flatnonzero(np.diff(places) != 1) + 1
            if len(cuts) >= MOST_RUNS:
                raise Absent("nvFuser takes slices of step 1 only")
            runs: list[Value] = []
            for run in np.split(places, cuts):
                start, stop = [0] * len(whole), [*_shape(t)[:axis], *whole[axis:]]
                start[axis], stop[axis] = int(run[0]), int(run[-1]) + 1
                runs.append(self._ops.slice(v, start, stop))
            v = runs[0] if len(runs) == 1 else self._ops.cat(runs, axis)
        return v


def _places(index: Expr, own: Var, extent: int) -> np.ndarray[Any, Any]:
    """The places of the operand that the result's elements along one axis have."""
    if set(variables(index)) - {own} or extent == 0:
        raise Absent("nvFuser has no move whose axes depend on each other")
    return np.broadcast_to(np.asarray(values_of(index, {own: np.arange(extent)})), (extent,))


def _name(names: dict[str, str], fn: str) -> str:
    if fn not in names:
        raise Absent(f"nvFuser has no {fn}")
    return names[fn]


def _number(e: Expr) -> int:
    n = constant_value(e)
    if n is None:
        raise Absent("sizes are told to nvFuser as numbers")
    return n


def _shape(t: ir.Tensor) -> tuple[int, ...]:
    return tuple(map(_number, t.shape))
