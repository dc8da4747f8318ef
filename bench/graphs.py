"""Times of functions as CUDA graphs of calls, which no host holds up, replayed in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Fn = Callable[..., Any]

ROUNDS = 11
"""That count; one before them warms up."""
ROUND_US = 3000.0
"""Of a graph, where so many calls are no more than `MOST_CALLS`."""
MOST_CALLS = 64


@dataclass(frozen=True, slots=True)
class Graph:
    """`replay()` runs so many `calls` of a function."""

    replay: Callable[[], None]
    calls: int


def graphed(fn: Fn, copies: Sequence[Sequence[Any]]) -> Graph:
    """A graph of calls, each on the next of the copies of the arguments, all of them as often."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    fn(*copies[0])
    start.record()
    for arrays in copies[:2]:
        fn(*arrays)
    stop.record()
    stop.synchronize()
    us = max(1.0, start.elapsed_time(stop) * 1000 / len(copies[:2]))
    turns = max(1, min(MOST_CALLS, int(ROUND_US / us)) // len(copies))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for arrays in copies:
                fn(*arrays)
    return Graph(graph.replay, turns * len(copies))


def rounds_us(graphs: Mapping[str, Graph]) -> dict[str, list[float]]:
    """Microseconds a call in each round, in which all graphs take turns."""
    import torch

    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS + 1):
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            samples[name].append(start.elapsed_time(stop) * 1000 / graph.calls)
    return {name: us[1:] for name, us in samples.items()}


def medians_us(graphs: Mapping[str, Graph]) -> dict[str, float]:
    """Medians of the rounds."""
    return {name: statistics.median(us) for name, us in rounds_us(graphs).items()}


def same_bits(fn: Fn, arrays: Sequence[Any], runs: int) -> bool:
    """Whether so many runs give the same bits."""
    import torch

    first = fn(*arrays).clone()
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(runs):
        differs |= (fn(*arrays) != first).any()
    return not bool(differs)
