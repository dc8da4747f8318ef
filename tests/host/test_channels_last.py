"""Images in channels-last memory run as the same program does that is written for that order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench.layouts import CASES, mean as mean_of, norm, program_of, scanned

import fusewright as fw
from fusewright.report.predicted import timed

SHAPE = (32, 256, 56, 56)

WRITTEN: dict[str, Callable[[Any], Any]] = {
    "norm over c, then n, h, w": lambda x: norm(fw, norm(fw, x, (3,)), (0, 1, 2)),
    "norm over h, w, then c": lambda x: norm(fw, norm(fw, x, (1, 2)), (3,)),
    "norm over n, h, w, then c": lambda x: norm(fw, norm(fw, x, (0, 1, 2)), (3,)),
    "norm over c, scan along w": lambda x: scanned(fw, norm(fw, x, (3,)), 2),
    "norm over c, scan along c": lambda x: scanned(fw, norm(fw, x, (3,)), 3),
    "norm over n, h, w, and skip": lambda x: fw.exp(norm(fw, x, (0, 1, 2))) + x,
    "sums of a norm": lambda x: mean_of(fw, fw.exp(norm(fw, x, (3,))), (1, 2)),
}
"""The cases with the axes of an image as (n, h, w, c)."""


def taken(program: fw.Program) -> list[object]:
    """What the launches are: kernels and how they were scheduled, bytes, predicted times."""
    stats = program.host.stats
    kernels = [(str(k.launch), str(k.heuristic)) for k in program.kernels]
    times = [round(float(t.us), 2) for t in timed(program)]
    counts = [stats[k] for k in ("launches", "copies", "bytes_moved", "critical_path")]
    return [kernels, times, counts]


@pytest.mark.parametrize("name", CASES)
def test_channels_last_is_what_one_writes_for_it(name: str) -> None:
    n, c, h, w = SHAPE
    last = program_of(CASES[name], SHAPE, last=True)
    written = fw.compile(fw.trace(WRITTEN[name], fw.TensorSpec((n, h, w, c), "float32")))
    assert taken(last) == taken(written)
