"""Zeros are divided, and their roots taken, on the way of usual numbers: machine code calls a
function for other sizes, which takes ten times as long."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.cuda.sass import sass


def _lines(fn: Callable[..., Any]) -> list[str]:
    specs = [fw.TensorSpec((1 << 16,), "float32")] * 2
    (kernel,) = fw.compile(fw.trace(fn, *specs), target="sm_90a").kernels
    text = sass(kernel.cubin())
    return [line.split("*/")[1].strip() for line in text.splitlines() if "*/" in line]


@pytest.mark.parametrize(
    ("fn", "asks"),
    [
        (lambda x, y: x / y, r"FCHK P\d, (R\d+)"),
        (lambda x, y: x / 3.0 + y, r"FCHK P\d, (R\d+)"),
        (lambda x, y: fw.sqrt(x) + y, r"MUFU\.RSQ R\d+, (R\d+)"),
    ],
)
def test_what_is_asked_for_its_size_is_no_zero(fn: Callable[..., Any], asks: str) -> None:
    chosen: set[str] = set()
    asked = 0
    for line in _lines(fn):
        if found := re.match(asks, line):
            asked += 1
            assert found.group(1) in chosen
        written = re.match(r"(?:@!?U?P\d )?([A-Z0-9.]+) (R\d+)", line)
        if written and written.group(1) == "FSEL":
            chosen.add(written.group(2))
        elif written:
            chosen.discard(written.group(2))
    assert asked == 4
