"""Launches that begin early: known verdicts, deletions, flipped rules, and the spec."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from async_suite import arrays_of
from launch_rules import LAUNCH_RULES
from semaphore_suite import turn

from fusewright.core.expr import Int
from fusewright.cuda.emit import emit, sync_ids_in_ptx
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.sim.machine import simulate
from fusewright.sim.model import MODEL, Model
from fusewright.sim.verify import Case, verify_kernel
from fusewright.target import target_of

HEAD = """kernel next {
  param x: float32[256] align 16
  param w: float32[256] align 16
  param y: float32[256] align 16
  grid (bx < 2)
  block (tx < 128)
  begins_early true
  awaited (AWAITED)

  local r: float32[2]
"""
LETS = "launch_dependents #0  // the next launch may begin\n"
WEIGHT = "r[1] = load w[128*bx + tx]\n"
WAIT = "launch_wait #1  // RAW x\n"
READ = "r[0] = load x[128*bx + tx]\n"
WRITE = "r[0] = add(r[0], r[1])\nstore y[128*bx + tx] = r[0]\n"

ROLES = """shared s: float32[128] align 128 offset 0
shared full: uint64[1] offset 512
mbar_init #2 full[0] count 1 by thread 0
proxy_fence #3 space(shared)
block_sync #4
roles {
  role warps 0..4 {
    mbar_wait #5 full[0] parity 0
    r[0] = load s[tx]
    store y[128*bx + tx] = r[0]
  }
  role warps 4..5 {
    GATE
    mbar_expect #6 full[0] nbytes 512 by thread 128
    bulk_load s[0] = x[128*bx] size 128 on full[0] by thread 128
  }
}
"""
OF_ROLES = HEAD.replace("tx < 128", "tx < 160")


def text(*parts: str, awaited: str = "x", head: str = HEAD) -> str:
    return head.replace("AWAITED", awaited) + "".join(parts) + "}\n"


RIGHT = text(LETS, WEIGHT, WAIT, READ, WRITE)
ASYNC = text(ROLES.replace("GATE", "launch_wait #1  // RAW x"), head=OF_ROLES)
VERDICTS = {
    "waits before it reads": (RIGHT, set[str]()),
    "reads a weight early": (text(WEIGHT, WAIT, READ, WRITE), set[str]()),
    "never waits": (text(WEIGHT, READ, WRITE), {"race"}),
    "waits too late": (text(WEIGHT, READ, WAIT, WRITE), {"race"}),
    "writes what is still read": (text(WEIGHT, READ, WRITE, WAIT, awaited="y"), {"race"}),
    "waits before it writes": (text(WEIGHT, READ, WAIT, WRITE, awaited="y"), set[str]()),
    "touches nothing, ends late": (text(WEIGHT, READ, WRITE, WAIT, awaited=""), set[str]()),
    "ends before those before it": (text(WEIGHT, READ, WRITE, awaited=""), {"rule"}),
    "one thread waits for all": (
        text(WEIGHT, "if (tx < 1) {\n", WAIT, "}\nblock_sync #2\n", READ, WRITE),
        set[str](),
    ),
    "one thread waits, nobody is told": (
        text(WEIGHT, "if (tx < 1) {\n", WAIT, "}\n", READ, WRITE),
        {"race"},
    ),
    "the warp that copies waits": (ASYNC, set[str]()),
    "the warp that copies does not": (text(ROLES.replace("GATE", ""), head=OF_ROLES), {"race"}),
}


def case_of(kernel: ir.Kernel) -> Case:
    rng = np.random.default_rng(3)
    arrays = {b: rng.normal(size=256).astype(np.float32) for b in kernel.params}
    return Case(arrays, outputs=kernel.params[2:])


def verdict(kernel: ir.Kernel, model: Model = MODEL) -> set[str]:
    case = case_of(kernel)
    return {r.kind for r in simulate(kernel, case.arrays, outputs=case.outputs, model=model).races}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_and_text(name: str) -> None:
    text, wrong = VERDICTS[name]
    kernel = parse_kernel(text)
    assert verdict(kernel) == wrong
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)


@pytest.mark.parametrize("rule", LAUNCH_RULES)
def test_a_flipped_rule_changes_some_verdict(rule: str) -> None:
    model = dataclasses.replace(MODEL, **{rule: not getattr(MODEL, rule)})
    found = {name: verdict(parse_kernel(text), model) for name, (text, _) in VERDICTS.items()}
    assert any(found[name] != wrong for name, (_, wrong) in VERDICTS.items())


@pytest.mark.parametrize("name", [n for n, (_, wrong) in VERDICTS.items() if not wrong])
def test_the_wait_is_needed(name: str) -> None:
    kernel = parse_kernel(VERDICTS[name][0])
    report = verify_kernel(kernel, case_of(kernel), blocks=None)
    assert 1 in [s.id for s in report.necessary] and report.ok
    (witness,) = [w for w in report.witnesses if w.startswith("without launch_wait #1")]
    expected = "may end before the launches" if "ends late" in name else "still"
    assert expected in witness


def test_a_second_wait_is_redundant_and_what_lets_begin_is_neither() -> None:
    kernel = parse_kernel(RIGHT.replace("store y", "launch_wait #2  // luck\nstore y"))
    report = verify_kernel(kernel, case_of(kernel), blocks=None)
    assert [s.why for s in report.redundant] == ["luck"]
    assert [s.id for s in report.necessary] == [1] and not report.missing


def test_what_blocks_of_a_ragged_grid_touch_early_is_seen() -> None:
    """Only the last block reads `x` in front of its wait."""
    kernel = parse_kernel(text(WEIGHT, READ[:-1] + " if (0 < bx)\n", WAIT, READ, WRITE))
    (race,) = simulate(kernel, case_of(kernel).arrays, outputs=kernel.params[2:]).races
    assert race.kind == "race" and "still writes x" in race.message
    kernel = parse_kernel(text(WEIGHT, READ[:-1] + " if (1 < bx)\n", WAIT, READ, WRITE))
    assert verdict(kernel) == set()


def test_the_syncs_reach_the_assembly_and_hold_loads_back() -> None:
    source = RIGHT.replace("awaited (x)\n", 'awaited (x)\n  attribute "noalias" = "true"\n')
    kernel = parse_kernel(source)
    cuda = emit(kernel, target_of("sm_90"))
    assert sync_ids_in_ptx(cuda) == {0, 1}
    lines = cuda.splitlines()
    order = [
        next(i for i, line in enumerate(lines) if what in line)
        for what in ("griddepcontrol.launch_dependents;", "w[", "griddepcontrol.wait;", "x[")
    ]
    assert order == sorted(order)
    assert all('"memory"' in line for line in lines if "griddepcontrol" in line)
    assert "const float* x" in cuda, "what changes while the kernel runs is no restricted pointer"
    assert "const float* __restrict__ w" in cuda


CLUSTER = """kernel next {
  param x: float32[64] align 16
  param w: float32[64] align 16
  param y: float32[64] align 16
  grid (bx < 1)
  block (tx < 32)
  cluster (cx < 2)
  begins_early true
  awaited (x)

  local r: float32[2]
  if (tx < 1) {
    launch_wait #1
  }
  cluster_arrive #2 relaxed(RELAXED)
  cluster_wait #3
  r[0] = load x[32*cx + tx]
  store y[32*cx + tx] = r[0]
}
"""


@pytest.mark.parametrize(("relaxed", "wrong"), [("false", set[str]()), ("true", {"race"})])
def test_who_hands_on_no_memory_does_not_hand_on_that_launches_ended(
    relaxed: str, wrong: set[str]
) -> None:
    kernel = parse_kernel(CLUSTER.replace("RELAXED", relaxed))
    arrays = {b: np.ones(64, np.float32) for b in kernel.params}
    races = simulate(kernel, arrays, outputs=kernel.params[2:]).races
    assert {r.kind for r in races} == wrong


REFUSED = {
    "may still touch x": text(WEIGHT, READ, WAIT, WRITE),
    "ends without a wait": text(WEIGHT, READ, WRITE, awaited=""),
    "has waited for the launches before already": text(WAIT, READ, WAIT.replace("1", "2"), WRITE),
    "it stands in a loop": text("for (i < 2) {\n", WAIT, "}\n", WAIT.replace("1", "2"), READ),
    "in no loop, branch or role": text("if (bx < 1) {\n", LETS, "}\n", WAIT, READ, WRITE),
    "may begin already": text(LETS, LETS.replace("0", "5"), WAIT, READ, WRITE),
    "non_coherent loads do not see it": text(WAIT, READ[:-1] + " .non_coherent\n", WEIGHT, WRITE),
    "nothing to wait for": RIGHT.replace("  begins_early true\n  awaited (x)\n", ""),
    "but does not begin early": RIGHT.replace("  begins_early true\n", "").replace(WAIT, ""),
}


@pytest.mark.parametrize("words", REFUSED)
def test_the_spec_says_where_they_may_stand(words: str) -> None:
    check_kernel(parse_kernel(RIGHT), "packed", target=target_of("sm_90"))
    with pytest.raises(SpecError, match=words):
        check_kernel(parse_kernel(REFUSED[words]), "packed", target=target_of("sm_90"))


def test_what_is_awaited_is_a_parameter() -> None:
    kernel = parse_kernel(RIGHT)
    other = dataclasses.replace(
        kernel, awaited=(ir.Buffer("z", kernel.params[0].dtype, Int(4), ir.Memory.GLOBAL),)
    )
    with pytest.raises(SpecError, match="z, which is awaited, is no parameter of the kernel"):
        check_kernel(other, "packed")


def test_architectures_without_them_are_refused() -> None:
    with pytest.raises(SpecError, match=r"launches do not overlap on sm_89; that is for 9\.0"):
        check_kernel(parse_kernel(RIGHT), "packed", target=target_of("sm_89"))


def test_loads_by_the_read_only_path_are_reported() -> None:
    kernel = parse_kernel(text(WEIGHT, WAIT, READ[:-1] + " .non_coherent\n", WRITE))
    assert verdict(kernel) == {"rule"}


@pytest.mark.parametrize(("wait", "wrong"), [(WAIT, set[str]()), ("", {"race", "rule"})])
def test_blocks_that_take_turns_wait_for_launches_before(wait: str, wrong: set[str]) -> None:
    """Blocks of one domain run in turns of their own; who is handed a turn knows more."""
    head = "  begins_early true\n  awaited (w)\n  semaphores (f)\n"
    source = turn(PART="r[0] = load x[192*bx + 64*by + tx]\n" + wait.replace("#1", "#9"))
    kernel = parse_kernel(source.replace("  semaphores (f)\n", head))
    zero = {b: np.zeros(4, np.uint32) for b in kernel.semaphores}
    case = Case(arrays_of(kernel) | zero, outputs=kernel.params[1:2])
    result = simulate(kernel, case.arrays, outputs=case.outputs, seed=3)
    assert {r.kind for r in result.races} <= wrong and bool(result.races) == bool(wrong)
    if not wrong:
        report = verify_kernel(kernel, case, blocks=None)
        assert report.ok and 9 in [s.id for s in report.necessary]
