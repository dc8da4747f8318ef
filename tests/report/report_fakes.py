"""A program as a report sees it, made by hand: two kernels, shared memory that is reused."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from fusewright.core.expr import as_expr
from fusewright.cuda.resources import Spilled
from fusewright.dtypes import float32
from fusewright.errors import UserError
from fusewright.fusion.ir import (
    Broadcast,
    Constant,
    Fusion,
    Input,
    Op,
    Pointwise,
    Reduce,
    Tensor,
    contiguous_strides,
)
from fusewright.host.assemble import HostProgram, KernelCall, assemble
from fusewright.host.groups import Reason
from fusewright.host.subspans import natural
from fusewright.kir.ir import Kernel
from fusewright.kir.text import parse_kernel
from fusewright.programs.model import Layout
from fusewright.schedule.edits import EditCall
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.schedule.heuristics.rating import Rating
from fusewright.target import Target, target_of

ROWS = parse_kernel(
    """kernel rows {
      param x: float32[1024] align 16
      param m: float32[32]
      grid (bx < 1)
      block (tx < 32)
      local r: float32[1]
      shared a: float32[32] offset 0
      shared b: float32[32] offset 128
      shared c: float32[32] offset 0
      r[0] = load x[tx]
      store a[tx] = r[0]
      block_sync #1  // RAW a: the store of a row before its reads
      r[0] = load a[31 - tx]
      store b[tx] = r[0]
      block_sync #2  // RAW b, WAR a & c
      r[0] = load b[31 - tx]
      store c[tx] = r[0]
      r[0] = load c[tx]
      store m[tx] = r[0]
    }"""
)
SCALE = parse_kernel(
    """kernel scale {
      param x: float32[1024]
      param m: float32[32]
      param y: float32[1024]
      grid (bx < 32)
      block (tx < 32)
      local r: float32[1]
      r[0] = load x[32*bx + tx]
      store y[32*bx + tx] = r[0]
    }"""
)


@dataclass
class Smem:
    name: str
    offset: int
    nbytes: int
    alignment: int = 4
    alias_of: str | None = None


@dataclass
class Sync:
    id: int
    kind: str
    why: str
    orders: tuple[object, ...] = ()


@dataclass
class Geometry:
    grid: tuple[object, ...] = (1, 1, 1)
    block: tuple[object, ...] = (32, 1, 1)
    cluster: int = 1
    shared_nbytes: int = 0


@dataclass
class Resources:
    registers: int = 24
    spill_stores: int = 0
    spill_loads: int = 0
    stack_nbytes: int = 0
    warnings: tuple[str, ...] = ()


@dataclass
class FakeKernel:
    ir: Kernel
    launch: Geometry = field(default_factory=Geometry)
    smem: tuple[Smem, ...] = ()
    syncs: tuple[Sync, ...] = ()
    schedule: str = "for i in 32:\n  m = reduce_max(x)"
    found: Resources | None = field(default_factory=Resources)
    heuristic: Params | None = None
    edits: tuple[EditCall, ...] = ()
    candidates: tuple[Rating, ...] = ()
    measured: tuple[tuple[Params, float], ...] = ()
    spilled: tuple[Spilled, ...] = ()
    predicted: Cost | None = None
    lowered: Kernel | None = None
    target: Target = field(default_factory=lambda: target_of("sm_90a"))

    @property
    def name(self) -> str:
        return self.ir.name

    @property
    def cuda(self) -> str:
        lines = [f"  __syncthreads();  // {s.why}" for s in self.syncs]
        head = f'#define FW_PRELUDE\nextern "C" __global__ void __launch_bounds__(32)\n{self.name}('
        return "\n".join([head + ") {", *lines, "}", ""])

    def resources(self) -> Resources:
        if self.found is None:
            raise UserError("compiling kernels needs NVRTC; install fusewright[cuda]")
        return self.found


@dataclass
class Launch:
    kernel: FakeKernel
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    bodies: tuple[FakeProgram, ...] = ()


@dataclass
class FakeProgram:
    fusion: Fusion
    kernels: tuple[FakeKernel, ...]
    launches: tuple[Launch, ...]
    reasons: tuple[Reason, ...] = ()
    layouts: dict[str, Layout] = field(default_factory=dict[str, Layout])
    target: Target = field(default_factory=lambda: target_of("sm_90a"))

    @cached_property
    def host(self) -> HostProgram:
        calls = [
            KernelCall(
                x.kernel.ir, (), tuple(map(natural, x.inputs)), tuple(map(natural, x.outputs))
            )
            for x in self.launches
        ]
        return assemble(self.fusion, calls)


def value(name: str, shape: tuple[int, ...], op: Op) -> Tensor:
    return Tensor(name, tuple(map(as_expr, shape)), float32, op)


def argument(name: str, shape: tuple[int, ...], position: int = 0) -> Tensor:
    strides = contiguous_strides(tuple(map(as_expr, shape)))
    return value(name, shape, Input((), position, strides, 16))


def row_scale() -> Fusion:
    """y = exp(x - max(x)) * 2, in the form that a trace gives it."""
    x = argument("x", (32, 32))
    m = value("m", (32,), Reduce((x,), "max", (1,)))
    wide = value("wide", (32, 32), Broadcast((m,), (0, None)))
    less = value("less", (32, 32), Pointwise((x, wide), "sub"))
    two = value("two", (), Constant((), 2.0))
    twos = value("twos", (32, 32), Broadcast((two,), (None, None)))
    e = value("e", (32, 32), Pointwise((less,), "exp"))
    y = value("y", (32, 32), Pointwise((e, twos), "mul"))
    return Fusion((x,), (y,), (x, m, wide, less, two, twos, e, y))


def program(*, compiled: bool = True, reasons: tuple[Reason, ...] = ()) -> FakeProgram:
    rows = FakeKernel(
        ROWS,
        Geometry(shared_nbytes=256),
        (Smem("a", 0, 128), Smem("b", 128, 128), Smem("c", 0, 128, alias_of="a")),
        (
            Sync(1, "block", "RAW a: the store of a row before its reads"),
            Sync(2, "block", "RAW b, WAR a & c"),
        ),
        found=Resources() if compiled else None,
    )
    scale = FakeKernel(SCALE)
    fusion = row_scale()
    x, m, *_, y = fusion.values
    launches = (Launch(rows, (x,), (m,)), Launch(scale, (x, m), (y,)))
    return FakeProgram(fusion, (rows, scale), launches, reasons)
