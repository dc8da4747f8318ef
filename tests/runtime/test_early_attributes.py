"""Launches that begin early on a GPU: which have the attribute, and which edges of graphs are of
that kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeDriver
from fake_fixtures import gpu, torch
from fake_torch import FakeTorch, tensor

import fusewright as fw
from fusewright.program import Program
from fusewright.runtime.config import config

__all__ = ["gpu", "torch"]  # fixtures
STREAM = 7


def four(x: Any) -> Any:
    """Four kernels in a chain."""
    for k in range(4):
        x = fw.cumulative_sum(x * 2.0, axis=k % 2)
    return x


def diamond(a: Any, b: Any) -> Any:
    """Two branches, a scan and two sorts, which meet in a softmax."""
    x = fw.cumulative_sum(a, axis=0)
    y = fw.sort(fw.sort(b, axis=0) + a, axis=1)
    return fw.nn.softmax(fw.concat([x, y], axis=0), axis=0), x


def chain(execution: str = "stream") -> tuple[Program, np.ndarray]:
    x = np.random.default_rng(2).normal(size=(66, 40)).astype(np.float32)
    with config(early_launches=True):
        return fw.compile(fw.trace(four, fw.TensorSpec(x.shape, "float32"))), x


def checked(p: Program, x: np.ndarray) -> None:
    (y,) = p(tensor(x))
    np.testing.assert_allclose(y.array, fw.evaluate(p.fusion, x)[0], rtol=1e-4, atol=1e-3)


def test_all_but_the_first_launch_of_a_call_may_begin_early(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    p, x = chain()
    with config(execution="stream"):
        for _ in range(2):
            checked(p, x)
    assert gpu.early == [False, True, True, True] * 2
    assert not gpu.graphs


def test_programs_that_were_not_asked_have_no_attribute(gpu: FakeDriver, torch: FakeTorch) -> None:
    p = fw.compile(fw.trace(four, fw.TensorSpec((66, 40), "float32")))
    with config(execution="stream"):
        checked(p, chain()[1])
    assert gpu.early == [False] * 4
    checked(p, chain()[1])
    assert gpu.calls["cuGraphLaunch"] == 1 and gpu.early_edges == []


def test_edges_of_a_chain_are_of_that_kind(gpu: FakeDriver, torch: FakeTorch) -> None:
    p, x = chain()
    for _ in range(2):
        checked(p, x)
    assert gpu.calls["cuGraphLaunch"] == 2 and gpu.early == []
    for k, nodes in enumerate(gpu.graphs):
        assert [after for *_, after in nodes] == [(), (0,), (1,), (2,)]
        assert [e[1:] for e in gpu.early_edges if e[0] == k] == [(0, 1), (1, 2), (2, 3)]


def test_a_capture_gets_the_attribute_and_no_graph_of_ours(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    p, x = chain()
    torch.stream, torch.captured = STREAM, True
    gpu.capturing.add(STREAM)
    checked(p, x)
    assert gpu.early == [False, True, True, True] and not gpu.graphs


@pytest.mark.usefixtures("launched_apart")
def test_where_branches_meet_all_have_ended(gpu: FakeDriver, torch: FakeTorch) -> None:
    rng = np.random.default_rng(4)
    xs = [rng.uniform(0.5, 1.5, (900, 40)).astype(np.float32) for _ in range(2)]
    with config(early_launches=True):
        p = fw.compile(fw.trace(diamond, *[fw.TensorSpec(x.shape, "float32") for x in xs]))
    assert p.host.branches.count == 2
    wanted = fw.evaluate(p.fusion, *xs)

    def called() -> None:
        for y, want in zip(p(*map(tensor, xs)), wanted, strict=True):
            np.testing.assert_allclose(y.array, want, rtol=1e-4, atol=1e-4)

    called()
    into = {c: [p for _, p, k in gpu.early_edges if k == c] for c in range(len(p.launches))}
    edges = {c: [e.producer for e in p.host.edges if e.consumer == c] for c in into}
    assert any(len(before) == 2 for before in edges.values())
    for c, before in edges.items():
        assert into[c] == (before if len(before) == 1 else []), "a join waits for whole launches"
    gpu.early.clear()
    torch.stream, torch.captured = STREAM, True
    gpu.capturing.add(STREAM)
    called()
    assert gpu.early == [False] * len(p.launches), "behind events of other branches"
    gpu.capturing.clear()
    torch.captured = False
    gpu.early.clear()
    with config(execution="stream"):
        called()
    assert gpu.early == [False, *[True] * (len(p.launches) - 1)]


@pytest.mark.usefixtures("launched_apart")
def test_a_launch_of_no_block_leaves_the_next_one_the_first(
    gpu: FakeDriver, torch: FakeTorch
) -> None:
    """The kernel that waited for it may not begin before what others enqueued has ended."""

    def f(x: Any, y: Any, n: Any) -> Any:
        return fw.exp(x[:n]), fw.cumulative_sum(fw.sort(y, axis=0), axis=1)

    x, y = (np.random.default_rng(2).normal(size=(s, 40)).astype(np.float32) for s in (64, 33))
    fused, counts = fw.fuse(f, dynamic={"n": ()}), list[int]()
    for n in (5, 0):
        gpu.early.clear()
        with config(execution="stream", early_launches=True):
            found = fused(tensor(x), tensor(y), n)
        np.testing.assert_allclose(
            found[1].array, np.cumsum(np.sort(y, axis=0), axis=1), rtol=1e-4, atol=1e-4
        )
        assert not gpu.early[0] and all(gpu.early[1:])
        counts.append(len(gpu.early))
    assert counts[1] < counts[0]


def test_a_kernel_alone_has_no_attribute(gpu: FakeDriver) -> None:
    p, x = chain()
    kernel = p.launches[-1].kernel
    assert kernel.ir.begins_early
    np.testing.assert_allclose(kernel(x, device="cuda")[0], np.cumsum(x, axis=1), rtol=1e-4)
    assert gpu.early == [False]
