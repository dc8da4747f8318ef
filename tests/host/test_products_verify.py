"""Syncs of products, judged by the simulator: none missing, none redundant, one flush a role.

Shapes are such that every ring wraps, and that blocks of persistent grids have several tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.kir.ir import AsyncCommit, AsyncKind, AsyncWait, MmaFence, Role
from fusewright.kir.traverse import walk_statements
from fusewright.schedule.heuristics.matmul import MatmulScheduler, schedule_products
from fusewright.schedule.heuristics.product_plans import ProductPlan
from fusewright.sim.verify import weakenings_of
from fusewright.target import target_of
from fusewright.verify import case_of

PLAN = ProductPlan(64, 32, 64, warpgroups=1, stages=2, staged=32, blocks=2)


@dataclass(frozen=True)
class Case:
    """A program of bfloat16 arrays of these shapes in one kernel by a plan."""

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    plan: ProductPlan = PLAN

    def __str__(self) -> str:
        return self.name

    def schedule(self) -> fw.Schedule:
        s = fw.Schedule(fw.trace(self.fn, *(fw.TensorSpec(n, "bfloat16") for n in self.shapes)))
        scheduler = MatmulScheduler(s.flow, target_of("sm_90a"))
        schedule_products(s, scheduler._products, self.plan)
        return s

    def kernel(self) -> fw.Kernel:
        return self.schedule().lower()

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        return [rng.normal(size=n).astype(fw.bfloat16.numpy) for n in self.shapes]


def _tn(x: Any, w: Any) -> Any:
    return fw.matmul(x, w.T)


def _gated(x: Any, g: Any, u: Any) -> Any:
    return fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T)


def _two_results(x: Any, w: Any, c: Any) -> Any:
    y = fw.matmul(x, w.T)
    return y, fw.nn.relu(y + c)


WIDE = replace(PLAN, columns=64, staged=64)
GATED = replace(PLAN, stages=3, products=2)
CASES = (
    Case("TN", _tn, ((128, 320), (128, 320)), WIDE),
    Case("TT", lambda x, w: fw.matmul(x, w), ((128, 320), (320, 128)), WIDE),
    Case("NN", lambda x, w: fw.matmul(x.T, w.T), ((320, 128), (128, 320)), WIDE),
    Case("NT", lambda x, w: fw.matmul(x.T, w), ((320, 128), (320, 128)), WIDE),
    Case("odd sizes", _tn, ((150, 200), (72, 200))),
    Case("odd sizes by threads", _tn, ((150, 200), (75, 200)), replace(PLAN, staged=0)),
    Case("two warpgroups", _tn, ((256, 320), (64, 320)), replace(PLAN, rows=128, warpgroups=2)),
    Case("groups in turns", _tn, ((256, 128), (96, 128)), replace(PLAN, group=2, serpentine=True)),
    Case("ragged groups", _tn, ((320, 256), (96, 256)), replace(PLAN, group=3, serpentine=True)),
    Case(
        "groups of matrices in turns",
        lambda x, w: fw.matmul(x, w),
        ((2, 192, 128), (2, 128, 96)),
        replace(PLAN, group=1, serpentine=True),
    ),
    Case("gated", _gated, ((128, 320), (64, 320), (64, 320)), GATED),
    Case(
        "two first operands",
        lambda x, y, w: fw.matmul(x, w) + fw.matmul(y, w),
        ((128, 320), (128, 320), (320, 64)),
        GATED,
    ),
    Case("x @ x.T", lambda x: fw.matmul(x, x.T), ((128, 320),)),
    Case("matrices of a batch", lambda x, w: fw.matmul(x, w), ((3, 64, 320), (3, 320, 64))),
    Case(
        "transposed result",
        lambda x, w: fw.matmul(x, w.T).T,
        ((128, 320), (64, 320)),
        replace(PLAN, staged=0),
    ),
    Case("clusters", _tn, ((256, 320), (64, 320)), replace(PLAN, cluster=(2, 1))),
    Case("two results", _two_results, ((128, 320), (64, 320), (128, 64))),
    Case(
        "bias and gelu",
        lambda x, w, c: fw.nn.gelu(fw.matmul(x, w.T) + c),
        ((128, 320), (64, 320), (64,)),
    ),
    *(
        Case(
            f"{stages} stages, {blocks or 'all'} blocks",
            _tn,
            ((192, 64 * (stages + 2)), (64, 64 * (stages + 2))),
            replace(PLAN, stages=stages, blocks=blocks),
        )
        for stages in (1, 3, 6)
        for blocks in (0, 2)
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_sync_is_missing_and_none_redundant(case: Case) -> None:
    report = fw.verify(case.kernel(), *case.arrays())
    assert report.missing == []
    assert [(s.kind, s.why) for s in report.redundant] == []
    assert {"MbarWait", "MbarExpect", "MmaFence", "AsyncWait"} <= {s.kind for s in report.necessary}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_flushed_once_a_role(case: Case) -> None:
    """The seed of this: nvFuser once waited for all products at every use of a result. A tile that
    is alone in memory is overwritten in the next trip, before which its products are flushed, too.
    """
    roles = [s for s in walk_statements(case.kernel().ir) if isinstance(s, Role)]
    roles = roles or [case.kernel().ir]  # one stage: no warps of their own copy
    counts = []
    for role in roles:
        inside = list(walk_statements(role))
        waits = [s for s in inside if isinstance(s, AsyncWait) and s.kind is AsyncKind.MMA]
        flushes = [s for s in waits if not s.keep]
        commits = [s for s in inside if isinstance(s, AsyncCommit) and s.kind is AsyncKind.MMA]
        fences = [s for s in inside if isinstance(s, MmaFence)]
        counts.append((len(flushes), len(commits), len(fences)))
    flushes = 2 if case.plan.stages == 1 else 1
    assert max(counts) == (flushes, 1, 1)
    assert sum(n for n, _, _ in counts) == flushes


def test_the_halves_of_stacked_weights_have_the_syncs_they_need() -> None:
    """As the program makes them: both halves of a tile of weights meet in one thread."""

    def halves(x: Any, w: Any) -> Any:
        h, half = fw.matmul(x, w.T), w.shape[0] // 2
        return fw.nn.silu(h[..., :half]) * h[..., half:]

    specs = [fw.TensorSpec(n, "bfloat16") for n in ((256, 1024), (144, 1024))]
    (kernel,) = fw.compile(fw.trace(halves, *specs)).kernels
    rng = np.random.default_rng(0)
    sizes = [[int(str(e)) for e in i.shape] for i in kernel.inputs]
    assert sorted(sizes) == [[72, 1024], [72, 1024], [256, 1024]], "each half is an array"
    arrays = [rng.normal(size=n).astype(fw.bfloat16.numpy) for n in sizes]
    report = fw.verify(kernel, *arrays)
    assert not report.missing and not report.redundant and len(report.necessary) >= 8
    found = weakenings_of(kernel.ir, case_of(kernel, arrays))
    assert found and all(w.race is not None for w in found)


# --- what nvFuser emits for the same loop (notes/products.md) -------------------------------------


def _edited(text: str, case: Case) -> tuple[list[tuple[int, str]], int]:
    """The redundant syncs of the case's kernel with another text, and how many are missing."""
    kernel = replace(case.kernel(), ir=fw.parse_kernel(text), companions=[])
    report = fw.verify(kernel, *case.arrays())
    return [(s.id, s.kind) for s in report.redundant], len(report.missing)


def _of_three_stages() -> tuple[Case, str]:
    case = next(c for c in CASES if str(c) == "3 stages, 2 blocks")
    return case, str(case.kernel().ir)


def test_a_fence_before_each_product_is_redundant_but_for_the_first() -> None:
    case, text = _of_three_stages()
    lines, added = [], range(90, 93)
    ids = iter(added)
    for line in text.splitlines():
        if line.strip().startswith("mma ") and "accumulate" not in line:
            lines.append(f"mma_fence #{next(ids)}  // as nvFuser has it")
        lines.append(line)
    assert _edited("\n".join(lines), case) == ([(i, "MmaFence") for i in added], 0)


def test_a_flush_in_every_trip_makes_the_one_behind_the_loop_redundant() -> None:
    case, text = _of_three_stages()
    assert text.count("async_wait") == 4
    (behind,) = re.findall(r"async_wait #(\d+) kind\(mma\)  //", text)
    flushed = text.replace("kind(mma) keep(1)", "kind(mma)")
    assert _edited(flushed, case) == ([(int(behind), "AsyncWait")], 0)


@pytest.mark.parametrize("sync", ["mma_fence", "async_wait", "mbar_arrive"])
def test_what_is_left_out_is_missed(sync: str) -> None:
    """The witness sees a missing fence, a missing wait and a stage that is never handed back."""
    case, text = _of_three_stages()
    left = "\n".join(x for x in text.splitlines() if not x.strip().startswith(f"{sync} #"))
    _, missing = _edited(left, case)
    assert missing > 0
