"""The torch.compile backend: aten graphs, forward and backward, partitioned and fused."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from fusewright.driver import Kernels
from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.options import Options, options_of
from fusewright.frontends.torch.partition import partition
from fusewright.frontends.torch.plain_strides import plain_strides
from fusewright.frontends.torch.region import Part, Region, Ways
from fusewright.frontends.torch.report import GraphReport
from fusewright.frontends.torch.reproducer import write_reproducer
from fusewright.frontends.torch.rewrite import parts_of, rewrite

_log = logging.getLogger("fusewright.torch")

Observer = Callable[[GraphReport], None]


def backend(module: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The entry point of `torch.compile(..., backend="fusewright", options={...})`.

    Raises UserError for options that do not exist, and nothing for what it cannot fuse. Warns of a
    `mode`, of which there is one.
    """
    mode = kwargs.get("mode")
    if mode not in (None, "default"):
        warnings.warn(
            f"torch.compile(mode={mode!r}): the fusewright backend has no such mode; graphs are "
            "compiled as by default, without CUDA graphs and without tuning",
            stacklevel=2,
        )
    return compiler(options_of(kwargs.get("options")))(module, example_inputs)


def compiler(options: Options, observe: Observer | None = None) -> Any:
    """A backend with these options. `observe` is given the report of each graph."""
    common = importlib.import_module("torch._dynamo.backends.common")
    partitioners = importlib.import_module("functorch.compile")
    kernels: Kernels = {}

    def side(name: str) -> Callable[[Any, Sequence[Any]], Any]:
        def compile_graph(module: Any, example_inputs: Sequence[Any]) -> Any:
            return fuse_graph(module, options, name, observe, kernels)

        return compile_graph

    return common.aot_autograd(
        fw_compiler=side("forward"),
        bw_compiler=side("backward"),
        inference_compiler=side("inference"),
        decompositions=decompositions(),
        partition_fn=partitioners.min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


def fuse_graph(
    module: Any,
    options: Options,
    name: str = "graph",
    observe: Observer | None = None,
    kernels: Kernels | None = None,
) -> Any:
    """An aten graph module, whose nodes carry example values, as a boxed function that computes its
    regions fused. Graphs with one table of `kernels` share them. One that cannot be cut into
    regions, or put together again, is logged with a file that shows it again, and is torch's."""
    try:
        fused = _fused(module, options, name, observe, {} if kernels is None else kernels)
    except Exception as e:
        values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
        written = write_reproducer(name, module, values, options, e)
        _log.warning(
            "%s is left to torch: %s: %s; run 'python %s' to see it again",
            *(name, type(e).__name__, e, written),
        )
        fused = module

    def run(args: list[Any]) -> Any:
        return fused.forward(*args) if fused is module else fused.forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _fused(
    module: Any, options: Options, name: str, observe: Observer | None, kernels: Kernels
) -> Any:
    """The module with its regions fused, which takes a list of arguments."""
    plain_strides(module.graph)
    found = partition(module.graph, options)
    regions: dict[str, Region] = {}
    known: dict[Hashable, Ways] = {}

    def call(part: Part) -> Region:
        key = part.structure()
        ways = known.get(key) or known.setdefault(key, Ways(part, options, kernels))
        regions[part.name] = Region(part, ways)
        return regions[part.name]

    fused = rewrite(module, parts_of(module.graph, found), call)
    for ways in known.values():
        ways.start()
    if observe is not None:
        observe(GraphReport(name, tuple(regions.values()), found.reasons))
    return fused
