"""Reductions whose blocks hand over: every kind of sum in every mode, by schedules made by hand."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from test_cluster_shares import columns_in_clusters
from test_grid_turns import column_schedule, total, total_and_more
from test_split_products import product, split_schedule, wide_product, with_bias

import fusewright as fw
from fusewright.schedule.schedule import ScheduledTensor

Array = np.ndarray[Any, Any]
MODES = ("vector", "tma", "tma+bulk", "slices", "arrival", "cluster", "clusters")
"""Those of requests, with the copy engine on the way back, too, and of one cluster, and of clusters
of `FIRST` blocks which leave slices."""
FIRST = 2
SPLITS = (1, 2, 3, 5, 33)


@dataclass(frozen=True)
class TurnCase:
    """`make` gives a schedule, anew at each call."""

    name: str
    mode: str
    splits: int
    make: Callable[[], fw.Schedule]

    def __str__(self) -> str:
        return self.name

    @property
    def is_typical(self) -> bool:
        """The first block, one in the middle, and the last; of products in clusters, which share
        them equally, the first and the last; of streams with a part of two tiles each."""
        if "stream" in self.name:
            return "two tiles" in self.name
        return self.splits == 3 or (self.name.startswith("product") and self.mode == "cluster")

    @property
    def repeats_itself(self) -> bool:
        """Whether all runs give the same bits: not where parts are added as their blocks come."""
        return self.mode != "arrival"

    def arrays(self) -> list[Array]:
        """Normal values, drawn by the name of the case."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [
            rng.standard_normal([int(str(e)) for e in t.shape]).astype(t.dtype.numpy)
            for t in self.make().original.inputs
        ]

    def lower(self) -> fw.Kernel:
        """The kernel, under the configuration that it needs."""
        with fw.config(deterministic=self.repeats_itself):
            return self.make().lower("sm_90a")

    def compile(self, target: str = "sm_90a") -> fw.Program:
        """The program, under the same configuration."""
        with fw.config(deterministic=self.repeats_itself):
            return fw.compile(self.make(), target)

    @functools.cache  # noqa: B019 -- as long as the table of cases
    def wanted(self) -> tuple[Array, float]:
        """The oracle's result in float64, and how far off the roundings of its dtype may be."""
        (wanted,) = fw.evaluate(self.make(), *self.arrays())
        wanted = wanted.astype(np.float64)
        is_short = self.make().original.outputs[0].dtype.name == "bfloat16"
        unit = 2.0**-7 if is_short else 2.0**-15
        return wanted, unit * max(float(np.abs(wanted).max()), 1.0)

    def assert_right(self, found: Array) -> None:
        """Whether a result is the oracle's, but for the roundings of its dtype."""
        wanted, limit = self.wanted()
        assert np.abs(found.astype(np.float64).reshape(wanted.shape) - wanted).max() <= limit


def full_sum(mode: str, splits: int, *, suffix: bool) -> fw.Schedule:
    """All elements: by a block of threads each, then by blocks of the grid, or of a cluster."""

    def fn(x: Any) -> Any:
        return fw.exp(fw.sum(x) * 0.01) - 1 if suffix else fw.sum(x)

    blocks = splits * FIRST if mode == "clusters" else splits
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec((blocks * 640 - 7,), "float32")))
    (t,) = (t for t in s.tensors if t.stage.is_reduction)
    t.split(0, 640).split(1, 64)
    _over_blocks(t, 0, mode)
    part = t.rfactor([len(t.axes) - 2, len(t.axes) - 1])
    part.parallelize(-1, fw.TIDx)
    s.transform_like(part).inline_most()
    _request(t, mode)
    return s


def _request(t: ScheduledTensor, mode: str) -> None:
    name, _, back = ("slices" if mode.startswith("cluster") else mode).partition("+")
    t.request_serial_grid_reduction(name, read_back=back or "vector")


def _over_blocks(t: ScheduledTensor, loop: int, mode: str) -> None:
    """Binds a loop to the blocks that share what it reduces, of clusters to both levels."""
    if mode == "clusters":
        t.split(loop, FIRST).parallelize(loop + 1, fw.ClusterX)
    t.parallelize(loop, fw.ClusterX if mode == "cluster" else fw.BIDx)


def _of_columns(mode: str, splits: int, *, suffix: bool) -> fw.Schedule:
    fn = total_and_more if suffix else total
    if mode == "cluster":
        return columns_in_clusters(fn, splits)
    if mode == "clusters":
        return columns_in_clusters(fn, FIRST, clusters=splits)
    s = column_schedule(fn, splits, mode=mode.replace("arrival", "slices").partition("+")[0])
    for t in s.tensors:
        if t.stage.is_reduction:
            _request(t, mode)
    return s


def _of_product(mode: str, splits: int, *, suffix: bool) -> fw.Schedule:
    """One ragged tile, and a depth that is no multiple of its parts."""
    first = FIRST if mode == "clusters" else 1
    shape = (60, 40, 64 * 2 * splits * first - 104 + 64 * (splits == 1))
    fn = with_bias if suffix else product
    return split_schedule(fn, splits * first, mode, shape=shape, first=first)


def _of_wide_product(mode: str, splits: int, *, suffix: bool) -> fw.Schedule:
    """The same, whose sums are the result, to which blocks in turns add their parts."""
    assert not suffix
    shape = (60, 40, 128 * splits - 104 + 64 * (splits == 1))
    staged = 64 if mode == "tma" else 0
    return split_schedule(wide_product, splits, mode, shape=shape, staged=staged)


def _more_tiles_than_blocks(mode: str, *, suffix: bool) -> fw.Schedule:
    """Four tiles, two for each group of three blocks: rings and semaphores go on from the first
    to the second."""
    fn = with_bias if suffix else product
    return split_schedule(fn, 3, mode, shape=(100, 72, 600), blocks=2)


STREAM_MODES = ("vector", "tma", "tma+bulk", "slices")
RESTS = {"one tile": (2, 1, 7), "two tiles": (1, 1, 5), "half a wave": (1, 2, 9)}
"""Behind how many whole waves, of how many groups of three blocks, and all tiles: of the last ones
a block has a part of one, two, and of one or two."""


def _stream(mode: str, rest: str, *, suffix: bool) -> fw.Schedule:
    """Three blocks, or six, take whole tiles of 64 x 64, and share those of the last wave by
    threes: seven steps in parts of three, three and one."""
    waves, groups, tiles = RESTS[rest]
    assert 3 * groups * waves < tiles <= 3 * groups * (waves + 1)
    across = 3 if tiles % 3 == 0 else 1
    shape = (64 * tiles // across - 14, 64 * across - 24, 64 * 7 - 40)
    fn = with_bias if suffix else product
    return split_schedule(fn, 3, mode, shape=shape, blocks=groups, stream=True)


def _several_columns(mode: str, *, suffix: bool) -> fw.Schedule:
    """Two tiles of columns for each of three blocks."""
    fn = total_and_more if suffix else total
    s = fw.Schedule(fw.trace(fn, fw.TensorSpec((11, 256), "float32")))
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, 2 if mode == "clusters" else 4)
        t.split(0, 4).split(0, 32)
        t.parallelize(1, fw.TIDx).parallelize(2, fw.Vectorize)
        if t.stage.is_reduction:
            _over_blocks(t, 3, mode)
            t.reorder({3: 1, 4: 2} if mode != "clusters" else {3: 1, 4: 2, 5: 3})
            _request(t, mode)
    return s


def _is_possible(kind: str, mode: str, splits: int) -> bool:
    """A cluster has at most 8 blocks, which finish equal shares of a product; one part of a full
    sum is all of it."""
    if kind == "wide product":
        return mode in ("vector", "tma")
    if mode == "cluster":
        return 1 < splits <= 8 and (kind != "product" or splits % 2 == 0)
    if mode == "clusters":
        return splits > 1
    return kind != "full sum" or splits > 1


_KINDS: dict[str, Callable[..., fw.Schedule]] = {
    "product": _of_product, "wide product": _of_wide_product, "column sum": _of_columns,
    "full sum": full_sum,
}  # fmt: skip
_SEVERAL: dict[str, Callable[..., fw.Schedule]] = {
    "product": _more_tiles_than_blocks, "column sum": _several_columns,
}  # fmt: skip


def _cases() -> Iterator[TurnCase]:
    for mode in MODES:
        for suffix in (False, True):
            end = " and a function" if suffix else ""
            for kind, make in _KINDS.items():
                for n in SPLITS:
                    if _is_possible(kind, mode, n) and not (suffix and kind == "wide product"):
                        yield TurnCase(
                            f"{kind}{end}, {mode}, {n}", mode, n,
                            lambda make=make, mode=mode, n=n, s=suffix: make(mode, n, suffix=s),
                        )  # fmt: skip
            for kind, several in _SEVERAL.items():
                if kind != "product" or not mode.startswith("cluster"):
                    yield TurnCase(
                        f"{kind}{end}, {mode}, more tiles than blocks", mode, 3,
                        lambda make=several, mode=mode, s=suffix: make(mode, suffix=s),
                    )  # fmt: skip


def _streams() -> Iterator[TurnCase]:
    for mode in STREAM_MODES:
        for suffix in (False, True):
            for rest in RESTS:
                end = " and a function" if suffix else ""
                yield TurnCase(
                    f"product{end}, {mode}, stream with a rest of {rest}", mode, 3,
                    lambda mode=mode, rest=rest, s=suffix: _stream(mode, rest, suffix=s),
                )  # fmt: skip


CASES = (*_cases(), *_streams())
