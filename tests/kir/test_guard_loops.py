"""Loops that only threads with work enter: when they ask once, and when the loop stays."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.conditions import TRUE
from fusewright.kir.ir import For, If, Kernel, Load
from fusewright.kir.passes.guard_loops import guard_loops
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
COLUMNS = 50
"""Columns of 2 blocks of 32 threads, five rows each: the last threads have none."""
EXISTS = f"if (32*bx + tx < {COLUMNS})"
LOAD = f"r[0] = load x[{COLUMNS}*i + 32*bx + tx] {EXISTS} else 0.0:float32"
LEAST = f"{LOAD}\n a[0] = min(a[0], r[0]) {EXISTS}"


def _kernel(body: str, around: str = "for (i < 5)") -> Kernel:
    return parse_kernel(
        f"""kernel k {{
          param x: float32[250] align 16
          param y: float32[64] align 16
          param z: float32[64] align 16
          grid (bx < 2)
          block (tx < 32)
          local a: float32[1]
          a[0] = copy(9.0:float32)
          {around} {{
            local r: float32[1]
            {body}
          }}
          store z[32*bx + tx] = a[0]
        }}"""
    )


def _outputs(kernel: Kernel, x: np.ndarray) -> list[np.ndarray]:
    out = [np.full(64, np.nan, np.float32) for _ in range(2)]
    arrays = dict(zip(kernel.params, (x, *out), strict=True))
    found = simulate(kernel, arrays, outputs=kernel.params[1:])
    assert not found.races
    return out


def _branches(kernel: Kernel) -> list[If]:
    return [
        s
        for s in walk_statements(kernel)
        if isinstance(s, If) and len(s.then) == 1 and isinstance(s.then[0], For)
    ]


@pytest.mark.parametrize(
    "body",
    [
        LEAST,
        f"{LOAD}\n a[0] = add(a[0], r[0])",
        f"{LEAST}\n store y[32*bx + tx] = r[0] {EXISTS}",
        LEAST.replace(f"< {COLUMNS})", f"< {COLUMNS} && bx < 7 && tx < 31)"),
        f"for (j < 2) {{\n {LEAST}\n }}",
    ],
    ids=["guarded", "adds nothing", "stores", "two conditions", "loop below"],
)
def test_threads_without_work_stay_outside(body: str) -> None:
    before = _kernel(body)
    after = guard_loops(before)
    (branch,) = _branches(after)
    loads = [s for s in walk_statements(branch) if isinstance(s, Load)]
    assert loads and all(s.predicate is TRUE for s in loads)
    check_kernel(after, "lowered")
    assert print_kernel(parse_kernel(print_kernel(after))) == print_kernel(after)
    x = np.random.default_rng(1).standard_normal(250).astype(np.float32)
    want = _outputs(before, x)
    for kernel in (after, run_pipeline(before, TARGET)):
        for got, expected in zip(_outputs(kernel, x), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "body",
    [
        f"{LOAD}\n a[0] = min(a[0], r[0])",
        f"{LEAST}\n store y[32*bx + tx] = r[0]",
        f"{LEAST}\n a[0] = add(a[0], 1.0:float32)",
        LEAST.replace("32*bx + tx <", "32*bx + tx + i <"),
        LEAST.replace(EXISTS, "").replace(" else 0.0:float32", ""),
        "local p: int32[1]\n p[0] = copy(index(i):int32)\n given p[0] in [0, 4]: "
        + LEAST.replace(EXISTS, "if (p[0] < 3)").replace("\n", "\n given p[0] in [0, 4]: "),
    ],
    ids=["counts the fill", "stores", "counts trips", "another every trip", "none", "register"],
)
def test_other_loops_stay(body: str) -> None:
    before = _kernel(body)
    assert guard_loops(before) is before


def test_loops_that_meet_other_threads_stay() -> None:
    before = _kernel(f"{LEAST}\n block_sync #1")
    assert guard_loops(before) is before


@pytest.mark.parametrize(("dtype", "alignment"), [("int16", 2), ("float32", 4), ("bfloat16", 16)])
def test_ragged_columns_are_read_without_conditions(dtype: str, alignment: int) -> None:
    spec = fw.TensorSpec((7, 96, 872), dtype, alignment=alignment)
    program = fw.compile(fw.trace(lambda x: fw.min(x, axis=1), spec))
    (kernel,) = program.kernels
    loops = [s for s in walk_statements(kernel.ir) if isinstance(s, For)]
    loads = [s for loop in loops for s in walk_statements(loop) if isinstance(s, Load)]
    assert loads and all(s.predicate is TRUE for s in loads)
    x = np.random.default_rng(2).integers(-999, 999, spec.shape).astype(spec.dtype.numpy)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], x.min(1))
