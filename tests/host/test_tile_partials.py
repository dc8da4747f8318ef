"""Reductions of a product's results, of which its kernel makes partial results: values, races,
which syncs that takes, and what stays apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fuzz import fuzz_compare

import fusewright as fw
from fusewright.errors import ScheduleError
from fusewright.frontends.tune import build
from fusewright.fusion.ir import MatMul, Parts, Reduce
from fusewright.fusion.partition import Partition
from fusewright.fusion.passes.tile_partials import is_of_tiles, partition_of, tile_partials
from fusewright.host.product_forms import whole_products
from fusewright.host.segment import structure_of
from fusewright.runtime.tuning_cache import TunedSchedule
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.schedule.heuristics.product_suffix import parts_fit
from fusewright.schedule.heuristics.rating import Rated
from fusewright.target import target_of

Function = Callable[[Any, Any, Any], Any]


def turned(x: Any) -> Any:
    return fw.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def wide(x: Any) -> Any:
    return fw.astype(x, "float32")


def behind(f: Callable[[Any, Any], Any]) -> Function:
    return lambda x, w, r: f(fw.matmul(x, turned(w)), r)


def _gradient(y: Any, r: Any) -> Any:
    g = fw.nn.gelu_backward(y, r)
    return g, fw.sum(wide(g), axis=0)


def _float8(y: Any, r: Any) -> Any:
    return fw.astype(wide(y) * 0.125, "float8_e4m3"), fw.max(fw.abs(wide(y)))


CASES: dict[str, tuple[Function, tuple[int, int, int]]] = {
    "sums of columns": (behind(lambda y, r: (y, fw.sum(wide(y), axis=0))), (256, 192, 72)),
    "of no whole tiles": (behind(lambda y, r: (y, fw.sum(wide(y), axis=0))), (200, 136, 72)),
    "maxima of rows": (behind(lambda y, r: (y, fw.max(fw.abs(y), axis=1))), (200, 136, 72)),
    "the largest value": (behind(_float8), (136, 192, 72)),
    "a bias's gradient": (behind(_gradient), (256, 128, 72)),
    "both directions": (
        behind(lambda y, r: (y, fw.sum(wide(y), axis=0), fw.sum(wide(y) ** 2, axis=1))),
        (256, 128, 72),
    ),
    "nothing else": (behind(lambda y, r: fw.min(y + r, axis=1)), (136, 264, 72)),
    "a transpose": (
        behind(lambda y, r: (turned(fw.nn.relu(y)), fw.sum(wide(fw.nn.relu(y)), axis=0))),
        (256, 128, 72),
    ),
}


def program_of(f: Function, sizes: tuple[int, int, int], batch: tuple[int, ...] = ()) -> fw.Program:
    """The program of a function with reductions in parts, whatever is predicted."""
    m, n, k = sizes
    shapes = ((*batch, m, k), (*batch, n, k), (*batch, m, n))
    fusion = fw.trace(f, *(fw.TensorSpec(s, "bfloat16") for s in shapes))
    cut = tile_partials(fusion, whole_products(target_of("sm_90a")))
    assert cut is not fusion
    return fw.compile(cut)


def product_of(program: fw.Program) -> fw.Kernel:
    (found,) = (k for k in program.kernels if "matmul" in str(k.heuristic))
    return found


def partials(program: fw.Program) -> int:
    """The reductions in the product's kernel."""
    segment = product_of(program).segment
    assert segment is not None
    assert any(isinstance(t.op, MatMul) for t in segment.fusion.values)
    return sum(isinstance(t.op, Reduce) for t in segment.fusion.values)


def agree(program: fw.Program) -> None:
    rng = np.random.default_rng(5)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in program.fusion.inputs]
    types = [t.dtype.numpy for t in program.fusion.inputs]
    arrays = [rng.standard_normal(s).astype(d) for s, d in zip(shapes, types, strict=True)]
    result = program.simulate(*arrays)
    assert result.races == []
    stored = {t.name for x in program.launches for t in x.outputs}
    verdict = fuzz_compare.compare(program.fusion, arrays, result.outputs, stored)
    assert verdict.problem is None
    assert verdict.compared > verdict.undecided


@pytest.mark.parametrize("name", CASES)
def test_the_products_kernel_makes_partial_results(name: str) -> None:
    f, sizes = CASES[name]
    program = program_of(f, sizes)
    assert partials(program) == (2 if name == "both directions" else 1)
    agree(program)


@pytest.mark.parametrize("name", ["sums of columns", "the largest value", "both directions"])
def test_no_sync_is_missing_and_none_redundant(name: str) -> None:
    f, sizes = CASES[name]
    report = fw.verify(product_of(program_of(f, sizes)))
    assert report.missing == []
    assert report.redundant == []


def test_products_of_a_batch() -> None:
    f = behind(lambda y, r: (y, fw.sum(wide(y), axis=1), fw.max(y, axis=(0, 2))))
    program = program_of(f, (130, 136, 72), batch=(2,))
    agree(program)


def candidates(program: fw.Program) -> list[Rated]:
    return [c for c in product_of(program).candidates if isinstance(c, Rated)]


@pytest.mark.parametrize("tile", ["128x256x64", "256x128x64", "64x64x64", "128x128x64"])
@pytest.mark.parametrize("name", ["both directions", "the largest value"])
def test_any_tile_that_fits(name: str, tile: str) -> None:
    f, _ = CASES[name]
    program = program_of(f, (256, 256, 72))
    kernel = product_of(program)
    assert kernel.segment is not None
    own = structure_of(kernel.segment.fusion)[0]
    plans = [c for c in candidates(program) if dict(c.params.values)["tile"] == tile]
    kept = TunedSchedule(plans[-1].params, ())
    chosen = build(
        program.fusion, program.target, lambda s: kept if structure_of(s.fusion)[0] == own else None
    )
    assert tile in str(product_of(chosen).heuristic)
    assert partials(chosen) == partials(program)
    agree(chosen)


def test_tiles_hold_whole_parts() -> None:
    """Tiles, and clusters of them, that end elsewhere than the parts are no candidates."""
    program = program_of(CASES["the largest value"][0], (136, 192, 72))
    found = [dict(c.params.values) for c in candidates(program)]
    assert found
    for p in found:
        rows, columns, _ = map(int, str(p["tile"]).split("x"))
        down, across = map(int, str(p.get("cluster", "1x1")).split("x"))
        assert -(-136 // (rows * down)) * rows * down == 256, p
        assert -(-192 // (columns * across)) * columns * across == 256, p


@pytest.mark.parametrize(
    ("size", "each", "count"),
    [(4096, 16, 256), (200, 16, 16), (17, 16, 4), (64, 64, 1), (65, 64, 2), (136, 64, 4)],
)
def test_parts_are_those_of_tiles(size: int, each: int, count: int) -> None:
    assert partition_of(size, each) == Partition(size, count, each)
    assert is_of_tiles(Partition(size, count, each))
    assert not is_of_tiles(Partition(size, count + 1, each))
    assert not is_of_tiles(Partition(size, count, each, is_interleaved=True))


def test_a_large_product_keeps_its_results_out_of_another_kernel() -> None:
    """Without partial results another kernel, and one behind it, would read them again."""
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((4096, 1024), (4096, 1024), (4096, 4096))]
    program = fw.compile(fw.trace(CASES["a bias's gradient"][0], *specs))
    assert len(program.kernels) == 2
    assert partials(program) == 1
    assert "erf_approx" in str(product_of(program).ir)  # 16 bits are stored, and added up
    assert product_of(program).resources().spill_stores == 0


def test_what_warps_multiply_is_reduced_apart() -> None:
    m, n, k = 256, 192, 72
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((m, k), (n, k), (m, n))]
    fusion = fw.trace(CASES["sums of columns"][0], *specs)
    assert tile_partials(fusion, whole_products(target_of("sm_80"))) is fusion


def test_sizes_that_nobody_knows_stay_whole() -> None:
    specs = [fw.TensorSpec(s, "bfloat16") for s in (("m", 72), (192, 72), ("m", 192))]
    fusion = fw.trace(CASES["sums of columns"][0], *specs)
    assert tile_partials(fusion, whole_products(target_of("sm_90a"))) is fusion


def test_functions_of_other_places_stand_between() -> None:
    """What is reduced there is no function of single elements of the product."""
    f = behind(lambda y, r: fw.sum(wide(y[::2]), axis=0))
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((256, 72), (192, 72), (256, 192))]
    fusion = fw.trace(f, *specs)
    cut = tile_partials(fusion, whole_products(target_of("sm_90a")))
    assert not any(isinstance(t.op, Parts) for t in cut.values)


def test_loops_of_lanes() -> None:
    """By hand: threads have the same numbers as along one dimension."""
    fusion = fw.trace(lambda a, b: a @ turned(b), *[fw.TensorSpec((136, 72), "bfloat16")] * 2)
    program = fw.compile(fusion)
    flow = fw.Schedule(fusion).flow
    product = next(s for s in flow.stages if isinstance(s.op, MatMul))
    assert parts_fit(flow, product, ProductPlan(64, 64, 64, 1, 2))  # nothing is reduced
    assert partials(program) == 0
    s = fw.Schedule(fusion)
    y = s[fusion.outputs[0].name]
    p = y.cache_before()
    p.split(0, 64).split(2, 64).split(4, 64)
    p.reorder({1: 3, 2: 1, 3: 4, 4: 2})
    with pytest.raises(ScheduleError, match="only the threads of warpgroups have loops"):
        p.mma(warps=(2, 2), by_lanes=True)
    p.mma(by_lanes=True)
    bound = {x.parallel: int(str(x.axis.extent)) for x in p.stage.loops if x.parallel.is_thread}
    assert bound == {fw.TIDz: 4, fw.TIDy: 8, fw.TIDx: 4}
