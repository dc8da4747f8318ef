"""Launches, copies, edges and bytes of eight programs whose least is known by hand (N1 to N8)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import fusewright as fw
from fusewright.core.expr import Int, constant_value
from fusewright.host.arena import Lifetime, pack

S = fw.TensorSpec
F = "float32"
SQUARE = S((1024, 1024), F)
V = 4 * 1024 * 1024
"""The bytes of a square."""


def stats(fn: Any, *specs: Any) -> dict[str, Any]:
    return fw.compile(fw.trace(fn, *specs)).host.stats


def relu(x: fw.Array) -> fw.Array:
    return fw.maximum(x, 0)


@pytest.mark.parametrize(
    ("pads", "shape", "read", "written"),
    [
        pytest.param(((0, 0), (0, 0), (0, 12)), (64, 512, 500), 65_536_000, 67_108_864, id="N1"),
        pytest.param(((0, 12), (0, 0), (0, 0)), (500, 512, 512), 524_288_000, 536_870_912, id="N2"),
    ],
)
def test_a_pad_behind_a_function(pads: Any, shape: Any, read: int, written: int) -> None:
    found = stats(lambda x: fw.pad(relu(x), pads), S(shape, F))
    assert (found["launches"], found["fills"], found["copies"]) == (1, 0, 0)
    assert found["edges"]["total"] == 0 and found["bytes_moved"] == read + written


@pytest.mark.parametrize("axis", [pytest.param(0, id="N3"), pytest.param(1, id="N4")])
def test_a_join_of_four_producers(axis: int) -> None:
    """In every order in which they are made: no copies, no edges between them."""

    def joined(order: tuple[int, ...]) -> Any:
        def fn(x: fw.Array) -> fw.Array:
            made = {k: fw.nn.softmax(x * (k + 1.5), axis=-1) for k in order}
            return fw.nn.softmax(fw.concat([made[k] for k in range(4)], axis=axis), axis=0)

        return fn

    for order in list(permutations(range(4)))[::5]:
        found = stats(joined(order), SQUARE)
        assert (found["copies"], found["fills"], found["critical_path"]) == (0, 0, 2)
        assert found["launches"] <= 5 and found["peak_bytes"] == 4 * V
        edges = found["edges"]
        assert edges["total"] == edges["RAW"] == found["launches"] - 1


def test_n5_one_value_in_four_joins() -> None:
    """It is written four times and read by nobody: 4V of writes, V of the argument."""

    def fn(x: fw.Array, *others: fw.Array) -> list[fw.Array]:
        v = fw.nn.softmax(x, axis=-1)
        return [fw.concat([v, y], axis=0) for y in others]

    rows = S((8, 1024), F)
    found = stats(fn, SQUARE, *[rows] * 4)
    assert found["bytes_moved"] == 5 * V + 8 * 8 * 4096
    assert found["bytes_copied"] == 4 * 8 * 4096 and found["edges"]["total"] == 0


@pytest.mark.parametrize(("behind", "edges"), [(1, 1), (0, 0)])
def test_n6_appending_to_a_cache(behind: int, edges: int) -> None:
    """Who reads [0, at + 1) waits for the row at `at`, who reads [0, at) does not."""

    def fn(cache: fw.Array, row: fw.Array, at: Any) -> Any:
        new = fw.insert(cache, fw.nn.softmax(row, axis=-1), (at, 0))
        return new, fw.sum(new[: at + behind], axis=1)

    at = fw.Sym("at", min=0)
    fusion = fw.trace(fn, S((256, 128), "bfloat16"), S((1, 128), "bfloat16"), at)
    host = fw.compile(fusion, donate=("cache",)).host
    assert host.stats["edges"]["RAW"] == edges and host.stats["edges"]["maybe"] == 0
    written = [b for x in host.launches for b in x.bindings if b.access.value == "W"]
    assert any(str(b.offset) == "256*at" for b in written)


def test_n7_a_join_of_pads() -> None:
    def fn(a: fw.Array, b: fw.Array) -> fw.Array:
        pieces = [fw.nn.softmax(a, axis=-1), fw.nn.softmax(b * 2, axis=-1)]
        return fw.concat([fw.pad(p, ((0, 0), (2, 2))) for p in pieces], axis=0)

    found = stats(fn, *[S((512, 1020), F)] * 2)
    assert (found["launches"], found["fills"], found["copies"]) == (2, 0, 0)
    assert found["edges"]["total"] == 0
    assert found["bytes_moved"] == 2 * 512 * 4 * (1020 + 1024)


def test_n8_slices_of_an_arena() -> None:
    """Sixteen times the sizes of the reference, whose alignment is 16 bytes where ours is 256."""
    rows = [(100, 0, 1), (100, 1, 2), (100, 2, 3), (200, 0, 4), (200, 5, 6), (100, 5, 8)]
    arena = pack([Lifetime(f"t{k}", Int(16 * n), a, b) for k, (n, a, b) in enumerate(rows)])
    assert constant_value(arena.nbytes) == constant_value(arena.lower_bound) == 16 * 432
