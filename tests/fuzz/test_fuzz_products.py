"""Random products: the simulated kernels agree with the oracle, and no race is found."""

from __future__ import annotations

import os

import fuzz_compare
import pytest
from fuzz_products import Drawn

import fusewright as fw

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "600"))
CHUNK = 25


def problem_of_seed(seed: int, target: str = "sm_90a") -> str | None:
    drawn = Drawn(seed)
    program = fw.compile(fw.trace(drawn, *drawn.specs()), target=target)
    arrays = drawn.arrays()
    result = program.simulate(*arrays)
    if result.races:
        return f"race: {result.races[0]}"
    stored = {t.name for x in program.launches for t in x.outputs}
    return fuzz_compare.compare(program.fusion, arrays, result.outputs, stored).problem


@pytest.mark.parametrize("seed", range(12))
def test_few_products(seed: int) -> None:
    assert problem_of_seed(seed) is None, seed


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
