"""How products are computed: with operands copied, in slices, in halves, or as sums."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.forms import prepare
from fusewright.fusion.ir import MatMul, Reduce, Resize
from fusewright.host.product_forms import (
    LEAST_DEPTH,
    fastest_of,
    map_problem,
    product_slices,
    sizes_of,
    sum_of_products_reason,
)
from fusewright.kir.ir import BoxLoad, Mma
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler
from fusewright.schedule.heuristics.product_plans import (
    LEAST_TRIPS,
    ProductPlan,
    ProductSizes,
    with_splits,
)
from fusewright.schedule.heuristics.product_times import predicted_us
from fusewright.target import target_of

SM = target_of("sm_90a")


def _traced(fn: Any, *shapes: tuple[int | str, ...], dtype: str = "bfloat16") -> fw.Fusion:
    return fw.trace(fn, *(fw.TensorSpec(s, dtype) for s in shapes))


def _product(fusion: fw.Fusion) -> Any:
    return next(t for t in fusion.values if isinstance(t.op, MatMul))


def _products(kernel: fw.Kernel) -> int:
    return sum(isinstance(s, Mma) for s in walk_statements(kernel.ir))


# --- operands that are copied ---------------------------------------------------------------------


def test_a_copied_operand_lies_in_rows_that_a_map_takes() -> None:
    program = fw.compile(_traced(fw.matmul, (520, 1029), (1029, 328)))
    _, product = program.kernels
    strides = {b.name: b.strides for b in product.inputs}
    assert sorted(str(s) for s in strides.values()) == ["(1088, 1)", "(328, 1)"]
    assert any("its operand x1 is copied first" in str(r) for r in program.reasons), program.reasons


def test_products_share_what_is_copied() -> None:
    both = lambda x, v, w: (fw.matmul(x, v), fw.matmul(x, w))  # noqa: E731
    fusion = prepare(_traced(both, (520, 1029), (1029, 328), (1029, 200)), SM)
    pads = [t for t in fusion.values if isinstance(t.op, Resize) and str(t.shape[-1]) == "1088"]
    assert len(pads) == 1


@pytest.mark.parametrize(
    ("view", "axis"),
    [
        (lambda a: a, None),
        (lambda a: a[:, 8:], None),
        (lambda a: a[:, 1:], -1),
        (lambda a: a.T, None),
        (lambda a: a[:, 1:].T, -2),
        (lambda a: a[::2], None),
        (lambda a: a[:, ::2], -1),
    ],
)
def test_the_axis_that_is_fastest_stays_it(view: Any, axis: int | None) -> None:
    fusion = _traced(view, (64, 128))
    o = fusion.outputs[0]
    assert (None if map_problem(o) is None else fastest_of(o)) == axis


def test_rows_that_begin_inside_of_lines_are_copied_where_that_pays() -> None:
    def kernels(m: int, n: int, k: int) -> tuple[int, str]:
        program = fw.compile(_traced(lambda a, b: fw.matmul(a, b.T), (m, k), (n, k)))
        return len(program.launches), " ".join(map(str, program.reasons))

    launches, why = kernels(512, 4096, 8200)
    assert launches == 2 and why.count("its operand a is copied first, into rows of whole") == 1
    assert "operand b" not in why
    assert kernels(4096, 4096, 4104) == (1, "")  # blocks in clusters ask for half of the lines
    assert kernels(512, 1032, 1032) == (1, "")
    assert kernels(4096, 4096, 4096) == (1, "")


def test_a_repeated_operand_is_copied_once() -> None:
    fusion = prepare(_traced(fw.matmul, (3, 1024, 528), (528, 1028)), SM)
    wide = [t for t in fusion.values if isinstance(t.op, Resize) and str(t.shape[-1]) == "1088"]
    assert [len(t.shape) for t in wide] == [2]


def test_operands_of_unknown_size_are_not_copied() -> None:
    program = fw.compile(_traced(fw.matmul, (256, "k"), ("k", 256)))
    assert any("of unknown size: its rows lie k elements apart" in str(r) for r in program.reasons)
    assert not any(map(_products, program.kernels))


def test_small_products_are_done_before_a_copy_is() -> None:
    program = fw.compile(_traced(fw.matmul, (128, 65), (65, 96)))
    assert any("it is done before x1 (its rows lie 65" in str(r) for r in program.reasons)
    assert not any(map(_products, program.kernels))


# --- what stays a sum of products -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "is_sum"),
    [
        (((1, 4096), (4096, 4096)), True),
        (((2, 4096), (4096, 4096)), False),
        (((4096, 4096), (4096, 1)), True),
        (((4096, LEAST_DEPTH), (LEAST_DEPTH, 4096)), False),
        (((4096, LEAST_DEPTH - 1), (LEAST_DEPTH - 1, 4096)), True),
        (((64, 64), (64, 8)), False),
        (((63, 64), (64, 8)), True),
    ],
)
def test_edges_of_small(shapes: tuple[tuple[int, ...], ...], is_sum: bool) -> None:
    reason = sum_of_products_reason(_product(_traced(fw.matmul, *shapes)), SM)
    assert (reason is not None) == is_sum, reason


def test_slow_sums_say_how_slow() -> None:
    program = fw.compile(_traced(fw.matmul, (1024, 1024), (1024, 1024), dtype="float32"))
    (reason,) = [str(r) for r in program.reasons if "sum of products" in str(r)]
    assert "times slower than matrix instructions: there are no matrix instructions for" in reason


# --- slices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "least", "most"),
    [
        ((256, 256, 131072), 8, 132),
        ((1024, 1024, 65536), 4, 4),
        ((128, 128, 8192), 4, 132),
        ((4096, 4096, 65536), 1, 1),
        ((8192, 8192, 8192), 1, 1),
        ((64, 64, 64), 1, 1),
        ((256, 256, 8 * 16381), 1, 1),
    ],
)
def test_slices_fill_the_chip(shape: tuple[int, int, int], least: int, most: int) -> None:
    m, n, k = shape
    product = _product(_traced(fw.matmul, (m, k), (k, n)))
    count = product_slices(product, SM)
    assert least <= count <= most
    assert k % (8 * count) == 0


@pytest.mark.parametrize("shape", [(256, 256, 131072), (128, 128, 262144), (512, 1024, 32768)])
def test_long_depths_are_slices_and_explain_tells_of_blocks_that_share(
    shape: tuple[int, int, int],
) -> None:
    m, n, k = shape
    fusion = _traced(lambda a, b: fw.nn.relu(fw.matmul(a, b)), (m, k), (k, n))
    assert product_slices(_product(fusion), SM) > 1
    program = fw.compile(fusion)
    assert len(program.kernels) == 2 and program.host.stats["state_bytes"] == 0
    said = " ".join(str(r) for r in program.reasons)
    assert re.search(
        r"then summed: .*whole .* us, .* kernel .* us, in one kernel slices .* us, .*"
        r"turns by the copy engine, back too .* us; fw.tune",
        said,
    )


def test_blocks_that_share_a_depth_are_candidates_behind_whole_tiles() -> None:
    fusion = _traced(fw.matmul, (256, 131072), (131072, 256))
    listed = MatmulScheduler(Dataflow(fusion), SM).candidates()
    plans = [c.plan for c in listed if isinstance(c, Candidate) and c.plan.cluster_size == 1]
    shared = [p.splits > 1 for p in plans]
    assert any(shared) and shared == sorted(shared)
    for p in plans:
        steps = -(-131072 // (p.depth * p.splits))
        assert p.splits == 1 or (steps >= LEAST_TRIPS and p.splits <= SM.multiprocessors * 2)


def test_blocks_share_no_depth_whose_parts_are_large_beside_the_operands() -> None:
    sizes = ProductSizes(1, 512, 512, 4096)
    plan = ProductPlan(128, 128, 64, 2, 4)
    assert list(with_splits(plan, sizes, SM)) == []
    found = list(with_splits(plan, replace(sizes, depth=1 << 17), SM))
    assert [p.splits for p in found] == [4, 8, 16]
    assert min(predicted_us(sizes, p, SM) for p in found) < predicted_us(sizes, plan, SM)


def test_blocks_share_the_depth_of_symbolic_products_nowhere() -> None:
    program = fw.compile(_traced(fw.matmul, ("m", 65536), (65536, 256)))
    assert not any(k.ir.semaphores for k in program.kernels)


def test_slices_of_symbolic_products_are_not_made() -> None:
    product = _product(_traced(fw.matmul, ("m", 65536), (65536, 256)))
    assert product_slices(product, SM) == 1
    assert sizes_of(product).depth == 65536


def test_slices_are_a_batch_that_is_summed_in_order() -> None:
    fusion = prepare(_traced(fw.matmul, (128, 8192), (8192, 96)), SM)
    product = _product(fusion)
    (total,) = [t for t in fusion.values if isinstance(t.op, Reduce)]
    assert str(product.dtype) == str(total.dtype) == "float32"
    assert total.op.operands[0] is product
    assert total.op.axes == (0,)


def test_slices_are_said() -> None:
    program = fw.compile(_traced(fw.matmul, (128, 8192), (8192, 96)))
    assert any("slices of its rows are multiplied, then summed" in str(r) for r in program.reasons)


# --- halves ---------------------------------------------------------------------------------------


def _halves(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    return fw.nn.silu(h[:, :64]) * h[:, 64:]


def test_halves_read_the_first_operand_once() -> None:
    (kernel,) = fw.compile(_traced(_halves, (128, 64), (64, 128))).kernels
    maps = [s.map.buffer for s in walk_statements(kernel.ir) if isinstance(s, BoxLoad)]
    assert len(set(maps)) == 3
    assert _products(kernel) > 0


def test_only_what_is_read_of_a_product_is_computed() -> None:
    part = lambda x, w: fw.nn.relu(fw.matmul(x, w))[16:, :64]  # noqa: E731
    fusion = prepare(_traced(part, (128, 64), (64, 128)), SM)
    assert [str(e) for e in _product(fusion).shape] == ["112", "64"]


def test_parts_that_no_map_takes_are_read_of_the_whole_product() -> None:
    """An operand that begins 3 elements into its memory would be copied first."""
    part = lambda x, w: fw.exp(fw.matmul(x, w)[:, 3:])  # noqa: E731
    fusion = prepare(_traced(part, (128, 64), (64, 128)), SM)
    assert [str(e) for e in _product(fusion).shape] == ["128", "128"]


def test_parts_of_a_batch_are_read_of_all_products() -> None:
    part = lambda x, w: fw.exp(fw.matmul(x, w)[1:])  # noqa: E731
    fusion = prepare(_traced(part, (3, 128, 64), (3, 64, 128)), SM)
    assert [str(e) for e in _product(fusion).shape] == ["3", "128", "128"]


def _uneven(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    return h[:, :64] * h[:, 32:96]


def _also_whole(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    return h[:, :64] * h[:, 64:], fw.sum(h, axis=0)


def _apart(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    return fw.exp(h[:, :64]), fw.tanh(h[:, 64:])


def _an_output(x: Any, w: Any) -> Any:
    h = fw.matmul(x, w)
    return h, h[:, :64] * h[:, 64:]


@pytest.mark.parametrize("fn", [_uneven, _also_whole, _apart, _an_output])
def test_other_parts_are_read_of_one_product(fn: Any) -> None:
    fusion = prepare(_traced(fn, (128, 64), (64, 128)), SM)
    assert sum(isinstance(t.op, MatMul) for t in fusion.values) == 1


def test_halves_of_sums_of_products_stay() -> None:
    fusion = _traced(_halves, (128, 64), (64, 128), dtype="float32")
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((128, 64), (64, 128))]
    got, want = program.simulate(*arrays).outputs[0], fw.evaluate(fusion, *arrays)[0]
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


# --- predicted times ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "shapes", "measured_us"),
    [
        (lambda x, w: fw.matmul(x, w.T), ((4096, 4096), (4096, 4096)), 174.5),
        (lambda x, w: fw.matmul(x, w.T), ((8192, 8192), (8192, 8192)), 1379.0),
        (lambda x, w: fw.matmul(x, w), ((8192, 4096), (4096, 8192)), 701.6),
        (lambda x, w: fw.matmul(x, w.T), ((128, 4096), (4096, 4096)), 14.4),
        (
            lambda x, g, u: fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T),
            ((8192, 4096), (14336, 4096), (14336, 4096)),
            2438.0,
        ),
    ],
)
def test_predicted_times_are_those_of_boxes_and_instructions(
    fn: Any, shapes: tuple[tuple[int, ...], ...], measured_us: float
) -> None:
    """Measured on an H200, 2026-11-22 (notes/measured.md, "Matrix products, scheduled"; that of 128
    rows the day after, bench/product-plans-2026-11-23-h200.json)."""
    (kernel,) = fw.compile(_traced(fn, *shapes)).kernels
    assert kernel.predicted is not None
    assert abs(kernel.predicted.us / measured_us - 1) < 0.1
