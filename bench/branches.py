"""`python -m bench.branches`: launches that leave multiprocessors idle, beside each other, on one
GPU: microseconds of one producer, of four with branches of their own, of four that a caller
captured, and of four in a row."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import fusewright as fw
from fusewright.runtime.config import config

FUNCTIONS = (fw.exp, fw.abs, fw.negative, fw.sqrt)
"""Of producers that no launch joins, because they compute other things."""


def producers(*xs: Any) -> Any:
    """Sorts of rows: a block takes tens of microseconds for one."""
    return tuple(fw.sort(f(x), axis=1) for f, x in zip(FUNCTIONS, xs, strict=False))


def compiled(count: int, rows: int) -> tuple[Any, list[Any]]:
    """A program of so many producers, and its operands."""
    specs = [fw.TensorSpec((rows, 4096), "float32")] * count
    xs = [torch.rand(rows, 4096, device="cuda") for _ in range(count)]
    return fw.compile(fw.trace(producers, *specs)), xs


def microseconds(run: Callable[[], object]) -> float:
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


def main() -> None:
    """Four producers of a quarter of the chip each, a block a row."""
    rows = torch.cuda.get_device_properties(0).multi_processor_count // 4
    one, x = compiled(1, rows)
    four, xs = compiled(4, rows)
    four(*xs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        four(*xs)
    alone = microseconds(lambda: one(*x))
    beside = microseconds(lambda: four(*xs))
    replayed = microseconds(graph.replay)
    with config(execution="stream"):
        in_a_row = microseconds(lambda: four(*xs))
    print(f"{torch.cuda.get_device_name()}, {rows} rows a producer, microseconds and ratios to one")
    for name, time in (
        ("one", alone),
        ("four beside each other", beside),
        ("four captured by the caller", replayed),
        ("four in a row", in_a_row),
    ):
        print(f"{name:28} {time:8.1f} {time / alone:6.2f}")


if __name__ == "__main__":
    main()
