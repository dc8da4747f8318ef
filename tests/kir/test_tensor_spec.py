# ruff: noqa: E501  (kernel texts, one case a line)
"""Every check of tensor maps, tiles, products and register pools refuses what it is there for."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from product_kernels import Ring, packed

from fusewright.errors import SpecError
from fusewright.kir.ir import BoxLoad
from fusewright.kir.spec import check_kernel
from fusewright.kir.tensor_spec import TENSOR_CHECKS
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements

MAP = """map m: x sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128
  map r: y sizes (64, 64) strides (1, 64) box (32, 64) swizzle 128 rounding tf32"""


def _text(body: str, *, header: str = MAP, nthreads: int = 128, allocs: str = "") -> str:
    return f"""kernel k {{
  symbol n in [1, 512]
  param x: bfloat16[4096] align 16
  param z: bfloat16[4096] align 2
  param y: float32[4096] align 16
  {header}
  grid (bx < 4)
  block (tx < {nthreads})
  min_blocks 1
  shared a: bfloat16[8192] tile 64 x 64 swizzle 128
  shared b: bfloat16[4096] tile 32 x 128 swizzle 64
  shared p: bfloat16[4096] tile 64 x 64
  shared g: float32[1024] align 1024
  shared w: float32[2048] tile 64 x 32 swizzle 128
  shared i: int32[2048] tile 64 x 32 swizzle 128
  shared f: uint64[1]
  local acc: float32[160]
  local h: bfloat16[16]
  {allocs}
  {body}
}}
"""


GOOD = """
  prefetch_map m by thread 0
  box_load a[4096] = m at (0, 16*bx) on f[0] by thread 0
  box_store m at (0, 0) = a[0] by thread 0
  box_reduce.add m at (0, 0) = a[0] by thread 0
  mma_fence #0
  for (k < 4) {
    mma acc[0] = k_major a[4096*(bx % 2) + 16*k] * mn_major a[1024*k] n 64 accumulate (0 < k)
  }
  mma acc[32] = h[0] * k_major b[1040] n 32
  box_load w[0] = r at (0, 16*bx) on f[0] by thread 0
  mma acc[96] = k_major w[8] * k_major w[0] n 32
  async_commit #1 kind(mma)  // stage
  async_wait #2 kind(mma) keep(1)
  h[0] = ldmatrix a[8*tx] count 4 transposed
  stmatrix a[8*tx] = h[8] count 2
  warp_mma acc[0] = h[0] * h[8]
"""

REFUSED: list[tuple[str, str, str]] = [
    ("operands", "mma acc[0] = k_major a[0] * k_major a[0] n 12", "12 columns are not a multiple of 8 from 8 to 256"),
    ("operands", "mma acc[0] = k_major a[0] * k_major a[0] n 264", "264 columns are not a multiple"),
    ("operands", "mma acc[0] = k_major a[0] * k_major a[0] n 128", "128 rows, but a tile of a has 64"),
    ("operands", "mma acc[0] = k_major a[8] * k_major a[0] n 64", "the index 8 is not at a multiple of 16 columns"),
    ("operands", "mma acc[0] = k_major a[64] * k_major a[0] n 64", "may lie off the first row of a group of 8"),
    ("operands", "mma acc[0] = k_major a[0] * mn_major a[64] n 64", "the index 64 is not at a multiple of 8 rows of a panel"),
    ("operands", "mma acc[0] = k_major a[0] * mn_major a[0] n 96", "96 columns are not whole panels of 64 of a"),
    ("operands", "mma acc[0] = k_major a[0] * k_major p[0] n 64", "p has no swizzled tile"),
    ("operands", "mma acc[0] = k_major a[0] * k_major g[0] n 64", "the operands of a product have one dtype"),
    ("operands", "mma acc[0] = k_major w[0] * mn_major w[0] n 32", "of float32 they are k, as only elements of 2 bytes are read across"),
    ("operands", "mma acc[0] = k_major w[4] * k_major w[0] n 32", "the index 4 is not at a multiple of 8 columns"),
    ("operands", "mma acc[0] = acc[80] * k_major w[0] n 32", "acc is float32; operands in registers have 2 bytes"),
    ("operands", "mma acc[0] = k_major i[0] * k_major i[0] n 64", "i is int32; products take bfloat16 and float16 and float8_e4m3 and float8_e5m2 and float32"),
    ("operands", "box_store r at (0, 0) = w[0] by thread 0", "r rounds what is read to tf32; store through another"),
    ("operands", "mma h[0] = k_major a[0] * k_major a[0] n 16", "accumulators are float32, h is bfloat16"),
    ("operands", "warp_mma acc[0] = acc[4] * acc[12]", "acc is float32; products take bfloat16 and float16"),
    ("operands", "h[0] = ldmatrix a[8*tx] count 3", "3 matrices are not one of 1, 2, 4"),
    ("operands", "acc[0] = ldmatrix g[4*tx] count 4", "matrices have elements of 2 bytes"),
    ("operands", "stmatrix x[8*tx] = h[0] count 4", "x lives in global memory where the statement wants shared memory"),
    ("operands", "box_load b[0] = m at (0, 0) on f[0] by thread 0", "m has swizzle 128, the tile of b swizzle 64"),
    ("operands", "box_load a[64] = m at (0, 0) on f[0] by thread 0", "the index 64 is not a multiple of 512"),
    ("operands", "box_load a[0] = m at (0) on f[0] by thread 0", "1 coordinates for the 2 dimensions of m"),
    ("operands", "box_store m at (0, 0) = g[0] by thread 0", "float32 meets bfloat16; a copy keeps the dtype"),
    ("operands", "box_reduce.mul m at (0, 0) = a[0] by thread 0", "there is no bulk reduction 'mul' of bfloat16"),
    ("operands", "set_max_registers 20", "20 registers are not a multiple of 8 from 24 to 256"),
    ("operands", "set_max_registers 44", "44 registers are not a multiple of 8 from 24 to 256"),
    ("operands", "async_wait #0 kind(mma) reads_only(true)", "groups of kind mma have no wait for reads only"),
    ("single issuers", "box_load a[0] = m at (0, 0) on f[0] by thread 200", "thread 200 issues it, but only threads 0 .. 127 come here"),
    ("warpgroups", "if (tx < 32) { mma_fence #0 }", "the threads of a warpgroup meet here, but may disagree on tx < 32"),
    ("warpgroups", "mma acc[0] = k_major a[4096*(tx // 64)] * k_major a[0] n 64", "may disagree on 4096*(tx//64)"),
    ("warpgroups", "roles { role warps 0..2 { async_wait #0 kind(mma) } }", "threads 0 .. 63 come here"),
    ("register pool", "set_max_registers 40 grows", "each thread begins with 512 registers; 40 of them gives registers back"),
]  # fmt: skip

MAPS: list[tuple[str, str]] = [
    ("map m: y sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128", "rows of 256 bytes, but swizzle 128"),
    ("map m: x sizes (64, 64) strides (1, 60) box (64, 64) swizzle 128", "the stride of 60 elements is not known to be 16-byte steps"),
    ("map m: x sizes (64, 64) strides (1, n) box (64, 64) swizzle 128", "the stride of n elements is not known"),
    ("map m: x sizes (64, 64) strides (64, 1) box (64, 64) swizzle 128", "the fastest dimension has stride 64"),
    ("map m: x sizes (64, 64) strides (1, 64) box (64, 257) swizzle 128", "257 elements of a box are not 1 to 256"),
    ("map m: x sizes (64, 64) strides (1) box (64, 64) swizzle 128", "2 sizes, 1 strides and a box of 2 dimensions"),
    ("map m: x sizes (64, 64) strides (1, 64) box (64, 64) swizzle 16", "swizzle 16 is not one of 0, 32, 64, 128"),
    ("map m: x sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128 rounding tf32", "it rounds bfloat16 to tf32; only float32 is rounded"),
    ("map m: y sizes (64, 64) strides (1, 64) box (32, 64) swizzle 128 rounding tf16", "it rounds to 'tf16', which is not one of tf32"),
    ("map m: x sizes (64, 64) strides (1, 64) box (4, 64)", "rows of 8 bytes are not a multiple of 16"),
    ("map m: z sizes (64, 64) strides (1, 64) box (64, 64) swizzle 128", "z is aligned to 2 bytes, not to 16"),
]  # fmt: skip

ALLOCS: list[tuple[str, str]] = [
    ("shared t: bfloat16[100] tile 64 x 64", "100 elements are not whole tiles of 4096"),
    ("shared t: bfloat16[4096] tile 64 x 64 swizzle 128 align 512", "t is aligned to 512 bytes, its tiles to 1024"),
    ("shared t: bfloat16[768] tile 8 x 96 swizzle 128", "96 columns are not whole panels of 64"),
    ("shared t: bfloat16[256] tile 4 x 64 swizzle 128", "4 rows of a swizzled tile are not a multiple of 8"),
    ("shared t: bfloat16[512] tile 8 x 64 swizzle 48", "swizzle 48 is not one of 0, 32, 64, 128"),
    ("local t: bfloat16[512] tile 8 x 64", "t lives in local memory; tiles lie in shared memory"),
]  # fmt: skip


def test_what_is_right_passes_and_prints_as_it_parses() -> None:
    kernel = parse_kernel(_text(GOOD))
    check_kernel(kernel, "lowered")
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(("check", "body", "message"), REFUSED, ids=[m[:40] for *_, m in REFUSED])
def test_a_wrong_statement_is_refused(check: str, body: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(parse_kernel(_text(body)), "lowered")
    assert message in str(error.value) and f"check '{check}'" in str(error.value)


@pytest.mark.parametrize(("header", "message"), MAPS, ids=[m[:40] for _, m in MAPS])
def test_a_wrong_map_is_refused(header: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(parse_kernel(_text("", header=header)), "lowered")
    assert message in str(error.value) and "check 'tensor maps'" in str(error.value)


@pytest.mark.parametrize(("allocs", "message"), ALLOCS, ids=[m[:40] for _, m in ALLOCS])
def test_a_wrong_tile_is_refused(allocs: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        check_kernel(parse_kernel(_text("", allocs=allocs)), "lowered")
    assert message in str(error.value) and "check 'tiles'" in str(error.value)


def test_accumulators_that_overlap_in_part_are_refused() -> None:
    body = """mma acc[0] = h[0] * k_major a[0] n 64
  mma acc[16] = h[0] * k_major a[0] n 64"""
    kernel = packed(parse_kernel(_text(body)))
    with pytest.raises(SpecError, match=r"its registers 16 \.\. 47 of acc overlap 0 \.\. 31"):
        check_kernel(kernel, "final")


def test_an_accumulator_that_moves_with_a_loop_is_refused() -> None:
    body = "for (j < 2) { mma acc[48*j] = h[0] * k_major a[0] n 64 }"
    kernel = packed(parse_kernel(_text(body)))
    with pytest.raises(SpecError, match=r"the accumulator acc\[48\*j\] has no literal index"):
        check_kernel(kernel, "final")


def test_registers_beyond_the_pool_are_refused() -> None:
    text = Ring(128, 128, 64, 1, 3, 64).text()
    check_kernel(parse_kernel(text), "lowered")
    more = text.replace("set_max_registers 40", "set_max_registers 48")
    with pytest.raises(SpecError, match="3 warpgroups want 65536 registers together"):
        check_kernel(parse_kernel(more), "lowered")


def test_a_map_of_another_kernel_is_refused() -> None:
    kernel = parse_kernel(_text("prefetch_map m by thread 0"))
    with pytest.raises(SpecError, match="tensor map m is not in the header"):
        check_kernel(dataclasses.replace(kernel, maps=()), "lowered")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("map m: q sizes (1) strides (1) box (8)", "expected a buffer in scope"),
        ("map x: x sizes (1) strides (1) box (8)", "the name 'x' is taken"),
        ("map m: x strides (1) sizes (1) box (8)", "expected 'sizes', found 'strides'"),
    ],
)
def test_a_map_that_does_not_parse(header: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_kernel(_text("", header=header))


def test_a_statement_with_an_unknown_map_does_not_parse() -> None:
    with pytest.raises(SpecError, match=r"expected a tensor map of the header \(m, r\), found 'q'"):
        parse_kernel(_text("prefetch_map q by thread 0"))


def test_boxes_that_nobody_counts_are_given_an_mbarrier_first() -> None:
    kernel = parse_kernel(_text("box_load a[0] = m at (0, 0) by thread 0"))
    check_kernel(kernel, "lowered")
    with pytest.raises(SpecError, match="no mbarrier counts the bytes of the box"):
        check_kernel(kernel, "expanded")


def test_every_check_has_a_rejection() -> None:
    here = {"tensor maps", "tensor maps in scope", "tiles", "accumulators", "counted boxes"}
    assert {c.name for c in TENSOR_CHECKS} <= here | {check for check, *_ in REFUSED}


def test_a_division_outside_brackets_prints_in_brackets() -> None:
    body = "mbar_wait #0 f[0] parity ((bx + 1) // 2)"
    text = print_kernel(parse_kernel(_text(body)))
    assert "parity ((bx + 1)//2)" in text
    assert print_kernel(parse_kernel(text)) == text


def test_rows_of_a_box_are_counted_by_one_variable() -> None:
    """So that what an analysis keeps of a copy serves the passes behind it."""
    kernel = parse_kernel(_text(GOOD))
    s = next(s for s in walk_statements(kernel) if isinstance(s, BoxLoad))
    uses = [u for _ in range(2) for u in s.memory_uses() if u.run is not None]
    assert len(uses) == 2
    assert uses[0].run is uses[1].run and uses[0].index == uses[1].index
