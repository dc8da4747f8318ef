"""What loops and branches refuse, with numbers and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import SpecError
from fusewright.fusion.text import parse_fusion

X = "f32[4,6]"


def add(i: Any, a: Any) -> Any:
    return a + 1


def keep_first(x: Any) -> Any:
    kept: list[Any] = []

    def first(a: Any) -> Any:
        kept.append(a * 2)
        return a + 1

    return fw.cond(fw.sum(x) > 0, first, lambda a: a + kept[0], x)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (
        lambda x: fw.fori_loop(0, 3, lambda i, a: fw.sum(a, axis=0), x),
        r"fori_loop: carried value val is float32\(4, 6\), and the function returned float32\(6,\)",
    ),
    "another dtype": (
        lambda x: fw.while_loop(
            lambda s: fw.sum(s["a"]) < 3, lambda s: {"a": fw.astype(s["a"], "float64")}, {"a": x}
        ),
        r"while_loop: carried value val_a is float32\(4, 6\), and the function returned float64",
    ),
    "another structure": (
        lambda x: fw.scan(lambda c, a: ([c], a), x[0], x),
        r"scan: init has the structure \*, the carry that f returned \[\*\]; both must",
    ),
    "a number that is no integer": (
        lambda x: fw.while_loop(lambda n: n < 9, lambda n: 0.5, fw.astype(fw.sum(x), "int64")),
        r"while_loop, carried value val: the Python float 0.5 with an array of int64",
    ),
    "numbers of two kinds": (
        lambda x: fw.cond(fw.sum(x) > 0, lambda: 1, lambda: 1.5),
        r"cond, result 0 of true_fun: the Python float 1.5 with an array of int64",
    ),
    "a number that is too large": (
        lambda x: fw.cond(fw.sum(x) > 0, lambda: 300, lambda: fw.astype(x[0, 0], "int8")),
        r"cond, result 0 of false_fun: 300 does not fit int8 \(-128 to 127\)",
    ),
    "branches of two shapes": (
        lambda x: fw.cond(fw.sum(x) > 0, lambda: x, lambda: x[0]),
        r"cond: result 0 of true_fun is float32\(4, 6\), and the function returned float32\(6,\)",
    ),
    "branches of two structures": (
        lambda x: fw.cond(fw.sum(x) > 0, lambda: (x, x), lambda: x),
        r"cond: what true_fun returned has the structure \(\*, \*\), what false_fun returned \*",
    ),
    "a condition by element": (
        lambda x: fw.cond(x > 0, lambda: x, lambda: x),
        r"cond: pred is bool\(4, 6\); a condition is one bool of rank 0: compare, then reduce",
    ),
    "a condition that is a number": (
        lambda x: fw.while_loop(lambda a: fw.sum(a), lambda a: a, x),
        r"while_loop: what cond_fun returned is float32\(\); a condition is one bool",
    ),
    "two conditions": (
        lambda x: fw.while_loop(lambda a: (fw.sum(a) > 0, fw.sum(a) < 1), lambda a: a, x),
        r"while_loop: cond_fun returned 2 arrays; it must return one bool of rank 0",
    ),
    "fewer than no iterations": (
        lambda x: fw.fori_loop(5, 2, add, x),
        r"fori_loop: from 5 to 2 there are -3 iterations; upper must not lie below lower",
    ),
    "a bound that is no integer": (
        lambda x: fw.fori_loop(0, fw.sum(x), add, x),
        r"fori_loop: upper is float32\(\); a bound is an integer, or an integer array of rank 0",
    ),
    "no length": (
        lambda x: fw.scan(lambda c, a: (c, c), x),
        r"scan: neither xs nor length says how many iterations there are; give one",
    ),
    "two lengths": (
        lambda x: fw.scan(lambda c, a: (c, c), x, x, length=5),
        r"scan: first axes and length are 4, 5; they must be equal: slice or pad the arrays",
    ),
    "slices of a number": (
        lambda x: fw.scan(lambda c, a: (c, c), x, fw.sum(x)),
        r"scan: an array of xs has rank 0; each is sliced along its first axis",
    ),
    "no pair": (
        lambda x: fw.scan(lambda c, a: c, x, x),
        r"scan: f returned Array.* must return a pair of the carry and of what is stacked",
    ),
    "a value of another body": (
        keep_first,
        r"is a value of another loop's or branch's function, which ended; return it from there",
    ),
    "a function that is none": (lambda x: fw.fori_loop(0, 3, x, x), r"body_fun=.*a function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str) -> None:
    fn, message = REFUSED[case]
    with pytest.raises(fw.UserError, match=message):
        fw.trace(fn, X)


def test_a_gradient_names_the_way_out() -> None:
    def f(x: Any) -> Any:
        return fw.sum(fw.while_loop(lambda a: fw.sum(a) < 3, lambda a: a * a, x))

    with pytest.raises(fw.UnsupportedError, match="while_loop has no derivative, as the values of"):
        fw.trace(fw.grad(f), X)


TEXT = str(fw.trace(lambda x: fw.fori_loop(0, 3, add, x), X))


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        ("bodies=(b0,)", "bodies=(b1,)", r"no body \(b1,\) stands above; add 'body b0:'"),
        ("end b0\n", "end b0\nbody b0:\nend b0\n", "the body b0 is defined twice"),
        ("trips=3", "trips=3, sliced=7", "result 0 of 1, 1 carried and 7 sliced"),
        ("'fori_loop'", "'cond'", "'cond' with 1 bodies; kinds and their bodies are"),
        ("x: float32[4, 6]", "x: float32[4, 7]", "a body takes a: float32.4, 6., and is given x"),
        ("carried=1", "carried=0", r"its shape must be \(3, 4, 6\)"),
    ],
)
def test_a_text_that_is_wrong(found: str, put: str, message: str) -> None:
    assert found in TEXT
    with pytest.raises(SpecError, match=message):
        parse_fusion(TEXT.replace(found, put, 1))


def test_a_body_without_an_end() -> None:
    with pytest.raises(SpecError, match="the body b0 has no end; add 'end b0'"):
        parse_fusion(TEXT.partition("end b0")[0])


def test_a_body_of_too_many_arguments() -> None:
    extra = "  y: float32[2] = Input(strides=(1,), alignment=16)\n  t0:"
    assert re.search("  t0:", TEXT)
    with pytest.raises(SpecError, match="a body takes 2 values, and is given 1"):
        parse_fusion(TEXT.replace("  t0:", extra, 1))


def test_python_numbers_in_bodies() -> None:
    def f(x: Any) -> Any:
        return fw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 2), (0, fw.sum(x)))

    (n, y) = fw.evaluate(fw.trace(f, X), np.ones((4, 6), np.float32))
    assert (n, y, y.dtype) == (3, 2.0, np.float32)
