"""Rows that lie in short pieces of memory, those of neighbours side by side: lanes across rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.finish import finish
from fusewright.fusion.passes.decompose import decompose
from fusewright.kernel import Kernel
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import candidates_of, schedule_group
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def softmax(x: Any) -> Any:
    axes = (0, x.ndim - 1)
    e = fw.exp(x - fw.max(x, axis=axes, keepdims=True))
    return e / fw.sum(e, axis=axes, keepdims=True)


def norm(x: Any) -> Any:
    axes = (0, x.ndim - 1)
    return (x - fw.mean(x, axis=axes, keepdims=True)) / fw.sqrt(
        fw.var(x, axis=axes, keepdims=True) + 1e-5
    )


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": softmax,
    "norm": norm,
    "sums": lambda x: fw.sum(x * x, axis=(0, x.ndim - 1)),
    "largest": lambda x: fw.max(x, axis=(0, x.ndim - 1)) * 2,
}


def kernel_of(fn: Callable[[Any], Any], shape: tuple[int, ...], dtype: str) -> Kernel:
    (kernel,) = fw.compile(fw.trace(fn, fw.TensorSpec(shape, dtype)), TARGET).kernels
    return kernel


def is_across(kernel: Kernel) -> bool:
    return "lanes_across" in dict(kernel.heuristic.values if kernel.heuristic else ())


def across(fn: Callable[[Any], Any], shape: tuple[int, ...], dtype: str) -> list[Kernel]:
    """The kernels of all candidates whose lanes run across rows, by number of threads a row."""
    fusion = decompose(fw.trace(fn, fw.TensorSpec(shape, dtype)))
    found = [c for c in candidates_of(Dataflow(fusion), TARGET) if isinstance(c, Candidate)]
    params = [c.params for c in found if "lanes_across" in dict(c.params.values)]
    out: list[Kernel] = []
    for p in params:
        flow = Dataflow(fusion)
        assert schedule_group(flow, TARGET, p) == p
        out.append(finish(flow, "k", TARGET, p))
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((16, 161, 4), "float16"),
        ((5, 301, 3), "float32"),
        ((31, 4, 33, 2), "bfloat16"),
        ((9, 40, 7), "float32"),
    ],
)
def test_values_agree_without_races(name: str, shape: tuple[int, ...], dtype: str) -> None:
    fusion = fw.trace(FUNCTIONS[name], fw.TensorSpec(shape, dtype))
    x = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    x = x.astype(getattr(fw, dtype).numpy)
    wanted = fw.evaluate(fusion, x)
    kernels = across(FUNCTIONS[name], shape, dtype)
    assert len(kernels) > 2
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    for k in kernels:
        found = k.simulate(x)
        assert found.races == []
        for got, want in zip(found.outputs, wanted, strict=True):
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(want, np.float64), tolerance, tolerance
            )


@pytest.mark.parametrize("name", ["softmax", "norm", "sums"])
def test_lanes_take_neighbours_of_other_rows(name: str) -> None:
    """Sixteen pieces of eight bytes: threads that share a row ask for a line each, of which those
    of the next row read the rest."""
    kernel = kernel_of(FUNCTIONS[name], (16, 816, 1805, 4), "float16")
    assert is_across(kernel)
    assert kernel.predicted is not None and kernel.predicted.limit == "memory"


def test_pieces_of_whole_lines_are_shared() -> None:
    assert not is_across(kernel_of(softmax, (16, 16, 816, 64), "float16"))


def test_rows_in_one_piece_are_shared() -> None:
    assert not is_across(kernel_of(lambda x: fw.nn.softmax(x, axis=-1), (81600, 64), "float16"))


def test_every_sync_is_needed() -> None:
    kernels = across(softmax, (31, 77, 4), "float16")
    assert any(k.syncs for k in kernels)
    for k in kernels:
        proof = fw.verify(k)
        assert proof.ok and len(proof.necessary) == len(k.syncs)
