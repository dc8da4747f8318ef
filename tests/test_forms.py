"""Which form of a fusion is kept: the one that is predicted to take less time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import driver, form_times, forms
from fusewright.errors import InternalError
from fusewright.forms import chosen_form, prepare
from fusewright.host.form import form
from fusewright.schedule.heuristics.rating import Decisions
from fusewright.target import target_of

S = fw.TensorSpec
TARGET = target_of("sm_90a")


def mixed_with_the_row_before(x: Any) -> Any:
    y = fw.nn.layer_norm(x, (x.shape[-1],))
    return y * 0.25 + fw.pad(y[:-1], ((1, 0), (0, 0))) * 0.75


def neighbours(x: Any) -> Any:
    y = fw.nn.softmax(x, axis=-1)
    return y[1:] - y[:-1]


def turned(x: Any) -> Any:
    y = x - fw.mean(x, axis=0)
    return y + fw.roll(y, 3, axis=0)


def flipped(x: Any) -> Any:
    return fw.flip(fw.nn.softmax(x, axis=-1), axis=1)


def every_second(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)[::2]


MOVED = [mixed_with_the_row_before, neighbours, turned, flipped, every_second]


@pytest.mark.parametrize("fn", MOVED)
def test_a_norm_at_other_rows_is_computed_again(fn: Any) -> None:
    fusion = fw.trace(fn, S((256, 65536), "float32"))
    program = fw.compile(fusion)
    stats = program.host.stats
    least = 4 * 65536 * (256 + int(str(fusion.outputs[0].shape[0])))
    assert stats["launches"] == (1 if fn is not every_second else stats["launches"])
    assert stats["bytes_moved"] <= (1.05 * least if fn is not every_second else 2 * least)


@pytest.mark.parametrize("fn", MOVED)
@pytest.mark.parametrize("shape", [(5, 33), (64, 128), (17, 2500)])
def test_kernels_agree_with_the_oracle(fn: Any, shape: tuple[int, int]) -> None:
    fusion = fw.trace(fn, S(shape, "float32"))
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype("float32")
    found = fw.compile(fusion).simulate(x, check_races=True)
    assert not found.races
    np.testing.assert_allclose(found.outputs[0], fw.evaluate(fusion, x)[0], 1e-4, 1e-5)


def test_what_is_predicted_to_be_slower_is_not_taken() -> None:
    """Short rows of odd length go through shared memory, but not where they are computed again for
    the row behind: that pays for longer ones only."""
    sizes = ((500000, 11), (4096, 4096))
    short, long = (fw.trace(mixed_with_the_row_before, S(n, "bfloat16")) for n in sizes)
    assert len(chosen_form(short, TARGET).formation.groups) == 2
    assert len(chosen_form(long, TARGET).formation.groups) == 1


def test_what_passes_leave_is_checked_where_kernels_are_formed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every level of FUSEWRIGHT_SPEC but 0, with results given as arguments and without."""
    fusion = fw.trace(every_second, S((64, 128), "float32"))
    monkeypatch.setattr(
        forms, "own_operands", lambda f: dataclasses.replace(f, values=f.values[::-1])
    )
    left = "passes over fusions left one that breaks its spec: .* is not defined above it"
    for given in ((), fusion.inputs):
        with pytest.raises(InternalError, match=left):
            chosen_form(fusion, TARGET, given=given)
    monkeypatch.setenv("FUSEWRIGHT_SPEC", "0")
    chosen_form(fusion, TARGET)


def test_a_kernel_takes_the_next_way_where_the_first_does_not_fit() -> None:
    """Rows through shared memory are refused beside those in front of them; lanes share a row."""
    program = fw.compile(fw.trace(mixed_with_the_row_before, S((500000, 65), "bfloat16")))
    assert schedulers(program) == ["inner_persistent"]


def scaled_rows(x: Any) -> Any:
    scale = fw.max(fw.abs(x), axis=1, keepdims=True) / 127
    return x / scale, scale


def pooled(x: Any) -> Any:
    return fw.sum(fw.reshape(x, (x.shape[0] // 2, 2, -1)), axis=1)


def twice(x: Any, y: Any) -> Any:
    return fw.nn.softmax(x, axis=-1) * fw.nn.softmax(y, axis=-1)


def across(shape: tuple[int, int], dtype: str = "float32") -> fw.TensorSpec:
    return S(shape, dtype, strides=(1, shape[0]))


@pytest.mark.parametrize("fn", [scaled_rows, pooled, twice])
def test_inputs_that_lie_across_are_stored_first_or_turned_in_tiles(fn: Any) -> None:
    shape, count = (2048, 1152), 2 if fn is twice else 1
    large = ((32768, 40000), "float32") if fn is scaled_rows else ((32768, 4608), "bfloat16")
    groups = chosen_form(fw.trace(fn, *[across(*large)] * count), TARGET).formation.groups
    stored = [t for g in groups for t in g if t.name.endswith("_stored")]
    assert bool(stored) == (fn is not twice)  # a cluster holds tiles of its rows
    assert all(len(g) == 1 for g in groups if set(stored[:1]) & set(g))
    program = fw.compile(fw.trace(fn, *[across(shape)] * count))
    x = np.random.default_rng(5).standard_normal(shape[::-1]).astype("float32").T
    found = program.simulate(*[x] * count)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, *[x] * count), strict=True):
        np.testing.assert_allclose(np.asarray(got, "f8"), np.asarray(want, "f8"), 1e-4, 1e-4)


def test_explain_says_that_an_input_is_stored_first() -> None:
    program = fw.compile(fw.trace(scaled_rows, across((32768, 40000))))
    assert any("stored in the order of the program" in str(r) for r in program.reasons)


@pytest.mark.parametrize("fn", [fw.sum, fw.exp, lambda x: fw.sum(x, axis=1)])
def test_inputs_are_read_where_they_lie_if_that_costs_little(fn: Any) -> None:
    assert len(fw.compile(fw.trace(fn, across((32768, 4608)))).kernels) <= 2
    form = chosen_form(fw.trace(fn, across((32768, 4608))), TARGET)
    assert not any(t.name.endswith("_stored") for g in form.formation.groups for t in g)


def rows_and_columns(x: Any) -> Any:
    return fw.sum(x, axis=1), fw.max(x, axis=0)


def schedulers(program: fw.Program) -> list[str]:
    return [k.heuristic.scheduler for k in program.kernels if k.heuristic is not None]


def gradients(dy: Any, x: Any) -> Any:
    c = fw.mean(dy * x, axis=1, keepdims=True)
    return dy - x * c, fw.sum(fw.astype(dy, fw.float32) * x, axis=0)


def test_blocks_walk_over_short_rows_unless_that_is_clearly_slower() -> None:
    """A thread that holds two elements of a row meets another one for each of them."""
    few, more = (S((1 << 21, n), "bfloat16") for n in (2, 48))
    assert "rows" in schedulers(fw.compile(fw.trace(gradients, more, more)))
    program = fw.compile(fw.trace(gradients, few, few))
    assert "rows" not in schedulers(program)
    rng = np.random.default_rng(2)
    given = [rng.standard_normal((1 << 21, 2)).astype(fw.bfloat16.numpy) for _ in range(2)]
    found = program.simulate(*given)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(program.fusion, *given), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2 * np.abs(want).max())
    report = fw.verify(program, *given)
    assert not report.missing and not report.redundant


def test_rows_of_two_elements_are_not_walked_over_in_chunks_that_are_dealt() -> None:
    """Chunks of a variance down the rows take them in turn: blocks that have one chunk each would
    ask for a sector for every row of four bytes, nine times what there is."""

    def statistics(x: Any) -> Any:
        return fw.mean(x, axis=2), fw.var(x, axis=(0, 1))

    program = fw.compile(fw.trace(statistics, S((216 * 136, 1344, 2), "bfloat16")))
    assert "rows" not in schedulers(program)
    assert sum(k.predicted.us for k in program.kernels if k.predicted) < 160
    few = fw.compile(fw.trace(statistics, S((68, 1344, 2), "bfloat16")))
    x = np.random.default_rng(5).standard_normal((68, 1344, 2)).astype(fw.bfloat16.numpy)
    found = few.simulate(x)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(few.fusion, x), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2)


def test_rows_that_are_too_short_for_a_walk_are_refused_with_their_length() -> None:
    fusion = prepare(fw.trace(rows_and_columns, S((1 << 19, 16), "float32")), TARGET)
    assert len(form(fusion).groups) < len(form(fusion, 17).groups)
    assert len(form(fusion).groups) == len(form(fusion, 16).groups)

    def scaled(x: Any) -> Any:
        rows = x / fw.sum(x, axis=1, keepdims=True)
        return rows, fw.sum(x * rows, axis=0)

    fusion = prepare(fw.trace(scaled, S((1 << 19, 16), "float32")), TARGET)
    rules = [r.rule for r in form(fusion, 17).reasons]
    assert any(
        "rows of 16 elements are too short for a walk over them; 17 would" in r for r in rules
    )


def test_what_was_decided_to_compare_forms_is_not_decided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rating the candidates of a kernel takes longer than scheduling it by one of them."""
    fusion = fw.trace(mixed_with_the_row_before, S((500000, 17), "bfloat16"))
    expected = [k.cuda for k in fw.compile(fusion).kernels]

    def fails(*_: Any) -> None:
        pytest.fail("decided a second time")

    monkeypatch.setattr(driver, "decided", fails)
    assert [k.cuda for k in fw.compile(fusion).kernels] == expected


def test_what_was_scheduled_to_compare_forms_is_lowered_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for its names: a group that is spelled otherwise is scheduled for itself."""
    fusion = fw.trace(mixed_with_the_row_before, S((500000, 17), "bfloat16"))
    expected = [k.cuda for k in fw.compile(fusion).kernels]
    decisions, original = Decisions(), driver.schedule_group
    chosen_form(fusion, TARGET, decisions=decisions)
    assert all(d.better is None for d in decisions.made.values())
    scheduled: list[Any] = []
    monkeypatch.setattr(driver, "schedule_group", lambda *a: scheduled.append(a) or original(*a))
    assert [k.cuda for k in fw.compile(fusion).kernels] == expected
    assert not scheduled


def short_rows_behind(dy: Any, x: Any) -> Any:
    d = dy * x
    return d - fw.mean(d, axis=-1, keepdims=True), fw.sum(d, axis=0)


def test_a_form_that_takes_longer_by_its_bytes_alone_is_not_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be faster by too little where the first one is at the speed of memory."""
    fusion = fw.trace(short_rows_behind, *[S((80, 4096, 25), "bfloat16")] * 2)
    expected = [len(g) for g in chosen_form(fusion, TARGET).formation.groups]
    decided: list[Any] = []
    original = form_times.decided
    monkeypatch.setattr(form_times, "decided", lambda *a: decided.append(a) or original(*a))
    assert [len(g) for g in chosen_form(fusion, TARGET).formation.groups] == expected
    few = len(decided)
    monkeypatch.setattr(form_times, "_least_us", lambda *_: 0.0)
    assert [len(g) for g in chosen_form(fusion, TARGET).formation.groups] == expected
    assert few < len(decided) - few


def test_a_form_is_scheduled_until_it_takes_too_long() -> None:
    def two(x: Any) -> Any:
        return fw.nn.softmax(x, axis=1), x.T + 1

    chosen = chosen_form(fw.trace(two, S((4096, 4096), "float32")), TARGET)
    assert len(chosen.formation.groups) == 2
    whole = form_times.Clock(TARGET, Decisions())
    us = whole.us(chosen)
    for limit, count in ((0.0, 0), (0.999 * us, 2), (us, 2), (1.001 * us, 2)):
        decisions = Decisions()
        assert form_times.Clock(TARGET, decisions).is_within(chosen, limit) == (limit >= us)
        assert len(decisions.made) == count
    first = dataclasses.replace(chosen, handicap=4.0)
    decisions = Decisions()
    assert not form_times.Clock(TARGET, decisions).is_within(first, 4 * whole.least_rank(chosen))
    assert len(decisions.made) < 2


class Timed(form_times.Clock):
    """A clock that is told the least time of each form and its time, and notes what it asks."""

    def __init__(self, times: dict[forms.Form, tuple[float, float]]) -> None:
        super().__init__(TARGET, Decisions())
        self.times = times
        self.scheduled: list[float] = []

    def least_rank(self, form: forms.Form) -> float:
        return self.times[form][0]

    def rank(self, form: forms.Form) -> float:
        return self.times[form][1]

    def is_within(self, form: forms.Form, limit: float) -> bool:
        least, us = self.times[form]
        if least <= limit:
            self.scheduled.append(us)
        return us <= limit


def test_forms_that_may_take_the_least_are_scheduled_first() -> None:
    """The rest need not be then; what is taken does not depend on it."""
    one = chosen_form(fw.trace(lambda x: x + 1, S((64, 64), "float32")), TARGET)
    many = [dataclasses.replace(one) for _ in range(5)]
    times = [(20.0, 21.0), (12.0, 30.0), (10.0, 11.2), (8.0, 11.0), (20.0, 20.0)]
    clock = Timed(dict(zip(many, times, strict=True)))
    assert forms._best(many, clock) is many[2]
    assert clock.scheduled == [11.0, 11.2]


@pytest.mark.parametrize("fn", [*MOVED, lambda x: x.T + 1])
def test_no_launch_is_predicted_to_take_less_than_its_bytes(fn: Any) -> None:
    fusion = fw.trace(fn, S((4000, 1111), "bfloat16"))
    chosen = chosen_form(fusion, TARGET)
    clock = form_times.Clock(TARGET, Decisions())
    assert 0 < clock.least_rank(chosen) <= clock.rank(chosen)
