"""Operations that move elements and compute nothing: shapes, orders, joins.

Every function raises UserError for axes that do not exist and shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from fusewright.core.atoms import maximum
from fusewright.core.expr import Expr, IntLike, add, as_expr, constant_value, floordiv, mod, mul
from fusewright.errors import UnsupportedError, UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, Known, check_array, common_dtype
from fusewright.fusion.call_numbers import is_at_least
from fusewright.fusion.ir import Shape, Tensor
from fusewright.fusion.operands import check_category, check_flag
from fusewright.fusion.ops.creation import ShapeLike, shape_of

# --- shapes -------------------------------------------------------------------------------------


def reshape(x: Array, /, shape: ShapeLike, *, copy: bool | None = None) -> Array:
    """The same elements in C order under another shape; one size may be -1, which is computed.
    `copy=True` makes a value of its own, a place for a schedule to hold it. Raises UserError for
    another number of elements, and for a second -1."""
    x = check_array("reshape", x)
    if copy is not None:
        check_flag("reshape", "copy", copy)
    entries = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    computed = [k for k, s in enumerate(entries) if _is_minus_one(s)]
    if len(computed) > 1:
        raise UserError(f"reshape to {entries}: only one size may be -1")
    if computed:
        entries = _with_computed(x, entries, computed[0])
    made = build.reshape("reshape", x.tensor, shape_of("reshape", entries))
    return Array(build.pointwise("copy", made) if copy else made)


def _is_minus_one(size: object) -> bool:
    return isinstance(size, int | np.integer) and size == -1


def _with_computed(x: Array, entries: tuple[IntLike, ...], at: int) -> tuple[IntLike, ...]:
    given = shape_of("reshape", (*entries[:at], *entries[at + 1 :]))
    others = reduce(mul, given, as_expr(1))
    total = build.element_count(x.tensor.shape)
    whole = None if constant_value(others) == 0 else floordiv(total, others)
    if whole is None or mul(whole, others) != total:
        raise UserError(
            f"reshape of shape {build.shape_text(x.shape)} to {build.shape_text(entries)}: the "
            f"{total} elements do not divide by the other sizes' {others}; the computed size must "
            "be whole (declare multiple_of on a symbol to have it so)"
        )
    return (*given[:at], whole, *given[at:])


def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """New axes of size 1 at the positions `axis` of the result."""
    x = check_array("expand_dims", x)
    given = build.integers("expand_dims", "axis", axis)
    t = x.tensor
    for a in build.axes_of("expand_dims", given, x.ndim + len(given)):
        t = build.expand(t, a)
    return Array(t)


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Without the named axes, whose sizes must be 1. Raises UserError where one is not."""
    x = check_array("squeeze", x)
    axes = build.axes_of("squeeze", axis, x.ndim)
    for a in axes:
        if not build.is_one(x.tensor.shape[a]):
            raise UserError(
                f"squeeze: axis {a} of shape {build.shape_text(x.shape)} has size {x.shape[a]}; "
                "only axes of size 1 can go; select with an integer index or reduce instead"
            )
    shape = tuple(s for k, s in enumerate(x.tensor.shape) if k not in axes)
    return Array(build.reshape("squeeze", x.tensor, shape))


def broadcast_to(x: Array, /, shape: ShapeLike) -> Array:
    """x repeated along new leading axes and axes of size 1 to fill a shape."""
    x = check_array("broadcast_to", x)
    return Array(build.broadcast_to("broadcast_to", x.tensor, shape_of("broadcast_to", shape)))


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """All arrays in their common shape."""
    tensors = [check_array("broadcast_arrays", a).tensor for a in arrays]
    return [Array(t) for t in build.broadcast_all("broadcast_arrays", *tensors)]


def broadcast_shapes(*shapes: tuple[IntLike, ...]) -> tuple[int | Expr, ...]:
    """The common shape of shapes."""
    exact = (shape_of("broadcast_shapes", shape) for shape in shapes)
    return build.known_shape(build.broadcast_shapes("broadcast_shapes", *exact))


# --- orders -------------------------------------------------------------------------------------


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Result axis j is axis `axes[j]` of x. Raises UserError unless `axes` names every axis
    once."""
    x = check_array("permute_dims", x)
    axes = build.integers("permute_dims", "axes", axes)
    order = [build.axis_of("permute_dims", a, x.ndim) for a in axes]
    if sorted(order) != list(range(x.ndim)):
        raise UserError(
            f"permute_dims: axes={tuple(axes)} for an array of rank {x.ndim}: name every axis "
            "exactly once"
        )
    return Array(build.permute(x.tensor, order))


def matrix_transpose(x: Array, /) -> Array:
    """The last two axes exchanged."""
    return check_array("matrix_transpose", x).mT


def moveaxis(
    x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Array:
    """The axes `source` at the positions `destination` of the result, the others in order. Raises
    UserError where there are not as many of one as of the other."""
    x = check_array("moveaxis", x)
    sources = build.integers("moveaxis", "source", source)
    destinations = build.integers("moveaxis", "destination", destination)
    if len(sources) != len(destinations):
        raise UserError(
            f"moveaxis: {len(sources)} sources for {len(destinations)} destinations; give as many"
        )
    for axes in (sources, destinations):
        build.axes_of("moveaxis", axes, x.ndim)
    moved = {
        build.axis_of("moveaxis", d, x.ndim): build.axis_of("moveaxis", s, x.ndim)
        for s, d in zip(sources, destinations, strict=True)
    }
    rest = iter(a for a in range(x.ndim) if a not in moved.values())
    order = [moved[j] if j in moved else next(rest) for j in range(x.ndim)]
    return Array(build.permute(x.tensor, order))


def _mapped(t: Tensor, shape: Shape, where: dict[int, Callable[[Expr], Expr]]) -> Tensor:
    """The value read over a shape of its rank, through a map of the coordinate of some axes."""
    at = build.coordinates(shape)
    index = [where[k](c) if k in where else c for k, c in enumerate(at)]
    return build.index_map(t, shape, at, index)


def flip(x: Array, /, axis: int | tuple[int, ...] | None = None) -> Array:
    """The order of elements along the axes, all for None, reversed."""
    x = check_array("flip", x)
    axes = build.axes_of("flip", axis, x.ndim)
    shape = x.tensor.shape
    if not axes:
        return x
    return Array(_mapped(x.tensor, shape, {a: _mirror(shape[a]) for a in axes}))


def _mirror(extent: Expr) -> Callable[[Expr], Expr]:
    return lambda c: add(extent, -1, mul(c, -1))


def roll(
    x: Array, /, shift: IntLike | tuple[IntLike, ...], axis: int | tuple[int, ...] | None = None
) -> Array:
    """Elements moved by `shift` along the axes, around the end; over the flat array for None.
    Raises UserError unless there is one shift, or one for each axis."""
    x = check_array("roll", x)
    given = build.extents("roll", "shift", shift)
    if axis is None:
        if len(given) != 1:
            raise UserError(f"roll: shift={shift} without axes; give one axis per shift")
        flat = build.reshape("roll", x.tensor, (build.element_count(x.tensor.shape),))
        rolled = _mapped(flat, flat.shape, {0: _rolled(given[0], flat.shape[0])})
        return Array(build.reshape("roll", rolled, x.tensor.shape))
    axes = build.integers("roll", "axis", axis)
    shifts = given * len(axes) if len(given) == 1 else given
    if len(shifts) != len(axes):
        raise UserError(f"roll: {len(shifts)} shifts for {len(axes)} axes; give one per axis")
    total = dict.fromkeys((build.axis_of("roll", a, x.ndim) for a in axes), as_expr(0))
    for a, s in zip(axes, shifts, strict=True):
        along = build.axis_of("roll", a, x.ndim)
        total[along] = add(total[along], s)
    shape = x.tensor.shape
    return Array(_mapped(x.tensor, shape, {a: _rolled(s, shape[a]) for a, s in total.items()}))


def _rolled(shift: Expr, extent: Expr) -> Callable[[Expr], Expr]:
    if constant_value(extent) == 0:
        return lambda c: c
    return lambda c: mod(add(c, mod(mul(shift, -1), extent)), extent)


# --- repetition ---------------------------------------------------------------------------------


def repeat(x: Array, repeats: IntLike | Array, /, axis: int | None = None) -> Array:
    """Each element `repeats` times in a row along the axis; of the flat array for None. Known data
    may be repeated by an array of counts, one per element of the axis. Raises UserError for a
    negative count."""
    x = check_array("repeat", x)
    if isinstance(repeats, Array | np.ndarray):
        return _repeated_by_counts(x, check_array("repeat (repeats)", repeats), axis)
    times = build.extent("repeat", "repeats", repeats)
    if not is_at_least(0, times, f"repeat: repeats={times} must not be negative"):
        raise UserError(f"repeat: repeats={repeats}: the count must not be negative")
    t = x.tensor
    if axis is None:
        t = build.reshape("repeat", t, (build.element_count(t.shape),))
    along = build.axis_of("repeat", 0 if axis is None else axis, t.ndim)
    shape = tuple(mul(s, times) if k == along else s for k, s in enumerate(t.shape))
    return Array(_mapped(t, shape, {along: lambda c: floordiv(c, maximum(times, 1))}))


def _repeated_by_counts(x: Array, counts: Array, axis: int | None) -> Array:
    check_category("repeat (repeats)", counts.dtype, "integer")
    if not x.is_known or not counts.is_known:
        raise UnsupportedError(
            f"repeat of {x!r} by {counts!r}: the size of the result would depend on values; "
            "repeat known data, or by an int"
        )
    along = None if axis is None else build.axis_of("repeat", axis, x.ndim)
    try:
        out = np.repeat(x.numpy(), counts.numpy().astype(np.int64), along)
    except ValueError as e:
        raise UserError(f"repeat of {x!r} by {counts!r}: {e}; give one count per element") from None
    return Array(Known(out))


def tile(x: Array, repetitions: tuple[IntLike, ...], /) -> Array:
    """The whole array `repetitions[j]` times along axis j; the shorter of shape and repetitions is
    filled with ones in front. Raises UserError for a negative count."""
    x = check_array("tile", x)
    times = build.extents("tile", "repetitions", repetitions)
    rule = f"tile: repetitions={times} must not be negative"
    if not all(is_at_least(0, r, rule) for r in times):
        raise UserError(f"tile: repetitions={repetitions}: counts must not be negative")
    counts = (as_expr(1),) * (x.ndim - len(times)) + times
    t = x.tensor
    for _ in range(len(counts) - t.ndim):
        t = build.expand(t, 0)
    shape = tuple(mul(s, r) for s, r in zip(t.shape, counts, strict=True))
    wrapped = {k: _wrapped(t.shape[k]) for k, r in enumerate(counts) if r != as_expr(1)}
    return Array(_mapped(t, shape, wrapped) if wrapped else t)


def _wrapped(extent: Expr) -> Callable[[Expr], Expr]:
    return lambda c: c if constant_value(extent) == 0 else mod(c, extent)


# --- joins --------------------------------------------------------------------------------------


def _common(op: str, arrays: Sequence[Array]) -> list[Tensor]:
    if not isinstance(arrays, tuple | list):
        raise UserError(f"{op} of {type(arrays).__name__}: give a tuple or a list of arrays")
    checked = tuple(check_array(op, a) for a in arrays)
    if not checked:
        raise UserError(f"{op} of no arrays: give at least one")
    dtype = common_dtype(op, checked)
    return [build.cast(a.tensor, dtype) for a in checked]


def concat(arrays: tuple[Array, ...] | list[Array], /, axis: int | None = 0) -> Array:
    """The arrays one after the other along the axis; flattened first for None. Other sizes must be
    equal; the dtype is the promoted one. Raises UserError where ranks or other sizes differ."""
    tensors = _common("concat", arrays)
    if axis is None:
        tensors = [build.reshape("concat", t, (build.element_count(t.shape),)) for t in tensors]
    first = tensors[0]
    along = build.axis_of("concat", 0 if axis is None else axis, first.ndim)
    for k, t in enumerate(tensors):
        if _others(t, along) != _others(first, along):
            raise UserError(
                f"concat along axis {along}: array {k} has shape {build.shape_text(t.shape)}, "
                f"array 0 {build.shape_text(first.shape)}: ranks, and sizes of the other axes, "
                f"must be equal; {_way_to_equal(t, first)}"
            )
    return Array(build.concat(tensors, along))


def _way_to_equal(t: Tensor, other: Tensor) -> str:
    """What makes the shapes of two arrays agree."""
    sizes = (*t.shape, *other.shape)
    if t.ndim == other.ndim and any(constant_value(n) is None for n in sizes):
        return f"a symbolic size {build.ONE_NAME}"
    return "pad or slice first"


def _others(t: Tensor, axis: int) -> Shape | None:
    return (*t.shape[:axis], *t.shape[axis + 1 :]) if t.ndim > axis else None


def stack(arrays: tuple[Array, ...] | list[Array], /, axis: int = 0) -> Array:
    """The arrays, of one shape, along a new axis at `axis` of the result. Raises UserError where
    shapes differ."""
    tensors = _common("stack", arrays)
    for k, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise UserError(
                f"stack: array {k} has shape {build.shape_text(t.shape)}, array 0 "
                f"{build.shape_text(tensors[0].shape)}: all shapes must be equal; "
                f"{_way_to_equal(t, tensors[0])}"
            )
    along = build.axis_of("stack", axis, tensors[0].ndim + 1)
    return Array(build.concat([build.expand(t, along) for t in tensors], along))


def unstack(x: Array, /, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis of integer size, without it. Raises UserError where the size is
    symbolic."""
    x = check_array("unstack", x)
    along = build.axis_of("unstack", axis, x.ndim)
    count = constant_value(x.tensor.shape[along])
    if count is None:
        raise UserError(
            f"unstack: axis {along} has symbolic size {x.shape[along]}: the number of results must "
            "be an integer; make that size an integer in the spec"
        )
    lead = (slice(None),) * along
    return tuple(x[(*lead, k)] for k in range(count))


def split(x: Array, parts: int | Sequence[IntLike], /, axis: int = 0) -> tuple[Array, ...]:
    """Pieces along an axis: `parts` equal ones, or those between the positions in `parts`, as of
    numpy.split (torch.split takes the size of a piece).

    Raises UserError for an axis that the parts do not divide, for a symbolic size with a number of
    parts, and for positions that descend.
    """
    x = check_array("split", x)
    along = build.axis_of("split", axis, x.ndim)
    lead = (slice(None),) * along
    if isinstance(parts, list | tuple):
        ends = [*build.extents("split", "parts", parts), None]
        limits = zip([None, *ends], ends, strict=False)
        return tuple(x[(*lead, slice(a, b))] for a, b in limits)
    count, size = build.integer("split", "parts", parts), constant_value(x.tensor.shape[along])
    if size is None or count < 1 or size % count:
        raise UserError(
            f"split: {count} equal parts of axis {along} of size {x.shape[along]}: the size must "
            "be an integer that they divide; give the positions at which to split"
        )
    each = size // count
    return tuple(x[(*lead, slice(k * each, (k + 1) * each))] for k in range(count))
