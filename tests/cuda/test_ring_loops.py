"""What a trip of the loop over k takes in machine code, besides its matrix instructions."""

from __future__ import annotations

import pytest

import fusewright as fw
from fusewright.cuda.listing import instructions
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.target import target_of

pytest.importorskip("cuda.bindings.nvrtc")


def _operations(n: int, plan: ProductPlan) -> tuple[list[str], list[tuple[int, int]]]:
    """The operations of a product of `n` rows and columns by a plan, and from where to where its
    loops go."""
    specs = [fw.TensorSpec((n, 4096), "bfloat16")] * 2
    s = fw.Schedule(fw.trace(lambda x, w: fw.matmul(x, w.T), *specs))
    schedule_products(s, MatmulScheduler(s.flow, target_of("sm_90a"))._products, plan)
    kernel = s.lower()
    code = instructions(kernel.sass())
    places = {label: i for i, x in enumerate(code) for label in x.labels}
    jumps = [(places.get(x.target, i + 1), i) for i, x in enumerate(code) if x.operation == "BRA"]
    return [x.operation for x in code], [(head, i) for head, i in jumps if head <= i]


def _per(of: str, without: str, found: tuple[list[str], list[tuple[int, int]]]) -> float:
    """Instructions of a loop for each one of a kind: of those without another kind the loop with
    the most, and of these the shortest."""
    operations, loops = found
    bodies = [operations[head : i + 1] for head, i in loops]
    counts = [(-b.count(of), len(b)) for b in bodies if of in b and without not in b]
    most, length = min(counts)
    return length / -most


@pytest.mark.parametrize(
    ("n", "plan", "math", "load"),
    [
        pytest.param(2048, ProductPlan(64, 32, 64, 1, 8, 32), 7.5, 10.8, id="8 stages"),
        pytest.param(2048, ProductPlan(128, 128, 64, 2, 7), 13.1, 19.3, id="7 stages"),
        pytest.param(
            4096, ProductPlan(128, 256, 64, 2, 4, 128, 16, 132), 10.9, 11.4, id="4 stages"
        ),
    ],
)
def test_slots_of_a_ring_are_literals(n: int, plan: ProductPlan, math: float, load: float) -> None:
    """Four trips written out of rings of 8 and 7 stages took 14.3 and 20.1 instructions for each
    matrix instruction, and 19.0 and 23.3 for each box: a remainder for every slot."""
    found = _operations(n, plan)
    assert _per("HGMMA", "UTMALDG", found) <= 1.05 * math
    assert _per("UTMALDG", "HGMMA", found) <= 1.05 * load
