"""How groups walk memory: dimensions of the reference, strides of each access over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusewright as fw
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.common import reference_output
from fusewright.schedule.heuristics.traffic import StridedTraffic, traffic

P = fw.permute_dims


def of(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> StridedTraffic:
    fusion = fw.trace(fn, *[fw.TensorSpec(s, dtype) for s in shapes])
    flow = Dataflow(fusion)
    return traffic(flow, reference_output(flow))


def strides(t: StridedTraffic) -> list[list[str | None]]:
    """Of each access the stride for each dimension, None where it has none."""
    return [[str(w.strides[d]) if d in w.strides else None for d in t.dims] for w in t.walks]


def test_axes_that_all_accesses_cross_alike_are_one_dimension() -> None:
    t = of(lambda x, y: x + y, (4, 6, 8), (4, 6, 8))
    assert [str(d.extent) for d in t.dims] == ["192"]
    assert strides(t) == [["1"]] * 3


def test_a_broadcast_operand_lacks_a_dimension() -> None:
    t = of(lambda x, v: x + v, (4, 8), (8,))
    assert [str(d.extent) for d in t.dims] == ["4", "8"]
    assert sorted(map(str, strides(t))) == sorted(map(str, [["8", "1"], [None, "1"], ["8", "1"]]))


def test_a_transposed_operand_is_fast_along_another_dimension() -> None:
    t = of(lambda x, y: x + P(y, (1, 0)), (4, 8), (8, 4))
    fast = {w.tensor.name: str(w.fast.extent) for w in t.walks if w.fast is not None}
    assert sorted(fast.values()) == ["4", "8", "8"]


@pytest.mark.parametrize(
    ("dtype", "columns", "width"),
    [("float32", 64, 4), ("bfloat16", 64, 8), ("float32", 6, 2), ("float32", 7, 1)],
)
def test_widths_end_where_steps_do_not_divide(dtype: str, columns: int, width: int) -> None:
    t = of(lambda x, v: x + v, (4, columns), (columns,), dtype=dtype)
    full = 16 // t.walks[0].tensor.dtype.nbytes
    written = [w for w in t.walks if w.position is None]
    assert {w.width() for w in written} == {w.word_width() for w in t.walks} == {width}
    read = {w.width() for w in t.walks if w not in written}
    is_cut = 2 * width < full and dtype == "float32"
    assert read == ({full} if is_cut else {width})


def test_a_gathered_operand_cannot_be_told_as_strides() -> None:
    fusion = fw.trace(
        lambda x, i: fw.take(x, i, axis=0) * 2,
        fw.TensorSpec((9, 8), "float32"),
        fw.TensorSpec((4,), "int64"),
    )
    flow = Dataflow(fusion)
    found = traffic(flow, reference_output(flow))
    assert len(found.walks) < 3 and any(w.position is None for w in found.walks)
