"""Flips, steps, repeats, rolls of short rows: lanes are taken out of words, not read one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import Load
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.target import MAX_VECTOR_NBYTES

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], str, int]] = {
    "flip": (lambda x: fw.flip(x, axis=(0, 1)), (2368, 64), "float32", 4),
    "flip of odd rows": (lambda x: fw.flip(x, axis=1) * 2, (2368, 65), "float32", 4),
    "flip of bytes": (lambda x: fw.flip(x, axis=(0, 1)), (23680, 136), "int8", 16),
    "flip of a part": (lambda x: fw.flip(x[:, 2:-1], axis=1) + 1, (19200, 129), "float16", 8),
    "flip in a pad": (
        lambda x: fw.pad(fw.flip(x, axis=1), ((0, 0), (3, 2))), (32768, 64), "float32", 4,
    ),
    "roll of fours": (lambda x: fw.roll(x, (12, 1), axis=(0, 2)), (2880, 453, 4), "uint8", 16),
    "exchanged pairs": (lambda x: fw.roll(x, 1, axis=1), (288000, 2), "uint8", 16),
    "every second": (lambda x: x[:, ::2] + 1, (19200, 128), "int16", 8),
    "every second from the second": (lambda x: x[:, 1::2] + 1, (19200, 144), "int16", 8),
    "every fourth": (lambda x: x[:, ::4] + 1, (19200, 512), "int16", 8),
    "each twice": (lambda x: fw.repeat(x, 2, axis=1), (19200, 128), "float32", 4),
}  # fmt: skip


def _made(name: str) -> tuple[fw.Program, np.ndarray]:
    f, shape, dtype, _ = CASES[name]
    x = np.random.default_rng(5).integers(-50, 50, shape).astype(dtype)
    return fw.compile(fw.trace(f, fw.TensorSpec(shape, dtype))), x


@pytest.mark.parametrize("name", CASES)
def test_words_are_read_whole(name: str) -> None:
    """The lanes of a thread, and how many accesses bring them: not one each."""
    program, _ = _made(name)
    (kernel,) = program.kernels
    assert kernel.heuristic is not None
    lanes = CASES[name][3]
    assert dict(kernel.heuristic.values)["vector"] == lanes
    (source,) = kernel.ir.params[:-1]
    reads = [
        s
        for s in walk_statements(kernel.ir)
        if isinstance(s, Load) and s.src.memory is Memory.GLOBAL
    ]
    elements = lanes // 2 if name == "each twice" else lanes
    nbytes = min(MAX_VECTOR_NBYTES, elements * source.dtype.nbytes)
    assert reads and all(r.width * source.dtype.nbytes == nbytes for r in reads)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_oracle(name: str) -> None:
    program, x = _made(name)
    found = program.simulate(x)
    assert found.races == []
    (wanted,) = fw.evaluate(program.fusion, x)
    assert np.array_equal(found.outputs[0].astype(np.float64), np.asarray(wanted, np.float64))


def test_elements_too_far_apart_are_read_alone() -> None:
    f = lambda x: x[:, ::16] + 1  # noqa: E731
    (kernel,) = fw.compile(fw.trace(f, fw.TensorSpec((9600, 2048), "int16"))).kernels
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert all(s.width == 1 for s in loads)


def test_steps_through_rows_that_are_no_words_are_read_one_by_one() -> None:
    """Words of rows counted from words would bring three times what is taken out of them."""
    x = fw.TensorSpec((60000, 74), "bfloat16")
    (kernel,) = fw.compile(fw.trace(lambda x: x[:, ::3] + 1, x)).kernels
    assert kernel.heuristic is not None and dict(kernel.heuristic.values)["vector"] == 1


def test_rows_counted_from_words_are_loaded_where_they_are_used() -> None:
    """Registers would hold another place in each of several vectors of a thread: the loads stay in
    their loop, and one kernel does it."""

    def turned(x: fw.Array, m: fw.Array) -> fw.Array:
        return fw.flip(fw.maximum(fw.astype(x, fw.float32) - m, 0), axis=1)

    specs = fw.TensorSpec((40000, 371), "float16"), fw.TensorSpec((1, 1), "float32")
    program = fw.compile(fw.trace(turned, *specs))
    assert len(program.kernels) == 1 and not program.reasons
    assert program.kernels[0].heuristic is not None
    assert dict(program.kernels[0].heuristic.values)["vectors"] > 1
