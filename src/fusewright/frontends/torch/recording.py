"""Whole graphs of torch.compile as CUDA graphs, recorded and replayed by torch's own trees of them.

torch keeps one memory pool for all recordings of a thread, copies moving arguments to where a
recording expects them, records again where static ones have moved, and knows when the results of a
run may be overwritten (torch._inductor.cudagraph_trees). What it has to be told is which arguments
stay where they are, which are written, and whether a graph is a forward or a backward one.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fusewright.frontends.torch.calls import is_control_flow, tensors_of
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.saving import is_kept

_log = logging.getLogger("fusewright.torch")

Run = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a graph's function is called: `wrap` makes the function that records and replays it, or
    calls it as it is for the `reason`."""

    wrap: Callable[[Run], Run]
    reason: str | None = None


class Recordings:
    """The recordings of one compiled function: of its forward graph and of its backward one, or of
    the only graph that inference has."""

    def __init__(self) -> None:
        self._device: int | None = None
        self._is_left = False
        self.are_lost = False
        """Whether a graph could not be recorded after all: all run as they are from then on."""

    def plan(self, module: Any, side: str) -> Plan:
        """How a graph is recorded, as torch made it; `side` is "forward", "backward" or
        "inference". A backward graph comes after its forward graph."""
        try:
            reason = _why_not(module)
            if reason is None and side == "backward" and self._is_left:
                reason = "its forward graph is not recorded"
            if reason is None:
                wrap = _recorder(module, side, self)
                self._device = _devices(module).pop().index
                return Plan(wrap)
        except Exception as e:
            reason = f"torch does not record it ({type(e).__name__}: {e})"
        self._is_left = True
        if any(d.type == "cuda" for d in _devices(module)):
            _log.warning("%s: not recorded as a CUDA graph: %s", side, reason)
        device = self._device if side == "backward" else None
        return Plan(_same if device is None else _ending(device), reason)

    def lose(self, side: str, error: Exception) -> None:
        """Gives recording up, because of what a graph raised while it was recorded."""
        self.are_lost = True
        _log.warning("%s: not recorded as a CUDA graph: %s: %s", side, type(error).__name__, error)


def _recorder(module: Any, side: str, recordings: Recordings) -> Callable[[Run], Run]:
    """What makes a function that records and replays."""
    graph = module.graph
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    utils = importlib.import_module("torch._inductor.cudagraph_utils")
    simple = importlib.import_module("torch._dynamo.backends.cudagraphs")
    (outputs,) = (n for n in graph.nodes if n.op == "output")
    constants = [getattr(module, n.target, None) for n in graph.nodes if n.op == "get_attr"]
    device: int = _devices(module).pop().index
    facts: dict[str, Any] = {
        "static_input_idxs": _static(module, side),
        "device_index": device,
        "stack_traces": [_trace(x) for x in _sequence(outputs.args[0])],
        "is_backward": side == "backward",
        "is_inference": side == "inference",
        "constants": tuple(tensors_of(constants)),
        "placeholders": tuple(utils.get_placeholder_info(graph)),
        "mutated_input_idxs": tuple(sorted(simple.find_input_mutations(graph))),
    }

    def wrap(run: Run) -> Run:
        watched = _Watched(run)
        replay = compile_fx.cudagraphify(boxed(watched), **facts)
        plain = _ending(device)(run) if side == "backward" else run

        def call(args: list[Any]) -> Any:
            if recordings.are_lost:
                return plain(args)
            stream = None if watched.is_recorded else torch.cuda.current_stream()
            try:
                return replay(args)
            except Exception as e:
                if watched.inputs is None:
                    raise
                recordings.lose(side, e)
            if stream is not None:
                torch.cuda.set_stream(stream)  # torch does not where a recording cannot be ended
            inputs, watched.inputs = watched.inputs, None
            return plain(inputs)

        return boxed(call)

    return wrap


class _Watched:
    """A function that torch records. `inputs`: those of a recording that failed, which nothing has
    been computed for, or written to, yet."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.inputs: list[Any] | None = None
        self.is_recorded = False

    def __call__(self, args: list[Any]) -> Any:
        if not torch.cuda.is_current_stream_capturing():
            return self._run(args)
        self.inputs = list(args)
        made = self._run(args)
        self.inputs = None
        self.is_recorded = True
        return made


def _same(run: Run) -> Run:
    return run


def _ending(device: int) -> Callable[[Run], Run]:
    """A backward graph that is not recorded still ends the run of its forward graph, whose memory
    torch's trees keep until then."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")

    def wrap(run: Run) -> Run:
        def ended(args: list[Any]) -> Any:
            manager = trees.get_manager(device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(args)

        return boxed(ended)

    return wrap


def forget() -> None:
    """Drops all recordings, as torch.compiler.reset does for inductor's."""
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.cudagraph_trees").reset_cudagraph_trees()


def boxed(run: Run) -> Run:
    """The function, marked as one that takes a list of arguments and empties it."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _why_not(module: Any) -> str | None:
    """Why a graph cannot be recorded, None if it can."""
    host = next((n for n in module.graph.nodes if "cpu" in _kinds(n)), None)
    if host is not None:
        return f"{host.name} is on the host, which a recording does not see{_where(host)}"
    devices = _devices(module)
    if len(devices) != 1 or {d.type for d in devices} != {"cuda"}:
        return f"its tensors are on {sorted(map(str, devices)) or 'no device'}, not on one GPU"
    odd = next((n for n in _results(module) if any(map(_is_lazy, tensors_of(_value(n))))), None)
    if odd is not None:
        return f"{odd.name} is a conjugate or a negative by a bit, which recordings do not keep"
    utils = importlib.import_module("torch._inductor.utils")
    node = utils.get_first_incompatible_cudagraph_node(module)
    if node is not None:
        return f"{node.target} cannot be recorded{_where(node)}"
    node = next((n for n in module.graph.nodes if is_control_flow(n)), None)
    if node is not None:
        return f"{node.name} is control flow, whose conditions the host reads{_where(node)}"
    moving = any(isinstance(_value(n), torch.SymInt) for n in _arguments(module))
    if moving and torch._inductor.config.triton.cudagraph_skip_dynamic_graphs:
        return "its sizes change, and torch's config says that such graphs are not recorded"
    return None


def _results(module: Any) -> list[Any]:
    """The nodes that a graph returns."""
    (outputs,) = (n for n in module.graph.nodes if n.op == "output")
    return outputs.all_input_nodes


def _is_lazy(tensor: Any) -> bool:
    """Whether the elements are the conjugates, or the negatives, of those in memory."""
    return bool(tensor.is_conj() or tensor.is_neg())


def _devices(module: Any) -> set[Any]:
    return {t.device for n in module.graph.nodes for t in tensors_of(_value(n))}


def _kinds(node: Any) -> set[str]:
    """The types of the devices of a node's results."""
    return {t.device.type for t in tensors_of(_value(node))}


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _arguments(module: Any) -> Iterator[Any]:
    return (n for n in module.graph.nodes if n.op == "placeholder")


def _sequence(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)


def _trace(result: Any) -> str | None:
    """The user's lines that made a result."""
    return result.meta.get("stack_trace") if isinstance(result, torch.fx.Node) else None


def _where(node: Any) -> str:
    """The last line of the user's code that a node, or the first reader of an argument, is from."""
    lines = [n.meta.get("stack_trace") or "" for n in (node, *node.users)]
    trace = next((x for x in lines if x.strip()), "")
    place = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return f" ({place[-1]})" if place else ""


def _static(module: Any, side: str) -> Sequence[int]:
    """The positions of the arguments that lie where they lay in the last call: parameters, buffers,
    and in a backward graph what the forward one has kept, which is memory of its recording."""
    if side == "backward":
        return [k for k, n in enumerate(_arguments(module)) if is_kept(n)]
    context = torch._guards.TracingContext.try_get()
    known = context.fw_metadata if context else None
    return () if known is None else tuple(known.static_input_indices)
