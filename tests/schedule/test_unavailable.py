"""What schedules name but lowering does not make yet is refused, and says what to do instead."""

from __future__ import annotations

import pytest

import fusewright as fw


def schedule() -> fw.Schedule:
    return fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((8, 64), "float32")))


@pytest.mark.parametrize("kind", [fw.Bulk, fw.Mma])
def test_bindings(kind: object) -> None:
    s = schedule()
    with pytest.raises(fw.UnsupportedError, match="bind the axis to a grid or block dimension"):
        s.outputs[0].parallelize(0, kind)


def test_edits() -> None:
    t = schedule().outputs[0]
    with pytest.raises(fw.UnsupportedError, match="rfactor the reduction"):
        t.request_serial_grid_reduction("tma")
    with pytest.raises(fw.UnsupportedError, match="matrix instructions"):
        t.mma()
