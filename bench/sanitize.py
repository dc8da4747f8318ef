"""Small kernels of every kind for compute-sanitizer: `compute-sanitizer --tool racecheck python -m
bench.sanitize`. Runs the corpus' normalisations, softmaxes, sums and transposes at reduced sizes,
and rows that the blocks of a cluster share, where the device has clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.dtypes import dtype_of
from fusewright.fusion.array import Array

NAMES = ("softmax", "norm", "sum", "transpose", "gelu")


def _softmax(x: Array) -> Array:
    return fw.nn.softmax(x, axis=-1)


def _layer_norm(x: Array, w: Array, b: Array) -> Array:
    return fw.nn.layer_norm(x, x.shape[1:], w, b)


def _group_norm_silu(x: Array, w: Array, b: Array) -> Array:
    return fw.nn.silu(fw.nn.group_norm(x, 32, w, b))


LONG_ROWS: tuple[tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...]], ...] = (
    (_softmax, "bfloat16", ((1, 131072),)),
    (_softmax, "float16", ((2, 98305),)),
    (_layer_norm, "float32", ((2, 65539), (65539,), (65539,))),
    (_group_norm_silu, "float32", ((5, 64, 120, 128), (64,), (64,))),
    (_group_norm_silu, "float32", ((5, 32, 173, 181), (32,), (32,))),
)
"""Functions with the dtype and the shapes of their arguments. Few rows, or as many groups as keep
every multiprocessor busy: both are shared out to clusters, of 8 and of 4 blocks, which hold their
slices in shared memory or, where sizes are odd, in registers."""


def main() -> None:
    """Run every program once and print how many launches that were."""
    runs = [
        (case.fn, case.small, case.arrays())
        for case in CORPUS
        if any(n in case.name for n in NAMES)
    ]
    rng = np.random.default_rng(0)
    for fn, dtype, shapes in LONG_ROWS:
        arrays = [rng.standard_normal(s).astype(dtype_of(dtype).numpy) for s in shapes]
        runs.append((fn, tuple(fw.TensorSpec(s, dtype) for s in shapes), arrays))
    sizes: list[int] = []
    for fn, specs, arrays in runs:
        program = fw.compile(fw.trace(fn, *specs))
        program.run_cuda(*arrays)
        sizes += [x.kernel.launch.cluster for x in program.launches]
    print(f"{len(sizes)} launches, {sum(n > 1 for n in sizes)} of clusters")


if __name__ == "__main__":
    main()
