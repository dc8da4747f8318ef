"""Schedules whose inputs are copied to shared memory asynchronously: one factory a pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import fusewright as fw


@dataclass(frozen=True)
class Case:
    """A scheduled kernel with the shapes of its inputs."""

    name: str
    schedule: Callable[[str, int, int | None], fw.Schedule]
    shapes: tuple[tuple[int, ...], ...]

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        return [rng.normal(size=s).astype(np.float32) for s in self.shapes]


def _ring(t: fw.ScheduledTensor, stages: int, prefetch: int | None) -> None:
    if stages > 1:
        t.circular_buffer(stages, prefetch)


def row_sum(cols: int | fw.Sym, tile: int = 128) -> Callable[[str, int, int | None], fw.Schedule]:
    """A row a block, a warp, tiles of 128: every thread reads what it copied."""

    def schedule(by: str, stages: int, prefetch: int | None) -> fw.Schedule:
        spec = fw.TensorSpec((8, cols), "float32")
        s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), spec))
        c, o = s["x"].cache_after(by=by), s.outputs[0]
        o.parallelize(0, fw.BIDx)
        o.split(1, tile).split(2, 4).parallelize(2, fw.TIDx)
        s.transform_like(o)
        c.parallelize(-1, fw.Vectorize)
        c.inline_at(o, 2)
        _ring(c, stages, prefetch)
        return s

    return schedule


def dot(by: str, stages: int, prefetch: int | None) -> fw.Schedule:
    """Two inputs in rings of one loop."""
    spec = fw.TensorSpec((8, 512), "float32")
    s = fw.Schedule(fw.trace(lambda x, y: fw.sum(fw.name(x * y, "m"), axis=1), spec, spec))
    copies = [s[n].cache_after(by=by) for n in ("x", "y")]
    o = s.outputs[0]
    o.parallelize(0, fw.BIDx)
    o.split(1, 128).split(2, 4).parallelize(2, fw.TIDx)
    s.transform_like(o)
    s["m"].inline_at(o, -1)
    for c in copies:
        c.parallelize(-1, fw.Vectorize)
        c.inline_at(s["m"], 2)
        _ring(c, stages, prefetch)
    return s


def flipped(by: str, stages: int, prefetch: int | None) -> fw.Schedule:
    """Tiles of 16 rows, read by other threads than those that copied them."""
    spec = fw.TensorSpec((64, 256), "float32")
    s = fw.Schedule(fw.trace(lambda x: fw.name(fw.flip(x, axis=1), "f") * 2.0, spec))
    c, o = s["x"].cache_after(by=by), s.outputs[0]
    o.split(0, 16).split(1, 4).split(-1, 64).parallelize(-1, fw.TIDx)
    c.split(0, 16).split(1, 4).split(-1, 4).split(-2, 64)
    c.parallelize(-1, fw.Vectorize).parallelize(-2, fw.TIDx)
    s.transform_like(o, [s["f"]])
    s["f"].inline_at(o, -1)
    c.inline_at(s["f"], 1)
    _ring(c, stages, prefetch)
    return s


CASES = (
    Case("row_sum", row_sum(512), ((8, 512),)),
    Case("row_sum_5_tiles", row_sum(640), ((8, 640),)),
    Case("row_sum_1_tile", row_sum(128), ((8, 128),)),
    Case("row_sum_n", row_sum(fw.Sym("n", multiple_of=128)), ((8, 896),)),
    Case("dot", dot, ((8, 512), (8, 512))),
    Case("flipped", flipped, ((64, 256),)),
)
RAGGED = Case("ragged", row_sum(500), ((8, 500),))
DEPTHS: tuple[tuple[int, int | None], ...] = ((1, None), (2, None), (3, None), (4, 2))
