"""Matrix products as CUDA: the text, and what ptxas makes of it. Needs no GPU."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))

from product_kernels import Product, Ring, packed

import fusewright as fw
from fusewright.cuda.compile import Compiled, compile_cubin
from fusewright.cuda.emit import emit, emit_module, parameters, sync_ids_in_ptx
from fusewright.cuda.resources import resources
from fusewright.cuda.sass import sass
from fusewright.errors import UnsupportedError
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.sim.verify import syncs_of
from fusewright.target import target_of
from product_suite import SUITE

TARGET = target_of("sm_90a")
RIGHT = [c for c in SUITE if not c.wrong]


def _compiled(kernel: ir.Kernel) -> Compiled:
    return compile_cubin(emit(kernel, TARGET), TARGET, name=kernel.name)


def _assert_clean(kernel: ir.Kernel, compiled: Compiled) -> Counter[str]:
    """No message of ptxas, spill, stack or local memory; every sync reached the PTX; the
    instructions by name."""
    (used,) = resources(compiled.log).values()
    assert used.warnings == () and "C75" not in compiled.log
    assert (used.spill_stores, used.spill_loads, used.stack_nbytes) == (0, 0, 0)
    assert sync_ids_in_ptx(compiled.ptx) == {s.id for s in syncs_of(kernel)}
    found = Counter(re.findall(r"\*/\s+(?:@!?U?P\d\s+)?([A-Z0-9]+)\b", sass(compiled.cubin)))
    assert not found["STL"] and not found["LDL"]
    return found


@pytest.mark.parametrize(
    "case",
    [
        Product(),
        Product(n=256, k=128),
        Product(n=8, k=16, swizzle=32),
        Product(n=96, k=32, swizzle=64, a_major="mn_major", b_major="mn_major", dtype="float16"),
    ],
    ids=str,
)
def test_one_tile_compiles_clean(case: Product) -> None:
    kernel = packed(parse_kernel(case.text()))
    found = _assert_clean(kernel, _compiled(kernel))
    assert found["HGMMA"] == case.k // 16
    loads = [s for s in kernel.body if isinstance(s, ir.BoxLoad)]
    assert found["UTMALDG"] == len(loads)


def test_products_of_a_batch_are_not_waited_for_one_by_one() -> None:
    kernel = packed(parse_kernel(Product(k=128).text()))
    listing = re.findall(
        r"\b(HGMMA|WARPGROUP\.DEPBAR|WARPGROUP\.ARRIVE)\b", sass(_compiled(kernel).cubin)
    )
    assert listing == ["WARPGROUP.ARRIVE", *["HGMMA"] * 8, "WARPGROUP.DEPBAR"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [Ring(4096, 4096, 4096, 132), Ring(200, 328, 264, 2)], ids=str)
def test_a_ring_with_roles_compiles_clean(case: Ring) -> None:
    kernel = packed(parse_kernel(case.text()))
    compiled = _compiled(kernel)
    found = _assert_clean(kernel, compiled)
    assert found["HGMMA"] and found["UTMALDG"] and found["UTMASTG"] and found["STSM"]
    assert found["USETMAXREG"] == 3
    (used,) = resources(compiled.log).values()
    assert used.registers == 168


@pytest.mark.parametrize("case", [c for c in RIGHT if c.name != "ring"], ids=lambda c: c.name)
def test_the_suite_compiles(case: object) -> None:
    kernel = packed(case.kernel())  # type: ignore[attr-defined]
    _assert_clean(kernel, _compiled(kernel))


def test_matrices_of_a_warp_compile() -> None:
    for count, transposed in ((1, ""), (2, " transposed"), (4, ""), (4, " transposed")):
        text = f"""kernel k {{
  param y: float16[2048] align 16
  grid (bx < 1)
  block (tx < 32)
  shared s: float16[512] align 16
  local r: float16[8]
  local d: float32[4]
  r[0..8] = load y[8*tx]
  stmatrix s[8*tx] = r[0] count {count}{transposed}
  warp_sync #0
  r[0] = ldmatrix s[8*(31 - tx)] count {count}{transposed}
  d[0] = copy(0.0:float32)
  d[1] = copy(0.0:float32)
  d[2] = copy(0.0:float32)
  d[3] = copy(0.0:float32)
  warp_mma d[0] = r[0] * r[4]
  r[0] = cast(d[3])
  store y[8*tx] = r[0..8]
}}"""
        kernel = packed(parse_kernel(text))
        found = _assert_clean(kernel, _compiled(kernel))
        assert found["HMMA"] == 1
        assert found["LDSM"] == 1 and found["STSM"] == 1


def test_maps_are_parameters_of_128_bytes() -> None:
    kernel = packed(parse_kernel(Product().text()))
    text = emit(kernel, TARGET)
    assert (
        "const __grid_constant__ fw_tensor_map xm, const __grid_constant__ fw_tensor_map wm" in text
    )
    assert [p.nbytes for p in parameters(kernel)] == [8, 8, 8, 128, 128]


def test_a_tensor_that_only_boxes_write_is_not_const() -> None:
    text = emit(packed(parse_kernel(Ring(128, 128, 64, 1, 3, 64).text())), TARGET)
    assert "const fw_bf16* x, const fw_bf16* w, fw_bf16* y" in text


def test_descriptors_begin_once_and_move_in_their_lower_half() -> None:
    text = emit(packed(parse_kernel(Product(k=128).text())), TARGET)
    assert text.count("fw_chunk(sx)") == 1
    assert "fw_descriptor(sx_k_major + (unsigned)(2), 0x40000040u)" in text
    assert "fw_descriptor(sx_k_major + (unsigned)(512), 0x40000040u)" in text


def test_descriptors_hold_no_number_of_a_block() -> None:
    """Shared addresses of a cluster's blocks differ above bit 23: of a tile that is not K-major,
    hardware would take those bits for a distance."""
    text = emit(packed(parse_kernel(Product(k=128).text())), TARGET)
    assert "((unsigned)__cvta_generic_to_shared(p) & 0x3ffffu) >> 4" in text


def test_kernels_of_a_module_share_the_functions_of_products() -> None:
    first = packed(parse_kernel(Product().text()))
    second = packed(parse_kernel(Product().text().replace("kernel product", "kernel again")))
    text = emit_module([first, second], TARGET)
    assert text.count("void fw_mma_64_bf16_k_major_k_major(") == 1
    compile_cubin(text, TARGET, name="two")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_other_targets_have_no_such_products(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=r"needs compute capability 9\.0a?, which"):
        emit(packed(parse_kernel(Product().text())), target_of(arch))


# --- kernels that the scheduler makes -------------------------------------------------------------


def test_boxes_of_a_role_are_issued_by_one_elected_lane_without_a_loop_over_lanes() -> None:
    specs = [fw.TensorSpec(n, "bfloat16") for n in ((4096, 4096), (4096, 4096))]
    (kernel,) = fw.compile(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)).kernels
    compiled = _compiled(kernel.ir)
    found = _assert_clean(kernel.ir, compiled)
    assert found["ELECT"] == 1
    assert "BRA.U.ANY" not in sass(compiled.cubin)
    assert found["HGMMA"] == 4 * 4  # of a tile's depth, four of them interleaved


def test_loops_over_tiles_are_written_once() -> None:
    specs = [fw.TensorSpec(n, "bfloat16") for n in ((4096, 4096), (4096, 4096))]
    (kernel,) = fw.compile(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs)).kernels
    lines = [x.strip() for x in kernel.cuda.splitlines()]
    pragmas = [(a, b) for a, b in pairwise(lines) if a.startswith("#pragma") and b[:4] == "for "]
    assert [a for a, b in pragmas if "< 4;" in b] == ["#pragma unroll 1"] * 2
    assert [a for a, b in pragmas if "< 64;" in b] == ["#pragma unroll 4"] * 2


# --- waits that are bounded -----------------------------------------------------------------------


def _ring() -> ir.Kernel:
    specs = [fw.TensorSpec(n, "bfloat16") for n in ((1024, 2048), (2048, 1024))]
    (kernel,) = fw.compile(fw.trace(fw.matmul, *specs)).kernels
    return kernel.ir


def test_bounded_waits_say_role_slot_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _ring()
    plain = emit(kernel, TARGET)
    monkeypatch.setenv("FUSEWRIGHT_BOUND_WAITS", "250")
    text = emit(kernel, TARGET)
    told = [x.strip() for x in text.splitlines() if "fw_check_time(since, 250u, " in x]
    assert len(told) == sum(isinstance(s, ir.MbarWait) for s in syncs_of(kernel))
    (roles,) = (s for s in kernel.body if isinstance(s, ir.Roles))
    warps = [f"of warps {r.first} to {r.stop - 1}" for r in roles.body if isinstance(r, ir.Role)]
    math, copy = warps
    assert any(f"{copy} on ring_empty (stage of ring is free)" in x for x in told)
    assert any(f"{math} on ring_full (tile of ring)" in x for x in told)
    assert all(re.search(r"\", .*, .*\);$", x) for x in told), "slot and parity"
    assert "fw_check_time" not in plain


def test_bounded_waits_compile_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_BOUND_WAITS", "1000")
    kernel = _ring()
    compiled = _compiled(kernel)
    assert sync_ids_in_ptx(compiled.ptx) == {s.id for s in syncs_of(kernel)}
    assert "vprintf" in compiled.ptx and "trap" in compiled.ptx


def test_bounds_of_waits_are_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_BOUND_WAITS", "soon")
    with pytest.raises(fw.UserError, match="use a number of milliseconds from 0 to 60000"):
        emit(_ring(), TARGET)
