"""Where the time of a model's graphs would go: what is predicted of regions, and the least that
torch's operators take.

A region's launches are predicted as `explain` predicts them. Of an operator that torch runs nothing
more is known than what it moves and multiplies: the time in which memory moves its arguments and
results once, or in which the matrix instructions do its products, whichever is longer. So torch's
times are bounds from below.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.driver import compile as compile_fusion
from fusewright.frontends.torch.calls import hint, tensors_of
from fusewright.frontends.torch.layouts import axis_orders
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.region import GraphPart
from fusewright.fusion.ir import Fusion, TensorSpec
from fusewright.fusion.trace import trace
from fusewright.program import Program
from fusewright.report.predicted import serial_us, timed
from fusewright.target import Target, mma_per_clock


@dataclass(frozen=True, slots=True)
class PartTime:
    """Calls of one kind in a graph: a region with the operators in it, or an operator that torch
    runs, with why. `launches` and `us` are those of all `count` calls; `launches` is None for
    torch's, and `us` is None where nothing is known, as `why` says then."""

    name: str
    operators: str
    count: int
    launches: int | None
    us: float | None
    why: str = ""


def part_times(
    parts: Iterable[GraphPart], left: Mapping[Any, str], target: Target
) -> list[PartTime]:
    """The calls of a graph: its regions, equal ones together, and the nodes that are `left` with
    the reasons, those of one operator and reason together; the dearest first."""
    alike: dict[Any, list[GraphPart]] = {}
    for part in parts:
        alike.setdefault(part.structure(), []).append(part)
    found = [_of_regions(equal, target) for equal in alike.values()]
    calls: dict[tuple[str, str], list[Any]] = {}
    for n, why in left.items():
        calls.setdefault((str(n.target), why), []).append(n)
    found += [_of_calls(op, why, nodes, target) for (op, why), nodes in calls.items()]
    return sorted(found, key=lambda t: -(t.us or 0.0))


def _of_regions(equal: Sequence[GraphPart], target: Target) -> PartTime:
    part, count = equal[0], len(equal)
    names = dict.fromkeys(str(n.target).split(".")[-2] for n in part.owned if "." in str(n.target))
    operators = ", ".join(names)
    try:
        program = program_of(part, target.arch)
        times = timed(program)
    except Exception as e:  # such a region is torch's, as its failures say
        return PartTime(part.name, operators, count, None, None, f"{type(e).__name__}: {e}")
    return PartTime(part.name, operators, count, count * len(times), count * serial_us(times))


def program_of(part: GraphPart, target: str) -> Program:
    """What a region is compiled to for the sizes of its example values, its results laid as those
    are. Raises what tracing and compiling raise."""
    orders = axis_orders(part.outputs)
    return compile_fusion(fusion_of(part), target=target, out_layouts=orders)


def fusion_of(part: GraphPart) -> Fusion:
    """A region as a fusion for the sizes of its example values."""
    values = [n.meta["val"] for n in part.inputs]
    specs = [_spec(v) if isinstance(v, torch.Tensor) else hint(v) for v in values]

    def fn(*given: Any) -> Any:
        left = iter(given)
        known = [s if isinstance(s, int) else next(left) for s in specs]
        return part.trace(dict(zip(part.inputs, known, strict=True)))

    return trace(fn, *(s for s in specs if not isinstance(s, int)))


def _spec(value: Any) -> TensorSpec:
    shape, strides = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
    return TensorSpec(shape, value.dtype, strides=strides)


def _of_calls(op: str, why: str, nodes: Sequence[Any], target: Target) -> PartTime:
    times = [least_us(n, target) for n in nodes]
    return PartTime(op, op, len(nodes), None, sum(times), why)


def least_us(node: Any, target: Target) -> float:
    """Microseconds that an operator's launch takes at least; 0 for one without tensors."""
    made = list(tensors_of(node.meta.get("val")))
    read = [t for n in node.all_input_nodes for t in tensors_of(n.meta.get("val"))]
    known = target.calibration
    if not made and not read:
        return 0.0
    moved = sum(map(_nbytes, read)) + known.write_weight * sum(map(_nbytes, made))
    memory = moved / (known.read_share * target.memory_nbytes_per_us)
    flops = _flops(node)
    if flops:
        itemsize = min(t.dtype.itemsize for t in made or read)
        per_us = 2 * mma_per_clock(itemsize) * target.multiprocessors * target.clock_mhz
        memory = max(memory, flops / per_us)
    return known.launch_us + memory


def _nbytes(t: Any) -> int:
    return math.prod(map(hint, t.shape)) * t.dtype.itemsize


def _flops(node: Any) -> float:
    """The floating-point operations of a product, a convolution or an attention, by torch's
    formulas; 0 for any other operator, and where they do not take the arguments."""
    packet = getattr(node.target, "overloadpacket", None)
    formula: Callable[..., Any] | None = _formulas().get(packet)
    if formula is None:
        return 0.0
    try:
        args, kwargs = fx.node.map_arg((tuple(node.args), dict(node.kwargs)), _example)
        return float(hint(formula(*args, **kwargs, out_val=node.meta["val"])))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return 0.0


def _formulas() -> Mapping[Any, Callable[..., Any]]:
    return importlib.import_module("torch.utils.flop_counter").flop_registry


def _example(node: Any) -> Any:
    return node.meta["val"]
