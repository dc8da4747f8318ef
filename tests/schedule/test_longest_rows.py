"""What a symbolic size fills lives in shared memory that has room for the largest one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import Var
from fusewright.errors import ScheduleError
from fusewright.report.explain import Report

Spec = fw.TensorSpec
MOST = 300
N = fw.Sym("n", max=MOST)
SIZES = (2, 3, 127, 128, 129, MOST - 1, MOST)


def flipped(x: Any) -> Any:
    e = fw.name(fw.exp(x), "held")
    return fw.name(fw.flip(e, axis=1) + e, "out")


def gathered(x: Any, at: Any) -> Any:
    e = fw.name(fw.exp(x), "held")
    return fw.name(fw.take_along_axis(e, at, axis=1) * 2.0, "out")


def turned(x: Any) -> Any:
    e = fw.name(fw.exp(x), "held")
    return fw.name(fw.permute_dims(e, (0, 2, 1)) + 1.0, "out")


SPECS = {
    flipped: (Spec((5, N), "float32"),),
    gathered: (Spec((5, N), "float32"), Spec((5, N), "int32")),
    turned: (Spec((5, 4, N), "float32"),),
}


def by_hand(fn: Callable[..., Any]) -> fw.Schedule:
    """A row, or a tile, a block; what is read at other places is held in shared memory."""
    s = fw.Schedule(fw.trace(fn, *SPECS[fn]))
    for t in (t for t in s.tensors if t.axes):
        if len(t.axes) == 3:
            t.merge(1)
        t.split(1, 128).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    s.inline_most()
    s["held"].set_memory(fw.SHARED)
    return s


def given(fn: Callable[..., Any], n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((5, 4, n) if fn is turned else (5, n)).astype(np.float32)
    return [x, rng.integers(-n, n, (5, n)).astype(np.int32)] if fn is gathered else [x]


@pytest.mark.parametrize("fn", SPECS)
def test_what_is_held_by_hand_is_right_at_every_size(fn: Callable[..., Any]) -> None:
    schedule = by_hand(fn)
    kernel = schedule.lower(target="sm_90a")
    (held,) = kernel.smem
    assert held.nbytes >= 4 * MOST * (4 if fn is turned else 1)
    assert str(fw.parse_kernel(str(kernel.ir))) == str(kernel.ir)
    for n in SIZES:
        arrays = given(fn, n)
        result = kernel.simulate(*arrays)
        assert result.races == []
        (want,) = fw.evaluate(schedule, *arrays)
        np.testing.assert_allclose(result.outputs[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", SPECS)
def test_what_is_held_is_ordered_by_as_few_syncs_as_it_takes(fn: Callable[..., Any]) -> None:
    report = fw.verify(by_hand(fn).lower(target="sm_90a"), *given(fn, 200))
    assert report.necessary and not report.redundant and not report.missing


def test_a_size_without_a_maximum_is_refused() -> None:
    s = fw.Schedule(fw.trace(flipped, Spec((5, "n"), "float32")))
    for t in (t for t in s.tensors if t.axes):
        t.split(1, 128).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    s.inline_most()
    s["held"].set_memory(fw.SHARED)
    with pytest.raises(ScheduleError, match=r"constant, or have a maximum, as of fw.Sym\(max=\)"):
        s.lower(target="sm_90a")


# --- rows that schedulers hold ------------------------------------------------------------------

ROWS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: fw.nn.softmax(x, axis=-1),
    "layer norm": lambda x: fw.nn.layer_norm(x, (x.shape[-1],)),
    "normalised twice": lambda x: fw.nn.softmax(fw.nn.softmax(x, axis=-1) * 9.0, axis=-1),
    "a softmax, gathered": lambda x: fw.take_along_axis(
        fw.nn.softmax(x, axis=1), fw.astype(fw.abs(x) < 1.0, "int64"), axis=1
    ),
}


def of_rows(fn: Callable[[Any], Any], most: int | None) -> fw.Program:
    n = fw.Sym("n", max=most, multiple_of=4)
    return fw.compile(fw.trace(fn, Spec((300, n), "float32")))


def held_nbytes(program: fw.Program) -> int:
    return sum(b.nbytes for k in program.kernels for b in k.smem if b.name.endswith("_s"))


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_symbolic_length_are_read_once(name: str, tmp_path: Path) -> None:
    program = of_rows(ROWS[name], 1200)
    (kernel,) = program.kernels
    assert held_nbytes(program) >= 4 * 1200
    again = fw.load(program.save(tmp_path / "p.fw"))
    for n in (4, 36, 1196, 1200):
        x = np.random.default_rng(n).standard_normal((300, n)).astype(np.float32)
        result = program.simulate(x)
        assert result.races == []
        (want,) = fw.evaluate(program.fusion, x)
        np.testing.assert_allclose(result.outputs[0], want, rtol=2e-5, atol=1e-6)
        assert np.array_equal(again.simulate(x).outputs[0], result.outputs[0])
    report = fw.verify(program)
    assert report.necessary and not report.redundant and not report.missing
    assert kernel.cubin()


def test_a_report_says_for_which_size_there_is_room() -> None:
    text = Report(of_rows(ROWS["softmax"], 1200)).show("memory")
    (line,) = [x for x in text.splitlines() if x.startswith("x_c_s ")]
    assert line.endswith("n = 1200")
    assert "room for" not in Report(of_rows(ROWS["softmax"], None)).show("memory")


@pytest.mark.parametrize("most", [None, 40000])
def test_rows_are_read_again_where_the_longest_leaves_one_block(most: int | None) -> None:
    program = of_rows(ROWS["softmax"], most)
    assert len(program.kernels) == 1 and held_nbytes(program) == 0


def test_a_size_is_at_least_its_least_multiple() -> None:
    assert Var("n", 2, 1023, 8).interval == (8, 1016)
    assert Var("n", 0, None, 8).interval == (0, None)

    def rolled(x: Any) -> Any:
        return fw.roll(fw.cumulative_sum(x, axis=1), 1, axis=1)

    fusion = fw.trace(rolled, Spec((3, fw.Sym("n", multiple_of=8)), "float32"))
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    result = fw.compile(fusion).simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, x)[0], rtol=1e-4, atol=1e-5)
