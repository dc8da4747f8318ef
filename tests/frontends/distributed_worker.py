"""One of two processes that train a small stack of gated layers over gloo, eagerly and compiled.

`python distributed_worker.py RANK PORT` writes one JSON object: for each way to spread the stack
the losses of eager torch and of the backend, and what was fused and left; and how many modules of
machine code this process compiled and found on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.frontends.torch.dynamo import compiler
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.report import GraphReport
from fusewright.runtime import builds

WIDTH, LENGTH, STEPS = 16, 8, 3


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    """A gated layer behind a norm, added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = Norm()

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def spread(model: Any, how: str) -> Any:
    """The model over both processes."""
    mesh = init_device_mesh("cpu", (2,))
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "ddp in buckets":  # so small that torch cuts the graph for the gradients of each
        torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 2048
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.004)
    if how == "fsdp":
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    along = torch.distributed.tensor.Shard(1)
    plan = {
        "norm": parallel.SequenceParallel(),
        "gate": parallel.ColwiseParallel(input_layouts=along),
        "up": parallel.ColwiseParallel(input_layouts=along),
        "down": parallel.RowwiseParallel(output_layouts=along),
    }
    for layer in model.layers:
        parallel.parallelize_module(layer, mesh, plan)
    last = {"norm": parallel.SequenceParallel(use_local_output=True)}
    return parallel.parallelize_module(model, mesh, last)


def losses(how: str, rank: int, reports: list[GraphReport] | None) -> list[float]:
    """The losses of some steps; compiled if there is a list for the reports."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = spread(Stack(), how)
    run = model
    if reports is not None:
        run = torch.compile(model, backend=compiler(Options(), reports.append))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    is_tensor_parallel = how == "tensor parallel"
    torch.manual_seed(1 if is_tensor_parallel else 1 + rank)
    own = slice(rank * LENGTH // 2, (rank + 1) * LENGTH // 2) if is_tensor_parallel else slice(None)
    found: list[float] = []
    for _ in range(STEPS):
        x, y = torch.randn(2, 2, LENGTH, WIDTH)[:, :, own]
        loss = ((run(x) - y) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def trained(how: str, rank: int) -> dict[str, Any]:
    """The losses, eager and compiled, and what became of the operators."""
    reports: list[GraphReport] = []
    eager, fused = losses(how, rank, None), losses(how, rank, reports)
    return {
        "eager": eager,
        "fused": fused,
        "regions": [len(g.regions) for g in reports],
        "failures": [f for g in reports for r in g.regions for f in r.failures],
        "left": [name for g in reports for name, _ in g.left],
    }


@contextlib.contextmanager
def counted(counts: dict[str, int]) -> Iterator[None]:
    """Counts modules that are compiled, and those that are found on disk."""

    def compiled(*args: Any, **options: Any) -> Any:
        counts["compiled"] += 1
        return compile_cubin(*args, **options)

    def restored(entry: Any) -> Any:
        counts["found"] += 1
        return real(entry)

    real = builds._restored
    builds.compile_cubin, builds._restored = compiled, restored
    try:
        yield
    finally:
        builds.compile_cubin, builds._restored = compile_cubin, real


def shared() -> dict[str, int]:
    """How the machine code of some programs was come by, in both processes at the same time."""
    counts = {"compiled": 0, "found": 0}
    specs = [fw.TensorSpec((64, 256 * k), "float32") for k in (1, 2, 3)]
    with counted(counts):
        torch.distributed.barrier()
        for spec in specs:
            program = fw.compile(fw.trace(lambda x: fw.nn.softmax(x * 2, axis=-1), spec))
            for kernel in program.kernels:
                kernel.cubin()
    return counts


def main(rank: int, port: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    ways = ("ddp", "ddp in buckets", "fsdp", "tensor parallel")
    found: dict[str, Any] = {how: trained(how, rank) for how in ways}
    print(json.dumps(found | {"machine code": shared()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
