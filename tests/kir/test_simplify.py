# ruff: noqa: E501  (kernel texts, one case a line)
"""Clean-up: shorter, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from random_kernels import random_kernel, run

from fusewright.errors import SpecError
from fusewright.kir.ir import Kernel
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.unroll import unroll
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel


def _kernel(body: str) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
        symbol n in [2, 64]
        param x: float32[64] align 16
        param y: float32[64] align 16
        argument a: float32
        grid (bx < 1)
        block (tx < 32)
        local r: float32[4]
        {body}
        }}"""
    )


def _lines(kernel: Kernel) -> list[str]:
    text = print_kernel(simplify(kernel))
    return [line.strip() for line in text.split("\n\n")[1].splitlines()[:-1]]


KEPT = "store y[tx] = r[0]"
CASES = [
    ("for (i < 1) { r[0] = load x[tx + i] }", ["r[0] = load x[tx]"]),
    ("r[0] = load x[0]\nfor (i < 0) { r[0] = load x[i] }", ["r[0] = load x[0]"]),
    ("if (tx < 32) { r[0] = load x[0] } else { r[0] = load x[1] }", ["r[0] = load x[0]"]),
    ("if (tx < 0) { r[0] = load x[0] } else { r[0] = load x[1] }", ["r[0] = load x[1]"]),
    ("r[0] = load x[0] if (tx < 40) else 0.0:float32", ["r[0] = load x[0]"]),
    ("r[0] = load x[0] if (tx > 40) else 1.0:float32", ["r[0] = copy(1.0:float32)"]),
    ("r[0..4] = load x[0] if (tx < 40) lanes 0..4", ["r[0..4] = load x[0]"]),
    ("r[0] = load x[0]\nr[0] = load x[1] if (tx > 40)", ["r[0] = load x[0]"]),
    ("r[0] = load x[0]\nif (tx < 3) { }", ["r[0] = load x[0]"]),
    (
        "r[0] = load x[0]\nif (tx < 3) { } else { r[0] = load x[1] }",
        ["r[0] = load x[0]", "if (2 < tx) {", "r[0] = load x[1]", "}"],
    ),
    (
        "if (tx < 3) { r[0] = load x[0] if (tx < 3 && n < 9) else 0.0:float32 }",
        ["if (tx < 3) {", "r[0] = load x[0] if (n < 9) else 0.0:float32", "}"],
    ),
    ("if (tx < 3) { if (tx >= 3) { r[0] = load x[0] } }\nr[0] = load x[3]", ["r[0] = load x[3]"]),
    ("local t: float32[2]\nt[1] = load x[3]\nr[0] = load x[0]", ["r[0] = load x[0]"]),
    ("local t: float32[1]\nt[0] = load x[0]\nt[0] = add(t[0], a)\nr[0] = load x[0]", ["r[0] = load x[0]"]),
    ("shared s: float32[32]\nstore s[tx] = r[1]\nr[0] = load x[0]", ["r[0] = load x[0]"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_rewrites(body: str, expected: list[str]) -> None:
    assert _lines(_kernel(f"{body}\n{KEPT}")) == ["local r: float32[4]", *expected, KEPT]


COPIES = [
    ("r[0] = load x[0]\nr[1] = copy(r[0])\nstore y[tx] = r[1]", ["r[0] = load x[0]", "store y[tx] = r[0]"]),
    ("r[0] = load x[0]\nr[1] = copy(r[0])\nr[0] = load x[1]\nstore y[tx] = r[1]", ["store y[tx] = r[1]"]),
    ("r[1] = copy(r[0]) if (tx < 3)\nstore y[tx] = r[1]", ["store y[tx] = r[1]"]),
    ("r[0] = copy(a)\nr[1] = add(r[0], r[0])\nstore y[tx] = r[1]", ["r[1] = add(a, a)"]),
    ("r[1] = copy(r[0])\nfor (i < 9) { r[0] = add(r[1], r[0]) }\nstore y[tx] = r[0]", ["r[0] = add(r[1], r[0])"]),
    ("r[1] = copy(r[0])\nfor (i < 9) { r[2] = add(r[1], r[1]) }\nstore y[tx] = r[2]", ["r[2] = add(r[0], r[0])"]),
    ("if (tx < 3) { r[1] = copy(r[0]) }\nstore y[tx] = r[1]", ["store y[tx] = r[1]"]),
    (
        "local t: float32[2]\nr[0..2] = load x[2*tx]\nt[0] = copy(r[0])\nt[1] = copy(r[1])\nstore y[2*tx] = t[0..2]",
        ["r[0..2] = load x[2*tx]", "store y[2*tx] = r[0..2]"],
    ),
    (
        "local t: float32[2]\nr[0..2] = load x[2*tx]\nt[0] = copy(r[1])\nt[1] = copy(r[0])\nstore y[2*tx] = t[0..2]",
        ["t[0] = copy(r[1])", "t[1] = copy(r[0])", "store y[2*tx] = t[0..2]"],
    ),
    (
        "local t: float32[1]\nt[0] = copy(r[0])\nr[1] = shuffle.xor(t[0], 1)\nstore y[tx] = r[1]",
        ["r[1] = shuffle.xor(r[0], 1)"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), COPIES)
def test_copies(body: str, expected: list[str]) -> None:
    lines = _lines(_kernel(body))
    assert all(line in lines for line in expected), lines


LOOPED = {
    "by its place": ("q[i] = copy(r[i])\nr[3] = add(q[i], r[2])", "r[3] = add(r[i], r[2])"),
    "of another place": ("q[i] = copy(r[i])\nr[3] = add(q[1], r[2])", "r[3] = add(q[1], r[2])"),
    "written by its place": (
        "q[i] = copy(r[i])\nr[i] = load x[tx]\nr[3] = add(q[i], r[2])",
        "r[3] = add(q[i], r[2])",
    ),
    "written by a literal": (
        "q[i] = copy(r[i])\nr[1] = load x[tx]\nr[3] = add(q[i], r[2])",
        "r[3] = add(q[i], r[2])",
    ),
    "of a literal, written by a place": (
        "q[0] = copy(r[1])\nr[i] = load x[tx]\nr[3] = add(q[0], r[2])",
        "r[3] = add(q[0], r[2])",
    ),
    "to a literal": ("q[0] = copy(r[i])\nr[3] = add(q[0], r[2])", "r[3] = add(r[i], r[2])"),
    "overwritten by a literal": (
        "q[i] = copy(r[i])\nq[1] = load x[tx]\nr[3] = add(q[i], r[2])",
        "r[3] = add(q[i], r[2])",
    ),
}


@pytest.mark.parametrize(("body", "expected"), LOOPED.values(), ids=LOOPED)
def test_copies_of_registers_that_a_loop_counts(body: str, expected: str) -> None:
    """Places that loops say may be any, unless they are the same expression."""
    whole = f"local q: float32[4]\nfor (i < 2) {{ {body} }}\nstore y[tx] = r[3]"
    assert expected in _lines(_kernel(whole))


def test_conditions_on_registers_are_not_relied_on() -> None:
    body = """local p: int32[1]
    p[0] = copy(index(tx):int32)
    if (p[0] < 3) { p[0] = copy(7:int32)
      r[0] = load x[0] if (p[0] < 3) }
    store y[tx] = r[0]"""
    assert "r[0] = load x[0] if (p[0] < 3)" in _lines(_kernel(body))


def test_simple_is_the_same_kernel() -> None:
    kernel = _kernel(f"r[0] = load x[tx]\nr[0] = add(r[0], a) if (tx < n)\n{KEPT}")
    assert simplify(kernel) is kernel


def test_the_spec_wants_it_simplified() -> None:
    kernel = _kernel("if (tx < 40) { r[0] = load x[0] }\nstore y[tx] = r[0]")
    with pytest.raises(SpecError, match="the condition is decided; there is nothing to choose"):
        check_kernel(kernel, "final")
    check_kernel(simplify(kernel), "final")


@pytest.mark.parametrize("seed", range(100))
def test_simplified_computes_the_same(seed: int) -> None:
    kernel = random_kernel(seed)
    simplified = simplify(unroll(kernel))
    check_kernel(simplified, "lowered")
    assert np.array_equal(run(kernel), run(simplified), equal_nan=True)
    assert simplify(simplified) is simplified
