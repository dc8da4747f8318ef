"""Random programs, compiled and simulated, against the oracle."""

from __future__ import annotations

import os

import fuzz_compare
import fuzz_programs
import numpy as np
import pytest
from fuzz_checks import Tally, problem_of
from fuzz_programs import Leaf, Recipe, Step, draw
from fuzz_shrink import kind_of, shrink

import fusewright as fw
from fusewright.fusion import ops

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
CHUNK = 50


def assert_program_agrees(seed: int, *, verify: bool, cubins: bool = False) -> None:
    """Fails with the smallest program found that shows what the seed's program shows."""
    recipe = draw(seed)
    problem = problem_of(recipe, verify=verify, cubins=cubins)
    if problem is None:
        return
    kind = kind_of(problem)

    def fails(r: Recipe) -> bool:
        found = problem_of(r, verify=verify, cubins=cubins)
        return found is not None and kind_of(found) == kind

    small = shrink(recipe, fails)
    pytest.fail(f"seed {seed}: {problem_of(small, verify=verify)}\n{small.reproducer()}")


@pytest.mark.parametrize("seed", range(25))
def test_few_random_programs(seed: int) -> None:
    assert_program_agrees(5000 + seed, verify=seed % 10 == 0)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_random_programs(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert_program_agrees(seed, verify=seed % 10 == 0)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(START, START + COUNT, 50))
def test_machine_code_has_the_syncs_of_the_kernel(seed: int) -> None:
    assert_program_agrees(seed, verify=False, cubins=True)


# --- the tools themselves -----------------------------------------------------------------------


def test_a_seed_gives_one_program() -> None:
    assert draw(7) == draw(7)
    assert draw(7).source() != draw(8).source()


def test_every_operation_is_drawn() -> None:
    known = {n.partition(".")[0] for n in fuzz_programs.makers()} | set(
        fuzz_programs.fuzz_ops.NOT_DRAWN
    )
    assert set(ops.__all__) - known == set()
    from fuzz_nn import MAKERS, covered
    from fuzz_windows import MAKERS as WINDOWS

    texts = set()
    for seed in range(40):
        for name in (*MAKERS, *WINDOWS):
            r = fuzz_programs.single(f"nn.{name}", seed)
            texts |= {n for s in (r.steps if r else ()) for n in covered(s.text)}
    assert set(fw.nn.__all__) - texts - {"BatchNorm"} == set()


def _program(*steps: Step, shape: tuple[int, ...] = (4,)) -> Recipe:
    leaves = (Leaf(shape, "float32"),)
    return Recipe(0, leaves, steps, (len(steps),))


def test_the_comparison_takes_rounding_and_nothing_more() -> None:
    r = _program(Step("exp", "fw.exp({0})", (0,)), Step("sum", "fw.sum({0})", (1,)))
    fusion, arrays = r.trace(), r.arrays()
    want = np.exp(arrays[0].astype(np.float64)).sum()
    for factor, fits in ((1 + 1e-7, True), (1 + 1e-4, False)):
        got = [np.asarray(want * factor, np.float32)]
        assert (fuzz_compare.compare(fusion, arrays, got).problem is None) == fits


def test_the_comparison_leaves_out_what_rounding_decides() -> None:
    r = _program(Step("floor", "fw.floor({0} * 0.1 * 10.0 - {0} + 1.0)", (0,)), shape=(64,))
    fusion, arrays = r.trace(), r.arrays()
    got = [np.zeros(64, np.float32)]
    verdict = fuzz_compare.compare(fusion, arrays, got)
    assert verdict.undecided > 0


def test_shrinking_keeps_the_failure_and_drops_the_rest() -> None:
    steps = (
        Step("exp", "fw.exp({0})", (0,)),
        Step("reshape", "fw.reshape({0}, (2, 6))", (1,)),
        Step("flip", "fw.flip({0}, axis=1)", (2,)),
        Step("sum", "fw.sum({0}, axis=0)", (3,)),
    )
    r = _program(*steps, shape=(12,))
    small = shrink(r, lambda x: any(s.op == "flip" for s in x.steps))
    assert [s.op for s in small.steps] == ["flip"]
    assert small.leaves[0].shape[0] == 1


def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    r = _program(Step("exp", "fw.exp({0})", (0,)))
    assert problem_of(r, tally=Tally()) is None
    real = fw.Program.simulate

    def off(self: fw.Program, *arrays: np.ndarray) -> object:
        result = real(self, *arrays)
        result.outputs[0] = result.outputs[0] + np.float32(0.01)
        return result

    monkeypatch.setattr(fw.Program, "simulate", off)
    found = problem_of(r)
    assert found is not None and found.startswith("wrong: output 0")
