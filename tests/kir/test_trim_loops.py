"""Loops that end where a condition fails for good: when they may, and when they must not."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.kir.ir import For, Kernel
from fusewright.kir.passes.prefetch import prefetch
from fusewright.kir.passes.trim_loops import trim_loops
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS = 12
EXISTS = f"if (5*bx + i < {ROWS})"
SUM = f"""r[0] = load x[160*bx + 32*i + tx] {EXISTS} else 0.0:float32
            s[0] = thread_reduce.add(r[0]) over (tx) identity 0.0:float32
            store y[160*bx + 32*i + tx] = s[0] {EXISTS}"""


def _kernel(body: str) -> Kernel:
    """Three blocks of 32 threads, 5 rows of 32 each, of which the last block has 2."""
    return parse_kernel(
        f"""kernel k {{
          param x: float32[480] align 16
          param y: float32[480] align 16
          param z: float32[96] align 16
          grid (bx < 3)
          block (tx < 32)
          local a: float32[1]
          a[0] = copy(0.0:float32)
          for (i < 5) {{
            local r: float32[1]
            local s: float32[1]
            {body}
          }}
          store z[32*bx + tx] = a[0]
        }}"""
    )


def _loop(kernel: Kernel) -> For:
    return next(s for s in walk_statements(kernel) if isinstance(s, For))


def _outputs(kernel: Kernel, x: np.ndarray) -> list[np.ndarray]:
    out = [np.full(480, np.nan, np.float32), np.full(96, np.nan, np.float32)]
    arrays = dict(zip(kernel.params, (x, *out), strict=True))
    found = simulate(kernel, arrays, outputs=kernel.params[1:])
    assert not found.races
    return out


@pytest.mark.parametrize(
    "body",
    [
        SUM,
        SUM + f"\na[0] = add(a[0], r[0]) {EXISTS}",
        SUM + "\na[0] = add(a[0], r[0])",
        SUM + f"\ns[0] = copy(0.0:float32)\ns[0] = copy(r[0]) {EXISTS}\na[0] = add(a[0], s[0])",
        SUM + f"\na[0] = load x[160*bx + 32*i + tx] {EXISTS}",
        SUM + f"\nif (tx < 9) {{\n {SUM.splitlines()[2]}\n}} else {{\n r[0] = copy(s[0])\n}}",
        SUM + f"\n{EXISTS} {{\n a[0] = add(a[0], 1.0:float32)\n}}",
    ],
    ids=[
        "stores",
        "guarded sum",
        "sum of a fill",
        "sum of what is chosen",
        "guarded load",
        "stores in a branch",
        "a branch of its own",
    ],
)
def test_a_loop_ends_with_its_rows(body: str) -> None:
    before = _kernel(body)
    after = trim_loops(before)
    check_kernel(after, "lowered")
    assert print_kernel(parse_kernel(print_kernel(after))) == print_kernel(after)
    assert str(_loop(after).extent) == "min(-5*bx + 12, 5)"
    assert EXISTS not in print_kernel(after)
    x = np.random.default_rng(1).standard_normal(480).astype(np.float32)
    for got, want in zip(_outputs(after, x), _outputs(before, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (SUM.replace(EXISTS, "if (tx < 3)"), "nothing about the iteration"),
        (SUM.replace(EXISTS, "if (5*bx + i + tx < 40)"), "threads differ"),
        (SUM.replace(EXISTS, "if (2 < i)"), "true from some iteration on"),
        (SUM.replace(EXISTS, "if (i*bx < 7)"), "not a multiple of the iteration"),
        (SUM + "\nstore y[160*bx + 32*i + tx] = s[0]", "a store without the condition"),
        (SUM + "\na[0] = add(a[0], 1.0:float32)", "counts iterations"),
        (SUM + "\na[0] = add(a[0], s[0])", "a sum that nothing is known of"),
        (SUM + "\na[0] = add(s[0], r[0])", "a sum that another register begins"),
        (SUM + "\na[0] = mul(a[0], r[0])", "0 is not what a product leaves as it is"),
        (SUM + "\na[0] = copy(r[0])", "keeps what the last iteration had"),
        (SUM + f"\na[0] = load x[tx] {EXISTS} else 1.0:float32", "fills a register that stays"),
        (SUM + "\nr[0] = add(r[0], 1.0:float32)\na[0] = add(a[0], r[0])", "no fill any more"),
        (SUM.split("\n")[0] + f"\nstore y[160*bx + 32*i + tx] = r[0] {EXISTS}", "no barrier"),
        (SUM + f"\nshared t: float32[32]\nstore t[tx] = r[0] {EXISTS}", "shared memory"),
        (SUM + "\nif (tx < 2) {\n a[0] = add(a[0], 1.0:float32)\n}", "a branch"),
        (
            SUM + "\nif (tx < 2) {\n r[0] = copy(1.0:float32)\n}\na[0] = add(a[0], r[0])",
            "a sum of what a branch may have chosen",
        ),
        (
            SUM + f"\n{EXISTS} {{\n r[0] = copy(0.0:float32)\n}} else {{\n a[0] = copy(r[0])\n}}",
            "what happens otherwise",
        ),
    ],
)
def test_a_loop_stays_where_an_iteration_does_something(body: str, why: str) -> None:
    before = _kernel(body)
    assert trim_loops(before) is before, why


def test_a_loop_of_no_trips_loads_nothing_ahead() -> None:
    """Where the first block to have no row at all is one that the grid has."""
    before = _kernel(SUM.replace(EXISTS, "if (5*bx + i < 10)"))
    after = prefetch(trim_loops(before), TARGET)
    first = next(line for line in print_kernel(after).splitlines() if "r_next[0] = load" in line)
    assert "if (" in first
    x = np.random.default_rng(1).standard_normal(480).astype(np.float32)
    for got, want in zip(_outputs(after, x), _outputs(before, x), strict=True):
        np.testing.assert_array_equal(got, want)
