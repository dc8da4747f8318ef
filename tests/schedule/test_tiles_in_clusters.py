"""Rows of which one operand lies across, held as tiles by a cluster of blocks, and sums of columns
made of the same tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from witnesses import assert_right_by_the_syncs_it_needs

import fusewright as fw
from fusewright.fusion.partitioning import PartitionFacts, strip_of_tile
from fusewright.fusion.passes.strip_partials import strip_partials
from fusewright.fusion.text import parse_fusion
from fusewright.host.form import form
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.tile_plans import TileFacts, tiles_of
from fusewright.schedule.heuristics.work import work_of
from fusewright.target import target_of

Shape = tuple[int, ...]
TARGET = target_of("sm_90a")


def softmax_backward(y: Any, dy: Any) -> Any:
    return y * (dy - fw.sum(dy * y, axis=-1, keepdims=True))


def norm_backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    """Of a layer norm over the last axis: gradients of what was normalised, and of both weights."""
    g, hat = fw.astype(dy, fw.float32), fw.astype(x, fw.float32) * rstd
    d = g * w
    dx = d - hat * fw.mean(d * hat, axis=-1, keepdims=True) - fw.mean(d, axis=-1, keepdims=True)
    rest = tuple(range(x.ndim - 1))
    return fw.astype(dx * rstd, x.dtype), fw.sum(g * hat, axis=rest), fw.sum(g, axis=rest)


def down(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    """The same over the first axis, with one gradient."""
    g, hat = fw.astype(dy, fw.float32), fw.astype(x, fw.float32) * rstd
    d = g * w
    dx = (d - hat * fw.mean(d * hat, axis=0, keepdims=True)) * rstd
    return fw.astype(dx, x.dtype), fw.sum(g * hat, axis=tuple(range(1, x.ndim)))


def specs_of(shape: Shape, strides: Shape, dtype: str, axis: int) -> list[fw.TensorSpec]:
    """Of a norm's backward, the second operand across."""
    weight = tuple(n if k == axis else 1 for k, n in enumerate(shape))
    kept = tuple(1 if k == axis else n for k, n in enumerate(shape))
    across = fw.TensorSpec(shape, dtype, strides=strides)
    plain = [fw.TensorSpec(weight, dtype), fw.TensorSpec(kept, "float32")]
    return [fw.TensorSpec(shape, dtype), across, *plain]


def arrays_of(specs: list[fw.TensorSpec]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(specs))
    found: list[np.ndarray] = []
    for s in specs:
        shape = [int(str(n)) for n in s.shape]
        base = rng.standard_normal(shape).astype(s.dtype.numpy)
        steps = base.strides
        if s.strides is not None:
            steps = [int(str(n)) * s.dtype.nbytes for n in s.strides]
        found.append(np.lib.stride_tricks.as_strided(base.reshape(-1), shape, steps))
    return found


def first_kernel(program: fw.Program) -> str:
    return str(program.launches[0].kernel.heuristic)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((528, 3700), (1, 528)), ((8, 67, 3601), (1, 8, 536))],
    ids=["whole words", "odd rows, kept axes that lie apart"],
)
def test_a_cluster_holds_rows_of_which_one_operand_lies_across(
    shape: Shape, strides: Shape
) -> None:
    specs = [fw.TensorSpec(shape, "float32", strides=strides), fw.TensorSpec(shape, "float32")]
    program = fw.compile(fw.trace(softmax_backward, *specs), target="sm_90a")
    (kernel,) = program.kernels
    assert kernel.heuristic is not None and kernel.heuristic.scheduler == "inner_tiled"
    assert "cluster=" in first_kernel(program)
    assert kernel.resources().spill_stores == 0
    assert_right_by_the_syncs_it_needs(program, arrays_of(specs), rtol=1e-3, atol=1e-2)


STRIPS: dict[str, tuple[Callable[..., Any], Shape, Shape, str]] = {
    "rows of a block": (norm_backward, (1040, 256), (1, 1040), "bfloat16"),
    "rows of a cluster": (norm_backward, (1100, 1000), (1, 1100), "float16"),
    "odd in both": (norm_backward, (1201, 333), (1, 1201), "float32"),
    "kept axes in another order": (
        norm_backward, (243, 8, 272), (1, 243, 1944), "bfloat16",
    ),
    "a run across several axes in another order": (
        norm_backward, (4, 33, 151, 15), (1, 4, 132, 19932), "float16",
    ),
    "down": (down, (256, 9, 640), (1, 163840, 256), "bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRIPS)
def test_sums_of_columns_come_of_the_tiles_that_rows_are_held_in(name: str) -> None:
    fn, shape, strides, dtype = STRIPS[name]
    specs = specs_of(shape, strides, dtype, 0 if fn is down else len(shape) - 1)
    fusion = strip_partials(fw.trace(fn, *specs), TARGET, across=True)
    program = fw.compile(fusion, target="sm_90a")
    first, *small = [x.kernel for x in program.launches]
    assert first.heuristic is not None and first.heuristic.scheduler == "inner_tiled"
    assert "lines=" in first_kernel(program)
    assert all([int(str(n)) for n in p.shape] != list(shape) for k in small for p in k.inputs)
    assert_right_by_the_syncs_it_needs(program, arrays_of(specs), rtol=2e-2, atol=2e-1)


FACTS = TileFacts(
    inner=True,
    whole=11008,
    rows=4096,
    run=11008,
    others=4096,
    word=4,
    across_nbytes=4,
    read_registers=2,
    is_read_again=True,
    is_constant=True,
)


def test_blocks_that_stand_two_on_a_multiprocessor_share_a_row_if_they_hold_it() -> None:
    (plan,) = tiles_of(replace(FACTS, whole=2048), (4, 4), TARGET)
    assert (plan.cluster, plan.far, plan.near) == (1, 8, 2048)
    plans = [*tiles_of(FACTS, (4, 4), TARGET)]
    assert [(p.far, p.cluster, p.min_blocks) for p in plans] == [(8, 8, 2), (16, 8, 1)]
    assert all(p.near * p.cluster >= 11008 > p.near * (p.cluster - 1) for p in plans)
    assert all(p.near * p.far * 4 <= TARGET.shared_nbytes_of_several for p in plans)


def test_no_cluster_holds_rows_that_are_too_long_too_few_or_of_unknown_length() -> None:
    assert not [*tiles_of(replace(FACTS, whole=1 << 20), (4, 4), TARGET)]
    assert not [*tiles_of(replace(FACTS, rows=64), (4, 4), TARGET)]
    assert not [*tiles_of(replace(FACTS, is_constant=False), (4, 4), TARGET)]


def test_threads_of_strips_have_lines_of_their_own_in_whole_warps() -> None:
    for strip, sums, whole in ((16, 1, 8192), (32, 2, 1000), (64, 2, 68), (16, 2, 4097)):
        facts = replace(FACTS, whole=whole, word=8, strip=strip, sums=sums, read_registers=2)
        (plan,) = tiles_of(facts, (8, 8), TARGET)
        near, far = plan.threads_along
        assert plan.lines in (2, 4) and plan.threads % 32 == 0 and plan.threads <= 1024
        assert near * plan.far == plan.threads * plan.lines and plan.near % (near * 8) == 0
        assert max(near, far) % min(near, far) == 0
        assert plan.near * plan.cluster >= whole


def test_what_passes_share_takes_registers_of_what_is_computed_with() -> None:
    strip = replace(FACTS, whole=2048, word=8, strip=32, sums=2, across_nbytes=2)
    (plan,) = tiles_of(strip, (8, 8), TARGET)
    assert (plan.threads, plan.min_blocks) == (256, 2)  # 4 lines, 8 lanes, 2 inputs, 3 sums: 120
    assert strip.registers_of_element((8, 8)) == 2
    assert strip.registers_of_element((8, 1)) == 3  # and what comes across, a register each


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_model_counts_what_waits_for_the_exchanges_of_all_lines(dtype: str) -> None:
    shape = (1100, 1000)
    specs = specs_of(shape, (1, 1100), dtype, 1)
    fusion = strip_partials(fw.trace(norm_backward, *specs), TARGET, across=True)
    kernel = fw.compile(fusion).kernels[0]
    assert kernel.segment is not None and kernel.heuristic is not None
    flow = kernel.segment.dataflow()
    counted = work_of(flow, schedule_group(flow, TARGET, kernel.heuristic)).registers
    assert "lines=4" in str(kernel.heuristic)
    assert counted * 0.75 <= kernel.resources().registers <= counted * 1.25


def test_tiles_do_not_lie_far_beyond_short_rows() -> None:
    facts = replace(FACTS, whole=66, word=8, strip=16, sums=1, read_registers=2)
    (plan,) = tiles_of(facts, (8, 8), TARGET)
    assert plan.near * plan.cluster <= 66 * 3 / 2


PARTS = """x: float32[512, 4096] = Input(strides=(4096, 1), alignment=16)
p: float32[512, 16, 256] = Parts(x, axes=(1,), partition=CUT, fill=0.0)
a: float32[512, 16] = Reduce(p, fn='add', axes=(2,))
b: float32[4096] = Reduce(x, fn='add', axes=(0,))
return a, b"""


def test_only_a_cut_in_strips_stands_beside_the_columns_that_it_cuts() -> None:
    cut = "Partition(size=4096, count=16, each=256, is_strip=IS_STRIP)"
    for is_strip, groups in ((True, 1), (False, 2)):
        text = PARTS.replace("CUT", cut.replace("IS_STRIP", str(is_strip)))
        assert len(form(parse_fusion(text)).groups) == groups


def test_strips_are_as_wide_as_a_tile_that_fits_and_lose_few_lanes() -> None:
    facts = PartitionFacts((4096,), 8192, 1, 1, 2, is_inner=True, is_crossed=True)
    assert strip_of_tile(facts, 8192, 4, TARGET) == 32
    assert strip_of_tile(replace(facts, lengths=(1024,)), 8192, 4, TARGET) == 64
    assert strip_of_tile(replace(facts, lengths=(1 << 20,)), 8192, 4, TARGET) == 0
    assert strip_of_tile(facts, 40, 4, TARGET) == 0


def test_only_what_lies_across_is_cut_in_strips_of_tiles() -> None:
    across = fw.trace(norm_backward, *specs_of((1040, 512), (1, 1040), "bfloat16", 1))
    along = fw.trace(norm_backward, *specs_of((1040, 512), (512, 1), "bfloat16", 1))
    assert strip_partials(across, TARGET, across=True) is not across
    assert strip_partials(along, TARGET, across=True) is along
