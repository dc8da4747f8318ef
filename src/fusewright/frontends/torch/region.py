"""A region of a graph as one callable on torch tensors: fused, or as torch would run it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.driver import Kernels
from fusewright.dtypes import dtype_of
from fusewright.frontends.bound import Alike, TensorCall
from fusewright.frontends.fuse import Fused
from fusewright.frontends.stored_programs import Wanted
from fusewright.frontends.torch.calls import call_text, hint, trace_node, type_text
from fusewright.frontends.torch.control_calls import call_graphs, operator_text
from fusewright.frontends.torch.layouts import axis_orders, odd_strides
from fusewright.frontends.torch.library import fx, torch
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.oracle import OracleCall
from fusewright.frontends.torch.preconditions import preconditions
from fusewright.frontends.torch.products import float32_matmul
from fusewright.frontends.torch.reproducer import how_again
from fusewright.frontends.torch.symbols import Sizes, symbolic_axes
from fusewright.frontends.tune import tune_rest
from fusewright.fusion import ir, ops, trees
from fusewright.fusion.array import Array
from fusewright.program import Program
from fusewright.runtime.arrays import CPU, ArrayInfo, Device
from fusewright.runtime.clock import DeviceClock

_log = logging.getLogger("fusewright.torch")

Way = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class GraphPart:
    """Nodes of a graph that are computed together, what they read, and which results others read.
    `nodes`: what the results are made of, operands before users, constants that are made here for
    this part alone among them. `owned` are made nowhere else; views of results are among them.
    Every input is a tensor or an integer."""

    name: str
    nodes: tuple[Any, ...]
    owned: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def tensors(self) -> list[Any]:
        """The inputs that are tensors."""
        return [n for n in self.inputs if isinstance(n.meta["val"], torch.Tensor)]

    @property
    def integers(self) -> list[Any]:
        """The inputs that are symbolic integers."""
        return [n for n in self.inputs if not isinstance(n.meta["val"], torch.Tensor)]

    def structure(self) -> Hashable:
        """Equal for parts that compute the same thing on tensors of the same types."""
        number = {n: k for k, n in enumerate((*self.inputs, *self.nodes))}
        calls = [(operator_text(n.target), call_text(n, number)) for n in self.nodes]
        types = [type_text(n.meta["val"]) for n in (*self.inputs, *self.outputs)]
        return tuple(calls), tuple(types), tuple(number[n] for n in self.outputs)

    def trace(self, values: Mapping[Any, Any], *, checked: bool = False) -> list[Array]:
        """The results as fused operations of the inputs' values; if `checked`, bools behind them
        that are true where torch computes on the host without an exception."""
        known = dict(values)
        for n in self.nodes:
            known[n] = trace_node(n, known)
        taken: dict[ir.Tensor, None] = {}
        results: list[Array] = []
        for n in self.outputs:
            x = known[n]
            if x.tensor in taken or isinstance(x.tensor.op, ir.Input):
                x = ops.copy(x)  # every result has memory of its own
            taken[x.tensor] = None
            results.append(x)
        return results + preconditions(self.nodes, known) if checked else results

    def as_module(self) -> Any:
        """The same nodes as a graph module."""
        graph, module = fx.Graph(), torch.nn.Module()
        known = {n: graph.placeholder(n.name) for n in self.inputs}
        for n in self.nodes:
            known[n] = graph.node_copy(n, known.__getitem__)
        graph.output([known[n] for n in self.outputs])
        call_graphs(graph, module)
        return fx.GraphModule(module, graph)


class FallbackCalls:
    """Callables that compute parts of one structure, best first; the last one is torch's, which
    runs the nodes one by one. `failures` says what became of those that are gone."""

    def __init__(self, part: GraphPart, options: Options, kernels: Kernels) -> None:
        self.failures: list[str] = []
        self._part = part
        self._options = options
        as_module = functools.cache(part.as_module)  # few parts are ever left to torch

        def by_torch(*args: Any) -> list[Any]:
            return as_module().forward(*args)

        self.left: list[Any] = [by_torch]
        self._untuned = options.tune
        try:
            self.left[:0] = _ways(part, options, kernels)
        except Exception as e:
            self._report("fused", e)

    def start(self, targets: Mapping[int, int]) -> Program | None:
        """The program for the types at hand, and results written to arguments, before the first
        call asks for it, so that machine code is made while the next region is scheduled. None
        where there is none yet; what fails is left to that call to report."""
        with contextlib.suppress(Exception):
            asked = self._first_call(targets)
            return None if asked is None else asked[0].compile_for(*asked[1:])
        return None

    def wanted(self, targets: Mapping[int, int]) -> Wanted | None:
        """What `start` looks for on disk; None where it does not."""
        with contextlib.suppress(Exception):
            asked = self._first_call(targets)
            return None if asked is None else asked[0].wanted_for(*asked[1:])
        return None

    def _first_call(
        self, targets: Mapping[int, int]
    ) -> tuple[Fused, list[ArrayInfo], trees.Tree, list[ArrayInfo | None]] | None:
        """What compiles the region, and the first call that it expects: arrays, their structure,
        and those that results are written to."""
        way = self.left[0]
        symbolic = isinstance(way, _Symbolic)
        fused = way.fused if symbolic else way
        if not isinstance(fused, Fused) or self._untuned:
            return None
        given = [_described(n.meta["val"], k) for k, n in enumerate(self._part.inputs)]
        taken = way.arguments(given) if symbolic else given
        call: tuple[object, ...] = (tuple(taken), dict[str, object]())
        count = len(self._part.outputs) if targets else 0
        out = [given[targets[k]] if k in targets else None for k in range(count)]
        return fused, *trees.flatten(call), out

    def tune(self, way: Any, args: tuple[Any, ...]) -> None:
        """Measures the candidates of the best way in its first call on a GPU, if that is wanted;
        nothing is lost where they cannot be measured."""
        if not self._untuned:
            return
        self._untuned = False
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if not isinstance(way, Fused) or not tensors[0].is_cuda:
            return
        try:
            torch.cuda.synchronize(tensors[0].device)  # nothing else runs while times are taken
            tune_rest(way, args, DeviceClock(tensors[0].device.index))
        except Exception as e:
            _log.warning("%s is not tuned: %s: %s", self._part.name, type(e).__name__, e)

    def give_up(self, way: Any, error: Exception) -> None:
        """Leaves one way out from now on, which may have been done by another thread."""
        if self.left[0] is way:
            del self.left[0]
            self._report(getattr(way, "label", "fused"), error)

    def _report(self, label: str, error: Exception) -> None:
        """Warns of a failure, with a file that shows it again."""
        part = self._part
        message = f"{part.name} ({label}): {type(error).__name__}: {error}"
        self.failures.append(message)
        values = [n.meta["val"] for n in part.inputs]
        again = how_again(part.name, part.as_module, values, self._options, error)
        _log.warning("%s; torch computes it if nothing else is left; %s", message, again)


def _described(value: Any, k: int) -> Any:
    """A tensor without contents as a call describes it, at an address that all alignments divide,
    apart from those of other numbers; a size by its hint."""
    if not isinstance(value, torch.Tensor):
        return hint(value)
    where = CPU if value.device.type == "cpu" else Device("cuda", value.device.index or 0)
    shape, strides = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
    return ArrayInfo("torch", where, shape, dtype_of(value.dtype), strides, k << 44, value)


class FusedRegion:
    """Called with tensors and integers in the order of the part's inputs. Whatever goes wrong on
    the way to a result is logged with a file that shows it again, and torch computes the region
    from then on; what torch raises is the caller's. `targets`: the arguments that results are
    written to, by the result's number."""

    def __init__(self, part: GraphPart, ways: FallbackCalls) -> None:
        self.part = part
        self.__name__ = self.__qualname__ = part.name
        self._ways = ways
        self.strides = {
            k: s for k, n in enumerate(part.outputs) if (s := odd_strides(n.meta["val"]))
        }
        """The strides of results that differ from what the kernels make, in axes of size 1."""
        self._alike: Alike | None = None
        self.bound: TensorCall | None = None
        """What calls are bound to: nothing else happens in those that go to the kernels directly,
        but for `strides` of results."""
        self._bound_way: Any = None
        self._is_fixed = not any(symbolic_axes(n.meta["val"]) for n in part.tensors)
        self._may_bind = has_fixed_types(part)
        self._numbers = range(len(part.outputs))
        self.targets: Mapping[int, int] = {}

    @property
    def failures(self) -> list[str]:
        """What went wrong, and was left to the next way."""
        return self._ways.failures

    def start(self) -> None:
        """Compiles the region ahead of its first call."""
        if len(self._ways.left) > 1:
            self._ways.start(self.targets)

    def wanted(self, targets: Mapping[int, int] | None = None) -> Wanted | None:
        """The program that `start` looks for on disk, where it does; with targets what `write_to`
        looks for."""
        if len(self._ways.left) == 1 or (targets and not self._is_fixed):
            return None
        return self._ways.wanted(self.targets if targets is None else targets)

    def write_to(self, wanted: Mapping[int, int]) -> Mapping[int, int]:
        """Has every call write results to the memory of its arguments, as far as the kernels can;
        which ones they are."""
        program = self._ways.start(wanted) if self._is_fixed and wanted else None
        if program is not None:
            inputs = [k for k, n in enumerate(self.part.inputs) if n in self.part.tensors]
            made = [program.holders[place] for place in program.places]
            held = [None if at is None else inputs[at] for at in made]
            self.targets = {k: at for k, at in wanted.items() if held[k] == at}
        for k in self.targets:
            self.strides.pop(k, None)
        return self.targets

    def __call__(self, *args: Any) -> list[Any]:
        way, is_torch = self._ways.left[0], len(self._ways.left) == 1
        try:
            made = None if self._alike is None else self._alike(args)
            if made is None:
                self._ways.tune(way, args)
                made = self._called(way, args)
                self._bind(way, args)
            for k, strides in self.strides.items():
                made[k] = made[k].as_strided(made[k].shape, strides)
            return made
        except Exception as e:
            if is_torch:
                raise
            error = e
        return self._after(error, way, args)

    def after(self, error: Exception, *args: Any) -> list[Any]:
        """The results of a call of what is `bound`, which failed, by another way."""
        return self._after(error, self._bound_way, args)

    def _after(self, error: Exception, way: Any, args: tuple[Any, ...]) -> list[Any]:
        """The results of a call of which a way failed, by torch, whose own errors are the caller's:
        what it raises, such as for an index that is too large, is no fault of the way. Else the way
        is given up, unless there was no memory."""
        if isinstance(error, torch.OutOfMemoryError):
            _log.warning("%s: %s; torch computes this call", self.part.name, error)
            return self._called(self._ways.left[-1], args)
        made = self._called(self._ways.left[-1], args)
        self._alike = self.bound = None
        self._ways.give_up(way, error)
        return made

    def _out(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Where results are written, None for those that are new."""
        if not self.targets:
            return None
        return [args[self.targets[k]] if k in self.targets else None for k in self._numbers]

    def _called(self, way: Any, args: tuple[Any, ...]) -> list[Any]:
        """The results of a way; what it does not write to arguments itself is copied there."""
        out = self._out(args)
        if out is None:
            return way(*args)
        if isinstance(way, Fused):
            return way.run(args, {}, out)
        if isinstance(way, _Symbolic):
            return way(*args, out=out)
        made = list(way(*args))
        for result, argument in self.targets.items():
            made[result] = args[argument].copy_(made[result])
        return made

    def _bind(self, way: Any, args: tuple[Any, ...]) -> None:
        """Has later calls go to the kernels directly: the guards of a compiled graph see to it that
        its tensors have the same types in every call."""
        if self._may_bind and isinstance(way, Fused):
            self.bound = way.bound(args, self._out(args))
            self._bound_way = way
            self._alike = None if self.bound is None else self.bound.alike

    @property
    def fused(self) -> Fused | OracleCall | None:
        """What computes the region; None for torch."""
        way, *others = self._ways.left
        return way.fused if isinstance(way, _Symbolic) else way if others else None


def has_fixed_types(part: GraphPart) -> bool:
    """Whether all calls of a part are on tensors of the same types."""
    tensors = part.tensors
    return not part.integers and not any(symbolic_axes(n.meta["val"]) for n in tensors)


def is_on_host(part: GraphPart) -> bool:
    """Whether the tensors of a part are host memory, which no kernel reads."""
    return part.tensors[0].meta["val"].device.type == "cpu"


def _ways(part: GraphPart, options: Options, kernels: Kernels) -> list[Any]:
    """Ways to compute a part without torch, best first."""
    ways: list[Any] = []
    on_host = is_on_host(part)
    if part.integers or any(symbolic_axes(n.meta["val"]) for n in part.tensors):
        try:
            if not on_host or options.cpu == "sim":
                ways.append(_Symbolic(part, options, kernels))
        except ValueError as e:
            _log.info("%s: compiled for each size: %s", part.name, e)
    ways.append(_by_size(part, options, kernels, on_host=on_host))
    return ways


def _by_size(
    part: GraphPart, options: Options, kernels: Kernels, *, on_host: bool
) -> Fused | OracleCall:
    """A program per size; integers are part of what it is made for."""
    by_oracle = on_host and options.cpu == "oracle"

    def traced(*args: Any) -> list[Array]:
        return part.trace(dict(zip(part.inputs, args, strict=True)), checked=by_oracle)

    _set_signature(traced, part.name, len(part.inputs))
    if by_oracle:
        return OracleCall(traced, axis_orders(part.outputs))
    return _fused(traced, part, options, kernels, on_host=on_host)


class _Symbolic:
    """A program for many sizes. Integers that follow from the sizes are not arguments, others are
    numbers of the call."""

    label = "symbolic sizes"

    def __init__(self, part: GraphPart, options: Options, kernels: Kernels) -> None:
        """Raises ValueError where an integer follows from no tensor's sizes and is no argument."""
        tensors = part.tensors
        sizes = Sizes(tensors, part.integers)
        count = len(tensors)

        def traced(*given: Any) -> list[Array]:
            arrays, numbers = given[:count], given[count:]
            integers = sizes.values(arrays, numbers)
            return part.trace(dict(zip(tensors, arrays, strict=True)) | integers)

        _set_signature(traced, part.name, count + len(sizes.numbers))
        axes: dict[str | int, Sequence[int]] = {
            k: symbolic_axes(n.meta["val"]) for k, n in enumerate(tensors)
        }
        axes |= {count + k: () for k in range(len(sizes.numbers))}
        on_host = is_on_host(part)
        self.fused = _fused(traced, part, options, kernels, on_host=on_host, dynamic=axes)
        self._positions = [k for k, n in enumerate(part.inputs) if n in tensors]
        self._numbers = [(part.inputs.index(n), less) for n, less in sizes.numbers]

    def arguments(self, args: Sequence[Any]) -> list[Any]:
        """What the program takes of a call's arguments."""
        taken = [args[k] for k in self._positions]
        return taken + [args[k] - less for k, less in self._numbers]

    def __call__(self, *args: Any, out: Sequence[Any] | None = None) -> list[Any]:
        return self.fused.run(tuple(self.arguments(args)), {}, out)


def _fused(
    traced: Way,
    part: GraphPart,
    options: Options,
    kernels: Kernels,
    *,
    on_host: bool,
    dynamic: Mapping[str | int, Sequence[int]] | None = None,
) -> Fused:
    device = "sim" if on_host else "cuda"
    return Fused(
        traced,
        target=options.target,
        device=device,
        out_layouts=axis_orders(part.outputs),
        dynamic=dynamic,
        kernels=kernels,
        float32_matmul="ieee" if on_host else float32_matmul(),
        stored=not options.tune,
    )


def _set_signature(fn: Any, name: str, count: int) -> None:
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"x{k}", kind) for k in range(count)]
    fn.__signature__ = inspect.Signature(parameters)
    fn.__name__ = name
