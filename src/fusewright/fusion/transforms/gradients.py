"""Gradients of recorded programs: reverse mode, one adjoint an operation.

`grad` and its relatives run a function on the arrays of a trace and add to the trace what their
gradients are; forward and backward then are one program, which is fused like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from fusewright.arguments import FLAG, FUNCTION, shown, takes
from fusewright.errors import UserError
from fusewright.fusion import build, ir, trees
from fusewright.fusion.array import Array, check_array
from fusewright.fusion.derivatives import CONSTANT, GivenRule
from fusewright.fusion.ir import Tensor
from fusewright.fusion.ops import ones, zeros_like
from fusewright.fusion.transforms.adjoints import adjoint
from fusewright.fusion.transforms.region_adjoints import region_adjoint


def grad(
    fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of `fn`, which returns one float of rank 0, with respect
    to the positional arguments `argnums`: in each one's structure, shapes and dtypes.

    With `has_aux` `fn` returns a pair, of which the first is differentiated, and the result is a
    pair of the gradient and the second. Raises UserError for arguments that are no floats, and for
    results of another rank or dtype; UnsupportedError for operations without a derivative.
    """
    both = value_and_grad(fn, argnums, has_aux=has_aux)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return _named(gradient, "grad", fn)


@takes(fn=FUNCTION, has_aux=FLAG)
def value_and_grad(
    fn: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns what `fn` returns, and the gradient as `grad` has it. Raises
    UserError where `argnums` counts an argument that the call does not have."""
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    for n in numbers:
        build.integer("grad", "argnums", n)

    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        for n in numbers:
            if not 0 <= n < len(args):
                raise UserError(
                    f"grad(argnums={argnums}): the call has {len(args)} positional arguments; "
                    "count them from 0, and pass those that are differentiated by position"
                )
        leaves, tree = trees.flatten(tuple(args[n] for n in numbers))
        copies = [variable("grad", leaf) for leaf in leaves]
        chosen = dict(zip(numbers, trees.unflatten(tree, copies), strict=True))
        value = fn(*(chosen.get(n, a) for n, a in enumerate(args)), **kwargs)
        loss = _loss(_first_of_pair(value) if has_aux else value)
        found = cotangents([loss], [ones((), dtype=loss.dtype)], copies)
        gradients = trees.unflatten(tree, found)
        return value, gradients if isinstance(argnums, tuple) else gradients[0]

    return _named(value_and_gradient, "value_and_grad", fn)


@takes(fn=FUNCTION)
def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """What `fn` returns for these arguments, and a function from a cotangent of that structure to
    the tuple of the arguments' cotangents. Raises as `grad`."""
    leaves, tree = trees.flatten(primals)
    copies = [variable("vjp", leaf) for leaf in leaves]
    result = fn(*trees.unflatten(tree, copies))
    outputs, out_tree = trees.flatten(result)
    checked = [check_array("vjp (result)", y) for y in outputs]

    def back(cotangent: Any) -> tuple[Any, ...]:
        given = trees.leaves_like(out_tree, cotangent)
        if given is None:
            raise UserError(
                f"vjp: the cotangent {shown(cotangent)} has another structure than the result "
                f"{shown(result)}; give an array for each of its arrays"
            )
        seeds = [_like(y, g) for y, g in zip(checked, given, strict=True)]
        return trees.unflatten(tree, cotangents(checked, seeds, copies))

    return result, back


@takes(fn=FUNCTION, has_aux=FLAG)
def jvp(
    fn: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """What `fn` returns for the arguments `primals`, and its derivative in the direction of
    `tangents`, a tangent for each argument, of its structure, shapes and dtypes. The tangent of a
    result has the result's shape and dtype; that of a result which is no float is 0.

    The way back from the result to the arguments is linear in the cotangent; the way back along it
    is the derivative (Townsend, "A new trick for calculating Jacobian vector products", 2017).
    What is computed of the cotangent on the way is left out of the program.

    With `has_aux` `fn` returns a pair, of which the first is differentiated, and the result has the
    second as a third part. Raises as `vjp`, and UserError for tangents unlike the arguments.
    """
    leaves, tree = trees.flatten(_parts("primals", primals))
    copies = [variable("jvp", leaf) for leaf in leaves]
    given = trees.leaves_like(tree, _parts("tangents", tangents))
    if given is None:
        raise UserError(
            f"jvp: the tangents {shown(tangents)} have another structure than the arguments "
            f"{shown(primals)}; give an array for each of their arrays"
        )
    directions = [_like(x, g, "jvp", "tangent") for x, g in zip(copies, given, strict=True)]
    value = fn(*trees.unflatten(tree, copies))
    result = _first_of_pair(value, "jvp") if has_aux else value
    outputs, out_tree = trees.flatten(result)
    if not outputs:
        raise UserError(f"jvp: the function returned {shown(result)}; it must return arrays")
    checked = [check_array("jvp (result)", y) for y in outputs]
    floats = [y for y in checked if y.dtype.is_float]
    seeds = [_own(y) for y in floats]  # any values: what is linear in them does not read them
    moved = iter(cotangents(cotangents(floats, seeds, copies), directions, seeds))
    found = [next(moved) if y.dtype.is_float else zeros_like(y) for y in checked]
    aux = (value[1],) if has_aux else ()
    return (result, trees.unflatten(out_tree, found), *aux)


def _parts(what: str, given: object) -> tuple[Any, ...]:
    if isinstance(given, tuple | list):
        return tuple(cast("Sequence[Any]", given))
    raise UserError(
        f"jvp: {what} is {shown(given)}; it must be a tuple with one part for each argument of the "
        "function"
    )


def stop_gradient(x: Array) -> Array:
    """The array, through which no gradient flows."""
    return _with_rule(check_array("stop_gradient", x), CONSTANT)


@takes(fn=FUNCTION, forward=FUNCTION, backward=FUNCTION)
def custom_vjp(
    fn: Callable[..., Array],
    forward: Callable[..., tuple[Array, Any]],
    backward: Callable[[Any, Array], Sequence[Array | None]],
) -> Callable[..., Array]:
    """`fn` of arrays, with a gradient of its own: `forward(*args)` returns its result and what is
    saved, `backward(saved, cotangent)` a cotangent, or None, for each argument. Where nothing is
    differentiated, only what `fn` needs is computed.

    Raises UserError where `forward` returns no pair, and where `backward` returns no tuple of as
    many cotangents as there are arguments, or one of another shape.
    """

    def call(*args: Array) -> Array:
        arrays = [check_array("custom_vjp", a) for a in args]
        pair = cast("object", forward(*arrays))
        if not isinstance(pair, tuple | list) or len(cast("Sequence[Any]", pair)) != 2:
            raise UserError(
                f"custom_vjp: forward returned {shown(cast('object', pair))}; return a pair of the "
                "result and what is saved for backward, None where that is nothing"
            )
        result, saved = cast("tuple[Array, Any]", pair)

        def back(g: Array) -> Sequence[Array | None]:
            returned = cast("object", backward(saved, g))
            if not isinstance(returned, tuple | list):
                raise UserError(
                    f"custom_vjp: backward returned {shown(returned)}; return a tuple with one "
                    "cotangent, or None, for each argument"
                )
            found = cast("Sequence[Array | None]", returned)
            if len(found) != len(arrays):
                raise UserError(
                    f"custom_vjp: backward returned {len(found)} cotangents for {len(arrays)} "
                    "arguments; return one, or None, for each"
                )
            return [None if c is None else _like(a, c) for a, c in zip(arrays, found, strict=True)]

        rule = GivenRule(tuple(a.tensor for a in arrays), back)
        return _with_rule(check_array("custom_vjp (result)", result), rule)

    return _named(call, "custom_vjp", fn)


# --- the way back -------------------------------------------------------------------------------


def cotangents(
    outputs: Sequence[Array], seeds: Sequence[Array], variables: Sequence[Array]
) -> list[Array]:
    """The cotangents of variables from those of outputs, zeros where nothing flows."""
    found = reached_cotangents(outputs, seeds, variables)
    return [zeros_like(v) if g is None else g for v, g in zip(variables, found, strict=True)]


def reached_cotangents(
    outputs: Sequence[Array], seeds: Sequence[Array], variables: Sequence[Array]
) -> list[Array | None]:
    """The cotangents of variables from those of outputs, None where nothing flows: contributions
    of later readers first, so that sums have one order."""
    wanted = {v.tensor for v in variables}
    order = _reached([y.tensor for y in outputs], wanted)
    found: dict[Tensor, Array] = {}
    for y, g in zip(outputs, seeds, strict=True):
        _add(found, y.tensor, g)
    calls = _calls(order)
    for t in reversed(order):
        if t not in wanted:
            for o, c in zip(_operands(t), _contributions(t, found, calls), strict=False):
                if c is not None and o in order:
                    _add(found, o, c)
    return [found.get(v.tensor) for v in variables]


def _calls(order: Iterable[Tensor]) -> dict[Tensor, list[Tensor]]:
    """For the first result of each region the results of that call. All that reads one of them
    stands behind it."""
    calls: dict[object, list[Tensor]] = {}
    for t in order:
        if isinstance(t.op, ir.Region) and t.rule is None:
            calls.setdefault((t.op.bodies, t.op.operands), []).append(t)
    return {results[0]: results for results in calls.values()}


def has_gradient(y: Array, variables: Sequence[Array]) -> bool:
    """Whether a gradient flows from a value to one of the variables."""
    return y.tensor in _reached([y.tensor], {v.tensor for v in variables})


def _contributions(
    t: Tensor, found: Mapping[Tensor, Array], calls: Mapping[Tensor, Sequence[Tensor]]
) -> Sequence[Array | None]:
    """What flows to the operands of a value; to those of a region with its first result, which all
    others stand behind."""
    if isinstance(t.op, ir.Region) and t.rule is None:
        results = [s for s in calls.get(t, ()) if s in found]
        given = {s.op.result: found[s] for s in results if isinstance(s.op, ir.Region)}
        return region_adjoint(t.op, given, reached_cotangents) if given else ()
    if t not in found:
        return ()
    return adjoint(t, found[t], reached_cotangents) if t.rule is None else t.rule.backward(found[t])


def _operands(t: Tensor) -> tuple[Tensor, ...]:
    return t.op.operands if t.rule is None else t.rule.operands


def _add(found: dict[Tensor, Array], t: Tensor, g: Array) -> None:
    found[t] = found[t] + g if t in found else g


def _reached(outputs: Sequence[Tensor], wanted: set[Tensor]) -> dict[Tensor, None]:
    """The floats between variables and outputs, operands before users."""
    reaches: dict[Tensor, bool] = {}
    seen: set[Tensor] = set()
    for root in outputs:
        stack: list[tuple[Tensor, bool]] = [(root, False)]
        while stack:
            t, is_done = stack.pop()
            if is_done:
                reaches[t] = t in wanted or any(reaches[o] for o in _operands(t))
            elif t not in seen:
                seen.add(t)
                stack.append((t, True))
                below = () if t in wanted else _operands(t)
                stack.extend((o, False) for o in reversed(below) if o not in seen)
    return {t: None for t, is_reached in reaches.items() if is_reached and t.dtype.is_float}


# --- arguments ----------------------------------------------------------------------------------


def variable(op: str, x: object) -> Array:
    """A value of its own for an argument: what a function reads otherwise is a constant to it."""
    x = check_array(op, x)
    if not x.dtype.is_float:
        raise UserError(
            f"{op}: an argument is {x.dtype}{build.shape_text(x.shape)}; gradients are with "
            "respect to floats: cast it, or leave its number out of argnums"
        )
    return _own(x)


def _own(x: Array) -> Array:
    t = x.tensor
    return Array(build.value(t.shape, t.dtype, ir.Permute((t,), tuple(range(t.ndim)))))


def _with_rule(x: Array, rule: GivenRule) -> Array:
    out = _own(x)
    out.tensor.rule = rule
    return out


def _first_of_pair(value: object, op: str = "grad") -> object:
    found = shown(value)
    pair = cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
    if len(pair) != 2:
        raise UserError(
            f"{op}(has_aux=True): the function returned {found}; it must return a pair, of which "
            "the first is differentiated"
        )
    return pair[0]


def _loss(x: object) -> Array:
    y = check_array("grad (result)", x)
    if y.ndim or not y.dtype.is_float:
        raise UserError(
            f"grad: the function returned {y.dtype}{build.shape_text(y.shape)}; it must return one "
            "float of rank 0: sum it, or use fw.vjp with a cotangent of its shape"
        )
    return y


def _like(y: Array, g: object, op: str = "vjp", what: str = "cotangent") -> Array:
    """A cotangent, or a tangent, of a value."""
    c = check_array(f"{op} ({what})", g)
    if c.tensor.shape != y.tensor.shape or c.dtype is not y.dtype:
        raise UserError(
            f"{op}: a {what} is {c.dtype}{build.shape_text(c.shape)}, its value is "
            f"{y.dtype}{build.shape_text(y.shape)}; they must be equal"
        )
    return c


def _named(made: Callable[..., Any], what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    made.__name__ = f"{what}_of_{getattr(fn, '__name__', 'a_function')}"
    made.__doc__ = fn.__doc__
    return made
