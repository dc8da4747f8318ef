"""What emitted code takes is counted in machine code, and shown beside what is in use."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from bench import code_counts

import fusewright as fw
from fusewright.core.instructions import CODE

TARGET = "sm_90a"


def test_a_longer_sum_takes_an_addition_and_an_access_more() -> None:
    spec = fw.TensorSpec((code_counts.SIZE,), "float32")
    few, more = (
        code_counts.kernel_of(code_counts.added(n), *[spec] * n, target=TARGET) for n in (2, 3)
    )
    own = code_counts.elements(few, code_counts.SIZE)
    assert own == code_counts.elements(more, code_counts.SIZE) and own % 4 == 0
    access = (code_counts.count(more) - code_counts.count(few) - own) / (own / 4)
    assert 1 <= access <= 2 * CODE.access


def test_the_table_has_counts_beside_figures_in_use() -> None:
    text = code_counts.table({"access": 3.0, "literal_division_8": 18.0})
    assert [line.split() for line in text.splitlines()] == [
        ["figure", "counted", "in", "use"],
        ["access", "3.0", "4.0"],
        ["literal_division_8", "18.0", "12.0"],
    ]
