"""The wider campaign: a slice of it always, more with `-m fuzz`, and the tools themselves."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import fuzz_criteria
import pytest
from fuzz_campaign import Report, campaign, checked, seeds_of, smallest
from fuzz_criteria import (
    COMPILE_SECONDS,
    TimeUp,
    finding_of,
    most_launches,
    signature_of,
    time_limit,
)
from fuzz_motifs import MOTIFS, draw_wide
from fuzz_programs import Leaf, Recipe, Step

import fusewright as fw
from fusewright.errors import SpecError, UserError

START = int(os.environ.get("FUZZ_START", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "2000"))
CHUNK = 50
FEW = 700_000


def assert_agrees(seed: int, *, seconds: float = COMPILE_SECONDS) -> None:
    """Fails with the smallest program found that fails as the seed's program does."""
    recipe, motifs = draw_wide(seed)
    found = checked(recipe, seconds=seconds)
    if found is not None:
        small = smallest(recipe, found.signature)
        again = checked(small) or found
        pytest.fail(
            f"seed {seed} {motifs}: {again.signature}\n{again.detail}\n{small.reproducer()}"
        )


@pytest.mark.parametrize("start", range(0, 48, 12))
def test_few_wide_programs(start: int) -> None:
    for seed in range(FEW + start, FEW + start + 12):
        assert_agrees(seed, seconds=4 * COMPILE_SECONDS)


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK))
def test_wide_programs(start: int) -> None:
    print(f"seeds {start} to {start + CHUNK - 1}")
    for seed in range(start, start + CHUNK):
        assert_agrees(seed)


# --- the draws ----------------------------------------------------------------------------------


def test_a_seed_gives_one_wide_program() -> None:
    assert draw_wide(11) == draw_wide(11)
    assert draw_wide(11)[0].source() != draw_wide(12)[0].source()


def test_a_few_hundred_seeds_draw_all_that_is_asked_for() -> None:
    drawn: set[str] = set()
    symbolic = empty = scalar = many = odd = 0
    ranks: set[int] = set()
    for seed in range(400):
        recipe, motifs = draw_wide(seed)
        drawn |= set(motifs)
        shapes = [x.shape for x in recipe.leaves]
        ranks |= {len(s) for s in shapes}
        symbolic += bool(recipe.sizes)
        empty += any(0 in s for s in shapes) or "empties" in motifs
        scalar += () in shapes
        many += len(shapes) >= 20
        odd += fuzz_criteria.has_odd_names(recipe)
    assert drawn == set(MOTIFS)
    assert ranks >= {0, 1, 2, 3, 4, 5}
    assert symbolic > 60 and empty > 15 and scalar > 15 and many > 5 and odd > 10


# --- the criteria -------------------------------------------------------------------------------


def _program(*steps: Step, shapes: tuple[tuple[int | str, ...], ...] = ((4, 8),)) -> Recipe:
    leaves = tuple(Leaf(s, "float32") for s in shapes)
    sizes = tuple((n, 5) for n in sorted({n for s in shapes for n in s if isinstance(n, str)}))
    return Recipe(1, leaves, steps, (len(leaves) + len(steps) - 1,), sizes)


def test_symbols_are_bound_to_the_least_size_and_to_larger_ones() -> None:
    r = _program(Step("exp", "fw.exp({0})", (0,)), shapes=(("n", 3),))
    sizes = [dict(at.sizes)["n"] for at in fuzz_criteria.bindings(r, r.trace())]
    assert sizes[:2] == [5, 2] and len(sizes) == 4


def test_an_error_of_the_compiler_is_a_failure_and_a_refusal_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = _program(Step("reshape", "fw.reshape({0}, (7,))", (0,)))
    assert finding_of(refused) is None
    fine = _program(Step("exp", "fw.exp({0})", (0,)))
    assert finding_of(fine) is None

    def refuse(fusion: object) -> None:
        raise UserError("refused too late")

    monkeypatch.setattr(fw, "compile", refuse)
    found = finding_of(fine)
    assert found is not None and found.signature.startswith("UserError in compile")


def test_a_signature_names_the_last_function_of_the_package() -> None:
    try:
        fw.TensorSpec((-1,), "float32")
    except UserError as e:
        assert signature_of(e, "trace") == "UserError in trace: fusion/ir._check_size"


def test_an_untyped_error_of_a_call_is_kept_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise SpecError("nobody scheduled this")

    for name in ("exp", "tanh", "sum", "max", "concat", "stack", "flip", "roll", "pad"):
        monkeypatch.setattr(fw, name, broken)
    draws = [draw_wide(seed)[0] for seed in range(20)]
    broken = [r for r in draws if r.steps and "fw.exp(" in r.steps[-1].text]
    found = finding_of(broken[0])
    assert found is not None and found.signature.startswith("SpecError in trace")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("fw.exp({0}) + {0} * 2", 1),
        ("fw.stack([{0}, {0}])[0] + 1", 4),
        ("fw.sum({0})", 3),
    ],
)
def test_the_bound_on_launches_follows_the_program(text: str, most: int) -> None:
    assert most_launches(_program(Step("x", text, (0,))).trace()) == most


def test_results_with_nothing_in_common_may_be_kernels_of_their_own() -> None:
    one = Step("a", "fw.exp({0})", (0,))
    shapes = ((4,), (4,))
    r = _program(one, Step("b", "fw.exp({0})", (1,)), shapes=shapes)
    apart = Recipe(1, r.leaves, r.steps, (2, 3))
    assert most_launches(apart.trace()) == 2
    together = Recipe(1, r.leaves, (one, Step("b", "{0} + {1}", (0, 1))), (2, 3))
    assert most_launches(together.trace()) == 1


def test_an_edge_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = "fw.nn.softmax({0}, axis=1)"
    steps = (
        Step("softmax", soft, (0,)),
        Step("flip", "fw.flip(fw.sum({0}, axis=0)) + fw.cumulative_sum({0}, axis=0)[0]", (1,)),
    )
    r = _program(*steps, shapes=((5, 64),))
    assert finding_of(r) is None
    real = fuzz_criteria.order_problem

    def unordered(program: fw.Program, *rest: object) -> str | None:
        host = replace(program.host, edges=())
        vars(program)["_checked"] = host
        return real(program, *rest)

    monkeypatch.setattr(fuzz_criteria, "order_problem", unordered)
    found = [finding_of(replace(r, seed=seed)) for seed in range(8)]
    assert any(f is not None and f.signature == "order of launches" for f in found)


def test_a_launch_too_many_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    r = _program(Step("exp", "fw.exp({0})", (0,)))
    real = fw.compile

    def twice(fusion: fw.Fusion) -> fw.Program:
        program = real(fusion)
        program.launches = program.launches * 2
        return program

    monkeypatch.setattr(fw, "compile", twice)
    found = finding_of(r)
    assert found is not None and found.signature == "superfluous kernel"


def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeUp), time_limit(0.05):
        end = time.process_time() + 5
        while time.process_time() < end:
            pass


# --- the report ---------------------------------------------------------------------------------


def test_a_campaign_ends_in_a_table_by_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fusion: object) -> None:
        raise SpecError("nobody scheduled this")

    monkeypatch.setattr(fw, "compile", refuse)
    report = Report()
    for o in campaign(range(5), 1):
        report.add(o)
    assert report.programs == 5
    (line,) = report.table().splitlines()[1:]
    assert line.split()[:4] == ["5", "SpecError", "in", "compile:"]
    small = smallest(draw_wide(1)[0], next(iter(report.failed)), seconds=5)
    assert len(small.steps) <= 1


def test_seeds_are_a_range_or_one() -> None:
    assert seeds_of("3:9") == range(3, 9)
    assert seeds_of("7") == range(7, 8)
