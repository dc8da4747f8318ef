"""Parts of the memory pipeline switched off: fusions whose code they change, and what is measured
of them. Needs no torch and no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import fusewright as fw
from bench.cases import Spec
from fusewright import knobs
from fusewright.cuda.emit import shared_nbytes
from fusewright.kir import pipeline
from fusewright.kir.analysis.occupancy import blocks_by_memory
from fusewright.kir.ir import Kernel
from fusewright.kir.pipeline import SWITCHES, run_pipeline
from fusewright.kir.prediction import with_launch_bounds
from fusewright.kir.text import parse_kernel
from fusewright.report.table import table
from fusewright.target import Target, target_of


@dataclass(frozen=True, slots=True)
class Fusion:
    """What to compile, and its arguments' shapes and dtypes; `high` bounds integers."""

    name: str
    program: Callable[[], fw.Program | Kernel]
    inputs: tuple[Spec, ...]
    high: int = 8


@contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Compiles in here go without a part of the pipeline."""
    before = os.environ.get(knobs.WITHOUT.name)
    os.environ[knobs.WITHOUT.name] = name
    try:
        yield
    finally:
        os.environ.pop(knobs.WITHOUT.name)
        if before is not None:
            os.environ[knobs.WITHOUT.name] = before


def switches_of(compile_: Callable[[], object]) -> tuple[str, ...]:
    """The switches that change some kernel of a compile: behind the pass that a switch is part of,
    what runs instead leaves another kernel. One compile, and the other passes beside it."""
    found: dict[str, None] = {}
    run = pipeline.run_pass

    def observed(p: pipeline.Pass, kernel: Kernel, target: Target, **checks: Any) -> Kernel:
        new = run(p, kernel, target, **checks)
        for name, (part, instead) in SWITCHES.items():
            if part == p.name and name not in found:
                other = kernel if instead is None else instead(kernel, target)
                if other is not new and str(other) != str(new):
                    found[name] = None
        return new

    pipeline.run_pass = observed
    try:
        compile_()
    finally:
        pipeline.run_pass = run
    return tuple(name for name in SWITCHES if name in found)


# --- demonstrations -----------------------------------------------------------------------------

ROWS = 4096
TILES = 2112


def columns(k: int, nthreads: int) -> Kernel:
    """Tiles of `k` rows, one a block: sums down the mirrored columns of one tile scale the next,
    which may take its memory once all threads have read it. Few registers, much shared memory."""
    n = k * nthreads
    kernel = parse_kernel(
        f"""kernel columns {{
          param x: float32[{TILES * n}] align 16
          param y: float32[{TILES * n}] align 16
          param out: float32[{TILES * nthreads}] align 16
          grid (bx < {TILES})
          block (tx < {nthreads})
          local r: float32[3]
          shared a: float32[{n}] align 128
          shared b: float32[{n}] align 128
          for (i < {k}) {{
            r[0] = load x[{n}*bx + {nthreads}*i + tx]
            store a[{nthreads}*i + tx] = r[0]
          }}
          r[1] = copy(0.0:float32)
          for (i < {k}) {{ r[0] = load a[{n - 1} - {nthreads}*i - tx] r[1] = add(r[1], r[0]) }}
          for (i < {k}) {{
            r[0] = load y[{n}*bx + {nthreads}*i + tx]
            r[0] = mul(r[0], r[1])
            store b[{nthreads}*i + tx] = r[0]
          }}
          r[2] = copy(0.0:float32)
          for (i < {k}) {{ r[0] = load b[{n - 1} - {nthreads}*i - tx] r[2] = add(r[2], r[0]) }}
          store out[{nthreads}*bx + tx] = r[2]
        }}"""
    )
    target = target_of("sm_90a")
    return with_launch_bounds(run_pipeline(kernel, target), target)


def product(n: int, nthreads: int) -> fw.Schedule:
    """Rows that are turned around twice in shared memory, with a factor loaded before the second
    buffer is written: threads arrive, load, and wait."""

    def fn(x: Any, y: Any) -> Any:
        a = fw.name(fw.copy(x), "a")
        turned = fw.name(fw.flip(a, axis=1), "turned")
        factor = fw.name(fw.copy(y), "factor")
        b = fw.name(turned * factor, "b")
        return fw.name(fw.flip(b, axis=1), "out")

    spec = fw.TensorSpec((ROWS, n), "float32")
    s = _bound(fw.trace(fn, spec, spec), nthreads)
    for name in ("a", "b"):
        s[name].set_memory(fw.SHARED).promote_reuse()
    return s


def _bound(fusion: fw.Fusion, nthreads: int) -> fw.Schedule:
    """A row a block, the threads next to each other."""
    s = fw.Schedule(fusion)
    for t in (t for t in s.tensors if t.axes):
        t.split(1, nthreads).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    return s


def _columns(name: str, k: int, nthreads: int) -> Fusion:
    tile = ((TILES, k * nthreads), "float32")
    return Fusion(name, lambda: columns(k, nthreads), (tile, tile))


def _product(name: str, n: int, nthreads: int) -> Fusion:
    inputs = (((ROWS, n), "float32"),) * 2
    return Fusion(name, lambda: fw.compile(product(n, nthreads)), inputs)


DEMONSTRATIONS = (
    _columns("columns_2x64KB", 16, 1024),
    _columns("columns_2x48KB", 24, 512),
    _columns("columns_2x24KB", 24, 256),
    _product("product_2x16KB", 4096, 512),
    _product("product_2x32KB", 8192, 1024),
)
"""Fusions in which promotion buys blocks, or the sync that it buys is a split one."""


# --- what is measured ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A fusion with everything on (`on`) and without one part (`off`): median microseconds, the
    most bytes of shared memory of a kernel, and the blocks of it that a multiprocessor holds by
    memory and threads."""

    fusion: str
    switch: str
    on_us: float
    off_us: float
    on_nbytes: int
    off_nbytes: int
    on_blocks: int
    off_blocks: int

    @property
    def gain(self) -> float:
        """How much longer it takes without the part: above 1 where it pays."""
        return self.off_us / self.on_us

    def as_json(self) -> dict[str, object]:
        """The fields, and the gain."""
        return {**asdict(self), "gain": round(self.gain, 4)}


def memory_of(program: fw.Program | Kernel) -> tuple[int, int]:
    """Bytes of shared memory of the kernel that takes most, and its blocks a multiprocessor."""
    kernels = [program] if isinstance(program, Kernel) else [k.ir for k in program.kernels]
    kernel = max(kernels, key=shared_nbytes)
    nbytes = shared_nbytes(kernel)
    return nbytes, blocks_by_memory(target_of("sm_90a"), kernel.nthreads, nbytes)


def show(rows: Sequence[Row]) -> str:
    """A table, one line a fusion and switch."""
    lines = [
        (
            r.fusion,
            r.switch,
            f"{r.on_us:.1f}",
            f"{r.off_us:.1f}",
            f"{r.gain:.3f}",
            f"{r.on_nbytes} / {r.off_nbytes}",
            f"{r.on_blocks} / {r.off_blocks}",
        )
        for r in rows
    ]
    head = ("fusion", "without", "us with", "us without", "gain", "bytes", "blocks")
    return table(head, lines)
