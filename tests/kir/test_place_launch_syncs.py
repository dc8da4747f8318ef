"""Where the syncs between launches are put: a body in, one line for each statement out."""

from __future__ import annotations

import pytest

from fusewright.kir.ir import Alloc, Kernel
from fusewright.kir.passes.place_launch_syncs import LaunchOrder, place_launch_syncs
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_statement
from fusewright.target import target_of

HEAD = """kernel k {
  param x: float32[128]
  param w: float32[128]
  param y: float32[128]
  grid (bx < 1)
  block (tx < 128)
  local r: float32[2]
"""
BODY = """r[1] = load w[tx]
r[0] = load x[tx]
r[0] = add(r[0], r[1])
store y[tx] = r[0]
"""
IN_LOOP = """r[1] = load w[tx]
for (i < 2) {
  r[0] = load x[tx]
  store y[tx] = r[0]
}
"""


def kernel(body: str) -> Kernel:
    return parse_kernel(HEAD + body + "}")


def letters(k: Kernel) -> str:
    """`L` lets begin, `W` waits, `w` and `x` load, `y` stores, `f` is a loop, `.` the rest."""
    names = {"launch_dependents": "L", "launch_wait": "W", "for": "f", "store": "y"}
    out: list[str] = []
    for s in k.body:
        if isinstance(s, Alloc):
            continue
        text = print_statement(s)
        loaded = text.split("load ")[1][0] if "= load " in text else "."
        out.append(names.get(text.split(" ")[0], loaded))
    return "".join(out)


WHY = (0, "RAW")
PLACED = {
    "in front of what it reads": (BODY, LaunchOrder(True, (WHY,)), "wWx.y"),
    "in front of what it writes": (BODY, LaunchOrder(True, ((2, "WAR"),)), "wx.Wy"),
    "in front of the first of both": (BODY, LaunchOrder(True, ((1, "RAW"), WHY)), "Wwx.y"),
    "at the end": (BODY, LaunchOrder(True), "wx.yW"),
    "in front of a loop": (IN_LOOP, LaunchOrder(True, (WHY,)), "wWf"),
    "first of a program": (BODY, LaunchOrder(lets_begin=True), "Lwx.y"),
    "in the middle": (BODY, LaunchOrder(True, (WHY,), lets_begin=True), "LwWx.y"),
}


@pytest.mark.parametrize("name", PLACED)
def test_one_wait_stands_as_late_as_it_may(name: str) -> None:
    body, order, expected = PLACED[name]
    k = place_launch_syncs(kernel(body), order)
    assert letters(k) == expected
    check_kernel(k, "packed", target=target_of("sm_90a"))
    assert k.begins_early == order.begins_early
    assert [b.name for b in k.awaited] == [k.params[n].name for n, _ in order.awaited]


def test_nothing_to_do_is_the_same_kernel() -> None:
    k = kernel(BODY)
    assert place_launch_syncs(k, LaunchOrder()) is k


def test_what_changes_is_not_read_by_the_read_only_path() -> None:
    body = BODY.replace("load w[tx]", "load w[tx] .no_allocate").replace(
        "load x[tx]", "load x[tx] .no_allocate"
    )
    k = place_launch_syncs(kernel(body), LaunchOrder(True, (WHY,)))
    texts = [print_statement(s) for s in k.body]
    assert "r[1] = load w[tx] .no_allocate" in texts, "nobody writes it"
    assert "r[0] = load x[tx]" in texts
    check_kernel(k, "packed", target=target_of("sm_90a"))
