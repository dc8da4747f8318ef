"""Random reductions over blocks, in every mode and in clusters: right, and no sync to spare."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import fusewright as fw
from fusewright.dtypes import dtype_of
from fusewright.verify import random_values

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "400"))
CHUNK = 20
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int32": 0}
WAYS = ["vector", "tma", "slices", "cluster"]


def program(r: random.Random) -> tuple[fw.Fusion, str]:
    """A reduction down columns, and a few functions of it and of a row."""
    dtype = r.choice(list(TOLERANCE))
    kinds = ["max", "min"] if dtype == "int32" else ["sum", "max", "min"]
    kind, suffix = r.choice(kinds), r.choice([0, 0, 1, 2])
    rows, columns = r.randint(2, 90), r.choice([r.randint(1, 40), 32 * r.randint(1, 12)])

    def fn(x: fw.Array, y: fw.Array) -> fw.Array:
        value = getattr(fw, kind)(x, axis=0)
        for _ in range(suffix):
            value = fw.maximum(value, y) - y
        return value

    specs = fw.TensorSpec((rows, columns), dtype), fw.TensorSpec((columns,), dtype)
    return fw.trace(fn, *specs), dtype


def scheduled(fusion: fw.Fusion, r: random.Random) -> fw.Schedule:
    """Columns over threads, vectors, and the iterations of a block; rows over blocks."""
    s, way = fw.Schedule(fusion), r.choice(WAYS)
    rows = int(str(fusion.inputs[0].shape[0]))
    nblocks, width = r.randint(2, 8), r.choice([1, 2, 4, 8])
    threads, tiles = r.choice([32, 32, 64]), r.choice([0, 0, 2])
    reduced = {"slices": fw.BIDx, "cluster": fw.ClusterX}.get(way, fw.BIDz)
    for t in s.tensors:
        if t.stage.is_input or t.stage.is_virtual:
            continue
        if t.stage.is_reduction:
            t.split(1, -(-rows // nblocks))
        t.split(0, width).split(0, threads)
        if tiles:
            t.split(0, tiles)
        first = int(bool(tiles))
        t.parallelize(0, fw.BIDy)
        t.parallelize(first + 1, fw.TIDx).parallelize(first + 2, fw.Vectorize)
        if t.stage.is_reduction:
            t.parallelize(first + 3, reduced)
            t.reorder({first + 3: first + 1, first + 4: first + 2})
            mode = "slices" if way == "cluster" else way
            is_float = t.stage.dtype.is_float
            work = "float16" if is_float and way != "cluster" and r.random() < 0.2 else None
            t.request_serial_grid_reduction(mode, work)
    return s


def assert_agrees_if_legal(seed: int) -> bool:
    r = random.Random(seed)
    fusion, dtype = program(r)
    try:
        s = scheduled(fusion, r)
        kernel = s.lower("sm_90a")
    except (fw.ScheduleError, fw.UnsupportedError):
        return False
    rng = np.random.default_rng(seed)
    given = {
        t.name: random_values(rng, tuple(int(str(e)) for e in t.shape), dtype_of(dtype))
        for t in fusion.inputs
    }
    arrays = [given[t.name] for t in kernel.inputs]
    results = [kernel.simulate(*arrays, seed=k) for k in (seed, seed + 1)]
    assert results[0].races == [], f"seed {seed}: {results[0].races[0]}\n{s}\n{kernel.ir}"
    assert results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes(), f"seed {seed}"
    is_short = any(b.dtype.name == "float16" for b in kernel.ir.scratch)
    tolerance = TOLERANCE["float16"] if is_short else 0
    tolerance = max(tolerance, TOLERANCE[dtype])
    for got, want in zip(results[0].outputs, fw.evaluate(fusion, *given.values()), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64),
            want.astype(np.float64),
            rtol=tolerance,
            atol=tolerance * 8,
            err_msg=f"seed {seed}\n{s}\n{kernel.ir}",
        )
    report = fw.verify(kernel, *arrays)
    assert report.ok, f"seed {seed}: {report}\n{s}\n{kernel.ir}"
    return True


def test_few_random_turns() -> None:
    assert sum(assert_agrees_if_legal(seed) for seed in range(7000, 7012)) >= 6


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_turns(start: int) -> None:
    assert sum(assert_agrees_if_legal(seed) for seed in range(start, start + CHUNK)) > CHUNK // 4
