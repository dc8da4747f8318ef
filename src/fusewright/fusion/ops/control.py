"""Control flow on the device: branches and loops whose bodies are fused like programs.

The functions and the order of their arguments are those of jax.lax (`cond`, `while_loop`,
`fori_loop`, `scan`). A body is recorded once, whatever the number of its iterations, and may use
arrays of the program around it. Carried values keep structure, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from fusewright.arguments import COUNT, FLAG, FUNCTION, ArgumentRule, optional, shown, takes
from fusewright.core.conditions import less, prove
from fusewright.core.expr import Expr, IntLike, add, as_expr, constant_value, mul
from fusewright.dtypes import bool_, int64
from fusewright.errors import UserError
from fusewright.fusion import build, trees
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.bodies import (
    Recorded,
    arrays_in,
    check_same_structure,
    check_takes,
    closed,
    like,
    record,
    was_number,
)
from fusewright.fusion.call_numbers import Lap
from fusewright.fusion.ir import Fusion, Region, Tensor
from fusewright.fusion.positions import expression_of
from fusewright.fusion.trees import Tree

Values: TypeAlias = tuple[Sequence[Tensor], Tree]
"""Values, and the structure that they stand in."""

TRIPS = ArgumentRule(
    "an integer from 0 on, or an expression in sizes",
    lambda given: given if isinstance(given, Expr) else COUNT.taken(given),
)


@takes(true_fun=FUNCTION, false_fun=FUNCTION)
def cond(
    pred: Array, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where `pred`, a bool of rank 0, is true, else `false_fun(*operands)`:
    only the launches of one of them run. `fw.where` chooses by element, and computes both.

    Both functions return arrays of one structure, of the same shapes and dtypes. Raises UserError
    where they do not, and for another `pred`.
    """
    condition = _check_condition("cond", "pred", check_array("cond", pred))
    given = [_values(f"operand {k} of cond", x) for k, x in enumerate(operands)]
    branches = [record("cond", fn, given) for fn in (true_fun, false_fun)]
    first, second = branches
    names = "what true_fun returned", "what false_fun returned"
    check_same_structure("cond", (names[0], first.tree), (names[1], second.tree))
    pairs = zip(first.results, second.results, strict=True)
    agreed = [_of_one_type(k, a, b) for k, (a, b) in enumerate(pairs)]
    own = [t for values, _ in given for t in values]
    shared, bodies = closed(
        [(r.inputs, [pair[k] for pair in agreed]) for k, r in enumerate(branches)], first.since
    )
    made = _results("cond", (condition, *own, *shared), bodies)
    return trees.unflatten(first.tree, made)


@takes(cond_fun=FUNCTION, body_fun=FUNCTION)
def while_loop(
    cond_fun: Callable[[Any], Array], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
    """`val = init_val`, then `val = body_fun(val)` as long as `cond_fun(val)`, a bool of rank 0, is
    true; returns the last `val`, an array or a structure of arrays and Python numbers.

    Raises UserError where `body_fun` changes structure, shapes or dtypes.
    """
    values, tree = _values("init_val of while_loop", init_val)
    body = record("while_loop", body_fun, [(values, tree)])
    condition = record("while_loop", cond_fun, [(values, tree)])
    check_same_structure("while_loop", ("init_val", tree), ("what body_fun returned", body.tree))
    outputs = _carried("while_loop", body.results, values, tree)
    if trees.count(condition.tree) != 1:
        raise UserError(
            f"while_loop: cond_fun returned {trees.count(condition.tree)} arrays; it must return "
            "one bool of rank 0"
        )
    test = _check_condition("while_loop", "what cond_fun returned", condition.results[0])
    changing = [k for k, t in enumerate(outputs) if t is not body.inputs[k]]
    order = [*changing, *(k for k in range(len(values)) if k not in changing)]
    shared, bodies = closed(
        [
            ([condition.inputs[k] for k in order], [test]),
            ([body.inputs[k] for k in order], [outputs[k] for k in changing]),
        ],
        body.since,
    )
    operands = (*(values[k] for k in order), *shared)
    made = _results("while_loop", operands, bodies, len(changing))
    found = dict(zip(changing, made, strict=True))
    return trees.unflatten(tree, [found.get(k, Array(t)) for k, t in enumerate(values)])


@takes(body_fun=FUNCTION)
def fori_loop(
    lower: IntLike | Array,
    upper: IntLike | Array,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
) -> Any:
    """`val = init_val`, then `val = body_fun(i, val)` for i = lower, .., upper - 1, which is an
    int64 array of rank 0; returns the last `val`. The host knows i: `x[i]`, `x[i : i + 8]` and
    `fw.insert(x, value, (i, 0))` read and write one place, and so do integers computed from i.

    Bounds are integers, expressions in the sizes of arrays, or integer arrays of rank 0, whose loop
    is a `while_loop`. Raises UserError where integers make less than no iterations, and where
    `body_fun` changes structure, shapes or dtypes.
    """
    if not _is_known(lower) or not _is_known(upper):
        return _counted(lower, upper, body_fun, init_val)
    first, last = (build.extent("fori_loop", w, b) for w, b in (("lower", lower), ("upper", upper)))
    trips = add(last, mul(first, -1))
    if prove(less(trips, 0)) is True:
        raise UserError(
            f"fori_loop: from {first} to {last} there are {trips} iterations; upper must not lie "
            "below lower: exchange them, or count down inside of the body"
        )
    values, tree = _values("init_val of fori_loop", init_val)
    lap = Lap("lap", trips)
    number = 0 if constant_value(trips) == 1 else lap  # a size that is 0 alone is no size
    index = Array(build.size(add(first, number), int64))
    body = record("fori_loop", partial(body_fun, index), [(values, tree)])
    check_same_structure("fori_loop", ("init_val", tree), ("what body_fun returned", body.tree))
    outputs = _carried("fori_loop", body.results, values, tree)
    (made, _) = _loop("fori_loop", body, _Laps(trips, lap=lap), values, outputs, [], [])
    return trees.unflatten(tree, made)


@takes(f=FUNCTION, length=optional(TRIPS), reverse=FLAG)
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: IntLike | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`carry, y = f(carry, x)` for every slice x of `xs` along the first axes of its arrays, from
    the last one on if `reverse`; returns the last carry, and the ys stacked along a first axis in
    the order of the slices. Without arrays in `xs`, which is None then, `length` counts iterations.

    Raises UserError for first axes of different sizes, or another `length`; where `f` does not
    return a pair; and where it changes structure, shapes or dtypes of the carry.
    """
    return scan_with(f, init, xs, length, reverse=reverse)


def scan_with(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: IntLike | None = None,
    *,
    reverse: bool,
    lap: Lap | None = None,
) -> tuple[Any, Any]:
    """`scan`, whose function may mention `lap` for the number of the slice that it takes."""
    values, tree = _values("init of scan", init)
    sliced, x_tree = _values("xs of scan", xs)
    trips = _length(sliced, length)
    slices = [build.value(t.shape[1:], t.dtype, t.op) for t in sliced]
    body = record("scan", _pair(f), [(values, tree), (slices, x_tree)])
    assert isinstance(body.tree, trees.Branch)
    carry_tree, y_tree = body.tree.items
    check_same_structure("scan", ("init", tree), ("the carry that f returned", carry_tree))
    outputs = _carried("scan", body.results[: len(values)], values, tree)
    ys = [y.tensor for y in body.results[len(values) :]]
    made, stacked = _loop(
        "scan", body, _Laps(trips, reverse, lap), values, outputs,
        list(zip(body.inputs[len(values) :], sliced, strict=True)), ys,
    )  # fmt: skip
    return trees.unflatten(tree, made), trees.unflatten(y_tree, stacked)


# --- what they share ----------------------------------------------------------------------------


def known_extent(e: Expr) -> IntLike:
    """A constant as an integer."""
    found = constant_value(e)
    return e if found is None else found


def _values(what: str, structure: Any) -> Values:
    """The values of a structure of arrays and Python numbers."""
    arrays, tree = arrays_in(what, structure)
    return [a.tensor for a in arrays], tree


def _check_condition(op: str, what: str, x: Array) -> Tensor:
    if x.ndim or x.dtype is not bool_:
        raise UserError(
            f"{op}: {what} is {x.dtype}{build.shape_text(x.shape)}; a condition is one bool of "
            "rank 0: compare, then reduce with fw.all or fw.any"
        )
    return x.tensor


def _of_one_type(k: int, a: Array, b: Array) -> tuple[Tensor, Tensor]:
    """Result k of both branches; where one is a Python number it takes the other one's dtype."""
    if was_number(a) and not was_number(b):
        return like("cond", f"result {k} of false_fun", a, b.tensor), b.tensor
    return a.tensor, like("cond", f"result {k} of true_fun", b, a.tensor)


def _carried(
    op: str, results: Sequence[Array], values: Sequence[Tensor], tree: Tree
) -> list[Tensor]:
    """What an iteration makes of the carried values."""
    names = trees.paths(tree, "val")
    return [
        like(op, f"carried value {name}", r, t)
        for name, r, t in zip(names, results, values, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Laps:
    """How often a loop runs, where that is known, with the last slice first if `reverse`; `lap`
    stands in its body for the number of an iteration."""

    trips: Expr | None
    reverse: bool = False
    lap: Lap | None = None


def _loop(
    op: str,
    body: Recorded,
    laps: _Laps,
    values: Sequence[Tensor],
    outputs: Sequence[Tensor],
    slices: Sequence[tuple[Tensor, Tensor]],
    ys: Sequence[Tensor],
) -> tuple[list[Array], list[Array]]:
    """The carried values behind a loop of known trips, and the results that are stacked. `slices`:
    what the body takes a slice as, and of which value. What no iteration changes is not carried."""
    assert laps.trips is not None
    if constant_value(laps.trips) == 0:
        nothing = [Array(build.full((laps.trips, *y.shape), 0, y.dtype)) for y in ys]
        return [Array(t) for t in values], nothing
    slots = [t for t in body.inputs if all(t is not s for s, _ in slices)]
    changing = [k for k, t in enumerate(outputs) if t is not slots[k]]
    kept = [k for k in range(len(values)) if k not in changing]
    made = [outputs[k] for k in changing]
    used = needed_for([*made, *ys])
    taken = [(s, v) for s, v in slices if s in used]
    inputs = [*(slots[k] for k in changing), *(s for s, _ in taken), *(slots[k] for k in kept)]
    shared, bodies = closed([(inputs, [*made, *ys])], body.since)
    operands = (
        *(values[k] for k in changing), *(v for _, v in taken), *(values[k] for k in kept), *shared,
    )  # fmt: skip
    results = _results(op, operands, bodies, len(changing), len(taken), laps)
    found = dict(zip(changing, results[: len(changing)], strict=True))
    return [found.get(k, Array(t)) for k, t in enumerate(values)], results[len(changing) :]


def needed_for(outputs: Sequence[Tensor]) -> set[Tensor]:
    """The values that outputs are computed from, and these."""
    found: set[Tensor] = set()
    stack = list(outputs)
    while stack:
        t = stack.pop()
        if t not in found:
            found.add(t)
            stack.extend(t.op.operands)
    return found


def _results(
    fn: str,
    operands: tuple[Tensor, ...],
    bodies: tuple[Fusion, ...],
    carried: int = 0,
    sliced: int = 0,
    laps: _Laps | None = None,
) -> list[Array]:
    """The results of a region."""
    out: list[Array] = []
    of = laps or _Laps(None)
    lap = of.lap if of.lap in bodies[-1].symbols else None
    for k, t in enumerate(bodies[-1].outputs):
        lead = (of.trips,) if of.trips is not None and k >= carried else ()
        op = Region(operands, fn, k, bodies, carried, sliced, of.trips, of.reverse, lap)
        out.append(Array(build.value((*lead, *t.shape), t.dtype, op)))
    return out


def _length(sliced: Sequence[Tensor], length: IntLike | None) -> Expr:
    """The iterations of a scan."""
    for t in sliced:
        if not t.ndim:
            raise UserError("scan: an array of xs has rank 0; each is sliced along its first axis")
    sizes = [t.shape[0] for t in sliced]
    if length is not None:
        sizes.append(as_expr(length))
    if not sizes:
        raise UserError("scan: neither xs nor length says how many iterations there are; give one")
    for n in sizes:
        if n != sizes[0]:
            raise UserError(
                f"scan: first axes and length are {', '.join(map(str, sizes))}; they must be "
                "equal: slice or pad the arrays, or leave length out"
            )
    return sizes[0]


def _pair(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    check_takes("scan", f, 2)

    def called(carry: Any, x: Any) -> tuple[Any, Any]:
        found = f(carry, x)
        pair = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else ()
        if len(pair) != 2:
            raise UserError(
                f"scan: f returned {shown(cast('object', found))}; it must return a pair of the "
                "carry and of what is stacked, None for nothing"
            )
        return pair[0], pair[1]

    return called


def _counted(
    lower: IntLike | Array, upper: IntLike | Array, body_fun: Callable[..., Any], init_val: Any
) -> Any:
    """A fori_loop whose bounds are known on the device only."""
    first, last = (_bound(what, b) for what, b in (("lower", lower), ("upper", upper)))
    _, _, value = while_loop(
        lambda state: state[0] < state[1],
        lambda state: (state[0] + 1, state[1], body_fun(state[0], state[2])),
        (first, last, init_val),
    )
    return value


def _is_known(bound: object) -> bool:
    """Whether a bound of a loop is known before its call launches anything."""
    return not isinstance(bound, Array) or expression_of(bound.tensor) is not None


def _bound(what: str, bound: IntLike | Array) -> Array:
    if not isinstance(bound, Array):
        return Array(build.size(build.extent("fori_loop", what, bound), int64))
    if bound.ndim or not bound.dtype.is_integer:
        raise UserError(
            f"fori_loop: {what} is {bound.dtype}{build.shape_text(bound.shape)}; a bound is an "
            "integer, or an integer array of rank 0"
        )
    return Array(build.cast(bound.tensor, int64))
