"""Pieces of a join that one kernel makes beside a reduction, and arguments that it reads anyway."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from host_runs import agreed

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.fusion.ir import Pointwise
from fusewright.fusion.passes.copy_pieces import copy_pieces
from fusewright.host.joins import MAX_STORES, is_join


def soft(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def norm(x: Any) -> Any:
    return fw.nn.rms_norm(x, (x.shape[-1],))


def repeated(y: Any, count: int) -> Any:
    """Each row several times."""
    return fw.broadcast_to(y[:, None, :], (y.shape[0], count, y.shape[1]))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "rows beside their norm": lambda x: fw.concat([x, norm(x)], axis=1),
    "rows and their norm, stacked": lambda x: fw.stack([norm(x), x], axis=1),
    "rows with their mean": lambda x: fw.concat([x, fw.mean(x, axis=1, keepdims=True)], axis=1),
    "a function beside a softmax": lambda x: fw.concat([fw.exp(x), soft(x)], axis=1),
    "below each other": lambda x: fw.concat([x * 2, soft(x)], axis=0),
    "a norm twice": lambda x: fw.concat([(y := norm(x)), y], axis=1),
    "a norm repeated": lambda x: repeated(norm(x), 4),
    "a norm repeated beside rows": lambda x: fw.concat([repeated(norm(x), 3), x[:, None]], axis=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_makes_all_pieces(name: str) -> None:
    program = fw.compile(fw.trace(PROGRAMS[name], fw.TensorSpec((4096, 1024), "float32")))
    arrays = (*program.fusion.inputs, *program.fusion.outputs)
    stats = program.host.stats
    assert (stats["launches"], stats["copies"], stats["fills"]) == (1, 0, 0)
    assert stats["bytes_moved"] == sum(
        4 * math.prod(constant_value(n) or 0 for n in t.shape) for t in arrays
    )


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(5, 7), (33, 130), (300, 1001), ("n", 64)], ids=str)
def test_pieces_hold_what_the_oracle_says(name: str, shape: tuple[int | str, ...]) -> None:
    agreed(PROGRAMS[name], fw.TensorSpec(shape, "float32"), sizes={"n": 9}, orders=2)


def copies(fusion: fw.Fusion) -> int:
    return sum(isinstance(t.op, Pointwise) and t.op.fn == "copy" for t in fusion.values)


def test_copies_are_of_arguments_that_are_reduced_as_they_are() -> None:
    x, v = fw.TensorSpec((6, 8), "float32"), fw.TensorSpec((6, 8), "float32")
    fusion = fw.trace(lambda x, v: fw.concat([x, soft(x), v], axis=1), x, v)
    assert copies(copy_pieces(fusion)) == 1
    others: list[Callable[..., Any]] = [
        lambda x, v: fw.concat([x, soft(v)], axis=1),
        lambda x, v: fw.concat([x, fw.exp(x)], axis=1),
        lambda x, v: fw.concat([x[:, :4], soft(x), v], axis=1),
        lambda x, v: fw.concat([x, soft(x[:, 1:])], axis=1),
    ]
    for f in others:
        fusion = fw.trace(f, x, v)
        assert copy_pieces(fusion) is fusion


@pytest.mark.parametrize(
    ("count", "columns", "is_stored"),
    [
        (MAX_STORES, 64, True),
        (MAX_STORES + 1, 64, False),
        (4, 8, True),
        (4, 12, False),
        ("n", 64, False),
    ],
)
def test_rows_are_stored_at_few_places_and_in_whole_sectors(
    count: int | str, columns: int, is_stored: bool
) -> None:
    specs = [fw.TensorSpec((40, columns), "float32"), fw.TensorSpec((count,), "float32")]
    fusion = fw.trace(lambda x, v: repeated(x, v.shape[0]), *specs)
    assert is_join(fusion.outputs[0]) is is_stored
