"""Branches on a GPU: launches with room beside them run at once, in graphs of our own and in a
caller's capture."""

from __future__ import annotations

from typing import Any

import pytest

import fusewright as fw
from fusewright.runtime.config import config

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

ROWS = 33
"""Rows of a producer, a block each: a quarter of the multiprocessors of an H200."""
FUNCTIONS = (fw.exp, fw.abs, fw.negative, fw.sqrt)
"""Of producers that no launch joins, because they compute other things."""


def producers(*xs: Any) -> Any:
    """Sorts of rows: a block takes tens of microseconds for one."""
    return tuple(fw.sort(f(x), axis=1) for f, x in zip(FUNCTIONS, xs, strict=False))


def arrays(count: int) -> list[Any]:
    return [torch.rand(ROWS, 4096, device="cuda") for _ in range(count)]


def programs(count: int) -> tuple[Any, list[Any]]:
    xs = arrays(count)
    specs = [fw.TensorSpec(tuple(x.shape), "float32") for x in xs]
    return fw.compile(fw.trace(producers, *specs)), xs


def captured(program: Any, xs: list[Any]) -> tuple[Any, Any]:
    """A graph that the caller captures a call into, and its results."""
    program(*xs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = program(*xs)
    return graph, found


def test_a_captured_call_gives_the_same_bits_in_every_replay() -> None:
    program, xs = programs(4)
    assert program.host.branches.count == 4
    graph, found = captured(program, xs)
    with config(execution="stream"):
        want = [y.clone() for y in program(*xs)]
    for _ in range(100):
        for y in found:
            y.zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
