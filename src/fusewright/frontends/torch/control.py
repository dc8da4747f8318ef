"""torch's control flow as calls that regions take: `cond`, `while_loop`, `scan` and `map`.

In a graph of torch such an operator has graphs among its arguments, which no region reads. Here it
becomes a call over tensors and sizes alone, which knows the graphs that it calls; a region records
it as `fw.cond`, `fw.while_loop` or `fw.scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from fusewright.dtypes import bool_
from fusewright.errors import FusewrightError, UnsupportedError
from fusewright.frontends.torch.calls import (
    NOT_TAKEN,
    call_text,
    is_control_flow,
    refusal,
    trace_node,
    type_text,
)
from fusewright.frontends.torch.control_calls import ControlFlow, operator_text
from fusewright.frontends.torch.library import fx
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.plain_biases import plain_biases
from fusewright.frontends.torch.plain_scalars import plain_scalars
from fusewright.frontends.torch.plain_scatters import plain_scatters
from fusewright.frontends.torch.plain_strides import plain_strides
from fusewright.frontends.torch.plain_writes import plain_writes
from fusewright.frontends.torch.preconditions import asks
from fusewright.frontends.torch.product_choice import left_products, slower_in_loops
from fusewright.fusion import ops
from fusewright.fusion.array import Array

_GRAPHS = {"cond": (1, 2), "while_loop": (0, 1), "scan": (0,), "map_impl": (0,)}
"""Where an operator has the graphs that it calls among its arguments."""

Body = Callable[..., list[Any]]
"""A graph on traced values: its results, None where it has none."""


def take_control_flow(module: Any, options: Options) -> None:
    """Makes control flow of an aten graph module into calls that regions take.

    rewrite:  scan(graph, [c], [x], (w,))  ->  scan of that graph([c], [x], (w,))
    checks:   everything in the graphs can be fused, and their products are no faster as torch's;
              what is carried are tensors. What stays torch's gets the reason (`refusal` tells it)
    order:    before the graph is cut into regions, and before graphs that torch calls are fused
    """
    for node in list(module.graph.nodes):
        if not is_control_flow(node):
            continue
        name = node.target._name
        try:
            places = _GRAPHS.get(name)
            if places is None:
                raise UnsupportedError(f"{name} is no loop or branch of fusewright's")
            graphs = tuple(_graph(module, node.args[k]) for k in places)
            for graph in graphs:
                _check(graph, name, options)
            _convert(node, graphs, places)
        except FusewrightError as e:
            node.meta[NOT_TAKEN] = f"torch runs it, and its graphs are fused one by one: {e}"


def _graph(module: Any, argument: Any) -> Any:
    """A graph that an argument names."""
    found = getattr(module, argument.target, None) if argument.op == "get_attr" else None
    if not isinstance(found, fx.GraphModule):
        raise UnsupportedError(f"what it calls, {argument}, is no graph")
    return found


def _convert(node: Any, graphs: tuple[Any, ...], places: Sequence[int]) -> None:
    """Makes a node a call over tensors and sizes; leaves it as it is where it cannot be traced."""
    operator, args = node.target, node.args
    lowering = partial(_LOWERINGS[operator._name], [_body(g) for g in graphs])
    node.target = ControlFlow(operator, graphs, tuple(places), _text(operator, graphs), lowering)
    node.args = tuple(a for k, a in enumerate(args) if k not in places)
    why = refusal(node)
    if why is not None:
        node.target, node.args = operator, args
        raise UnsupportedError(why)
    for k in places:
        if not args[k].users:
            node.graph.erase_node(args[k])


def _check(graph: Any, name: str, options: Options) -> None:
    """Raises UnsupportedError where something in a graph that control flow calls stays torch's."""
    take_control_flow(graph, options)
    plain_scalars(graph)
    plain_biases(graph.graph)
    plain_scatters(graph.graph)
    plain_strides(graph.graph)
    plain_writes(graph.graph)
    nodes = list(graph.graph.nodes)
    reasons: dict[Any, str] = {}
    for n in nodes:
        if n.op == "get_attr" and n.users:
            raise UnsupportedError(f"it reads {n.target}, a constant of the module")
        if n.op in ("placeholder", "output", "get_attr"):
            continue
        if (why := refusal(n)) is not None:
            raise UnsupportedError(f"{n.target} in it: {why}")
        if options.cpu == "oracle" and asks(n):
            raise UnsupportedError(f"{n.target} in it: torch looks at elements on the host")
    if name == "cond":
        reasons |= left_products(nodes, reasons, options)
    else:
        reasons |= slower_in_loops(nodes, options)
    for n, why in reasons.items():
        raise UnsupportedError(f"{n.target} in it: {why}")


def _text(operator: Any, graphs: Sequence[Any]) -> str:
    """Equal for calls of equal graphs."""
    lines = [operator._name]
    for graph in graphs:
        nodes = list(graph.graph.nodes)
        number = {n: k for k, n in enumerate(nodes)}
        for n in nodes:
            what = operator_text(n.target) if n.op == "call_function" else n.op
            lines.append(f"{what} {call_text(n, number)} {type_text(n.meta.get('val'))}")
    return "\n".join(lines)


# --- what they compute ----------------------------------------------------------------------------


def _body(graph: Any) -> Body:
    """A graph as a function of traced values, of integers and of None."""

    def called(*values: Any) -> list[Any]:
        given = iter(values)
        known: dict[Any, Any] = {}
        results: Any = ()
        for n in graph.graph.nodes:
            if n.op == "placeholder":
                known[n] = next(given)
            elif n.op == "call_function":
                known[n] = trace_node(n, known)
            elif n.op == "output":
                results = n.args[0]
        is_alone = not isinstance(results, tuple | list)
        several = cast("Sequence[Any]", (results,) if is_alone else results)
        return [known[r] if isinstance(r, fx.Node) else r for r in several]

    return called


def _arrays(what: str, values: Sequence[Any]) -> tuple[Array, ...]:
    """Values that are arrays, all of them. Raises UnsupportedError for numbers."""
    for k, v in enumerate(values):
        if not isinstance(v, Array):
            raise UnsupportedError(f"{what} {k} is {v}, and no tensor")
    return tuple(cast("Sequence[Array]", values))


def _cond(bodies: Sequence[Body], condition: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of one of two graphs, None where neither has one."""
    given = [x for x in operands if isinstance(x, Array)]

    def branch(body: Body) -> Callable[..., tuple[Array, ...]]:
        def called(*arrays: Array) -> tuple[Array, ...]:
            made = body(*_filled(operands, arrays))
            absent.append([r is None for r in made])
            return _arrays("its result", [r for r in made if r is not None])

        return called

    absent: list[list[bool]] = []
    (is_true,) = _arrays("its condition", [condition])
    if is_true.dtype is not bool_:
        is_true = ops.not_equal(is_true, 0)
    is_true = ops.reshape(is_true, ())
    made = iter(ops.cond(is_true, branch(bodies[0]), branch(bodies[1]), *given))
    first, second = absent
    if first != second:
        raise UnsupportedError("one branch has a result that the other one has not")
    return tuple(None if none else next(made) for none in first)


def _filled(values: Sequence[Any], arrays: Sequence[Array]) -> list[Any]:
    """Values with others in place of the arrays."""
    given = iter(arrays)
    return [next(given) if isinstance(v, Array) else v for v in values]


def _while_loop(
    bodies: Sequence[Body], carried: Sequence[Any], shared: Sequence[Any]
) -> tuple[Any, ...]:
    start = _arrays("what it carries,", carried)

    def goes_on(values: tuple[Array, ...]) -> Array:
        (condition,) = _arrays("its condition", bodies[0](*values, *shared))
        return condition

    def step(values: tuple[Array, ...]) -> tuple[Array, ...]:
        return _arrays("its result", bodies[1](*values, *shared))

    return ops.while_loop(goes_on, step, start)


def _scan(
    bodies: Sequence[Body], init: Sequence[Any], xs: Sequence[Any], shared: Sequence[Any]
) -> tuple[Any, ...]:
    """What is carried in the end, then what is stacked."""
    start, sliced = _arrays("what it carries,", init), _arrays("what it slices,", xs)
    count = len(start)

    def step(carry: tuple[Array, ...], x: tuple[Array, ...]) -> Any:
        made = _arrays("its result", bodies[0](*carry, *x, *shared))
        return made[:count], made[count:]

    carry, ys = ops.scan(step, start, sliced)
    return *carry, *ys


def _map(bodies: Sequence[Body], xs: Sequence[Any], shared: Sequence[Any]) -> tuple[Any, ...]:
    """What is stacked."""
    return _scan(bodies, (), xs, shared)


_LOWERINGS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map,
}  # fmt: skip
