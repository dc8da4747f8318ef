# ruff: noqa: E501  (kernel texts, one case a line)
"""Loads of the next iteration ahead of the barrier of this one: what moves, and what must not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fusewright.core.conditions import TRUE
from fusewright.fusion.persistent_rows import LEAST_AHEAD
from fusewright.kir.ir import For, Kernel, Lanes, Load
from fusewright.kir.passes.prefetch import prefetch
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
N = 5
REDUCE = "s[0] = thread_reduce.add(s[0]) over (tx) identity 0.0:float32"


def _kernel(body: str) -> Kernel:
    """`body` once a row of x, `{N}` rows of 64 pairs, by 64 threads."""
    return parse_kernel(
        f"""kernel k {{
          param x: float32[{2 * 64 * N}] align 16
          param y: float32[{64 * N}] align 16
          grid (bx < 1)
          block (tx < 64)
          for (i < {N}) {{
            local r: float32[2] align 16
            local s: float32[1]
            {body}
          }}
        }}"""
    )


ROWS = f"""r[0..2] = load x[128*i + 2*tx]
            s[0] = add(r[0], r[1])
            {REDUCE}
            store y[64*i + tx] = s[0]"""


def _loads(kernel: Kernel) -> list[Load]:
    return [s for s in walk_statements(kernel) if isinstance(s, Load)]


def _outputs(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.full(64 * N, np.nan, np.float32)
    final = run_pipeline(kernel, TARGET)
    found = simulate(final, dict(zip(final.params, (x, y), strict=True)), outputs=final.params[1:])
    assert not found.races
    return y


def test_the_next_row_is_loaded_before_this_one_is_reduced() -> None:
    before = _kernel(ROWS)
    after = prefetch(before, TARGET)
    check_kernel(after, "lowered")
    first, inside = _loads(after)
    assert str(first.index) == "2*tx"
    assert "128*i + 2*tx + 128" in print_kernel(after) and inside.predicate != first.predicate
    (loop,) = [s for s in after.body if isinstance(s, For)]
    assert inside in loop.body and first in after.body
    x = np.random.default_rng(0).normal(size=2 * 64 * N).astype(np.float32)
    want = np.repeat(x.reshape(N, 128).astype(np.float64).sum(axis=1), 64)
    np.testing.assert_allclose(_outputs(before, x), want, rtol=1e-5, atol=1e-5)


def test_a_single_element_is_loaded_again_rather_than_under_a_condition() -> None:
    single = ROWS.replace("r[0..2] = load x[128*i + 2*tx]", "r[0] = load x[64*i + tx]")
    before = _kernel(single.replace("add(r[0], r[1])", "copy(r[0])"))
    after = prefetch(before, TARGET)
    check_kernel(after, "lowered")
    first, inside = _loads(after)
    assert inside.predicate is TRUE and inside.width == 1
    assert "min(" in str(inside.index) and "min(" not in str(first.index)
    x = np.random.default_rng(0).normal(size=2 * 64 * N).astype(np.float32)
    want = np.repeat(x[: 64 * N].reshape(N, 64).astype(np.float64).sum(axis=1), 64)
    np.testing.assert_allclose(_outputs(before, x), want, rtol=1e-5, atol=1e-5)


def test_loads_of_one_address_become_one() -> None:
    twice = ROWS.replace(
        "s[0] = add", "local q: float32[2] align 16\nq[0..2] = load x[128*i + 2*tx]\ns[0] = add"
    ).replace("r[1])", "q[1])")
    assert len(_loads(_kernel(twice))) == 2
    assert len(_loads(prefetch(_kernel(twice), TARGET))) == 2  # one before the loop, one in it
    x = np.random.default_rng(1).normal(size=2 * 64 * N).astype(np.float32)
    np.testing.assert_array_equal(_outputs(_kernel(twice), x), _outputs(_kernel(ROWS), x))


@pytest.mark.parametrize(
    "body",
    [
        ROWS.replace(REDUCE, ""),  # no barrier: the compiler itself looks ahead
        ROWS.replace("x[128*i + 2*tx]", "x[2*tx]"),  # the same in every iteration
        ROWS.replace("store y[64*i + tx]", "store x[128*i + tx]"),  # the loop writes what it reads
        ROWS.replace("2*tx]", "2*tx] if (i < 3)"),  # nothing to fill with
        "if (tx < 64) { r[0..2] = load x[128*i + 2*tx] }\n" + REDUCE.join(ROWS.split(REDUCE)[:0]) + f"s[0] = copy(1.0:float32)\n{REDUCE}\nstore y[64*i + tx] = s[0]",  # under a branch
    ],
)  # fmt: skip
def test_what_is_left_alone(body: str) -> None:
    kernel = _kernel(body)
    assert prefetch(kernel, TARGET) is kernel


def test_no_more_is_under_way_than_a_few_registers_hold() -> None:
    count = LEAST_AHEAD // 8 + 1
    lines = [
        f"local r{k}: float32[2] align 16\nr{k}[0..2] = load x[128*i + 2*tx + {k}]"
        for k in range(count)
    ]
    kernel = _kernel("\n".join([*lines, "s[0] = copy(r0[0])", REDUCE, "store y[64*i + tx] = s[0]"]))
    assert prefetch(kernel, TARGET) is kernel


def test_more_is_under_way_where_a_thread_has_more_registers() -> None:
    count = LEAST_AHEAD // 8 + 1
    lines = [
        f"local r{k}: float32[2] align 16\nr{k}[0..2] = load x[128*i + 2*tx + {k}]"
        for k in range(count)
    ]
    kernel = _kernel("\n".join([*lines, "s[0] = copy(r0[0])", REDUCE, "store y[64*i + tx] = s[0]"]))
    assert prefetch(replace(kernel, min_blocks=32), TARGET).body == kernel.body  # 32 registers each
    assert len(_loads(prefetch(replace(kernel, min_blocks=8), TARGET))) == 2 * count


def test_lanes_that_exist_are_those_of_the_next_row() -> None:
    """Rows that begin at different lanes of a vector: each is cut at its own."""
    kernel = _kernel(ROWS)
    (loop,) = [s for s in kernel.body if isinstance(s, For)]
    (load,) = _loads(kernel)
    cut = replace(load, lanes=Lanes(first=loop.var % 2, stop=loop.var % 2 + 1))
    body = tuple(cut if s is load else s for s in loop.body)
    ragged = replace(
        kernel, body=tuple(replace(s, body=body) if s is loop else s for s in kernel.body)
    )
    after = prefetch(ragged, TARGET)
    check_kernel(after, "lowered")
    first, inside = _loads(after)
    assert str(first.lanes.first) == "0" and str(inside.lanes.first) == "(i + 1)%2"


def _open(body: str) -> Kernel:
    """`body` as long as the first of a row of x is positive."""
    return parse_kernel(
        f"""kernel k {{
          param x: float32[{2 * 64 * N}] align 16
          param y: float32[{64 * N}] align 16
          param go: int32[{N}]
          grid (bx < 1)
          block (tx < 64)
          local limit: int32[1]
          limit[0] = copy(1:int32)
          given limit[0] in [0, {N}]: for (i < limit[0]) {{
            local r: float32[2] align 16
            local s: float32[1]
            {body}
            limit[0] = load go[i]
          }}
        }}"""
    )


def test_no_load_runs_ahead_of_a_loop_that_an_iteration_ends() -> None:
    """Nobody knows in an iteration whether there is a next one, until it is over."""
    kernel = _open(ROWS)
    check_kernel(kernel, "lowered")
    assert prefetch(kernel, TARGET) is kernel


@pytest.mark.parametrize("trips", [1, 2, N])
def test_a_loop_that_an_iteration_ends(trips: int) -> None:
    """It runs until the limit that the last iteration has loaded is reached."""
    kernel = _open(ROWS)
    x = np.random.default_rng(trips).normal(size=2 * 64 * N).astype(np.float32)
    y = np.full(64 * N, np.nan, np.float32)
    go = np.array([k + 2 if k + 1 < trips else 0 for k in range(N)], np.int32)
    final = run_pipeline(kernel, TARGET)
    found = simulate(final, dict(zip(final.params, (x, y, go), strict=True)))
    assert not found.races
    sums = x.reshape(N, 128).astype(np.float64).sum(1)
    rows = y.reshape(N, 64)
    assert np.allclose(rows[:trips], sums[:trips, None], atol=1e-4)
    assert np.isnan(rows[trips:]).all()
