"""Inputs of what follows a product come by boxes ahead of it: values, syncs, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import BoxLoad, Load, Memory
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan, ProductSizes, menu_plans
from fusewright.schedule.heuristics.product_suffix import Suffix, exposed_us
from fusewright.schedule.heuristics.product_times import least_us, predicted_us, ranked_us
from fusewright.target import target_of

TARGET = target_of("sm_90a")
PLAN = ProductPlan(64, 32, 64, 1, 2, staged=32, blocks=2, ahead=2)


def _gelu_backward(a: Any, b: Any, saved: Any) -> Any:
    return fw.nn.gelu_backward(fw.matmul(a, b), saved)


@dataclass(frozen=True)
class Case:
    """A program, what it reads, and a plan."""

    name: str
    fn: Callable[..., Any]
    extra: tuple[tuple[tuple[int, ...], str], ...]
    plan: ProductPlan = PLAN
    batch: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def specs(self) -> list[fw.TensorSpec]:
        operands = [((*self.batch, 150, 136), "bfloat16"), ((*self.batch, 136, 80), "bfloat16")]
        return [fw.TensorSpec(shape, dtype) for shape, dtype in (*operands, *self.extra)]

    def kernel(self) -> fw.Kernel:
        s = fw.Schedule(fw.trace(self.fn, *self.specs))
        scheduler = MatmulScheduler(s.flow, TARGET)
        schedule_products(s, scheduler._products, self.plan)
        return s.lower()

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng()
        made = [(rng.normal(size=s.shape), s.dtype) for s in self.specs]
        return [x > 0 if d is fw.bool else x.astype(d.numpy) for x, d in made]


WHOLE = ((150, 80), "bfloat16")
CASES = (
    Case("gelu backward", _gelu_backward, (WHOLE,)),
    Case("a block for each tile", _gelu_backward, (WHOLE,), replace(PLAN, blocks=0)),
    Case("results in parts", _gelu_backward, (WHOLE,), replace(PLAN, columns=64, staged=32)),
    Case("float32 by threads", lambda a, b, c: fw.matmul(a, b) + c, (((150, 80), "float32"),)),
    Case("a mask", lambda a, b, m: fw.where(m, fw.matmul(a, b), 0.0), (((150, 80), "bool"),)),
    Case("two inputs", lambda a, b, c, d: fw.matmul(a, b) * c + d * c, (WHOLE, WHOLE)),
    Case("a view", lambda a, b, c: fw.matmul(a, b) * c[:150], (((200, 80), "bfloat16"),)),
    Case("matrices", _gelu_backward, (((2, 150, 80), "bfloat16"),), batch=(2,)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_boxes_bring_what_follows_a_product_and_every_sync_is_needed(case: Case) -> None:
    kernel, arrays = case.kernel(), case.arrays()
    brought = {
        s.dst.name
        for s in walk_statements(kernel.ir)
        if isinstance(s, BoxLoad) and s.dst.name not in ("a_c", "b_c")
    }
    assert len(brought) == len(case.extra)
    loads = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert {s.src.memory for s in loads} == {Memory.SHARED}
    result = kernel.simulate(*arrays, check_races=True)
    assert result.races == []
    (wanted,) = fw.evaluate(fw.trace(case.fn, *case.specs), *arrays)
    got = np.asarray(result.outputs[0], np.float64)
    assert np.abs(got - np.asarray(wanted, np.float64)).max() < 0.02 * np.abs(got).max()


def test_what_boxes_bring_is_waited_for_and_nothing_is_redundant() -> None:
    kernel = CASES[0].kernel()
    report = fw.verify(kernel, *CASES[0].arrays())
    assert report.missing == [] and report.redundant == []


def test_pairs_of_columns_are_read_as_words() -> None:
    loads = [s for s in walk_statements(CASES[0].kernel().ir) if isinstance(s, Load)]
    assert {s.width for s in loads} == {2}


def test_a_short_depth_before_a_heavy_suffix_has_its_inputs_brought() -> None:
    """The backward of gelu behind 12608 x 3072 x 768 took 187 us on an H100 with loads behind the
    last step, the product and a kernel of its own 160."""
    specs = [fw.TensorSpec(s, "bfloat16") for s in ((12608, 768), (768, 3072), (12608, 3072))]
    (kernel,) = fw.compile(fw.trace(_gelu_backward, *specs), target="sm_90a").kernels
    assert kernel.predicted is not None and kernel.predicted.us < 130
    sizes, suffix = ProductSizes(1, 12608, 3072, 768), Suffix(27.0, 2)
    plans = list(menu_plans(sizes, TARGET, outputs=0, loaded=2))
    times = {p: predicted_us(sizes, p, TARGET, suffix) for p in plans}
    first = min(plans, key=lambda p: ranked_us(sizes, p, TARGET, suffix))
    assert first.ahead == 2 and least_us(sizes, TARGET, suffix) == times[first]
    ahead = min(us for p, us in times.items() if p.ahead and not p.ping_pong)
    late = min(us for p, us in times.items() if not (p.ahead or p.ping_pong))
    assert late > 1.25 * ahead


def test_rings_leave_room_for_what_comes_ahead() -> None:
    sizes = ProductSizes(1, 8192, 8192, 8192)
    for p in menu_plans(sizes, TARGET, loaded=4):
        stage = 2 * p.depth * (p.rows + p.columns)
        used = p.stages * stage + p.rows * (p.columns * p.ahead + 2 * p.staged)
        assert used <= TARGET.shared_nbytes_per_block


def test_loads_ahead_are_not_exposed() -> None:
    heavy = Suffix(20.0, 2)
    own = {x: exposed_us(128 * 256, 256, heavy, ahead=x, target=TARGET) for x in (True, False)}
    light = exposed_us(128 * 256, 256, Suffix(20.0, 0), ahead=False, target=TARGET)
    assert own[True] == light < own[False]


def _scores(q: Any, k: Any, bias: Any) -> Any:
    return q @ fw.matrix_transpose(k) / 8.0 + bias


def _scores_specs(size: int, depth: int, dtype: str) -> list[fw.TensorSpec]:
    operand = fw.TensorSpec((4, 8, size, depth), "bfloat16")
    return [operand, operand, fw.TensorSpec((8, size, size), dtype)]


@pytest.mark.parametrize(("depth", "dtype"), [(64, "float32"), (40, "bfloat16"), (72, "float32")])
def test_scores_with_a_bias_are_one_kernel(depth: int, dtype: str) -> None:
    """A depth of one step has no loop of its own, so that nothing comes ahead beside its ring."""
    program = fw.compile(fw.trace(_scores, *_scores_specs(512, depth, dtype)), "sm_90a")
    assert len(program.launches) == 1 and not program.reasons


def test_values_of_scores_with_a_bias() -> None:
    specs = _scores_specs(70, 64, "float32")
    program = fw.compile(fw.trace(_scores, *specs), "sm_90a")
    rng = np.random.default_rng()
    arrays = [rng.normal(size=s.shape).astype(s.dtype.numpy) for s in specs]
    result = program.simulate(*arrays)
    assert result.races == []
    (want,) = fw.evaluate(program.fusion, *arrays)
    np.testing.assert_allclose(result.outputs[0], want, rtol=2e-2, atol=2e-2)
