"""Programs as textbooks write them: launches, and bytes over the least; and programs written in
three ways, which take the same launches and move the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.textbook import PROGRAMS as BENCHED

import fusewright as fw
from fusewright.program import Program

S = fw.TensorSpec
Way = Callable[..., Any]


def rotary(x: Any, cosines: Any, sines: Any) -> Any:
    half = x.shape[-1] // 2
    turned = fw.concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cosines + turned * sines


def difference_of_scans(x: Any) -> Any:
    return fw.cumulative_sum(x, axis=1) - fw.cumulative_sum(x * x, axis=1)


def adamw(*tensors: Any) -> list[Any]:
    out: list[Any] = []
    for p, g, m, v in zip(*(tensors[k::4] for k in range(4)), strict=True):
        mean, square = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        out += [0.999 * p - 0.001 * mean / (fw.sqrt(square) + 1e-8), mean, square]
    return out


def group_norm_silu(x: Any) -> Any:
    y = fw.reshape(fw.astype(x, fw.float32), (x.shape[0], 4, -1))
    mean, variance = (f(y, axis=-1, keepdims=True) for f in (fw.mean, fw.var))
    normed = fw.reshape((y - mean) / fw.sqrt(variance + 1e-5), x.shape)
    return fw.astype(fw.nn.silu(normed), x.dtype)


def stencil_after_a_cast(x: Any) -> Any:
    y = fw.astype(x, fw.float32)
    return fw.roll(y, 1, axis=0) + fw.roll(y, -1, axis=0) - 2 * y


def lists(first: int, more: int, columns: int, count: int) -> list[fw.TensorSpec]:
    return [S((first + more * k, columns), "float32") for k in range(count) for _ in range(4)]


def rotated(batch: int, length: int, heads: int, size: int) -> list[fw.TensorSpec]:
    table = S((length, 1, size), "float32")
    return [S((batch, length, heads, size), "float32"), table, table]


TEXTBOOK: dict[str, tuple[Way, list[fw.TensorSpec], list[fw.TensorSpec], int]] = {
    "rotary by halves": (rotary, rotated(2, 2048, 32, 128), rotated(1, 5, 3, 14), 1),
    "difference of cumulative sums": (
        difference_of_scans,
        [S((4096, 8192), "float32")],
        [S((7, 333), "float32")],
        1,
    ),
    "AdamW on 24 tensors": (adamw, lists(512, 64, 1024, 24), lists(3, 1, 13, 4), 2),
    "group norm and SiLU": (
        group_norm_silu,
        [S((64, 256, 32, 32), "bfloat16")],
        [S((2, 8, 5, 3), "float32")],
        1,
    ),
    "stencil by rolls after a cast": (
        stencil_after_a_cast,
        [S((8192, 4096), "bfloat16")],
        [S((9, 37), "bfloat16")],
        1,
    ),
}
"""The program, its sizes, small odd ones, and the launches it needs."""


def least_nbytes(program: Program) -> int:
    """Every argument and every result once."""
    tensors = (*program.fusion.inputs, *program.fusion.outputs)
    return sum(math.prod(int(str(n)) for n in t.shape) * t.dtype.nbytes for t in tensors)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_programs_need_the_least(name: str) -> None:
    fn, specs, _, launches = TEXTBOOK[name]
    program = fw.compile(fw.trace(fn, *specs), "sm_90a")
    assert len(program.launches) <= launches
    assert program.host.stats["bytes_moved"] <= 1.1 * least_nbytes(program)


def random_arrays(specs: Sequence[fw.TensorSpec], program: Program) -> list[Any]:
    rng = np.random.default_rng(11)
    shapes = [tuple(int(str(n)) for n in s.shape) for s in specs]
    found = zip(shapes, program.fusion.inputs, strict=True)
    return [rng.uniform(0.5, 2, n).astype(t.dtype.numpy) for n, t in found]


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_programs_agree_with_the_oracle(name: str) -> None:
    fn, _, specs, _ = TEXTBOOK[name]
    program = fw.compile(fw.trace(fn, *specs), "sm_90a")
    arrays = random_arrays(specs, program)
    result = program.simulate(*arrays)
    assert result.races == []
    for got, want in zip(result.outputs, fw.evaluate(program.fusion, *arrays), strict=True):
        found = [np.asarray(a).astype(np.float64) for a in (got, want)]
        np.testing.assert_allclose(*found, rtol=1e-2, atol=1e-3)


# --- three ways ---------------------------------------------------------------------------------

X, HALF = S((4096, 4096), "float32"), S((4096, 4096), "bfloat16")
ROW = S((4096,), "float32")


def wide(x: Any) -> Any:
    return fw.astype(x, fw.float32)


WAYS: dict[str, tuple[tuple[Way, Way, Way], list[fw.TensorSpec]]] = {
    "a slice before or after a function": (
        (
            lambda x: fw.exp(x)[:, 64:],
            lambda x: fw.exp(x[:, 64:]),
            lambda x: fw.exp(x[:, 32:])[:, 32:],
        ),
        [X],
    ),
    "a cast before or after a move": (
        (
            lambda x: fw.flip(wide(x), axis=1) + 1,
            lambda x: wide(fw.flip(x, axis=1)) + 1,
            lambda x: fw.flip(wide(x) + 1, axis=1),
        ),
        [HALF],
    ),
    "a row spread in three ways": (
        (
            lambda x, r: x + r,
            lambda x, r: x + fw.broadcast_to(r, x.shape),
            lambda x, r: x + fw.reshape(r, (1, -1)),
        ),
        [X, ROW],
    ),
    "a softmax by hand": (
        (
            lambda x: fw.nn.softmax(x, axis=-1),
            lambda x: (
                fw.exp(x - fw.max(x, axis=-1, keepdims=True))
                / fw.sum(fw.exp(x - fw.max(x, axis=-1, keepdims=True)), axis=-1, keepdims=True)
            ),
            lambda x: fw.reshape(fw.nn.softmax(fw.reshape(x, (64, 64, 4096)), axis=-1), x.shape),
        ),
        [X],
    ),
    "a mean": (
        (
            lambda x: fw.mean(x, axis=1),
            lambda x: fw.sum(x, axis=1) / 4096,
            lambda x: fw.mean(fw.reshape(x, (4096, 64, 64)), axis=(1, 2)),
        ),
        [X],
    ),
    "a stencil": (
        (
            lambda x: x[2:] - 2 * x[1:-1] + x[:-2],
            lambda x: fw.diff(fw.diff(x, axis=0), axis=0),
            lambda x: (x[2:] - x[1:-1]) - (x[1:-1] - x[:-2]),
        ),
        [X],
    ),
    "a transpose and a sum": (
        (
            lambda x, y: x.T + y,
            lambda x, y: fw.permute_dims(x, (1, 0)) + y,
            lambda x, y: (x + y.T).T,
        ),
        [X, X],
    ),
    "a norm": (
        (
            lambda x: wide(x) / fw.sqrt(fw.mean(wide(x) ** 2, axis=-1, keepdims=True) + 1e-6),
            lambda x: wide(x) / fw.sqrt(fw.sum(wide(x) * wide(x), axis=-1)[:, None] / 4096 + 1e-6),
            lambda x: wide(x) / fw.sqrt(fw.mean(wide(x * 1) ** 2, axis=1, keepdims=True) + 1e-6),
        ),
        [HALF],
    ),
    "a mask": (
        (
            lambda x: fw.where(x > 0, x, 0 * x),
            lambda x: x * fw.astype(x > 0, fw.float32),
            lambda x: fw.where(fw.logical_not(x > 0), 0 * x, x),
        ),
        [X],
    ),
    "a concatenation": (
        (
            lambda x, y: fw.concat([fw.exp(x), fw.exp(y)], axis=1),
            lambda x, y: fw.exp(fw.concat([x, y], axis=1)),
            lambda x, y: fw.reshape(fw.stack([fw.exp(x), fw.exp(y)], axis=1), (4096, 8192)),
        ),
        [X, X],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_three_ways_take_the_same_launches_and_bytes(name: str) -> None:
    ways, specs = WAYS[name]
    programs = [fw.compile(fw.trace(fn, *specs), "sm_90a") for fn in ways]
    assert {len(p.launches) for p in programs} == {1}
    assert len({p.host.stats["bytes_moved"] for p in programs}) == 1
    kinds = [[k.heuristic.scheduler for k in p.kernels if k.heuristic] for p in programs]
    assert kinds[0] == kinds[1] == kinds[2]


# --- the programs of bench/textbook.py ------------------------------------------------------

NOTES = Path(__file__).parent.parent / "notes" / "textbook.md"
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in NOTES.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| program")
]
QUICK = [r for r in ROWS if float(r[4]) <= 0.2]
"""Programs that take a fifth of a second to compile: name, launches, fills and copies, bytes."""


def test_every_program_has_its_line() -> None:
    assert [r[0] for r in ROWS] == list(BENCHED)
    assert len(QUICK) > 10


@pytest.mark.parametrize("row", QUICK, ids=lambda r: r[0])
def test_programs_take_what_the_notes_say(row: list[str]) -> None:
    name, launches, moves, over, _ = row
    program = BENCHED[name].compiled()
    stats = program.host.stats
    found = stats["bytes_moved"] / BENCHED[name].least(program)
    assert (str(stats["launches"]), f"{stats['fills']}, {stats['copies']}") == (launches, moves)
    assert f"{found:.2f}" == over
