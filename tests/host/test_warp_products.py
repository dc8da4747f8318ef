"""Programs with products on the instructions of single warps, and when they are chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from product_programs import CASES, Case, assert_right

import fusewright as fw
from fusewright.kir.ir import LdMatrix, Mma, WarpMma
from fusewright.kir.traverse import walk_statements

BF16 = "bfloat16"


def _count(program: fw.Program, kind: type) -> int:
    found = (s for k in program.kernels for s in walk_statements(k.ir))
    return sum(isinstance(s, kind) for s in found)


def _compiled(fn: Any, *shapes: tuple[int | str, ...], target: str, **spec: Any) -> fw.Program:
    return fw.compile(fw.trace(fn, *(fw.TensorSpec(s, BF16, **spec) for s in shapes)), target)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_corpus_is_right_on_a_target_without_warpgroups(case: Case) -> None:
    fusion, arrays = case.fusion(), case.arrays()
    program = fw.compile(fusion, target="sm_80")
    assert _count(program, WarpMma) and not _count(program, Mma)
    result = program.simulate(*arrays)
    assert result.races == []
    assert_right(case, result.outputs, fw.evaluate(fusion, *arrays))


@pytest.mark.parametrize("target", ["sm_86", "sm_89", "sm_90", "sm_120"])
def test_every_sync_of_a_gated_pair_is_needed(target: str) -> None:
    program = _compiled(
        lambda x, g, u: fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T),
        (150, 136), (120, 136), (120, 136), target=target,
    )  # fmt: skip
    (kernel,) = program.kernels
    report = fw.verify(kernel)
    assert (report.missing, report.redundant) == ([], [])
    found = kernel.resources()
    assert (found.spill_stores, found.warnings) == (0, ())


def test_a_symbolic_number_of_rows() -> None:
    program = _compiled(lambda x, w: fw.matmul(x, w.T), ("m", 128), (96, 128), target="sm_80")
    rng = np.random.default_rng(0)
    for m in (2, 77, 200):
        x, w = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((m, 128), (96, 128)))
        result = program.simulate(x, w)
        assert result.races == []
        wanted = x.astype(np.float64) @ w.astype(np.float64).T
        error = np.abs(result.outputs[0].astype(np.float64) - wanted).max()
        assert error <= 2**-7 * np.abs(wanted).max()


# --- the choice on a target with warpgroups -------------------------------------------------------


def test_rows_that_no_box_takes_are_read_in_place_where_copies_take_longer() -> None:
    program = _compiled(fw.matmul, (520, 1028), (1028, 332), target="sm_90a")
    assert len(program.kernels) == 1 and _count(program, LdMatrix) and not _count(program, Mma)
    assert any("single warps multiply it in" in str(r) for r in program.reasons)
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((520, 1028), (1028, 332)))
    result = program.simulate(x, w)
    assert result.races == []
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * wanted.max()


def test_large_products_are_copied_for_warpgroups() -> None:
    program = _compiled(fw.matmul, (4096, 4100), (4100, 4096), target="sm_90a")
    assert _count(program, Mma) and not _count(program, WarpMma)


def test_boxes_are_preferred_where_they_take_both_operands() -> None:
    program = _compiled(fw.matmul, (512, 1024), (1024, 328), target="sm_90a")
    assert _count(program, Mma) and not _count(program, WarpMma)


def test_misaligned_memory_is_copied_by_fewer_bytes() -> None:
    program = _compiled(fw.matmul, (256, 512), (512, 256), target="sm_80", alignment=4)
    assert _count(program, LdMatrix)
    assert " width 2" in str(program.kernels[0].ir)


def test_an_operand_that_is_moved_is_stored_and_the_other_one_is_read_in_place() -> None:
    """The crop of the second operand has rows of odd length where it is stored, which nobody copies
    by words, and even ones where it lies."""

    def fn(a: fw.Array, b: fw.Array) -> fw.Array:
        return fw.matmul(fw.flip(a, axis=-1), b[1:131, 4:67])

    program = _compiled(fn, (63, 130), (133, 68), target="sm_90a")
    assert len(program.kernels) == 2 and _count(program, LdMatrix)
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=n).astype(fw.bfloat16.numpy) for n in ((63, 130), (133, 68)))
    result = program.simulate(a, b)
    assert result.races == []
    wanted = a[:, ::-1].astype(np.float64) @ b[1:131, 4:67].astype(np.float64)
    assert np.abs(result.outputs[0].astype(np.float64) - wanted).max() <= 2**-7 * wanted.max()
