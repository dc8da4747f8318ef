"""Random rows shared by clusters, under random schedules by hand: right, and no sync to spare."""

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


def program(r: random.Random) -> tuple[fw.Fusion, str]:
    """A chain of up to three reductions over the last axes, each of what the one before gave."""
    rank = r.choice([1, 1, 2])
    rows = [r.randint(1, 5) for _ in range(r.choice([0, 1, 1, 2]))]
    columns = [r.randint(2, 400)] if rank == 1 else [r.randint(2, 9), r.randint(2, 60)]
    dtype = r.choice(["float32", "float32", "bfloat16", "float16", "int32"])
    axes = tuple(range(len(rows), len(rows) + rank))
    is_float = dtype != "int32"
    steps = [r.choice(["sum", "max", "min", "scale"]) for _ in range(r.randint(1, 4))]

    def fn(x: fw.Array, y: fw.Array) -> tuple[fw.Array, ...]:
        value = x + y if r_uses else x
        outs: list[fw.Array] = []
        for step in steps:
            if step == "scale":
                value = fw.multiply(value, 0.5) if is_float else value + 3
                continue
            found = getattr(fw, step)(value, axis=axes, keepdims=True)
            if step == "sum" and is_float:
                found = found * (1.0 / 64)
            outs.append(fw.squeeze(found, axis=axes))
            value = value - fw.astype(found, x.dtype)
        return (*outs[:1], value) if keeps_rows or not outs else tuple(outs)

    r_uses, keeps_rows = r.random() < 0.4, r.random() < 0.7
    spec = fw.TensorSpec((*rows, *columns), dtype)
    return fw.trace(fn, spec, spec), dtype


def scheduled(fusion: fw.Fusion, r: random.Random) -> fw.Schedule | None:
    s = fw.Schedule(fusion)
    reductions = [t for t in s.tensors if t.stage.is_reduction]
    if not reductions:
        return None
    for t in s.inputs:
        if not s.flow.consumers(t.stage):
            continue
        copy = t.cache_after()
        if r.random() < 0.4:
            copy.set_memory(fw.SHARED)
    t = reductions[0]
    kept = len(t.stage.frame.output)
    while len(t.axes) > kept + 1:
        t.merge(kept)
    while kept > 1:
        t.merge(0)
        kept -= 1
    size, threads = r.randint(2, 8), r.choice([32, 32, 64, 96])
    t.split(kept, size, inner=r.random() < 0.3)
    cluster = kept if t.axes[kept].endswith(f"{{{size}}}") else kept + 1
    rest = kept + 1 if cluster == kept else kept
    t.parallelize(cluster, fw.ClusterX)
    t.split(rest, threads)
    t.parallelize(rest + 1, fw.TIDx)
    if kept and r.random() < 0.5:
        t.split(0, r.randint(1, 3))
        inner = r.choice([fw.TIDy, fw.Serial, fw.BIDy])
        t.parallelize(0, r.choice([fw.BIDx, fw.Serial])).parallelize(1, inner)
    elif kept:
        t.parallelize(0, fw.BIDx)
    s.transform_like(t)
    return s.inline_most() if r.random() < 0.8 else s


def assert_agrees_if_legal(seed: int) -> bool:
    r = random.Random(seed)
    fusion, dtype = program(r)
    try:
        s = scheduled(fusion, r)
        if s is None:
            return False
        kernel = s.lower()
    except (fw.ScheduleError, fw.UnsupportedError):
        return False
    assert kernel.launch.cluster > 1
    rng = np.random.default_rng(seed)
    given = {
        t.name: random_values(rng, tuple(int(str(e)) for e in t.shape), dtype_of(dtype))
        for t in fusion.inputs
    }
    arrays = [given[t.name] for t in kernel.inputs]
    result = kernel.simulate(*arrays)
    assert result.races == [], f"seed {seed}: {result.races[0]}\n{s}\n{kernel.ir}"
    tolerance = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int32": 0}[dtype]
    for got, want in zip(result.outputs, fw.evaluate(fusion, *given.values()), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64),
            want.astype(np.float64),
            rtol=tolerance,
            atol=tolerance * 8,
            err_msg=f"seed {seed}\n{s}\n{kernel.ir}",
        )
    report = fw.verify(kernel, *arrays, blocks=None)
    assert report.ok, f"seed {seed}: {report}\n{s}\n{kernel.ir}"
    return True


def test_few_random_clusters() -> None:
    assert sum(assert_agrees_if_legal(seed) for seed in range(7000, 7016)) >= 8


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_clusters(start: int) -> None:
    assert sum(assert_agrees_if_legal(seed) for seed in range(start, start + CHUNK)) > CHUNK // 4
