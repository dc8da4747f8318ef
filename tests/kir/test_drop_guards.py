"""Choices that need no condition lose it, and nobody sees a difference."""

from __future__ import annotations

import numpy as np
import pytest
from random_kernels import random_kernel, run

from fusewright.kir.passes.drop_guards import drop_guards
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.unroll import unroll
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel


def _lines(*body: str) -> list[str]:
    """What becomes of a body that loads `a` and `b` and stores `r`."""
    head = ["local a: float32[1]", "local b: float32[1]", "local r: float32[1]"]
    head += ["a[0] = load x[tx]", "b[0] = load x[tx + 64]"]
    kernel = parse_kernel(
        "kernel k {\nparam x: float32[128] align 16\nparam y: float32[64] align 16\n"
        "grid (bx < 1)\nblock (tx < 64)\n" + "\n".join((*head, *body)) + "\n}"
    )
    text = print_kernel(drop_guards(kernel)).split("\n\n")[1]
    found = [x.strip() for x in text.splitlines()[:-1]]
    return [x for x in found if "local" not in x and "load" not in x]


STORE = "store y[tx] = r[0]"


def test_the_first_of_two_that_cover_everything() -> None:
    body = ("r[0] = copy(0.0:float32)", "r[0] = copy(a[0]) if (tx < 9)")
    body = (*body, "r[0] = copy(b[0]) if (8 < tx)", STORE)
    assert _lines(*body) == ["r[0] = copy(a[0])", "r[0] = copy(b[0]) if (8 < tx)", STORE]


def test_a_value_that_is_stored_in_part() -> None:
    body = ("r[0] = copy(b[0])", "r[0] = copy(a[0]) if (tx < 9)", f"{STORE} if (tx < 4)")
    assert _lines(*body) == ["r[0] = copy(a[0])", f"{STORE} if (tx < 4)"]


@pytest.mark.parametrize(
    "body",
    [
        ("r[0] = copy(b[0])", "r[0] = copy(a[0]) if (tx < 9)", STORE),
        ("r[0] = copy(b[0])", "r[0] = copy(a[0]) if (tx < 9)", f"{STORE} if (tx < 12)"),
        ("r[0] = copy(b[0])", "r[0] = add(r[0], a[0]) if (tx < 9)", f"{STORE} if (tx < 4)"),
        (
            "r[0] = copy(0.0:float32)",
            "r[0] = copy(a[0]) if (tx < 9)",
            "r[0] = copy(b[0]) if (9 < tx)",
            STORE,
        ),
    ],
)
def test_what_somebody_looks_at_stays(body: tuple[str, ...]) -> None:
    assert _lines(*body) == list(body)


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_compute_the_same(seed: int) -> None:
    kernel = simplify(unroll(random_kernel(seed)))
    changed = drop_guards(kernel)
    check_kernel(simplify(changed), "lowered")
    assert np.array_equal(run(kernel), run(changed), equal_nan=True)
