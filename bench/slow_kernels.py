"""`python -m bench.slow_kernels`: kernels of models that are predicted to take much longer than
their bytes.

Method: architectures of `bench.zoo.large` are traced in bfloat16, forward and backward, and cut
into regions as the torch backend does it; nothing is run, and no GPU is needed. Every different
region is compiled for a target. A kernel takes too long where the model predicts a multiple of what
memory takes for each of its arguments and results once; a region where its launches together do.
"""

from __future__ import annotations

import argparse
import collections
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.stand_in import IdleDriver, stand_in
from bench.zoo import Architecture, Inputs, in_dtype, loss_of, without_dropout
from fusewright.frontends.torch import saving
from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.dynamo import parts_to_fuse
from fusewright.frontends.torch.known_masks import tell_known_masks
from fusewright.frontends.torch.model_times import program_of
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.region import GraphPart
from fusewright.frontends.torch.upsampling import derived_whole
from fusewright.report.predicted import bytes_us, timed

TIMES = 2.0
"""What a kernel may take of the time of its bytes: those of the lots that are measured take at most
this but for a fiftieth (bench/lot-2026-11-27-evening-after-h100.json: 4 of 127 below half)."""
REGION_TIMES = 2.5
"""The same of a region, of which norms of columns and their gradients read their argument twice."""
LAUNCH_US = 3.0
"""What latency takes of a launch beside its bytes: what a few kilobytes are predicted to take."""

Graphs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slow:
    """A kernel, or the kernels of a region, that is predicted to take `us` for `bytes_us`, in so
    many equal regions of a graph."""

    what: str
    side: str
    count: int
    us: float
    bytes_us: float
    operators: str

    def line(self) -> str:
        """For a reader of the terminal."""
        times = f"{self.us:.1f} us for {self.bytes_us:.1f} of bytes, {self.count} times"
        return f"{self.side} {self.what}: {times}: {self.operators}"


def graphs_of(model: Any, inputs: Inputs, *, train: bool) -> Graphs:
    """The aten graphs of a loss of the model, by side, as the backend is given them."""
    found: Graphs = {}

    class Enough(Exception):
        """Ends torch's compilation when all graphs are there."""

    def cut(joint: Any, *args: Any, **kwargs: Any) -> Any:
        found["forward"], found["backward"] = saving.cut(joint, *args, **kwargs)
        raise Enough

    def one(graph: Any, _: Any) -> Any:
        found["inference"] = graph
        raise Enough

    def backend(module: Any, example_inputs: Any) -> Any:
        tell_known_masks(module)
        common = importlib.import_module("torch._dynamo.backends.common")
        compile_graphs = common.aot_autograd(
            fw_compiler=one,
            bw_compiler=one,
            inference_compiler=one,
            decompositions=decompositions(),
            partition_fn=cut,
            keep_inference_input_mutations=True,
        )
        with derived_whole(example_inputs):
            return compile_graphs(module, example_inputs)

    torch.compiler.reset()
    run = torch.compile(lambda given: loss_of(model(**given)).float(), backend=backend)
    try:
        with torch.set_grad_enabled(train):
            run(inputs)
    except Exception:
        if not found:
            raise
    return found


def slow_ones(graphs: Graphs, target: str) -> Iterator[Slow]:
    """The kernels and regions of graphs that are predicted to take too long."""
    for side, graph in graphs.items():
        parts, _ = parts_to_fuse(graph, Options(target=target))
        counts = collections.Counter(p.structure() for p in parts)
        for structure, part in {p.structure(): p for p in parts}.items():
            yield from _slow_of(part, side, counts[structure], target)


def _slow_of(part: GraphPart, side: str, count: int, target: str) -> Iterator[Slow]:
    program = program_of(part, target)
    names = dict.fromkeys(getattr(n.target, "__name__", "") for n in part.owned)
    operators = ", ".join(names)
    fusion, times = program.fusion, timed(program)
    least = bytes_us(fusion.inputs, fusion.outputs, program.target)
    for launch, t in zip(program.launches, times, strict=True):
        own = bytes_us(launch.inputs, launch.outputs, program.target)
        if t.us > TIMES * own + LAUNCH_US:
            yield Slow(launch.kernel.name, side, count, t.us, own, operators)
    total = sum(t.us for t in times)
    if total > REGION_TIMES * least + LAUNCH_US * len(times):
        yield Slow(f"{part.name}, {len(times)} launches", side, count, total, least, operators)


def found_in(
    architecture: Architecture, size: tuple[int, int], *, train: bool, target: str
) -> list[Slow]:
    """What is slow of an architecture in bfloat16, for a batch and a length; a batch has eight
    images for each text."""
    model = without_dropout(architecture.model()).to(torch.bfloat16)
    inputs = in_dtype(architecture.inputs(*size), torch.bfloat16)
    if set(inputs) == {"pixel_values"}:
        batch = architecture.inputs(size[0] * 8, size[1])["pixel_values"].to(torch.bfloat16)
        inputs["pixel_values"] = batch.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    if not train:
        model.eval()
    with stand_in(IdleDriver()):
        return list(slow_ones(graphs_of(model, inputs, train=train), target))


def report(found: Sequence[Slow], say: Callable[[str], object] = print) -> None:
    """The slow ones, those first that lose most."""
    for s in sorted(found, key=lambda s: s.count * (s.bytes_us - s.us)):
        say(f"  {s.line()}")


def main() -> None:
    from bench.zoo.large import MODELS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="comma-separated names")
    parser.add_argument("--infer", action="store_true", help="inference instead of training")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    arguments = parser.parse_args()
    wanted = [n for n in arguments.models.split(",") if n]
    for a in MODELS:
        if wanted and a.name not in wanted:
            continue
        size = arguments.batch, arguments.length
        try:
            found = found_in(a, size, train=not arguments.infer, target=arguments.target)
        except Exception as e:
            print(f"{a.name}: {type(e).__name__}: {e}"[:300], flush=True)
            continue
        print(f"{a.name}: {len(found)} slow", flush=True)
        report(found)


if __name__ == "__main__":
    main()
