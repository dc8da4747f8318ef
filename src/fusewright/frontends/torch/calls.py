"""One call of an aten operator as fused operations: tracing it, and whether that can be done."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fusewright.dtypes import dtype_of, scalar_text
from fusewright.errors import FusewrightError, UnsupportedError
from fusewright.frontends.torch.control_calls import ControlFlow, operator_text
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.table import LOWERINGS, VIEWS, Result, positional
from fusewright.fusion import ir
from fusewright.fusion.array import Array
from fusewright.fusion.ir import TensorSpec
from fusewright.fusion.source import Source
from fusewright.fusion.trace import trace

_log = logging.getLogger("fusewright.torch")

NOT_TAKEN = "fusewright_not_taken"
"""The key in what a node of control flow knows of the reason why torch runs it."""

CONTROL = ("cond", "while_loop", "scan", "map_impl", "associative_scan")
"""The higher-order operators whose graphs are called with tensors, and with nothing else."""


def is_getitem(node: Any) -> bool:
    """Whether a node selects one result of an operator that has several."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: Any) -> bool:
    """Whether torch makes the node's result in its operand's memory, without a kernel."""
    if is_getitem(node):
        return is_view(node.args[0])
    return node.op == "call_function" and node.target in VIEWS


def shows_memory(node: Any) -> bool:
    """Whether the node's result lies, or may lie, in its operand's memory: views, also those that
    no region makes, such as of another dtype, and what torch copies only where it must."""
    if is_getitem(node):
        return shows_memory(node.args[0])
    if is_view(node) or not isinstance(node.target, torch._ops.OpOverload):
        return is_view(node)
    shared = [r.alias_info for r in node.target._schema.returns]
    return any(a is not None and not a.is_write for a in shared)


def whole(node: Any) -> Any:
    """The node whose memory a node shows, itself where it has its own."""
    while shows_memory(node):
        node = node.args[0]
    return node


def readers(node: Any) -> list[Any]:
    """The nodes that read a tensor, by itself or through what shows its memory."""
    found: list[Any] = []
    for u in node.users:
        found.append(u)
        if shows_memory(u):
            found += readers(u)
    return found


def writes(node: Any) -> bool:
    """Whether a node writes to its arguments, or may."""
    if node.op != "call_function":
        return node.op in ("call_module", "call_method")
    is_operator = isinstance(node.target, torch._ops.OpOverload)
    return is_operator and node.target._schema.is_mutable


def tensors_of(value: object) -> Iterator[Any]:
    """The tensors of a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for v in cast("Sequence[object]", value):
            yield from tensors_of(v)


def hint(size: Any) -> int:
    """An integer for a size: itself, or the example that a symbolic one was traced with. Raises
    UnsupportedError for a size that depends on elements, which has none."""
    if isinstance(size, int):
        return size
    if size.node.hint is None:
        raise UnsupportedError(f"the size {size} depends on the elements of a tensor")
    return int(size.node.hint)


def trace_node(node: Any, values: Mapping[Any, Any]) -> Result:
    """The node's result as fused operations of the values of its operands.

    Raises FusewrightError where the operator's lowering does not take these arguments.
    """
    if is_getitem(node):
        return values[node.args[0]][node.args[1]]
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = dict(fx.node.map_arg(node.kwargs, values.__getitem__))
    dtypes = tuple(dtype_of(t.dtype) for t in tensors_of(node.meta["val"]))
    if isinstance(node.target, ControlFlow):
        made = node.target.lowering(*args)
    else:
        made = LOWERINGS[node.target](dtypes, *positional(node.target, args, kwargs), **kwargs)
    _give_source(node, made, values)
    return made


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _give_source(node: Any, made: Result, values: Mapping[Any, Any]) -> None:
    """What a node makes comes from the innermost line of the model that torch noted for it."""
    frames = _FRAME.findall(node.stack_trace or "")
    file, line = frames[-1] if frames else ("", "0")
    _, _, operator_name = str(node.target).partition(".")
    source = Source(file, int(line), operator_name.split(".")[0] or str(node.target))
    known = {values[n].tensor for n in node.all_input_nodes if isinstance(values[n], Array)}
    results = made if isinstance(made, tuple | list) else (made,)
    stack = [x.tensor for x in results if x is not None]
    while stack:
        t = stack.pop()
        if t not in known and not isinstance(t.op, ir.Input):
            known.add(t)
            t.source = source
            stack.extend(t.op.operands)


def is_control_flow(node: Any) -> bool:
    """Whether a node is torch's call of graphs of its own."""
    return node.op == "call_function" and getattr(node.target, "_name", "") in CONTROL


def refusal(node: Any, known: dict[Hashable, str | None] | None = None) -> str | None:
    """Why a node cannot be fused; None when it can. Found by tracing it alone, unless the table
    `known` has the answer for an equal call on tensors of the same types; else it is added."""
    if node.op != "call_function":
        return f"{node.op} is not a call of an operator"
    if is_getitem(node):
        return refusal(node.args[0], known)
    if is_control_flow(node):
        return node.meta.get(NOT_TAKEN, "torch runs it, and its graphs are fused one by one")
    if node.target not in LOWERINGS and not isinstance(node.target, ControlFlow):
        return "the operator is not in the table"
    answers = {} if known is None else known
    try:
        _check_tensors(node)
        key = _call_key(node)
        if key not in answers:
            answers[key] = _problem(node)
    except FusewrightError as e:
        return str(e)
    return answers[key]


def _call_key(node: Any) -> Hashable:
    """Equal for calls of one operator that differ in nothing that tracing them depends on."""
    sources = node.all_input_nodes
    number = {n: k for k, n in enumerate(sources)}
    types = [type_text(_value(n)) for n in (*sources, node)]
    text = call_text(node, number)
    return operator_text(node.target), text, tuple(types), _read_results(node)


def _value(node: Any) -> Any:
    return node.meta.get("val")


def call_text(node: Any, number: Mapping[Any, int]) -> str:
    """The arguments of a call as text, nodes by their numbers."""

    def told(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return _Numbered(number[x])
        return (scalar_text(x),) if isinstance(x, float) else x

    return repr(fx.node.map_aggregate((node.args, node.kwargs), told))


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Stands for a node in the text of a call."""

    number: int


def type_text(value: Any) -> str:
    """What a tensor is, or several are, as text; other values as they print."""
    if isinstance(value, tuple | list):
        return ", ".join(map(type_text, cast("Sequence[Any]", value)))
    if not isinstance(value, torch.Tensor):
        return str(value)
    shape, strides = tuple(value.shape), tuple(value.stride())
    return f"{value.dtype}{shape}{strides}{value.device}"


def _problem(node: Any) -> str | None:
    """Why tracing a node alone fails."""
    try:
        _try(node)
    except FusewrightError as e:
        return str(e)
    except Exception as e:  # a fault of the lowering, which must not cost the graph
        _log.warning("%s is left to torch: %s: %s", node.target, type(e).__name__, e)
        return f"{type(e).__name__}: {e}"
    return None


# --- tensors ------------------------------------------------------------------------------------


def _check_tensors(node: Any) -> None:
    """Raises UnsupportedError unless all tensors are dense, real and on one device, but for scalars
    of the host, which can be brought there."""
    if "val" not in node.meta or not list(tensors_of(node.meta["val"])):
        raise UnsupportedError("the result is not a tensor")
    found = [t for n in (*node.all_input_nodes, node) for t in tensors_of(n.meta.get("val"))]
    first = found[-1]
    for t in found:
        if t.device != first.device and not is_host_scalar(t):
            raise UnsupportedError(f"tensors on {t.device} and on {first.device}")
        if t.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"a tensor on {t.device}")
        if t.layout != torch.strided:
            raise UnsupportedError(f"a tensor of layout {t.layout}")
        if t.is_complex() or t.is_quantized:
            raise UnsupportedError(f"a tensor of {t.dtype}, which kernels do not compute")
        dtype_of(t.dtype)


def is_host_scalar(value: Any) -> bool:
    """Whether a value is a tensor without axes on the host, which torch's kernels on a device take
    as a number."""
    if not isinstance(value, torch.Tensor):
        return False
    return bool(value.ndim == 0 and value.device.type == "cpu")


def device_of(node: Any) -> Any:
    """The device of a node's first tensor; None where it gives none."""
    return next((t.device for t in tensors_of(node.meta.get("val"))), None)


def reduces(node: Any) -> bool:
    """Whether a node that can be fused reduces along an axis."""
    return any(isinstance(t.op, ir.Reduce) for t in _try(node).values)


def _read_results(node: Any) -> frozenset[int] | None:
    """Which of several results are read; None where that may be all."""
    users = list(node.users)
    if not users or not all(map(is_getitem, users)):
        return None
    return frozenset(u.args[1] for u in users if u.users)


def _try(node: Any) -> ir.Fusion:
    """Traces the node alone, at the sizes of the example, and compares the types of the results
    that are read: devices differ in what they make of others, such as the statistics of a batch
    norm that does not train."""
    sources = node.all_input_nodes
    arrays = [n for n in sources if isinstance(n.meta.get("val"), torch.Tensor)]
    rest = {n: constant_of(n) for n in sources if n not in arrays}
    value, read = node.meta["val"], _read_results(node)
    is_alone = not isinstance(value, tuple | list)
    several = cast("Sequence[object]", (value,) if is_alone else value)
    expected = [(k, t) for k, v in enumerate(several) for t in tensors_of(v)]

    def alone(*operands: Array) -> list[Array]:
        result = trace_node(node, rest | dict(zip(arrays, operands, strict=True)))
        made = [result] if isinstance(result, Array) else [r for r in result if r is not None]
        for m, (k, t) in zip(made, expected, strict=True):
            if read is None or k in read:
                _check_type(m, t)
        return made

    specs = [TensorSpec(tuple(map(hint, t.shape)), t.dtype) for t in _values(arrays)]
    return trace(alone, *specs)


def _values(nodes: list[Any]) -> list[Any]:
    return [n.meta["val"] for n in nodes]


def constant_of(node: Any) -> int | float | bool:
    """The example of a symbolic number. Raises UnsupportedError for several tensors at once."""
    value = node.meta.get("val")
    if isinstance(value, int | float | bool):
        return value
    if not isinstance(value, torch.SymInt):
        raise UnsupportedError(f"{node.name} is neither a tensor nor an integer")
    return hint(value)


def _check_type(made: Array, expected: Any) -> None:
    shape, dtype = tuple(map(hint, expected.shape)), dtype_of(expected.dtype)
    if made.shape != shape or made.dtype is not dtype:
        raise UnsupportedError(
            f"the lowering gives {made.dtype}{list(made.shape)}, torch {dtype}{list(shape)}"
        )
