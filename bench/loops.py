"""What an iteration of a loop costs: `python -m bench.loops`, on a GPU, prints a line a case.

Each case is timed over whole calls of torch tensors, with 50 and with 1,050 iterations; the
difference is what 1,000 iterations cost, whatever a call costs: as launches of the body, by the
host and in a graph, and, where there is one, as the one kernel that runs all of them. Beside it:
the same loop written in torch, and torch.compile of its body called in a Python loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import fusewright as fw
from fusewright.programs import whole_loops

FEW, MANY = 50, 1050
MODES = "stream", "graph", "kernel"
MADE = "whole_loop", "loop_of_block"
"""What makes one kernel of a loop."""


def launched(*_: object) -> str:
    """Why iterations are launches of their own: these are timed."""
    return "launches are timed"


def counted(trips: int) -> Callable[[Any], Any]:
    """An elementwise body that changes its value in place."""
    return lambda x: fw.fori_loop(0, trips, lambda i, v: v * 0.999 + 0.001, x)


def rolling(trips: int) -> Callable[[Any], Any]:
    """A body that needs a second place."""
    return lambda x: fw.fori_loop(0, trips, lambda i, v: fw.roll(v, 1, axis=-1) * 0.999, x)


def rows(trips: int) -> Callable[[Any], Any]:
    """Rows that are reduced in every iteration."""
    return lambda x: fw.fori_loop(0, trips, lambda i, v: fw.nn.softmax(v, axis=-1) + v * 0.5, x)


def until(trips: int) -> Callable[[Any], Any]:
    """A condition on the device, which a counter decides."""

    def f(x: Any) -> Any:
        return fw.while_loop(
            lambda s: s[0] < trips, lambda s: (s[0] + 1, s[1] * 0.999 + 0.001), (0, x)
        )[1]

    return f


def at_its_index(trips: int) -> Callable[[Any], Any]:
    """Each iteration reads the row before and writes one."""

    def step(i: Any, v: Any) -> Any:
        j = i % 32
        return fw.insert(v, v[j : j + 1] * 0.999, (j + 1, 0))

    return lambda x: fw.fori_loop(0, trips, step, x)


CASES = {
    "fori_loop in place": counted,
    "fori_loop, two places": rolling,
    "fori_loop of rows": rows,
    "while_loop": until,
    "fori_loop at its index": at_its_index,
}


def microseconds(torch: Any, call: Callable[[], Any]) -> float:
    """Of a call, the least of seven."""
    times: list[float] = []
    call()
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - start))
    return min(times)


def iteration(torch: Any, make: Callable[[int], Callable[[Any], Any]], x: Any, mode: Any) -> float:
    """Microseconds of an iteration."""
    totals: list[float] = []
    for trips in (FEW, MANY):
        fusion = fw.trace(make(trips), fw.TensorSpec(tuple(x.shape), "float32"))
        if mode == "kernel":
            program = fw.compile(fusion)
        else:
            with mock.patch.multiple(whole_loops, **dict.fromkeys(MADE, launched)):
                program = fw.compile(fusion)
        with fw.config(execution="auto" if mode == "kernel" else mode):
            totals.append(microseconds(torch, lambda p=program: p(x)))
    return (totals[1] - totals[0]) / (MANY - FEW)


def in_torch(torch: Any, x: Any) -> tuple[float, float]:
    """Microseconds of an iteration of the elementwise body in torch, and compiled by it."""

    def body(v: Any) -> Any:
        return v * 0.999 + 0.001

    def loop(step: Callable[[Any], Any]) -> float:
        def run() -> None:
            v = x
            for _ in range(MANY):
                v = step(v)

        return microseconds(torch, run) / MANY

    return loop(body), loop(torch.compile(body))


def main() -> None:
    import torch

    print(torch.cuda.get_device_name(), time.strftime("%Y-%m-%d"))
    for shape in ((16, 32), (64, 64), (4096, 4096)):
        x = torch.randn(*shape, device="cuda")
        for name, make in CASES.items():
            each = [f"{m} {iteration(torch, make, x, m):.2f}" for m in MODES]
            print(f"{shape} {name}: us an iteration: {', '.join(each)}")
        eager, compiled = in_torch(torch, x)
        print(f"{shape} torch: {eager:.2f}; torch.compile: {compiled:.2f}")


if __name__ == "__main__":
    main()
