"""Joins of a product's results at other columns: chosen in the registers of its own kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import fusewright as fw
from fusewright import forms
from fusewright.core.expr import Expr, Var, constant_value
from fusewright.cuda.listing import instructions
from fusewright.fusion import build
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.held_results import (
    TILE_WIDTHS,
    is_held_in_tile,
    place_in_tile,
    reads_held_result,
)
from fusewright.fusion.ir import Concat, IndexMap, MatMul, Pointwise
from fusewright.fusion.passes.select_results import select_results
from fusewright.gates.code import code_problems
from fusewright.host.place import place
from fusewright.host.segment import segments
from fusewright.schedule.graph import Dataflow
from fusewright.schedule.heuristics import cost, product_suffix
from fusewright.schedule.heuristics.candidates import Candidate
from fusewright.schedule.heuristics.matmul import MatmulScheduler
from fusewright.schedule.heuristics.product_suffix import suffix_of
from fusewright.schedule.heuristics.settled import settled_shares
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")
ROWS, DEPTH = 136, 72
Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def tables_for_nothing() -> Iterator[None]:
    """Threads do not wait for tables, so that one kernel is predicted faster than two."""
    with (
        mock.patch.object(cost, "waits_us", lambda *_: 0.0),
        mock.patch.object(product_suffix, "waits_us", lambda *_: 0.0),
    ):
        yield


def _heads(q: Any, width: int) -> Any:
    return fw.reshape(q, (q.shape[0], q.shape[1] // width, width))


def _angles(c: Any) -> Any:
    return fw.expand_dims(c, 1)


def rotated_half(x: Any, w: Any, c: Any, s: Any) -> Any:
    """q * cos + rotate_half(q) * sin, as models write it, with tables of whole heads."""
    q = _heads(x @ w.T, c.shape[1])
    half = c.shape[1] // 2
    turned = fw.concat([-q[..., half:], q[..., :half]], axis=-1)
    return q * _angles(c) + turned * _angles(s)


def biased(x: Any, w: Any, b: Any, c: Any, s: Any) -> Any:
    q = _heads(x @ w.T + b, 2 * c.shape[1])
    return fw.nn.rotary_embedding(q, _angles(c), _angles(s))


def pairs(x: Any, w: Any, c: Any, s: Any) -> Any:
    q = _heads(x @ w.T, 2 * c.shape[1])
    return fw.nn.rotary_embedding(q, _angles(c), _angles(s), interleaved=True)


def of_a_part(x: Any, w: Any, c: Any, s: Any) -> Any:
    """The first half of each head is turned, the rest stays."""
    q = _heads(x @ w.T, 4 * c.shape[1])
    turned = fw.nn.rotary_embedding(q[..., : 2 * c.shape[1]], _angles(c), _angles(s))
    return fw.concat([turned, q[..., 2 * c.shape[1] :]], axis=-1)


def rolled(x: Any, w: Any) -> Any:
    """Another order of the words of whole heads of 48 columns, three parts."""
    q = _heads(x @ w.T, 48)
    return fw.concat([q[..., 32:], q[..., :16] * 2, -q[..., 16:32]], axis=-1) + q


def _specs(columns: int, *tables: tuple[int, ...]) -> list[fw.TensorSpec]:
    shapes = ((ROWS, DEPTH), (columns, DEPTH), *tables)
    return [S(shape, "bfloat16") for shape in shapes]


PROGRAMS: dict[str, tuple[Program, list[fw.TensorSpec]]] = {
    "heads of 128": (rotated_half, _specs(384, (ROWS, 128), (ROWS, 128))),
    "heads of 64": (rotated_half, _specs(320, (ROWS, 64), (ROWS, 64))),
    "heads of 96": (rotated_half, _specs(192, (ROWS, 96), (ROWS, 96))),
    "biased": (biased, _specs(256, (256,), (ROWS, 32), (ROWS, 32))),
    "pairs": (pairs, _specs(192, (ROWS, 32), (ROWS, 32))),
    "a part of each head": (of_a_part, _specs(256, (ROWS, 16), (ROWS, 16))),
    "three parts": (rolled, _specs(240)),
}


def assert_one_right_kernel(
    fusion: fw.Fusion, program: fw.Program, specs: list[fw.TensorSpec]
) -> None:
    """One launch, without a race, and the values of the oracle."""
    assert program.host.stats["launches"] == 1 and program.host.stats["copies"] == 0
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in specs]
    made = program.simulate(*arrays, check_races=True)
    assert not made.races
    (got,), (want,) = made.outputs, fw.evaluate(fusion, *arrays)
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert float(np.abs(got - want).max()) <= 2.0**-7 * float(np.abs(want).max())


@pytest.mark.parametrize(("fn", "specs"), PROGRAMS.values(), ids=PROGRAMS)
def test_one_kernel(fn: Program, specs: list[fw.TensorSpec]) -> None:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    assert_one_right_kernel(fusion, program, specs)


def test_heads_in_front_of_positions_lie_as_the_product_has_them() -> None:
    """As models write it: heads are an axis in front of positions, and results keep the order of
    memory of what they are computed of."""

    def turned(x: Any, w: Any, c: Any, s: Any) -> Any:
        q = fw.reshape(x @ w.T, (2, ROWS // 2, w.shape[0] // 64, 64))
        q = fw.permute_dims(q, (0, 2, 1, 3))
        half = fw.concat([-q[..., 32:], q[..., :32]], axis=-1)
        return q * fw.expand_dims(c, 1) + half * fw.expand_dims(s, 1)

    table = (2, ROWS // 2, 64)
    specs = _specs(256, table, table)
    fusion = fw.trace(turned, *specs)
    program = fw.compile(fusion, out_layouts=[(0, 2, 1, 3)])
    assert_one_right_kernel(fusion, program, specs)


@pytest.mark.parametrize(("fn", "specs"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_same_values(fn: Program, specs: list[fw.TensorSpec]) -> None:
    wide = [S(s.shape, "float64") for s in specs]
    fusion = fw.trace(fn, *wide)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s.shape) for s in wide]
    selected = select_results(fusion, lambda t: True)
    assert not any(isinstance(t.op, Concat) for t in selected.values)
    for a, b in zip(evaluate(selected, *arrays), evaluate(fusion, *arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_stays_a_join() -> None:
    """Joins of something else, of two products, of more elements than a product has, and of what is
    reduced of one."""
    specs = _specs(256)
    table = S((ROWS, 256), "bfloat16")

    def is_kept(fn: Program, *more: fw.TensorSpec) -> bool:
        fusion = fw.trace(fn, *specs, *more)
        return select_results(fusion, lambda t: True) is fusion

    assert is_kept(lambda x, w, c: fw.concat([c, c], axis=1) * 2, table)
    assert is_kept(lambda x, w: fw.concat([(x @ w.T)[:, :128], (x @ (w * 2).T)[:, 128:]], axis=1))
    assert is_kept(lambda x, w: fw.concat([x @ w.T, x @ w.T], axis=1))
    assert is_kept(
        lambda x, w: fw.concat([(x @ w.T)[:, :255], fw.sum(x @ w.T, axis=1, keepdims=True)], axis=1)
    )
    fusion = fw.trace(rotated_half, *PROGRAMS["heads of 64"][1])
    assert select_results(fusion, lambda t: False) is fusion


# --- what a thread holds --------------------------------------------------------------------------


def _map(columns: int, index: Callable[[Var], Expr]) -> tuple[IndexMap, MatMul]:
    fusion = fw.trace(lambda x, w: x @ w, S((64, 32), "bfloat16"), S((32, columns), "bfloat16"))
    (product,) = fusion.outputs
    at = build.coordinates(product.shape)
    moved = build.index_map(product, product.shape, at, (at[0], index(at[1])))
    assert isinstance(moved.op, IndexMap) and isinstance(product.op, MatMul)
    return moved.op, product.op


@pytest.mark.parametrize(
    ("index", "tiles"),
    [
        (lambda c: c // 128 * 128 + (c + 64) % 128, [128, 256]),
        (lambda c: c // 64 * 64 + (c + 32) % 64, [64, 128, 192, 256]),
        (lambda c: c + 1 - c % 2 * 2, [8, 64, 128, 192, 256]),
        (lambda c: c // 2 * 2, [8, 64, 128, 192, 256]),
        (lambda c: c // 8 * 8 + 7 - c % 8, []),  # another lane's
        (lambda c: c // 8 * 8 + (c + 2) % 8, []),  # another lane's
        (lambda c: (c + 8) % 768, []),  # of the next tile at its end
        (lambda c: c // 32 * 32 + (c + c // 2 % 4 * 8) % 32, []),  # each lane moves by its own
        (lambda c: c % 384, []),  # the second tile reads the first
        (lambda c: c // 96 * 96 + (c + 48) % 96, [192]),
        (lambda c: c // 160 * 160 + (c + 80) % 160, []),  # no product has such tiles
    ],
)
def test_which_maps_a_thread_holds(index: Callable[[Any], Expr], tiles: list[int]) -> None:
    op, product = _map(768, index)
    shape = product.operands[0].shape[:1] + product.operands[1].shape[1:]
    held = [n for n in (8, 64, 128, 192, 256) if is_held_in_tile(op, shape, n)]
    assert held == tiles
    assert reads_held_result(op, shape, product, shape) is bool(tiles)


def test_products_of_all_sizes_have_tiles_of_these_widths() -> None:
    specs = [S(s, "bfloat16") for s in ((72, 64), (64, 768))]
    flow = Dataflow(fw.trace(lambda x, w: x @ w, *specs))
    plans = [c.plan for c in MatmulScheduler(flow, TARGET).candidates() if isinstance(c, Candidate)]
    assert {p.columns for p in plans if p.rows == 128} >= set(TILE_WIDTHS)


def test_places_in_a_tile() -> None:
    def places(index: Callable[[Var], Expr], *own: tuple[int, int]) -> list[tuple[Any, ...]]:
        op, _ = _map(768, index)
        return [tuple(map(constant_value, place_in_tile(op, *p))) for p in own]

    halves = places(lambda c: c // 128 * 128 + (c + 64) % 128, (0, 0), (3, 1), (8, 0), (15, 1))
    assert halves == [(8, 0), (11, 1), (0, 0), (7, 1)]
    assert places(lambda c: c + 1 - c % 2 * 2, (5, 0), (5, 1)) == [(5, 1), (5, 0)]


# --- plans and their predicted times --------------------------------------------------------------


def _scheduler(columns: int, width: int) -> tuple[Dataflow, MatmulScheduler]:
    """The kernel of heads of a width, as it reaches its scheduler."""
    specs = [(4096, 512), (columns, 512), (4096, width), (4096, width)]
    fusion = fw.trace(rotated_half, *(S(s, "bfloat16") for s in specs))
    (form,) = forms.results_forms(fusion, TARGET)
    placed = place(form.fusion, form.formation)
    (segment,) = segments(form.fusion, placed.items, placed.sites, placed.joined)
    flow = segment.dataflow()
    return flow, MatmulScheduler(flow, TARGET)


@pytest.mark.parametrize("width", [64, 96, 128])
def test_tiles_hold_whole_heads(width: int) -> None:
    _, scheduler = _scheduler(768, width)
    plans = [c.plan for c in scheduler.candidates() if isinstance(c, Candidate)]
    widths = {p.columns for p in plans}
    assert widths and all(n % width == 0 for n in widths)
    assert (256 in widths, 192 in widths) == (256 % width == 0, 192 % width == 0)


def test_a_choice_by_words_of_a_tile_costs_nothing() -> None:
    flow, scheduler = _scheduler(768, 128)
    shares = settled_shares(flow, next(s for s in flow.stages if isinstance(s.op, MatMul)))
    by_fn = {s.op.fn: shares[s] for s in flow.stages if isinstance(s.op, Pointwise)}
    assert by_fn == {"mul": 1.0, "rem": 0.0, "ge": 0.0, "neg": 0.5, "where": 0.0, "add": 1.0}
    assert (
        suffix_of(flow, scheduler._product).instructions == 3.5
    )  # two products, a sum, half a sign


@pytest.mark.parametrize(
    ("limit", "period", "share"), [(64, 128, 0.5), (4, 8, None), (3, 768, None), (48, 192, 0.75)]
)
def test_a_choice_that_lanes_or_tiles_have_a_part_in_costs(
    limit: int, period: int, share: float | None
) -> None:
    def masked(x: Any, w: Any) -> Any:
        y = x @ w.T
        return fw.where(fw.arange(y.shape[1]) % period < limit, y, y * 2)

    flow = Dataflow(fw.trace(masked, S((4096, 512), "bfloat16"), S((768, 512), "bfloat16")))
    product = next(s for s in flow.stages if isinstance(s.op, MatMul))
    shares = settled_shares(flow, product)
    found = [shares[s] for s in shares if isinstance(s.op, Pointwise) and s.op.fn == "mul"]
    assert found == ([] if share is None else [share])


@pytest.mark.parametrize("name", ["heads of 128", "pairs"])
def test_machine_code_chooses_nothing_and_spills_nothing(name: str) -> None:
    """Of 128 sums a thread: two products and a sum for each, no selection, no comparison."""
    fn, specs = PROGRAMS[name]
    large = [S((4096, 4096), "bfloat16")] * 2 + [
        S((4096, s.shape[1]), "bfloat16") for s in specs[2:]
    ]
    (kernel,) = fw.compile(fw.trace(fn, *large), target="sm_90a").kernels
    assert not code_problems(kernel)
    count = Counter(i.operation for i in instructions(kernel.sass()))
    assert count["FSEL"] == count["SEL"] == 0
    assert (count["FMUL"], count["FFMA"]) == (128, 128)
