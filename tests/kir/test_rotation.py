"""Loops that turn rings: few iterations stand for them, and show all that the others would."""

from __future__ import annotations

import random

import pytest
from product_texts import Lowered
from ring_kernels import (
    changed,
    findings,
    iterations_of,
    random_nest,
    random_product,
    standing_for_loops,
)
from sync_kernels import kernel

from fusewright.errors import UnsupportedError
from fusewright.kir.analysis.accesses import find
from fusewright.kir.pipeline import PipelineOptions, run_pipeline
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

TARGET = target_of("sm_90a")


def trips(text: str) -> list[int]:
    """How many iterations stand for each loop, in textual order."""
    return list(find(kernel(text)).trips.values())


def ring(inside: str, outer: str = "o < 30", inner: str = "k < 63", around: str = "") -> str:
    return f"""
    shared s: float32[256] align 16
    for ({outer}) {{
      {around}
      for ({inner}) {{
        {inside}
      }}
    }}"""


SLOT = "(63*o + k) % 4"
TURNS = f"store s[tx + 64*({SLOT})] = r[0]"


def test_a_ring_in_two_loops() -> None:
    """Slots repeat after four iterations of either loop, and 63 leave 3 of a lap: 4 + 2 iterations,
    and as many more that those left out are whole laps."""
    assert trips(ring(TURNS)) == [6, 7]


def test_an_iteration_that_differs_is_one_more() -> None:
    found: list[int] = []
    for condition in ("k < 67", "0 < k", "k + 1 < 67", "0 < k && k + 1 < 67"):
        with standing_for_loops(turned=True, shortened=False):
            found.append(trips(ring(f"{TURNS} if ({condition})", inner="k < 67"))[1])
    assert found == [7, 7, 7, 11]  # 6, 7, 7, and 8 would do, and 67 leave 3 of a lap


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("it reaches into the next slot", ring(f"store s[tx + 32 + 64*({SLOT})] = r[0]")),
        ("two ways around one ring", ring(f"{TURNS}\nr[0] = load s[tx + 64*((62*o + k) % 4)]")),
        ("a condition that holds for few tiles only", ring(f"{TURNS} if (o == 11)")),
        ("a condition on two loops", ring(f"{TURNS} if (63*o + k < 1000)")),
        ("trips that another loop decides", ring(TURNS, inner="k < 63 - o")),
        ("a slot that grows", ring("store s[tx + 64*((o*k) % 4)] = r[0]")),
        ("a place that is no ring", ring(f"{TURNS}\nstore s[(tx + 63*o + k) % 64] = r[0]")),
    ],
)
def test_what_does_not_turn_is_looked_at_for_two_periods(name: str, text: str) -> None:
    found = trips(text)
    with standing_for_loops(turned=False, shortened=True):
        assert trips(text)[0] == found[0], name


def test_rings_that_share_bytes_are_looked_at_for_two_periods() -> None:
    other = "shared u: float32[192] align 16 offset {}\n"
    inside = f"{TURNS}\nstore u[tx + 64*((62*o + k) % 3)] = r[0]"
    text = ring(inside).replace("align 16", "align 16 offset 0", 1)
    apart, shared = (trips(other.format(at) + text) for at in (1024, 512))
    with standing_for_loops(turned=False, shortened=True):
        assert trips(other.format(512) + text) == shared
    assert apart[0] < shared[0] and apart[1] < shared[1]


MBARRIERS = """
shared full: uint64[4] align 8
for (i < 4) {{
  mbar_init #0 full[i] count 64 by thread 0
}}
block_sync #1
for (k < 64) {{
  mbar_arrive #2 full[{arrives}]
  mbar_wait #3 full[k % 4] parity {parity}
}}"""


def test_phases_turn_with_their_slots() -> None:
    assert trips(MBARRIERS.format(arrives="k % 4", parity="(k // 4) % 2")) == [4, 8]


@pytest.mark.parametrize(
    ("arrives", "parity"),
    [
        ("k % 4", "((k + 1) // 4) % 2"),
        ("k % 4", "(k // 2) % 2"),
        ("k % 4", "(k // 8) % 2"),
        ("k % 4", "0"),
        ("3 - k % 4", "(k // 4) % 2"),
        ("2", "(k // 4) % 2"),
    ],
)
def test_phases_of_another_step_do_not_turn(arrives: str, parity: str) -> None:
    text = MBARRIERS.format(arrives=arrives, parity=parity)
    with standing_for_loops(turned=True, shortened=False):
        assert trips(text) == [4, 64]


def assert_shows_all(text: str, parse: object) -> bool:
    """Few iterations and all of them give the same findings; whether they are fewer."""
    try:
        with standing_for_loops(turned=True, shortened=False):
            few = parse(text)  # type: ignore[operator]
            found, n = findings(few), iterations_of(few)
        with standing_for_loops(turned=False, shortened=False):
            whole = parse(text)  # type: ignore[operator]
            expected, nwhole = findings(whole), iterations_of(whole)
    except UnsupportedError:  # more events than are looked at
        return False
    assert found == expected, text
    return n < nwhole


def nests(seeds: range) -> int:
    return sum(assert_shows_all(random_nest(seed), kernel) for seed in seeds)


def products(seeds: range) -> int:
    """Products through the pipeline, as they are, and with a sync left out, weakened or moved."""
    fewer = 0
    for seed in seeds:
        p, rng = random_product(seed), random.Random(seed)
        final = run_pipeline(parse_kernel(p.text()), TARGET, PipelineOptions(spec=1))
        texts = [str(final), *(str(changed(final, rng)) for _ in range(3))]
        fewer += sum(assert_shows_all(text, parse_kernel) for text in texts)
    return fewer


def test_random_nests_of_loops_over_rings() -> None:
    assert nests(range(50)) > 20


def test_random_rings_of_products() -> None:
    assert products(range(4)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2200, 200))
def test_many_random_nests_of_loops_over_rings(start: int) -> None:
    assert nests(range(start, start + 200)) > 80


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 180, 10))
def test_many_random_rings_of_products(start: int) -> None:
    assert products(range(start, start + 10)) > 10


def test_kernels_are_the_same_as_with_two_periods() -> None:
    """What is placed and pruned by the findings, too; of seven tiles of the depth in a ring of
    three stages, and twenty of the result, in one block."""
    p = Lowered(
        m=128 * 20, n=64, k=64 * 7, blocks=1, suffix="boxes",
        ring="stages 3 warp_specialized registers (40, 232)",
    )  # fmt: skip
    few = str(run_pipeline(parse_kernel(p.text()), TARGET, PipelineOptions(spec=1)))
    with standing_for_loops(turned=False, shortened=True):
        assert str(run_pipeline(parse_kernel(p.text()), TARGET, PipelineOptions(spec=1))) == few
