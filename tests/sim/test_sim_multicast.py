"""Rings that the blocks of a cluster fill for each other: values, verdicts, deletions, messages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from async_suite import Case, packed
from cluster_rules import MULTICAST_RULES
from multicast_suite import RING, SUITE, ring_text

from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.sim import verify
from fusewright.sim.machine import SimResult, analyse, simulate
from fusewright.sim.model import MODEL

RIGHT = [c for c in SUITE if c.needed]


def arrays_of(kernel: ir.Kernel, seed: int = 0) -> dict[ir.Buffer, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p: rng.integers(0, 7, int(str(p.size))).astype(np.float32) for p in kernel.params}


def run(kernel: ir.Kernel) -> SimResult:
    return simulate(kernel, arrays_of(kernel), outputs=kernel.params[-1:])


@pytest.mark.parametrize("case", SUITE, ids=lambda c: c.name)
def test_the_verdict_of_the_suite(case: Case) -> None:
    kernel = packed(case.kernel())
    check_kernel(kernel, "packed")
    assert frozenset(r.kind for r in run(kernel).races) == frozenset(case.wrong)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_each_sync_is_needed(case: Case) -> None:
    kernel = packed(case.kernel())
    report = verify.verify_kernel(
        kernel, verify.Case(arrays_of(kernel), outputs=kernel.params[-1:])
    )
    assert report.ok, str(report)
    for n in case.needed:
        assert run(packed(case.kernel((n,)))).races, f"{case.name} without #{n}"


@pytest.mark.parametrize(
    ("cluster", "stages", "trips"), [(2, 2, 1), (2, 3, 8), (4, 2, 5), (8, 4, 9)]
)
def test_every_block_gets_the_shares_of_all(cluster: int, stages: int, trips: int) -> None:
    kernel = packed(parse_kernel(ring_text(cluster, stages=stages, trips=trips)))
    x, w, _ = arrays_of(kernel).values()
    found = run(kernel)
    assert found.races == []
    own = x.reshape(cluster, trips, 4, 32)
    expected = np.einsum("bkrc,krhc->bhc", own, w.reshape(trips, 4, 2, 32))
    assert np.array_equal(found.outputs[0], expected.reshape(-1))


def test_a_box_is_read_once_and_written_in_each_block() -> None:
    kernel = packed(parse_kernel(RING))
    stats = run(kernel).stats
    assert stats["global_bytes_read"] == 4 * (2 * 5 * 128 + 5 * 256)
    assert stats["shared_bytes_written"] == 4 * (2 * 5 * 128 + 2 * 5 * 256)


def test_named_barriers_are_those_of_a_block() -> None:
    kernel = packed(
        parse_kernel(RING.replace("warp_sync #13", "named_sync #13 barrier(1) nthreads(64)"))
    )
    assert run(kernel).races == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_arrivals_only", "may fall into phase 0 instead of 1"),
        ("no_drain", "of a block of its cluster that has exited"),
        ("not_begun", "may come where no mbarrier is initialised"),
        ("fence_behind_the_arrival", "read after write of full[0]"),
        ("handed_on", "read after write of y[0]"),
        ("released_early", "write after read of sx[0]"),
    ],
)
def test_findings_say_what_is_wrong(name: str, message: str) -> None:
    (case,) = [c for c in SUITE if c.name == name]
    assert message in "\n".join(map(str, run(packed(case.kernel())).races))


@pytest.mark.parametrize(
    "rule", [*MULTICAST_RULES, "blocks_outlive_use", "phases_do_not_mix", "bulk_is_asynchronous"]
)
def test_rules_concern_what_blocks_bring_each_other(rule: str) -> None:
    """Without the rule some wrong kernel passes, or some sync seems not to be needed."""
    model = dataclasses.replace(MODEL, **{rule: not getattr(MODEL, rule)})

    def verdicts(m: object) -> list[frozenset[str]]:
        kernels = [packed(c.kernel()) for c in SUITE] + [packed(SUITE[0].kernel((12,)))]
        found = [analyse(k, arrays_of(k), outputs=k.params[-1:], model=m) for k in kernels]
        return [frozenset(r.kind for r in f.races()) for f in found]

    assert verdicts(MODEL) != verdicts(model)


# --- what the spec refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("to 2 blocks", "to 3 blocks", "it goes to 3 blocks of a cluster of 2; to all or 1"),
        ("to 2 blocks", "to 9 blocks", "it goes to 9 blocks; a cluster has 1 to 8"),
        ("on full[k % 2] by thread 0\n      }", "on full[(k + cx) % 2] by thread 0\n      }",
         "but may disagree on '(cx + k)%2'"),
        ("  cluster (cx < 2)\n", "", "the kernel has no cluster; give it one"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_refused(old: str, new: str, message: str) -> None:
    text = RING.replace(old, new)
    if not new:
        text = text.replace("cx", "bx")
    with pytest.raises(SpecError) as error:
        check_kernel(parse_kernel(text), "lowered")
    assert message in str(error.value)


def test_blocks_that_arrive_for_each_other_agree_whether_they_do() -> None:
    wrong = RING.replace(
        "mbar_arrive #21 empty[j % 2] of block 1 per_warp",
        "if (cx == 0) {\n mbar_arrive #21 empty[j % 2] of block 1 per_warp\n}",
    )
    with pytest.raises(SpecError, match="do this for each other, but may disagree on 'cx == 0'"):
        check_kernel(parse_kernel(wrong), "lowered")
