"""What schedules name but lowering does not make yet is refused, and says what to do instead."""

from __future__ import annotations

import pytest

import fusewright as fw


def schedule() -> fw.Schedule:
    return fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((8, 64), "float32")))


def test_edits() -> None:
    t = schedule().outputs[0]
    with pytest.raises(fw.UnsupportedError, match="rfactor the reduction"):
        t.request_serial_grid_reduction("tma")
