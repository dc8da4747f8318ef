"""Products on matrix instructions: what becomes one kernel, right and without a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from product_programs import CASES, Case, assert_right

import fusewright as fw
from fusewright.dtypes import bfloat16
from fusewright.kir.analysis.accesses import find
from fusewright.kir.ir import BoxLoad, Mma
from fusewright.kir.traverse import walk_statements

BF16 = "bfloat16"


def _compiled(fn, *shapes, dtype: str = BF16) -> fw.Program:
    return fw.compile(fw.trace(fn, *(fw.TensorSpec(s, dtype) for s in shapes)))


def _count(kernel: fw.Kernel, kind: type) -> int:
    return sum(isinstance(s, kind) for s in walk_statements(kernel.ir))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_corpus_is_right_and_free_of_races(case: Case) -> None:
    fusion, arrays = case.fusion(), case.arrays()
    program = fw.compile(fusion)
    assert len(program.kernels) == case.kernels
    assert any(_count(k, Mma) for k in program.kernels)
    result = program.simulate(*arrays)
    assert result.races == []
    assert_right(case, result.outputs, fw.evaluate(fusion, *arrays))


def test_a_gated_pair_reads_the_shared_operand_once() -> None:
    program = _compiled(
        lambda x, g, u: fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T),
        (256, 256), (256, 256), (256, 256),
    )  # fmt: skip
    (kernel,) = program.kernels
    maps = [s.map.buffer.name for s in walk_statements(kernel.ir) if isinstance(s, BoxLoad)]
    assert sorted(maps) == ["g", "u", "x"]


@pytest.mark.parametrize(("is_causal", "width"), [(True, 64), (False, 80)])
def test_attention_is_two_products_by_instructions_and_the_softmax_between(
    is_causal: bool, width: int
) -> None:
    """The scores leave the first product with the mask applied, the weights the softmax with two
    bytes each: nothing else goes through memory."""
    fusion = fw.trace(
        lambda q, k, v: fw.nn.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        *[fw.TensorSpec((1, 2, 200, width), BF16)] * 3,
    )
    program = fw.compile(fusion)
    assert [_count(k, Mma) > 0 for k in program.kernels] == [True, False, True]
    rows = 2 * 200
    scores, weights, heads = rows * 200 * 4, rows * 200 * 2, rows * width * 2
    assert program.host.stats["bytes_moved"] == 2 * scores + 2 * weights + 4 * heads
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, 200, width)).astype(bfloat16.numpy) for _ in range(3)]
    made = program.simulate(*arrays, check_races=True)
    assert made.races == []
    got, expected = (np.asarray(x[0], float) for x in (made.outputs, fw.evaluate(fusion, *arrays)))
    np.testing.assert_allclose(got, expected, rtol=2**-7, atol=2**-9)


def test_analyses_look_at_as_much_of_long_rows_as_of_short_ones() -> None:
    """Python time is the same, then: 512 has 8 tiles of a row, 65,536 has 1024."""
    found = []
    for k in (2048, 65536):
        program = _compiled(lambda x, w: fw.matmul(x, w.T), (4096, k), (4096, k))
        (kernel,) = program.kernels
        run = find(kernel.ir).completions.run
        assert run is not None
        found.append(len(run.events))
    assert found[0] == found[1] < 700


# --- products that stay sums of products ----------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "dtype", "why"),
    [
        (((128, 64), (64, 96)), "float32", "no matrix instructions for float32"),
        (((128, 64), (64, 96)), "float64", "no matrix instructions for float64"),
        (((4, 64), (64, 96)), BF16, "4 x 96 x 64 is too small"),
        (((128, 65), (65, 96)), BF16, "its rows lie 65 elements apart"),
    ],
)
def test_sums_of_products_say_why(
    shapes: tuple[tuple[int, ...], ...], dtype: str, why: str
) -> None:
    program = _compiled(fw.matmul, *shapes, dtype=dtype)
    assert [r for r in map(str, program.reasons) if why in r]
    assert not any(_count(k, Mma) for k in program.kernels)


def test_other_targets_sum_products_that_single_warps_do_not_multiply() -> None:
    kind = "float8_e4m3"
    fusion = fw.trace(fw.matmul, fw.TensorSpec((128, 64), kind), fw.TensorSpec((64, 96), kind))
    program = fw.compile(fusion, target="sm_80")
    why = "sm_80 has no matrix instructions for float8_e4m3"
    assert any(why in str(r) for r in program.reasons)


def test_addresses_that_no_map_takes() -> None:
    spec = fw.TensorSpec((128, 64), BF16, alignment=2)
    program = fw.compile(fw.trace(fw.matmul, spec, fw.TensorSpec((64, 96), BF16)))
    assert any("a multiple of 2 bytes" in str(r) for r in program.reasons)


# --- what a kernel with a product does not take ---------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda a, b: fw.matmul(fw.exp(a), b), "a value that the same kernel computes"),
        (lambda a, b: fw.sum(fw.matmul(a, b), axis=0), "reads the stored result of a product"),
        (lambda a, b: fw.cumulative_sum(fw.matmul(a, b), axis=0), "stored result of a product"),
        (lambda a, b: fw.matmul(a, b) + fw.matmul(b.T, a.T), "shares no operand"),
    ],
)
def test_refusals_name_the_rule(fn, why: str) -> None:
    program = _compiled(fn, (128, 64), (64, 128))
    assert any(why in str(r) for r in program.reasons), program.reasons


@pytest.mark.refuses
def test_what_lowering_refuses_is_cut_behind_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose suffix lowering cannot place becomes two, and the product keeps its own."""
    import fusewright.driver as driver

    finish, refused = driver.finish, []

    def refuses(flow, *args, **kwargs):
        if len(flow.stages) > 5 and not refused:
            refused.append(flow)
            raise fw.ScheduleError("no place for it")
        return finish(flow, *args, **kwargs)

    monkeypatch.setattr(driver, "finish", refuses)
    program = _compiled(lambda a, b: fw.nn.relu(fw.matmul(a, b)), (128, 64), (64, 128))
    first, second = program.kernels
    assert _count(first, Mma) and not _count(second, Mma)
    assert any("cut in two: no place for it" in str(r) for r in program.reasons)


@pytest.mark.refuses
def test_a_product_that_lowering_refuses_is_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    import fusewright.driver as driver

    finish = driver.finish

    def refuses(flow, *args, **kwargs):
        if any(s.is_mma for s in flow.stages):
            raise fw.ScheduleError("no place for it")
        return finish(flow, *args, **kwargs)

    monkeypatch.setattr(driver, "finish", refuses)
    program = _compiled(lambda a, b: fw.nn.relu(fw.matmul(a, b)), (128, 64), (64, 128))
    assert not any(_count(k, Mma) for k in program.kernels)
    assert any("it is a sum of products: no place for it" in str(r) for r in program.reasons)


@pytest.mark.parametrize(("rows", "depth", "columns"), [((2, 64), 64, 128), ((3, 25), 72, 136)])
def test_a_gated_gradient_with_values_of_other_shapes_is_one_kernel(
    rows: tuple[int, int], depth: int, columns: int
) -> None:
    """What follows the product mixes values along its own axes with reshaped ones."""

    def gradient(x: Any, w: Any, gate: Any, up: Any) -> Any:
        d = fw.reshape(fw.matmul(fw.reshape(x, (-1, depth)), w), gate.shape)
        s = 1 + fw.exp(-gate)
        r = 1 / s
        return d * (gate / s), d * up * r * (1 + gate * (1 - r))

    shapes = [(*rows, depth), (depth, columns), (*rows, columns), (*rows, columns)]
    fusion = fw.trace(gradient, *[fw.TensorSpec(s, "bfloat16") for s in shapes])
    program = fw.compile(fusion)
    assert len(program.launches) == 1
    rng = np.random.default_rng(depth)
    arrays = [rng.standard_normal(s).astype(fw.bfloat16.numpy) for s in shapes]
    result = program.simulate(*arrays)
    assert not result.races
    for got, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-2, atol=2e-1)


def test_slices_of_exchanged_operands_are_summed_along_rows() -> None:
    """1025 rows are columns of tiles of 272. What the slices leave lies as it was written down, so
    that the kernel that sums them loads and stores vectors."""
    program = _compiled(lambda x, w: fw.matmul(x, w.T), (1025, 65536), (1024, 65536))
    _, sums = program.kernels
    assert "operands are exchanged" in str(fw.Report(program))
    assert "fw_load<4>" in sums.cuda and "fw_store<4>(" in sums.cuda
