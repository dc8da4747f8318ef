"""How much work compiling takes: what once took seconds, and the fusions of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.work import calls

import fusewright as fw
from fusewright.corpus import CORPUS

A_FIFTH_OF_A_SECOND = 2_400_000
"""Calls, with room for a fifth more: ten million take a second on the slower machine."""


def _odd_middle(a: Any) -> Any:
    return fw.concat([fw.exp(a)] * 2, axis=-2)


def _padded(a: Any) -> Any:
    return fw.pad(fw.exp(a), ((1, 2), (3, 1)))


def _joined(a: Any, b: Any, c: Any) -> Any:
    return fw.concat([fw.exp(a), fw.nn.relu(b), c * 0.5], axis=-1)


def _spread(a: Any) -> Any:
    return fw.var(a, axis=(1, 2))


def _rms_backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    xhat = x * rstd
    d = dy * w
    dx = fw.astype((d - xhat * fw.mean(d * xhat, axis=-1, keepdims=True)) * rstd, x.dtype)
    return dx, fw.astype(fw.sum(dy * xhat, axis=0), w.dtype)


def _bf16(*shape: int | str) -> fw.TensorSpec:
    return fw.TensorSpec(shape, "bfloat16")


NORM = (_bf16(4096, 302), _bf16(4096, 302), _bf16(302), fw.TensorSpec((4096, 1), "float32"))
JOINED = (_bf16(100000, 13), _bf16(100000, 15), _bf16(100000, 5))


@pytest.mark.parametrize(
    ("fn", "specs", "least"),
    [
        (_odd_middle, (_bf16("n", 33, 3),), 1_040_000),
        (_padded, (_bf16(30001, 121),), 690_000),
        (_joined, JOINED, 870_000),
        (_spread, (_bf16(19, 37, 3001),), 920_000),
        (_rms_backward, NORM, 890_000),
    ],
)
def test_of_a_kernel(fn: Callable[..., Any], specs: tuple[fw.TensorSpec, ...], least: int) -> None:
    """`least`: the calls of 2026-11-23; a quarter more is a cause to look for."""
    programs: list[fw.Program] = []
    work = calls(lambda: programs.append(fw.compile(fw.trace(fn, *specs))))
    assert work < 1.25 * least * len(programs[0].kernels)


@pytest.mark.slow
@pytest.mark.parametrize("case", CORPUS, ids=lambda c: c.name)
def test_of_a_fusion_of_the_corpus(case: Any) -> None:
    programs: list[fw.Program] = []
    work = calls(lambda: programs.append(fw.compile(fw.trace(case.fn, *case.specs))))
    assert work < A_FIFTH_OF_A_SECOND * len(programs[0].kernels)


def test_of_a_join_of_many_symbolic_pieces() -> None:
    """Which lanes lie in which piece is asked of pairs of conditions; most are told apart by the
    region that their own lane found."""
    specs = [fw.TensorSpec(("n",), "bfloat16")] * 24

    def f(*pieces: Any) -> Any:
        joined = fw.concat(pieces)
        return fw.argmax(joined), joined

    fusion = fw.trace(f, *specs)
    assert calls(lambda: fw.compile(fusion)) < 6 * A_FIFTH_OF_A_SECOND
