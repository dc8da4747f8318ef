"""Random products: the simulated kernels agree with the oracle, and no race is found."""

from __future__ import annotations

import os
import tracemalloc

import fuzz_compare
import numpy as np
import pytest
from fuzz_operands import OperandDrawn
from fuzz_partials import PartialDrawn
from fuzz_products import Drawn, WideDrawn

import fusewright as fw
from fusewright.frontends.tune import build
from fusewright.fusion.passes.tile_partials import tile_partials
from fusewright.fusion.summed_products import summed_products
from fusewright.host.product_forms import whole_products
from fusewright.host.segment import structure_of
from fusewright.program import Program
from fusewright.runtime.tuning_cache import TunedSchedule
from fusewright.schedule.heuristics.rating import Rated
from fusewright.target import target_of

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "600"))
CHUNK = 25


def problem_of_seed(seed: int, target: str = "sm_90a") -> str | None:
    drawn = Drawn(seed)
    return problem_of(fw.compile(fw.trace(drawn, *drawn.specs()), target=target), drawn)


def program_of_wide(drawn: WideDrawn) -> Program:
    """The program of a product of any type, in which its kernel follows the drawn candidate."""
    fusion = fw.trace(drawn, *drawn.specs())
    with fw.config(float32_matmul="tf32" if drawn.kind == "tf32" else "ieee"):
        return by_candidate(fusion, drawn.candidate)


def program_of_partials(drawn: PartialDrawn) -> Program:
    """The program of a product whose kernel makes partial results, where warpgroups multiply."""
    target = target_of("sm_90a")
    fusion = tile_partials(fw.trace(drawn, *drawn.specs()), whole_products(target))
    return by_candidate(fusion, drawn.candidate)


def by_candidate(fusion: fw.Fusion, candidate: float | None) -> Program:
    """The program in which the first kernel with a product follows a candidate, of all its own."""
    program = fw.compile(fusion, target="sm_90a")
    products = [k for k in program.kernels if "matmul" in str(k.heuristic) and k.segment]
    rated = [c for k in products[:1] for c in k.candidates if isinstance(c, Rated)]
    if candidate is None or not rated:
        return program
    kept = TunedSchedule(rated[int(candidate * len(rated))].params, ())
    (segment,) = (k.segment for k in products[:1] if k.segment)
    own = structure_of(segment.fusion)[0]
    chosen = lambda s: kept if structure_of(s.fusion)[0] == own else None  # noqa: E731
    return build(fusion, program.target, chosen)


def problem_of(
    program: Program, drawn: Drawn | WideDrawn | OperandDrawn | PartialDrawn
) -> str | None:
    arrays = drawn.arrays()
    result = program.simulate(*arrays)
    if result.races:
        return f"race: {result.races[0]}"
    stored = {t.name for x in program.launches for t in x.outputs}
    return fuzz_compare.compare(program.fusion, arrays, result.outputs, stored).problem


@pytest.mark.parametrize("seed", range(12))
def test_few_products(seed: int) -> None:
    assert problem_of_seed(seed) is None, seed


@pytest.mark.parametrize("seed", [26, 31, 50, 63])
def test_few_products_of_any_type(seed: int) -> None:
    drawn = WideDrawn(seed)
    assert problem_of(program_of_wide(drawn), drawn) is None, seed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_few_products_whose_results_are_reduced(seed: int) -> None:
    drawn = PartialDrawn(seed)
    assert problem_of(program_of_partials(drawn), drawn) is None, str(drawn)


def problem_of_operands(seed: int) -> str | None:
    drawn = OperandDrawn(seed)
    target = ("sm_90a", "sm_90a", "sm_80")[seed % 3]
    return problem_of(fw.compile(fw.trace(drawn, *drawn.specs()), target=target), drawn)


@pytest.mark.parametrize("seed", [1031, 3025])
def test_few_products_of_operands_that_lie_anyhow(seed: int) -> None:
    assert problem_of_operands(seed) is None, str(OperandDrawn(seed))


def test_sums_of_products_are_compared_in_little_memory() -> None:
    """Of 100 x 320 sums of 130 products each, twice, one that is too large by 1e-4 of the products'
    magnitudes is found; all products together have 67 MB."""
    specs = [fw.TensorSpec((2, 100, 130), "float32"), fw.TensorSpec((2, 130, 320), "float32")]
    program = fw.compile(fw.trace(fw.matmul, *specs))
    assert len(summed_products(program.fusion)) == 1
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 100, 130), (2, 130, 320)))
    (right,) = fw.evaluate(program.fusion, a, b)
    wrong = right.copy()
    wrong[1, 7, 5] += np.float32(1e-4 * np.abs(a[1, 7]) @ np.abs(b[1, :, 5]))
    tracemalloc.start()
    assert fuzz_compare.compare(program.fusion, (a, b), [right]).problem is None
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()
    found = fuzz_compare.compare(program.fusion, (a, b), [wrong]).problem
    assert found is not None and "output 0 at (1, 7, 5)" in found


@pytest.mark.parametrize("seed", range(12))
def test_few_products_by_single_warps(seed: int) -> None:
    assert problem_of_seed(seed, "sm_80") is None, seed


def test_the_few_have_product_kernels() -> None:
    made = [fw.compile(fw.trace(d, *d.specs())) for d in map(Drawn, range(12))]
    assert sum("matmul" in str(k.heuristic) for p in made for k in p.kernels) >= 3


@pytest.mark.fuzz
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_products(start: int, target: str) -> None:
    print(f"seeds {start} to {start + CHUNK - 1} for {target}")
    for seed in range(start, start + CHUNK):
        assert problem_of_seed(seed, target) is None, (seed, target)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_products_of_any_type(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        drawn = WideDrawn(seed)
        assert problem_of(program_of_wide(drawn), drawn) is None, seed


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_products_of_operands_that_lie_anyhow(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert problem_of_operands(seed) is None, str(OperandDrawn(seed))


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_products_whose_results_are_reduced(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        drawn = PartialDrawn(seed)
        assert problem_of(program_of_partials(drawn), drawn) is None, str(drawn)
