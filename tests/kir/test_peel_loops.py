"""Loops whose last trip is written out: when it is, and when the loop stays."""

from __future__ import annotations

import numpy as np
import pytest

from fusewright.kir.ir import For, Kernel
from fusewright.kir.overlap import OVERLAP
from fusewright.kir.passes.peel_loops import peel_loops
from fusewright.kir.pipeline import PIPELINE, run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of

TARGET = target_of("sm_90a")
ROWS = 150
"""Rows of 2 blocks of 32 threads, three trips each: the last trip of the second one is short."""
EXISTS = f"if (32*bx + 64*i + tx < {ROWS})"
SUM = f"""r[0] = load x[32*bx + 64*i + tx] {EXISTS} else 0.0:float32
            a[0] = add(a[0], r[0]) {EXISTS}"""


def _kernel(body: str, trips: int = 3) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
          param x: float32[192] align 16
          param y: float32[192] align 16
          param z: float32[64] align 16
          grid (bx < 2)
          block (tx < 32)
          local a: float32[1]
          a[0] = copy(0.0:float32)
          for (i < {trips}) {{
            local r: float32[1]
            {body}
          }}
          store z[32*bx + tx] = a[0]
        }}"""
    )


def _loops(kernel: Kernel) -> list[For]:
    return [s for s in walk_statements(kernel) if isinstance(s, For)]


def _outputs(kernel: Kernel, x: np.ndarray) -> list[np.ndarray]:
    out = [np.full(192, np.nan, np.float32), np.full(64, np.nan, np.float32)]
    arrays = dict(zip(kernel.params, (x, *out), strict=True))
    found = simulate(kernel, arrays, outputs=kernel.params[1:])
    assert not found.races
    return out


def _check_same(after: Kernel, before: Kernel) -> None:
    check_kernel(after, "lowered")
    assert print_kernel(parse_kernel(print_kernel(after))) == print_kernel(after)
    x = np.random.default_rng(1).standard_normal(192).astype(np.float32)
    want = _outputs(before, x)
    for kernel in (after, run_pipeline(before, TARGET)):
        for got, expected in zip(_outputs(kernel, x), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "body",
    [
        SUM,
        SUM + f"\nstore y[32*bx + 64*i + tx] = r[0] {EXISTS}",
        f"r[0] = copy(1.0:float32)\n{EXISTS} {{\n a[0] = add(a[0], r[0])\n}}",
        SUM.replace(f"< {ROWS})", f"< {ROWS} && tx < 31)"),
        SUM.replace("32*bx + 64*i + tx < 150", "32*bx + 64*i + tx < 150 || bx == 1"),
    ],
    ids=["sum", "store", "branch", "beside another condition", "one of two"],
)
def test_the_last_trip_is_written_out(body: str) -> None:
    before = _kernel(body)
    after = peel_loops(before)
    (loop,) = _loops(after)
    assert str(loop.extent) == "2"
    inside = print_kernel(after).split("for (")[1].split("}")[0]
    assert str(ROWS) not in inside
    _check_same(after, before)


def test_loops_inside_are_peeled_where_the_trip_around_is_the_last() -> None:
    guard = f"if (32*bx + 64*i + 16*j + (tx%16) < {ROWS})"
    before = _kernel(
        f"""for (j < 2) {{
              local s: float32[1]
              s[0] = load x[32*bx + 64*i + 16*j + (tx%16)] {guard} else 0.0:float32
              a[0] = add(a[0], s[0])
              store y[32*bx + 64*i + 16*j + (tx%16)] = s[0] if (tx < 16)
            }}"""
    )
    after = peel_loops(before)
    text = print_kernel(after)
    assert text.count(f"< {ROWS}") + text.count("tx%16 < 6") <= 2
    _check_same(after, before)


def test_a_loop_that_becomes_short_overlaps_as_short_ones_do() -> None:
    before = _kernel(
        "a[0] = add(a[0], 1.0:float32) if (32*i + tx < 1040)",
        trips=33,
    )
    (loop,) = _loops(peel_loops(before))
    assert (str(loop.extent), loop.overlap) == ("32", OVERLAP)


@pytest.mark.parametrize(
    ("body", "trips", "why"),
    [
        (SUM.replace(EXISTS, "if (tx < 3)"), 3, "the condition is that of all trips"),
        (SUM.replace(f"< {ROWS}", "< 100"), 3, "it fails in the trip before, too"),
        (SUM.replace(f"< {ROWS}", "< 192"), 3, "it holds in all trips"),
        (SUM.replace(EXISTS, "if (0 < i)"), 3, "it fails in the first trip"),
        (SUM.replace(EXISTS, "if (i*bx < 1)"), 3, "not for every block"),
        (SUM.replace(EXISTS, "if (32*bx + tx < 40)"), 1, "one trip"),
        (SUM + "\na[0] = thread_reduce.add(r[0]) over (tx) identity 0.0:float32", 3, "a barrier"),
        (SUM + "\nshared t: float32[32]", 3, "shared memory"),
        (SUM + "\nr[0] = shuffle.xor(a[0], 1)", 3, "lanes meet"),
    ],
)
def test_a_loop_stays(body: str, trips: int, why: str) -> None:
    before = _kernel(body, trips)
    assert peel_loops(before) is before, why


def test_a_loop_of_unknown_trips_stays() -> None:
    text = print_kernel(_kernel(SUM)).replace("for (i < 3)", "for (i < 3 - bx)")
    before = parse_kernel(text)
    assert peel_loops(before) is before


def test_it_stands_behind_trim_loops() -> None:
    names = [p.name for p in PIPELINE]
    start = names.index("trim_loops")
    assert names[start + 1 : start + 3] == ["guard_loops", "peel_loops"]
