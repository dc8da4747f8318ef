"""Lines that several blocks scan together: they gather the totals of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.driver import finish
from fusewright.forms import prepare
from fusewright.kernel import Kernel
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

T = fw.TensorSpec
TARGET = target_of("sm_90a")
CHIP = replace(TARGET, multiprocessors=4)
"""A chip that few blocks fill."""
NARROW = replace(CHIP, shared_nbytes_per_block=24 * 1024)
"""One that brings few rows of a part at a time."""


def suffixes(x: fw.Array) -> fw.Array:
    return fw.flip(fw.cumulative_sum(fw.flip(x, axis=0), axis=0), axis=0)


CASES: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...], Any]] = {
    "columns in several trips": (
        lambda x: fw.cumulative_sum(x, axis=0),
        (T((2501, 24), "float64"),),
        CHIP,
    ),
    "suffixes": (suffixes, (T((2003, 32), "float32"),), CHIP),
    "functions around": (
        lambda x: fw.exp(fw.cumulative_sum(fw.abs(x) * 0.001, axis=0) * -1.0),
        (T((999, 64), "float16"),),
        CHIP,
    ),
    "products": (lambda x: fw.cumulative_prod(x, axis=0), (T((1111, 16), "int32"),), CHIP),
    "short rows": (lambda x: fw.cumulative_sum(x, axis=0), (T((15011, 6), "bfloat16"),), CHIP),
    "short rows in trips": (
        lambda x: fw.cumulative_sum(x * 2, axis=0) - x,
        (T((12002, 5), "float32"),),
        NARROW,
    ),
    "short rows of suffixes": (suffixes, (T((9004, 3), "float32"),), NARROW),
}


def kernel_of(name: str, patch: pytest.MonkeyPatch) -> tuple[fw.Fusion, Kernel]:
    f, specs, target = CASES[name]
    patch.setattr(forms, "split_scans", lambda fusion, _: fusion)
    fusion = prepare(fw.trace(f, *specs), TARGET)
    found = candidates_of(Dataflow(fusion), target)
    plan = next(c for c in found if isinstance(c, Candidate) and "parts" in str(c.params))
    flow = Dataflow(fusion)
    schedule_group(flow, target, plan.params)
    return fusion, finish(flow, "scan", target, plan.params)


def arrays_of(name: str) -> list[Any]:
    rng = np.random.default_rng(5)
    _, specs, _ = CASES[name]
    kinds = [s.dtype.numpy for s in specs]
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    if name == "products":
        return [rng.choice([-1, 1], n).astype(k) for n, k in zip(shapes, kinds, strict=True)]
    return [rng.integers(-3, 4, n).astype(k) for n, k in zip(shapes, kinds, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_lines_are_right_whoever_comes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fusion, kernel = kernel_of(name, monkeypatch)
    assert ("staged" in str(kernel.heuristic)) == name.startswith("short")
    assert [s.kind for s in kernel.syncs].count("SemaphoreAcquire") == 1
    arrays = arrays_of(name)
    wanted = fw.evaluate(fusion, *arrays)[0]
    found = [kernel.simulate(*arrays, seed=seed) for seed in range(2)]
    assert all(r.races == [] for r in found)
    assert found[0].outputs[0].tobytes() == found[1].outputs[0].tobytes()
    error = np.abs(np.asarray(found[0].outputs[0], "f8") - np.asarray(wanted, "f8"))
    assert error.max() <= 2e-3 * (name == "functions around")
