"""`vmap`: a function of arrays becomes one of arrays with one axis more.

The function is recorded once, on arrays without the axis; then every operation that an argument
with the axis reaches is recorded again with the axis in front. What no such argument reaches is
shared by all elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

from fusewright.arguments import FUNCTION, INTEGER, shown, takes
from fusewright.core.expr import Expr, add, as_expr, mul
from fusewright.core.substitution import substitute
from fusewright.errors import UserError
from fusewright.fusion import build, ir, trees
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.derivatives import CONSTANT, GivenRule
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    Fusion,
    IndexMap,
    Insert,
    MatMul,
    OwnKernel,
    Permute,
    Pointwise,
    Reduce,
    Region,
    Reshape,
    Resize,
    Scan,
    Sort,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.ops import astype, moveaxis, where
from fusewright.fusion.ops.blocks import chosen_by_element
from fusewright.fusion.ops.gather import signed_indices
from fusewright.fusion.transforms.region_adjoints import run
from fusewright.fusion.transforms.region_batching import MappedAxis, batched_region


@takes(fn=FUNCTION, out_axes=INTEGER)
def vmap(
    fn: Callable[..., Any], in_axes: int | Sequence[int | None] | None = 0, out_axes: int = 0
) -> Callable[..., Any]:
    """A function that applies `fn` to every slice of its positional arguments along `in_axes`: one
    axis for all of them, or one, or None for what all slices share, for each. Results are stacked
    along `out_axes`; those that no slice reaches are repeated.

    Raises UserError where the axes have different sizes, where an argument lacks its axis, and
    where all are None.
    """

    def mapped(*args: Any) -> Any:
        axes = _axes(in_axes, len(args))
        pairs = [(leaf, a) for arg, a in zip(args, axes, strict=True) for leaf in trees.leaves(arg)]
        arrays = [check_array("vmap", leaf) for leaf, _ in pairs]
        moved = [
            None if a is None else moveaxis(x, build.axis_of("vmap", a, x.ndim), 0)
            for x, (_, a) in zip(arrays, pairs, strict=True)
        ]
        size = _size([m for m in moved if m is not None])
        slices = [x if m is None else _slice(m) for x, m in zip(arrays, moved, strict=True)]
        _, tree = trees.flatten(args)
        result = fn(*trees.unflatten(tree, slices))
        outputs, out_tree = trees.flatten(result)
        given = {s.tensor: m.tensor for s, m in zip(slices, moved, strict=True) if m is not None}
        batch = _MappedValues(size, given)
        found = [batch.stacked(check_array("vmap (result)", y).tensor) for y in outputs]
        placed = [moveaxis(Array(t), 0, build.axis_of("vmap", out_axes, t.ndim)) for t in found]
        return trees.unflatten(out_tree, placed)

    mapped.__name__ = f"vmap_of_{getattr(fn, '__name__', 'a_function')}"
    return mapped


def _axes(in_axes: object, count: int) -> tuple[int | None, ...]:
    text = shown(in_axes)
    is_listed = isinstance(in_axes, tuple | list)
    given = tuple(cast("Sequence[object]", in_axes)) if is_listed else (in_axes,) * count
    if len(given) != count:
        raise UserError(
            f"vmap(in_axes={text}): the call has {count} positional arguments; give an axis, or "
            "one axis or None for each"
        )
    if all(a is None for a in given):
        raise UserError(
            f"vmap(in_axes={text}): no argument has an axis to map over; call the function itself"
        )
    return tuple(None if a is None else build.integer("vmap", "in_axes", a) for a in given)


def _size(moved: Sequence[Array]) -> Expr:
    sizes = {x.tensor.shape[0]: None for x in moved}
    if not sizes:
        raise UserError(
            "vmap: no mapped argument is an array, or holds one; give arrays, or in_axes=None for "
            "what all slices share"
        )
    if len(sizes) > 1:
        raise UserError(
            f"vmap: the mapped axes have sizes {' and '.join(map(str, sizes))}; they must be equal"
        )
    return next(iter(sizes))


def _slice(m: Array) -> Array:
    """What the function sees of an array with the axis in front: one value for every slice."""
    t = m.tensor
    first = build.resize(t, [0] * t.ndim, [add(1, mul(-1, t.shape[0])), *[0] * (t.ndim - 1)], 0)
    return Array(build.value(t.shape[1:], t.dtype, ir.Reshape((first,))))


class _MappedValues:
    """Values with the mapped axis in front, made when they are asked for."""

    def __init__(self, size: Expr, given: dict[Tensor, Tensor]) -> None:
        self.size = size
        self._known = given
        self._calls: dict[object, list[Array]] = {}

    def stacked(self, t: Tensor) -> Tensor:
        """The value of every slice, the mapped axis in front."""
        for v in self._order(t):
            if v not in self._known and any(o in self._known for o in v.op.operands):
                self._known[v] = self._apply(v)
                self._known[v].rule = self._rule(v)
        return self._with_axis(t)

    def _rule(self, t: Tensor) -> GivenRule | None:
        """The derivative that the program gives a value, for all slices at once."""
        if not isinstance(t.rule, GivenRule) or t.rule is CONSTANT:
            return t.rule
        rule = t.rule

        def backward(g: Array) -> list[Array | None]:
            part = _slice(g)
            batch = _MappedValues(self.size, {**self._known, part.tensor: g.tensor})
            found = rule.backward(part)
            return [None if c is None else Array(batch.stacked(c.tensor)) for c in found]

        return GivenRule(tuple(self._with_axis(o) for o in rule.operands), backward)

    def _order(self, root: Tensor) -> list[Tensor]:
        """What the value needs, operands first, not looking behind the slices."""
        out: dict[Tensor, None] = {}
        stack = [(root, False)]
        while stack:
            t, is_done = stack.pop()
            if is_done:
                out[t] = None
            elif t not in out and t not in self._known:
                stack.append((t, True))
                stack.extend((o, False) for o in reversed(t.op.operands))
        return list(out)

    def _with_axis(self, t: Tensor) -> Tensor:
        """The value with the axis, repeated along it where it does not vary."""
        if t in self._known:
            return self._known[t]
        axes = (None, *range(t.ndim))
        return build.value((self.size, *t.shape), t.dtype, Broadcast((t,), axes))

    def _apply(self, t: Tensor) -> Tensor:
        """The operation with the axis in front of its operands and its result."""
        shape = (self.size, *t.shape)

        def made(op: ir.Op) -> Tensor:
            return build.value(shape, t.dtype, op)

        operands = tuple(self._with_axis(o) for o in t.op.operands)
        zero = as_expr(0)
        match t.op:
            case Pointwise() | Reshape() | MatMul():
                return made(ir.with_operands(t.op, operands))
            case Broadcast():
                return made(Broadcast(operands, (0, *_later(t.op.axes))))
            case Permute():
                return made(Permute(operands, (0, *(a + 1 for a in t.op.axes))))
            case Resize():
                low, high = (zero, *t.op.low), (zero, *t.op.high)
                return made(Resize(operands, low, high, t.op.fill))
            case IndexMap():
                first, *rest = build.coordinates(shape)
                renamed = dict(zip(t.op.coordinates, rest, strict=True))
                index = (as_expr(first), *(substitute(e, renamed) for e in t.op.index))
                return made(IndexMap(operands, (first, *rest), index))
            case Concat() | Scan() | Sort():
                return made(dataclasses.replace(t.op, operands=operands, axis=t.op.axis + 1))
            case TakeAlong():
                return made(dataclasses.replace(t.op, operands=operands, axis=t.op.axis + 1))
            case Reduce():
                return made(Reduce(operands, t.op.fn, tuple(a + 1 for a in t.op.axes)))
            case Take():
                return self._take(t, t.op)
            case Insert():
                return self._insert(t, t.op)
            case OwnKernel(fn=fn):
                raise UserError(
                    f"vmap: {fn} is a kernel of the program's own, made for these shapes only; "
                    "write one that takes the further axis"
                )
            case Region():
                return self._region(t.op)
            case _:
                raise AssertionError(f"{t.op} has operands")

    def _insert(self, t: Tensor, op: Insert) -> Tensor:
        """A block at a place that all slices share is one block of all; else a choice."""
        dest, block, *positions = op.operands
        if any(p in self._known for p in positions):
            return self.stacked(chosen_by_element(op))
        operands = (self._with_axis(dest), self._with_axis(block), *positions)
        made = Insert(operands, (as_expr(0), *op.start))
        return build.value((self.size, *t.shape), t.dtype, made)

    def _region(self, op: Region) -> Tensor:
        """One result; those of one call are made together."""
        call = op.bodies, op.operands
        if call not in self._calls:
            axes = [o in self._known for o in op.operands]
            given = [Array(self._known.get(o, o)) for o in op.operands]
            self._calls[call] = batched_region(op, given, axes, MappedAxis(self.size, self._mapped))
        return self._calls[call][op.result].tensor

    def _mapped(
        self, body: Fusion, inputs: Sequence[Array], axes: Sequence[bool], wanted: Sequence[bool]
    ) -> list[Array]:
        """`region_batching.Mapped`."""
        slices = [_slice(x) if a else x for x, a in zip(inputs, axes, strict=True)]
        outputs = run(body, slices)
        triples = zip(slices, inputs, axes, strict=True)
        batch = _MappedValues(self.size, {s.tensor: x.tensor for s, x, a in triples if a})
        pairs = zip(outputs, wanted, strict=True)
        return [Array(batch.stacked(y.tensor)) if w else y for y, w in pairs]

    def _take(self, t: Tensor, op: Take) -> Tensor:
        """Slices with indices that all share, or of what all share, are taken at once; those with
        indices of their own lie behind each other along the axis."""
        x, indices = op.operands
        if indices not in self._known:
            at = self._known[x], indices
            behind = dataclasses.replace(op, operands=at, axis=op.axis + 1)
            return build.value((self.size, *t.shape), t.dtype, behind)
        own = self._known[indices]
        if x not in self._known:
            shape = (*t.shape[: op.axis], self.size, *t.shape[op.axis :])
            taken = build.value(shape, t.dtype, dataclasses.replace(op, operands=(x, own)))
            return moveaxis(Array(taken), op.axis, 0).tensor
        return self._take_own(t, op, self._known[x], own)

    def _take_own(self, t: Tensor, op: Take, x: Tensor, own: Tensor) -> Tensor:
        extent = x.shape[op.axis + 1]
        at = signed_indices(Array(own))
        at = at if at.dtype.nbytes == 8 else astype(at, "int64")
        count = Array(build.size(extent, at.dtype))
        total = Array(build.size(mul(self.size, extent), at.dtype))
        numbers = Array(build.iota(own.shape, 0, at.dtype))
        at = where(at < 0, at + count, at)
        is_inside = (at >= 0) & (at < count)
        at = where(is_inside, at + numbers * count, total)
        rows = moveaxis(Array(x), 0, op.axis)  # (a.., B, n, b..)
        shape = (*rows.tensor.shape[: op.axis], mul(self.size, extent), *x.shape[op.axis + 2 :])
        flat = build.reshape("vmap", rows.tensor, shape)
        taken = build.value(
            (*t.shape[: op.axis], *own.shape, *x.shape[op.axis + 2 :]),
            t.dtype,
            dataclasses.replace(op, operands=(flat, at.tensor), merged=op.merged or (op.axis,)),
        )
        return moveaxis(Array(taken), op.axis, 0).tensor


def _later(axes: Sequence[int | None]) -> tuple[int | None, ...]:
    return tuple(None if a is None else a + 1 for a in axes)
