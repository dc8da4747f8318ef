"""The torch.compile backend: aten graphs, forward and backward, partitioned and fused."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from fusewright.frontends.ahead import make_ahead
from fusewright.frontends.torch import kept_graphs
from fusewright.frontends.torch.bodies import fuse_bodies
from fusewright.frontends.torch.control import take_control_flow
from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.graph_call import GraphCall
from fusewright.frontends.torch.host_scalars import bring_scalars
from fusewright.frontends.torch.known_masks import tell_known_masks
from fusewright.frontends.torch.library import torch
from fusewright.frontends.torch.options import Options, options_of
from fusewright.frontends.torch.partition import GraphPartition, partition
from fusewright.frontends.torch.permutations import tell_permutations
from fusewright.frontends.torch.plain_biases import plain_biases
from fusewright.frontends.torch.plain_clones import plain_clones
from fusewright.frontends.torch.plain_scalars import plain_scalars
from fusewright.frontends.torch.plain_scatters import plain_scatters
from fusewright.frontends.torch.plain_strides import plain_strides
from fusewright.frontends.torch.plain_writes import plain_writes
from fusewright.frontends.torch.recording import Recordings, Run, boxed, forget
from fusewright.frontends.torch.region import FallbackCalls, FusedRegion, GraphPart
from fusewright.frontends.torch.report import GraphReport
from fusewright.frontends.torch.reproducer import how_again
from fusewright.frontends.torch.rewrite import parts_of, rewrite
from fusewright.frontends.torch.saving import cut, nothing_donated
from fusewright.frontends.torch.shared import Shared
from fusewright.frontends.torch.upsampling import derived_whole
from fusewright.progress import told

_log = logging.getLogger("fusewright.torch")
forward_ad = torch.autograd.forward_ad

Observer = Callable[[GraphReport], None]


def backend(module: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The entry point of `torch.compile(..., backend="fusewright", mode=..., options={...})`.

    Raises UserError for modes and options that do not exist, and nothing for what it cannot fuse.
    """
    options = options_of(kwargs.get("options"), kwargs.get("mode"))
    shared = _shared.setdefault(options, Shared())
    return compiler(options, shared=shared)(module, example_inputs)


_shared: dict[Options, Shared] = {}
"""What graphs share that torch compiles by the backend's name, one call for each of them."""


def reset() -> None:
    """Forgets what was compiled, as torch.compiler.reset asks of a backend."""
    _shared.clear()
    forget()


backend.reset = reset  # type: ignore[attr-defined]


def compiler(
    options: Options, observe: Observer | None = None, shared: Shared | None = None
) -> Any:
    """A backend with these options. `observe` is given the report of each graph. Graphs share what
    is compiled with all that are given the same `shared`."""
    common = importlib.import_module("torch._dynamo.backends.common")
    shared = shared or Shared()

    def compile_function(module: Any, example_inputs: Sequence[Any]) -> Any:
        tell_known_masks(module)
        recordings = Recordings()

        def compile_graph(name: str, graph: Any) -> Any:
            return fuse_graph(graph, options, name, observe, shared, recordings)

        is_kept = kept_graphs.are_kept() and not options.cudagraphs
        sides = kept_graphs.compilers if is_kept else _sides
        compile_graphs = common.aot_autograd(
            **sides(compile_graph),
            decompositions=decompositions(),
            partition_fn=cut,
            keep_inference_input_mutations=True,
        )
        finding = kept_graphs.finding(compile_graph) if is_kept else nullcontext()
        with finding, nothing_donated():
            try:
                with derived_whole(example_inputs):
                    return compile_graphs(module, example_inputs)
            except _of_dynamo():
                raise
            except Exception as e:  # such as of torch's rule for the size 0, which its gathers take
                _log.info("traced again, upsampling as gathers: %s: %s", type(e).__name__, e)
            return compile_graphs(module, example_inputs)

    return compile_function


def _of_dynamo() -> tuple[type[Exception], ...]:
    """What torch.compile is told by exceptions: to trace again, or to leave an operator to eager
    code; and an index outside, which it passes on."""
    found = importlib.import_module("torch._dynamo.exc")
    restarts = found.ShortenTraceback, found.TensorifyScalarRestartAnalysis
    return (*found.exceptions_allowed_to_be_fallback, *restarts, IndexError)


def _sides(compile_graph: kept_graphs.Compile) -> dict[str, Any]:
    """Compilers for AOTAutograd, by the names of its arguments, of graphs that are not kept."""

    def side(name: str) -> Callable[[Any, Sequence[Any]], Any]:
        return lambda graph, example_inputs: compile_graph(name, graph)

    return {
        "fw_compiler": side("forward"),
        "bw_compiler": side("backward"),
        "inference_compiler": side("inference"),
    }


def fuse_graph(
    module: Any,
    options: Options,
    name: str = "graph",
    observe: Observer | None = None,
    shared: Shared | None = None,
    recordings: Recordings | None = None,
) -> Any:
    """An aten graph module, whose nodes carry example values, as a boxed function that computes its
    regions fused. Graphs share what is `shared`; those of one function share its `recordings`. One
    that cannot be cut into regions, or put together again, is logged with a file that shows it
    again, and is torch's."""
    recorded = recordings.plan(module, name) if options.cudagraphs and recordings else None
    try:
        fused, report = _fused(module, options, name, shared or Shared())
        call = GraphCall(fused)
    except Exception as e:
        values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
        again = how_again(name, lambda: module, values, options, e)
        _log.warning("%s is left to torch: %s: %s; %s", name, type(e).__name__, e, again)
        call, report = None, None

    @boxed
    def run(args: list[Any]) -> Any:
        # Arguments may carry tangents in forward mode, which kernels would lose.
        if call is None or forward_ad._current_level >= 0:
            return module.forward(*args)
        return call.run(args)

    if observe is not None and report is not None:
        why_not = None if recorded is None else recorded.reason or ""
        observe(replace(report, not_recorded=why_not, call=call))
    return run if recorded is None else _outside_forward_mode(recorded.wrap(run), run)


def _outside_forward_mode(replay: Run, run: Run) -> Run:
    """Replays a recording, but where arguments may carry tangents, which it would lose."""
    return boxed(lambda args: (replay if forward_ad._current_level < 0 else run)(args))


def _fused(module: Any, options: Options, name: str, shared: Shared) -> tuple[Any, GraphReport]:
    """The module with its regions fused, those of its control flow too, which takes a list of
    arguments, and what was fused."""
    parts, found = parts_to_fuse(module, options)
    bodies = fuse_bodies(module, name, lambda body, called: _fused(body, options, called, shared))
    regions: dict[str, FusedRegion] = {}
    own: dict[Hashable, FallbackCalls] = {}

    def call(part: GraphPart) -> FusedRegion:
        regions[part.name] = FusedRegion(part, shared.ways(part, options, own))
        return regions[part.name]

    fused = rewrite(module, parts, call)
    what = f"compiling regions of the {name} graph"
    make_ahead([w for r in regions.values() if (w := r.wanted()) is not None], what)
    for region in told(regions.values(), len(regions), what):
        region.start()
    return fused, GraphReport(name, tuple(regions.values()), found.reasons, bodies=bodies)


def parts_to_fuse(module: Any, options: Options) -> tuple[list[GraphPart], GraphPartition]:
    """The parts of an aten graph module that become regions, in order, and how it was cut. The
    module is rewritten to the operators that regions take."""
    take_control_flow(module, options)
    tell_permutations(module.graph)
    plain_scalars(module)
    plain_biases(module.graph)
    plain_clones(module.graph)
    plain_scatters(module.graph)
    plain_strides(module.graph)
    plain_writes(module.graph)
    found = partition(module.graph, options)
    bring_scalars(module.graph, found.regions, found.constants)
    return parts_of(module.graph, found), found
