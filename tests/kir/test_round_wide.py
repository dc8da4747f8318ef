"""Floats that are rounded to short ones on their way: where they stay wide, and where they must
not."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.cuda.emit import emit
from fusewright.kir.ir import Compute, Kernel
from fusewright.kir.passes.round_wide import round_wide
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def _kernel(body: str, short: str = "bfloat16") -> Kernel:
    return parse_kernel(
        f"""kernel k {{
          param x: float32[64] align 16
          param y: float32[64] align 16
          param z: {short}[64] align 16
          grid (bx < 2)
          block (tx < 32)
          local a: float32[1]
          local b: float32[1]
          local h: {short}[1]
          a[0] = load x[32*bx + tx]
          {body}
          store y[32*bx + tx] = b[0]
        }}"""
    )


NARROWED = "h[0] = cast(a[0])"
WIDENED = "b[0] = cast(h[0])"


def _functions(kernel: Kernel) -> list[str]:
    return [s.fn for s in walk_statements(kernel) if isinstance(s, Compute)]


def _run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.zeros(64, np.float32)
    out = [y, np.zeros(64, kernel.params[2].dtype.numpy)]
    arrays = dict(zip(kernel.params, (x, *out), strict=True))
    assert not simulate(kernel, arrays, outputs=kernel.params[1:]).races
    return y


def test_a_cast_there_and_back_is_one_rounding() -> None:
    square = "local w: float32[1]\nw[0] = cast(h[0])\nb[0] = mul(w[0], w[0])"
    kernel = _kernel(f"{NARROWED}\n{square}")
    new = round_wide(kernel)
    check_kernel(new, "packed", target=TARGET)
    assert _functions(new) == ["round_bfloat16", "copy", "mul"]
    final = run_pipeline(kernel, TARGET)
    assert _functions(final) == ["round_bfloat16", "mul"]
    assert "fw_round_bf16(" in emit(final, TARGET)
    rng = np.random.default_rng(3)
    x = rng.standard_normal(64).astype(np.float32)
    x[:6] = [np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1e-40]
    want = x.astype(fw.bfloat16.numpy).astype(np.float32)
    np.testing.assert_array_equal(_run(final, x), want * want)
    np.testing.assert_array_equal(_run(kernel, x), want * want)


def test_halves_between_two_values_go_to_the_even_one() -> None:
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FC00000] * 16, np.uint32)
    final = run_pipeline(_kernel(f"{NARROWED}\n{WIDENED}"), TARGET)
    got = _run(final, x.view(np.float32)).view(np.uint32)[:4]
    assert [hex(n) for n in got[:3]] == ["0x3f800000", "0x3f820000", "0x3f810000"]
    assert np.isnan(got.view(np.float32)[3])


@pytest.mark.parametrize(
    ("body", "short"),
    [
        (f"{NARROWED}\n{WIDENED}\nstore z[32*bx + tx] = h[0]", "bfloat16"),
        (f"h[0] = load z[32*bx + tx]\n{WIDENED}", "bfloat16"),
        (f"{NARROWED}\nh[0] = neg(h[0])\n{WIDENED}", "bfloat16"),
        (f"{NARROWED}\nb[0] = copy(a[0])\nstore z[32*bx + tx] = h[0]", "bfloat16"),
        (f"{NARROWED}\n{WIDENED}", "float16"),
    ],
    ids=["stored", "loaded", "computed with", "never widened", "of another type"],
)
def test_what_else_is_done_with_a_short_float_keeps_it_short(body: str, short: str) -> None:
    kernel = _kernel(body, short)
    assert round_wide(kernel) is kernel
