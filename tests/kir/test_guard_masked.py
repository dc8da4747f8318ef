"""Loads of what masks by position drop: which condition they get, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.conditions import TRUE, Or
from fusewright.kir.ir import Kernel, Load
from fusewright.kir.passes.guard_masked import guard_masked
from fusewright.kir.text import parse_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.traffic import traffic


def kernel(body: str) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
        param x: float32[4096] align 16
        param y: float32[4096] align 16
        grid (bx < 64)
        block (tx < 64)
        local a: float32[1]
        local i: int64[1]
        local c: bool[1]
        local r: float32[1]
        {body}
        store y[64*bx + tx] = r[0]
        }}"""
    )


def conditions(k: Kernel) -> list[str]:
    return [str(s.predicate) for s in walk_statements(k) if isinstance(s, Load)]


PLACE = "i[0] = copy(index(tx):int64)"
READ = "a[0] = load x[64*bx + tx]"
CHOOSE = "r[0] = where(c[0], a[0], 0.0:float32)"


@pytest.mark.parametrize(
    ("lines", "condition"),
    [
        ([READ, PLACE, "c[0] = le(i[0], 5:int64)", CHOOSE], "tx < 6"),
        ([READ, PLACE, "c[0] = gt(i[0], 5:int64)", CHOOSE], "5 < tx"),
        ([READ, PLACE, "i[0] = abs(i[0])", "c[0] = lt(i[0], 9:int64)", CHOOSE], "tx < 9"),
        (
            [READ, PLACE, "c[0] = lt(i[0], 9:int64)", "r[0] = where(c[0], 0.0:float32, a[0])"],
            "8 < tx",
        ),
        ([READ, "a[0] = exp(a[0])", PLACE, "c[0] = lt(i[0], 9:int64)", CHOOSE], "tx < 9"),
    ],
)
def test_a_load_takes_place_where_the_mask_keeps_it(lines: list[str], condition: str) -> None:
    assert conditions(guard_masked(kernel("\n".join(lines)))) == [condition]


KEPT = {
    "looked at elsewhere": [
        READ, PLACE, "c[0] = lt(i[0], 9:int64)", CHOOSE, "r[0] = add(r[0], a[0])",
    ],
    "a mask of data": [READ, "c[0] = lt(a[0], 0.0:float32)", CHOOSE],
    "positions that may wrap around": [
        READ, "i[0] = copy(index(4611686018427387904*tx):int64)", "i[0] = add(i[0], i[0])",
        "c[0] = lt(i[0], 9:int64)", CHOOSE,
    ],
    "a position of data": [
        READ, PLACE, "i[0] = cast(a[0])", "c[0] = lt(i[0], 9:int64)", CHOOSE,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_other_loads_stay_as_they_are(name: str) -> None:
    k = kernel("\n".join(KEPT[name]))
    assert all(s.predicate == TRUE for s in walk_statements(guard_masked(k)) if isinstance(s, Load))


def _after(start: int) -> Callable[[Any], Any]:
    return lambda x: fw.where(fw.arange(x.shape[1]) >= start, fw.exp(x), 0.0)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "tril": (fw.tril, 0.5),
    "triu": (lambda x: fw.triu(x, k=3) * 2, 0.5),
    "from a column on": (_after(192), 0.25),
    "sum of what is kept": (lambda x: fw.sum(fw.tril(x), axis=1), 0.5),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_masks_read_what_they_keep(name: str, dtype: str) -> None:
    fn, share = PROGRAMS[name]
    program = fw.compile(fw.trace(fn, fw.TensorSpec((256, 256), dtype)), "sm_90a")
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(dtype)
    found = program.simulate(x, check_races=True)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_allclose(found.outputs[0], want, rtol=1e-2, atol=1e-2)
    (k, *_) = program.kernels
    read = x.nbytes * share
    moved = traffic(k.ir, k.arguments()).nbytes
    assert moved <= 1.3 * (read + want.nbytes)


@pytest.mark.parametrize(
    ("shape", "k", "share"), [((96, 128, 5), 2, 0.1), ((300, 4, 17), -2, 0.45)]
)
def test_vectors_that_run_from_one_row_into_the_next_are_spared(
    shape: tuple[int, ...], k: int, share: float
) -> None:
    """Rows of 5: of 128 rows two keep anything; a vector is read where one of its lanes is kept."""
    mask = fw.triu if k > 0 else fw.tril
    program = fw.compile(fw.trace(lambda x: mask(x, k=k) * 2, fw.TensorSpec(shape, "float16")))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(program.fusion, x)
    np.testing.assert_array_equal(found.outputs[0], want)
    (kernel,) = program.kernels
    (load,) = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert load.width > 1
    moved = traffic(kernel.ir, kernel.arguments()).nbytes - want.nbytes
    assert moved <= share * x.nbytes


def test_lanes_that_are_mostly_kept_do_not_ask_each() -> None:
    program = fw.compile(fw.trace(lambda x: fw.tril(x, k=4), fw.TensorSpec((300, 6, 5), "float16")))
    loads = [s for s in walk_statements(program.kernels[0].ir) if isinstance(s, Load)]
    assert all(not isinstance(s.predicate, Or) for s in loads)


def test_a_known_place_is_part_of_the_kernel() -> None:
    """Masks that differ in a place are kernels of their own: what they read differs."""
    spec = fw.TensorSpec((64, 256), "float32")
    names = {fw.compile(fw.trace(_after(n), spec), "sm_90a").kernels[0].name for n in (8, 16)}
    assert len(names) == 2


TWO_PIECES = """
        local b: float32[1]
        a[0] = load x[64*(bx%32) + tx]
        b[0] = load x[64*(bx%32) + tx + 2048]
        r[0] = copy(a[0])
        r[0] = copy(b[0]) if {chosen}"""


def test_a_block_reads_the_piece_that_it_takes() -> None:
    k = kernel(TWO_PIECES.format(chosen="(31 < bx)"))
    assert conditions(guard_masked(k)) == ["bx < 32", "31 < bx"]


def test_lanes_that_take_different_pieces_read_both() -> None:
    k = kernel(TWO_PIECES.format(chosen="(0 < tx%2)"))
    assert guard_masked(k) is k


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 32, 64), (3, 7, 33)])
def test_a_stack_reads_each_piece_once(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(axis)
    pieces = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    spec = fw.TensorSpec(shape, "float32")
    program = fw.compile(
        fw.trace(lambda *a: fw.stack([fw.abs(x) for x in a], axis=axis), *[spec] * 3)
    )
    result = program.simulate(*pieces)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], np.stack([abs(x) for x in pieces], axis))


def test_blocks_of_a_stack_along_the_first_axis_read_no_other_piece() -> None:
    spec = fw.TensorSpec((64, 4096), "float32")
    (k,) = fw.compile(fw.trace(lambda *a: fw.stack(a, axis=0), *[spec] * 3)).kernels
    where = [str(s.predicate) for s in walk_statements(k.ir) if isinstance(s, Load)]
    assert len(set(where)) == 3 and str(TRUE) not in where
