"""Which kernels, as lowering makes them, may run all iterations of a loop: written by hand."""

from __future__ import annotations

import pytest

from fusewright.core.expr import ZERO, as_expr, mul
from fusewright.fusion.call_numbers import Lap
from fusewright.host.laps import Carried, LapPart, Laps, in_one_launch, lap_of
from fusewright.host.one_block import in_one_block
from fusewright.kir.ir import Buffer, Kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.memory import Memory
from fusewright.target import target_of

TRIPS = as_expr(4)
INDEX = Lap("i", 4)
TARGET = target_of("sm_90a")


def body(text: str, grid: str = "bx < 2", threads: str = "tx < 32") -> Kernel:
    """A kernel of a body that carries `v` into `r`, 64 elements each, and reads `a`."""
    return parse_kernel(
        "kernel k {\n  symbol i in [0, 3]\n  param v: float32[64] align 16\n"
        "  param a: float32[64] align 16\n  param r: float32[64] align 16\n"
        f"  grid ({grid}, by < 1, bz < 1)\n  block ({threads}, ty < 1, tz < 1)\n"
        "  stored_once (r)\n\n  local x: float32[2] align 8\n  local y: float32[2] align 8\n"
        f"{text}}}\n",
        {"i": INDEX},
    )


def laps(kernel: Kernel, step: int = 64) -> Laps:
    """A loop around it, whose `a` has `step` elements for each iteration."""
    v, a, r = kernel.params
    arrays = [Buffer(f"{n}0", v.dtype, as_expr(m), Memory.GLOBAL, 16) for n, m in NAMED]
    start, whole, last = arrays
    lap = lap_of(TRIPS)
    carried = Carried({v: ZERO}, r, start, last)
    parts = {a: (LapPart(whole, mul(lap, step)),)}
    return Laps(TRIPS, False, INDEX, lap, (carried,), parts, tuple(arrays), (last,))


NAMED = (("v", 64), ("a", 256), ("r", 64))
STEP = """  x[0] = load v[32*bx + tx]
  y[0] = load a[32*bx + tx]
  x[0] = add(x[0], y[0])
  store r[32*bx + tx] = x[0]
"""


def why(kernel: Kernel, step: int = 64) -> str:
    found = in_one_launch(kernel, laps(kernel, step), "whole")
    assert isinstance(found, str)
    return found


def test_a_thread_keeps_what_it_stores() -> None:
    kernel = body(STEP)
    made = in_one_launch(kernel, laps(kernel), "whole")
    assert isinstance(made, Kernel) and "v" not in {b.name for b in made.params}
    lines = print_kernel(made).splitlines()
    at = next(k for k, line in enumerate(lines) if "for (lap < 4)" in line)
    assert "kept0_0[0] = load v0[32*bx + tx]" in "\n".join(lines[:at])
    inside = "\n".join(lines[at:])
    assert "x[0] = copy(kept0_0[0])" in inside and "load a0[32*bx + 64*lap + tx]" in inside
    assert inside.index("kept0_0[0] = copy(x[0])") < inside.index("store r0[32*bx + tx]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STEP.replace("load v[32*bx + tx]", "load v[-32*bx - tx + 63]"), "read by other threads"),
        (STEP.replace("= x[0]\n", "= x[0] if (tx < 9)\n"), "read by other"),
        (STEP.replace("store r[32*bx + tx]", "store r[32*bx + ((tx + i)%32)]"), "depends on the"),
        (
            STEP.replace(
                "  store r[32*bx + tx] = x[0]", "  store r[32*bx + tx] = x[0] if (tx < i)"
            ),
            "depends on the iteration",
        ),
        (
            STEP.replace(
                "  store r[32*bx + tx] = x[0]\n",
                "  if (tx < 5) {\n    store r[32*bx + tx] = x[0]\n  }\n",
            ),
            "in loops or branches",
        ),
        (
            "  for (k < 2) {\n    x[0] = load v[32*k + tx]\n    store r[32*k + tx] = x[0]\n  }\n",
            "in loops or branches",
        ),
        (
            "  store r[32*bx + tx] = x[0]\n  x[0] = load v[32*bx + tx]\n",
            "read by other threads",
        ),
    ],
)
def test_what_a_thread_cannot_keep(text: str, words: str) -> None:
    assert words in why(body(text))


def test_vectors_begin_where_slices_do() -> None:
    text = """  x[0..2] = load v[2*tx]
  y[0..2] = load a[2*tx]
  x[0] = add(x[0], y[0])
  store r[2*tx] = x[0..2]
"""
    kernel = body(text, grid="bx < 1")
    assert isinstance(in_one_launch(kernel, laps(kernel, 64), "whole"), Kernel)
    assert why(kernel, 63) == "a begins at no multiple of 2 elements"


def test_blocks_stand_in_one_or_follow_each_other() -> None:
    kernel = body(STEP)
    beside = in_one_block(kernel, laps(kernel), "whole", TARGET)
    assert isinstance(beside, Kernel) and beside.nthreads == 64
    wide = body(STEP.replace("32*bx", "24*bx"), threads="tx < 24")  # no whole warps
    after = in_one_block(wide, laps(wide), "whole", TARGET)
    assert isinstance(after, Kernel) and after.nthreads == 24
    assert "for (turn < 2)" in print_kernel(after)


def test_state_is_read_and_written_by_turns() -> None:
    kernel = body(STEP.replace("load v[32*bx + tx]", "load v[-32*bx - tx + 63]"))
    made = in_one_block(kernel, laps(kernel), "whole", TARGET)
    assert isinstance(made, Kernel)
    text = print_kernel(made)
    assert "shared carried0: float32[128] align 16" in text
    assert "load carried0[64*(lap%2) - tx - 32*ty + 63]" in text
    assert "store carried0[-64*(lap%2) + tx + 32*ty + 64]" in text
