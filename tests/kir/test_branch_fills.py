"""Fills of lanes that do not exist: when they move under a branch, and when they must not."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.kir.ir import If, Kernel
from fusewright.kir.passes.branch_fills import branch_fills
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
N = 1979
FILL = "-inf:float32"


def _lane(k: int, condition: str = "256*bx + 8*tx < {n}", fill: str = FILL) -> str:
    taken = condition.format(n=N - k)
    return f"v{k}[0] = copy({fill})\nv{k}[0] = copy(r[{k}]) if ({taken})"


def _kernel(lines: list[str]) -> Kernel:
    """Rows of eight blocks of 32 threads with 8 lanes each, of which the last do not exist."""
    values = "\n".join(f"local v{k}: float32[1]" for k in range(8))
    lanes = "\n".join(lines)
    stores = "\n".join(f"store y[2048*by + 256*bx + 8*tx + {k}] = v{k}[0]" for k in range(8))
    return parse_kernel(
        f"""kernel k {{
          param x: float32[16384] align 16
          param y: float32[16384] align 16
          grid (bx < 8, by < 8)
          block (tx < 32)
          local r: float32[8]
          {values}
          r[0..4] = load x[2048*by + 256*bx + 8*tx]
          r[4..8] = load x[2048*by + 256*bx + 8*tx + 4]
          {lanes}
          {stores}
        }}"""
    )


def _branches(kernel: Kernel) -> list[If]:
    return [s for s in walk_statements(kernel) if isinstance(s, If)]


def _run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.full(16384, np.nan, np.float32)
    arrays = dict(zip(kernel.params, (x, y), strict=True))
    assert not simulate(kernel, arrays, outputs=kernel.params[1:]).races
    return y


def test_lanes_of_one_vector_are_filled_under_one_branch() -> None:
    kernel = _kernel([_lane(k) for k in range(8)])
    new = branch_fills(kernel)
    check_kernel(new, "packed", target=TARGET)
    (branch,) = _branches(new)
    assert len(branch.then) == 8
    assert "if (246 < 32*bx + tx) {" in print_kernel(new)
    x = np.random.default_rng(5).standard_normal(16384).astype(np.float32)
    want = np.where(np.arange(16384) % 2048 < N, x, -np.inf)
    for k in (kernel, new, run_pipeline(kernel, TARGET)):
        np.testing.assert_array_equal(_run(k, x), want)


def test_a_branch_on_two_limits_needs_as_many_lanes_for_each() -> None:
    two = "256*bx + 8*tx < {n} && by < 7"
    assert len(_branches(branch_fills(_kernel([_lane(k, two) for k in range(8)])))) == 1
    few = _kernel([_lane(k, two) for k in range(7)] + ["v7[0] = copy(r[7])"])
    assert branch_fills(few) is few


@pytest.mark.parametrize(
    "lines",
    [
        [_lane(k) for k in range(3)] + [f"v{k}[0] = copy(r[{k}])" for k in range(3, 8)],
        [_lane(k, f"tx != {k}") for k in range(8)],
        [_lane(k, "8*tx < {n} - 1800") for k in range(8)],
        [_lane(k).replace("\n", f"\nr[{k}] = add(r[{k}], v{k}[0])\n") for k in range(8)],
        [f"{_lane(k)}\nr[7] = max(r[7], v{k}[0])" for k in range(8)],
    ],
    ids=[
        "few lanes",
        "conditions of their own",
        "often filled",
        "fills that are read",
        "read one by one",
    ],
)
def test_what_has_to_stay(lines: list[str]) -> None:
    kernel = _kernel(lines)
    assert branch_fills(kernel) is kernel
