"""Branches on a GPU: launches with room beside them run at once, in graphs of our own and in a
caller's capture."""

from __future__ import annotations

from statistics import median
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


def microseconds(run: Any) -> float:
    """The time of a call that is replayed often, by events around twenty of them."""
    times: list[float] = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / 20)
    return median(times)


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


def test_four_producers_of_a_quarter_take_little_longer_than_one() -> None:
    one, x = programs(1)
    four, xs = programs(4)
    graph, _ = captured(four, xs)
    alone = microseconds(lambda: one(*x))
    beside = microseconds(lambda: four(*xs))
    replayed = microseconds(graph.replay)
    with config(execution="stream"):
        in_a_row = microseconds(lambda: four(*xs))
    print(
        f"one {alone:.1f} us, four {beside:.1f}, captured {replayed:.1f}, in a row {in_a_row:.1f}"
    )
    assert max(beside, replayed) <= 1.3 * alone
    assert in_a_row >= 3 * alone
