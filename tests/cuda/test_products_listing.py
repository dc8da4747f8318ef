"""Accumulators in disassemblies: who touches them before the wait for their product."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.cuda.listing import instructions
from fusewright.cuda.products_listing import early_uses
from fusewright.gates.code import code_problems

PRODUCT = "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR16], R24, gsb0"
SECOND = "HGMMA.64x16x16.F32.BF16 R32, gdesc[UR16], R32, gsb0"
NARROW = "F2FP.BF16.F32.PACK_AB R25, R25, R24"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
WAIT_ALL_BUT_ONE = "WARPGROUP.DEPBAR.LE gsb0, 0x1"


def early(*lines: str) -> list[str]:
    text = "\n".join(
        line if line.endswith(":") else f"        /*{16 * k:04x}*/   {line} ;"
        for k, line in enumerate(lines)
    )
    return [i.operands.strip() for i in early_uses(instructions(text))]


def test_a_read_behind_the_wait() -> None:
    assert early(PRODUCT, WAIT, NARROW) == []


def test_a_read_in_front_of_the_wait() -> None:
    assert early(PRODUCT, NARROW, WAIT) == ["R25, R25, R24"]


def test_other_registers_may_be_touched() -> None:
    assert early(PRODUCT, "F2FP.BF16.F32.PACK_AB R8, R33, R32", WAIT) == []


def test_a_wait_for_all_but_the_last_group() -> None:
    later = "F2FP.BF16.F32.PACK_AB R33, R33, R32"
    assert early(PRODUCT, SECOND, WAIT_ALL_BUT_ONE, NARROW, later, WAIT) == ["R33, R33, R32"]


def test_what_stands_behind_an_exit_belongs_to_other_warps() -> None:
    assert early(PRODUCT, "EXIT", NARROW) == []
    assert early(PRODUCT, "@P0 EXIT", NARROW) == ["R25, R25, R24"]


def test_a_way_out_of_a_loop_that_stands_behind_its_jump_back() -> None:
    loop = (".L_x_1:", PRODUCT, WAIT_ALL_BUT_ONE, "@!P0 BRA `(.L_x_2)", "BRA `(.L_x_1)", ".L_x_2:")
    assert early(*loop, NARROW, WAIT) == ["R25, R25, R24"]
    assert early(*loop, WAIT, NARROW) == []


def test_a_wait_on_one_of_two_ways() -> None:
    branch = ("@P0 BRA `(.L_x_1)", WAIT, ".L_x_1:")
    assert early(PRODUCT, *branch, NARROW) == ["R25, R25, R24"]
    assert early(PRODUCT, WAIT, *branch, NARROW) == []


def test_where_threads_meet_again_is_no_jump() -> None:
    assert early(PRODUCT, "BSSY B0, `(.L_x_1)", WAIT, ".L_x_1:", NARROW) == []


@pytest.mark.parametrize("rows", [16, 24])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_conversions_that_are_joined_wait_for_their_products(rows: int, dtype: str) -> None:
    """Of one row of operands exchanged, neighbours of a thread are stored one by one. ptxas joins
    their conversions, and would do so in front of the wait."""
    x, w = fw.TensorSpec((rows, 4096), dtype), fw.TensorSpec((4096, 4096), dtype)
    (kernel,) = fw.compile(fw.trace(lambda x, w: x @ w.T, x, w)).kernels
    assert code_problems(kernel) == []


@pytest.mark.parametrize("shape", [(130, 136, 128), (190, 136, 192), (257, 128, 72)])
def test_guarded_stores_wait_for_their_products(shape: tuple[int, int, int]) -> None:
    """Of what a guarded store writes nothing is computed in its branch, since ptxas would do that
    early, in front of the wait."""
    m, n, k = shape
    a, b = fw.TensorSpec((m, k), "bfloat16"), fw.TensorSpec((n, k), "bfloat16")
    fusion = fw.trace(lambda x, w: fw.astype(fw.nn.relu(x @ w.T), "float32"), a, b)
    (kernel,) = fw.compile(fusion).kernels  # threads store what boxes of 16 bits do not
    assert "fw_computed" in kernel.cuda
    assert code_problems(kernel) == []
