"""Vocabulary that has no lowering, or none for what it is asked of, is refused with the way out."""

from __future__ import annotations

import pytest

import fusewright as fw


def schedule() -> fw.Schedule:
    return fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=1), fw.TensorSpec((8, 64), "float32")))


@pytest.mark.parametrize(
    ("kind", "way_out"), [(fw.Bulk, r"cache_after\(by='bulk'\)"), (fw.Mma, r"call mma\(\)")]
)
def test_bindings(kind: object, way_out: str) -> None:
    with pytest.raises(fw.ScheduleError, match=way_out):
        schedule().outputs[0].parallelize(0, kind)


def test_edits() -> None:
    t = schedule().outputs[0]
    with pytest.raises(fw.ScheduleError, match="there is no such mode"):
        t.request_serial_grid_reduction("later")
    with pytest.raises(fw.ScheduleError, match=r"matrix instructions compute fw\.matmul"):
        t.mma()
