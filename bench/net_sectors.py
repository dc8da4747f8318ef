"""`python -m bench.net_sectors`: sectors that nets of images move in channels-last memory.

Method: the nets of `bench.image_nets` are traced forward and backward and cut into regions as the
torch backend does it; nothing is run, and no GPU is needed. Every different region is compiled, its
results laid as torch lays them. Of each launch the cost model says what moves between memory and
the chip, in whole sectors and those that are read by twos: over the elements of its arguments and
results, each once, that is what their layouts cost. The elements of all launches over those of the
region's own arguments and results are what launches cost that read again. Images of convolutions
that do not lie channels last, and copies of ours, are counted.
"""

from __future__ import annotations

import argparse
import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.image_nets import NETS
from bench.slow_kernels import graphs_of
from bench.stand_in import IdleDriver, stand_in
from bench.zoo import in_dtype
from fusewright.frontends.torch.dynamo import parts_to_fuse
from fusewright.frontends.torch.model_times import program_of
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.region import GraphPart
from fusewright.program import Program
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.cost import moved_nbytes, running_blocks
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import Target, target_of

SIGNIFICANT = 0.01
"""Launches that have a smaller share of a net's bytes are not looked at one by one."""


@dataclass(frozen=True, slots=True)
class Region:
    """Equal regions of a net, `count` of them: what operators are in them, their launches and
    copies. Of one: `least` bytes of its arguments and results, `bound` bytes of what its launches
    read and write, `moved` bytes in whole sectors, and both of each launch."""

    operators: str
    count: int
    copies: int
    least: int
    launches: tuple[tuple[int, float], ...]

    @property
    def bound(self) -> int:
        return sum(bound for bound, _ in self.launches)

    @property
    def moved(self) -> float:
        return sum(moved for _, moved in self.launches)


@dataclass(frozen=True, slots=True)
class Side:
    """The regions of a net's forward or backward graph. `across`: images that convolutions read or
    write, and that do not lie channels last."""

    net: str
    dtype: str
    side: str
    regions: tuple[Region, ...]
    across: tuple[str, ...]

    def total(self, of: str) -> float:
        """A figure of all regions."""
        return sum(r.count * getattr(r, of) for r in self.regions)

    @property
    def sectors(self) -> float:
        """What moves in whole sectors, over the bytes that launches read and write."""
        return self.total("moved") / self.total("bound")

    @property
    def worst(self) -> float:
        """The same of the launch for which it is most, of those whose bytes count."""
        least = SIGNIFICANT * self.total("bound")
        each = [x for r in self.regions for x in r.launches if x[0] >= least]
        return max(moved / bound for bound, moved in each)

    def line(self) -> str:
        """A line of a table."""
        launches = sum(r.count * len(r.launches) for r in self.regions)
        regions, bound = sum(r.count for r in self.regions), self.total("bound")
        return (
            f"| {self.net} {self.dtype} {self.side} | {regions} | {launches} "
            f"| {self.total('copies')} | {bound / 1e6:.0f} | {bound / self.total('least'):.2f} "
            f"| {self.sectors:.3f} | {self.worst:.3f} | {len(self.across)} |"
        )


def sides_of(net: str, dtype: torch.dtype, batch: int, target: Target) -> Iterator[Side]:
    """The forward and the backward graph of a step of training."""
    torch.manual_seed(0)
    model, inputs = NETS[net](batch)
    model = model.to(dtype).to(memory_format=torch.channels_last).train()
    inputs = in_dtype(inputs, dtype)
    inputs["x"] = inputs["x"].contiguous(memory_format=torch.channels_last)
    with stand_in(IdleDriver()):
        for side, graph in graphs_of(model, inputs, train=True).items():
            parts, _ = parts_to_fuse(graph, Options(target=target.arch))
            counts = collections.Counter(p.structure() for p in parts)
            different = {p.structure(): p for p in parts}
            regions = tuple(_region(p, counts[s], target) for s, p in different.items())
            yield Side(net, str(dtype).split(".")[-1], side, regions, tuple(images_across(graph)))


def _region(part: GraphPart, count: int, target: Target) -> Region:
    program = program_of(part, target.arch)
    values = dict.fromkeys((*program.fusion.inputs, *program.fusion.outputs))
    names = dict.fromkeys(getattr(n.target, "__name__", "") for n in part.owned)
    return Region(
        ", ".join(names),
        count,
        int(program.host.stats["copies"]),
        sum(math.prod(int(str(n)) for n in t.shape) * t.dtype.nbytes for t in values),
        tuple(launches_of(program, target)),
    )


def launches_of(program: Program, target: Target) -> Iterator[tuple[int, float]]:
    """Of each launch the bytes that it reads and writes, and those that move; of one that no
    heuristic made as many."""
    for x in program.launches:
        bound = sum(int(str(s.size)) * s.root.dtype.nbytes for s in (*x.reads, *x.writes))
        moved = 0.0
        for k in x.kernel.parts or (x.kernel,):
            if k.heuristic is None or k.segment is None:
                moved = float(bound)
                break
            flow = k.segment.dataflow()
            schedule_group(flow, target, k.heuristic)
            work = work_of(flow, k.heuristic)
            running = running_blocks(work, target)
            moved += sum(moved_nbytes(a, work, running, target) for a in work.arrays)
        yield bound, moved


def images_across(graph: Any) -> Iterator[str]:
    """Images that convolutions of a graph read or write in another order than channels last."""
    for n in graph.graph.nodes:
        if "convolution" not in str(n.target):
            continue
        made = n.meta["val"] if isinstance(n.meta["val"], tuple | list) else (n.meta["val"],)
        read = [(str(m), m.meta.get("val")) for m in n.all_input_nodes]
        for name, v in (*read, *((str(n), v) for v in made)):
            if not isinstance(v, torch.Tensor) or v.dim() != 4:
                continue
            if not v.is_contiguous(memory_format=torch.channels_last):
                yield f"{n}: {name} {tuple(v.shape)} {tuple(v.stride())}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(NETS))
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--regions", action="store_true", help="show each region, too")
    arguments = parser.parse_args()
    print("| net | regions | launches | copies | MB | over the least | sectors | worst | across |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in arguments.dtypes.split(","):
        for net in arguments.nets:
            target = target_of(arguments.target)
            for side in sides_of(net, getattr(torch, dtype), arguments.batch, target):
                print(side.line(), flush=True)
                for what in side.across:
                    print(f"  across: {what}")
                for r in side.regions if arguments.regions else ():
                    over, moved = r.bound / r.least, r.moved / r.bound
                    n = f"{r.count} times, {len(r.launches)} launches, {r.copies} copies"
                    print(f"  {r.least / 1e6:.2f} MB {over:.2f} {moved:.3f}, {n}: {r.operators}")


if __name__ == "__main__":
    main()
