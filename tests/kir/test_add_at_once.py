"""Terms that exist under a condition are added where they are made, and sums stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from random_kernels import random_kernel, run

import fusewright as fw
from fusewright.kir.passes.add_at_once import add_at_once
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.unroll import unroll
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel

TERM = ("v[0] = copy(0.0:float32)", "v[0] = copy(t[0]) if (tx < 9)")
LATER = ("u[0] = mul(t[0], t[0])", "store y[tx] = u[0]")
SUM = "a[0] = add(a[0], v[0]) if (2 < tx)"


def _lines(*body: str) -> list[str]:
    """What becomes of a body that has loaded `t` and `a`, and that stores `a` in the end."""
    head = [f"local {r}: float32[1]" for r in "tauv"]
    head += ["t[0] = load x[tx]", "a[0] = load x[tx + 64]"]
    kernel = parse_kernel(
        "kernel k {\nparam x: float32[128] align 16\nparam y: float32[128] align 16\n"
        "grid (bx < 1)\nblock (tx < 64)\n"
        + "\n".join((*head, *body, "store y[tx + 64] = a[0]"))
        + "\n}"
    )
    changed = add_at_once(kernel)
    check_kernel(changed, "lowered")
    found = [x.strip() for x in print_kernel(changed).split("\n\n")[1].splitlines()[:-2]]
    return [x for x in found if "local" not in x and "load" not in x]


def test_a_term_is_added_where_it_is_made_and_under_both_conditions() -> None:
    assert _lines(*TERM, *LATER, SUM) == ["a[0] = add(a[0], t[0]) if (tx < 9 && 2 < tx)", *LATER]


def test_sums_of_several_terms_keep_their_order() -> None:
    second = ("u[0] = copy(0.0:float32)", "u[0] = copy(2.0:float32) if (tx < 5)")
    body = (*TERM, *second, "a[0] = add(a[0], v[0])", "a[0] = add(a[0], u[0])")
    want = ["a[0] = add(a[0], t[0]) if (tx < 9)", "a[0] = add(a[0], 2.0:float32) if (tx < 5)"]
    assert _lines(*body) == want


@pytest.mark.parametrize(
    "body",
    [
        (*TERM, "a[0] = mul(a[0], t[0])", SUM),  # the total changes on the way
        (*TERM, "store y[tx] = a[0]", SUM),  # somebody looks at it
        (*TERM, "store y[tx] = v[0]", SUM),  # or at the term
        ("v[0] = copy(1.0:float32)", TERM[1], SUM),  # what is added elsewhere is something
        (*TERM, "a[0] = max(a[0], v[0])"),  # 0 is not the least of all numbers
        (*TERM, "v[0] = copy(a[0]) if (tx < 3)", SUM),  # a third value
        (TERM[0], "v[0] = copy(a[0]) if (tx < 9)", SUM),  # the total is its own term
    ],
)
def test_others_stay(body: tuple[str, ...]) -> None:
    assert _lines(*body) == list(body)


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_compute_the_same(seed: int) -> None:
    kernel = simplify(unroll(random_kernel(seed)))
    changed = add_at_once(kernel)
    check_kernel(simplify(changed), "lowered")
    assert np.array_equal(run(kernel), run(changed), equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), [(40_000, 20), (30_001, 25), (9_999, 128)])
def test_partial_sums_of_short_rows_hold_no_terms(rows: int, columns: int) -> None:
    """The backward of a norm: between the terms of a thread and their sums stand the shuffles of a
    row, over which the compiler would keep two registers a column, and spill them."""

    def backward(dy: fw.Array, x: fw.Array, w: fw.Array, rstd: fw.Array) -> tuple[fw.Array, ...]:
        g, hat = fw.astype(dy, fw.float32), fw.astype(x, fw.float32) * rstd
        d = g * w
        inner = d - hat * fw.mean(d * hat, axis=1, keepdims=True)
        return fw.astype(inner * rstd, x.dtype), fw.sum(g * hat, axis=0), fw.sum(g, axis=0)

    specs = [fw.TensorSpec((rows, columns), "bfloat16")] * 2
    specs += [fw.TensorSpec((1, columns), "bfloat16"), fw.TensorSpec((rows, 1), "float32")]
    program = fw.compile(fw.trace(backward, *specs), target="sm_90a")
    kernel = next(k for k in program.kernels if k.heuristic and k.heuristic.scheduler == "rows")
    found = kernel.resources()
    assert (found.spill_stores, found.spill_loads, found.stack_nbytes) == (0, 0, 0)
    held = [line for line in kernel.cuda.splitlines() if "_0_1_v" in line]
    assert held == []
