"""Products on a device while warps are late at random: a thousand runs give the same bits, or, of
sums in the order of arrival, values within the roundings of their dtype.

Every warp spins for a time of its own, another one in each run, before each sync and each copy.
Runs are recorded in a CUDA graph, many to a launch; two graphs run on two streams at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from delayed_products import DELAYED_PROGRAMS, DelayedProgram

import fusewright as fw
from fusewright.runtime import device

torch = pytest.importorskip("torch")

RUNS = 1000
RECORDED = 50
"""Runs of one graph."""


def _tensor(a: np.ndarray) -> torch.Tensor:
    if a.dtype == fw.bfloat16.numpy:
        return torch.from_numpy(a.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(a).cuda()


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.int16)


@dataclass
class Recorded:
    """A graph of runs, and what each of them writes."""

    graph: torch.cuda.CUDAGraph
    results: list[list[torch.Tensor]]

    @staticmethod
    def of(call: Callable[[], list[torch.Tensor]]) -> Recorded:
        graph, results = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for _ in range(RECORDED):
                results.append(call())
        return Recorded(graph, results)

    def clear(self) -> None:
        for run in self.results:
            for t in run:
                t.reshape(-1).view(torch.uint8).fill_(0xFF)

    def count_wrong(self, is_wrong: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor:
        """How many runs are wrong."""
        return torch.stack([is_wrong(run) for run in self.results]).sum()


def differ(run: list[torch.Tensor], first: list[torch.Tensor]) -> torch.Tensor:
    """Whether a run's results differ from those of the first in a bit."""
    pairs = zip(run, first, strict=True)
    return torch.stack([(_bits(got) != _bits(want)).any() for got, want in pairs]).any()


def are_off(run: list[torch.Tensor], wanted: list[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Whether a run's results are off by more than they may be, or are no numbers."""
    pairs = zip(run, wanted, strict=True)
    off = [
        ~((got.double().reshape(want.shape) - want).abs() <= limit) for got, (want, limit) in pairs
    ]
    return torch.stack([e.any() for e in off]).any()


@pytest.mark.parametrize("case", DELAYED_PROGRAMS, ids=str)
def test_a_thousand_delayed_runs_give_the_same_bits(case: DelayedProgram) -> None:
    target = device.architecture()
    arrays = case.arrays()
    tensors = [_tensor(a) for a in arrays]
    prompt, late = case.program(target), case.delayed(target)
    first = [t.clone() for t in prompt(*tensors)]
    case.assert_right([t.float().cpu().numpy() for t in first])
    is_wrong = partial(differ, first=first)
    if not case.repeats_itself:
        wanted = [(torch.from_numpy(a).cuda(), limit) for a, limit in case.wanted()]
        is_wrong = partial(are_off, wanted=wanted)
    late(*tensors)
    torch.cuda.synchronize()
    recorded = [Recorded.of(lambda: late(*tensors)) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in recorded]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(-(-RUNS // (2 * RECORDED))):
        for r in recorded:
            r.clear()
        torch.cuda.synchronize()
        for r, s in zip(recorded, streams, strict=True):
            with torch.cuda.stream(s):
                r.graph.replay()
        torch.cuda.synchronize()
        for r in recorded:
            wrong += r.count_wrong(is_wrong)
    assert int(wrong) == 0
