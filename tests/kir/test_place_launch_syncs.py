"""Where the syncs between launches are put: a body in, one line for each statement out."""

from __future__ import annotations

import pytest

from fusewright.errors import SpecError
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


RING = """kernel k {
  param x: float32[65536] align 16
  param w: float32[65536] align 16
  param y: float32[65536] align 16
  map xm: x sizes (256, 256) strides (1, 256) box (32, 64)
  map wm: w sizes (256, 256) strides (1, 256) box (32, 64)
  grid (bx < 4)
  block (tx < 160)

  shared s: float32[4096] align 128 offset 0
  shared t: float32[4096] align 128 offset 16384
  shared full: uint64[2] offset 32768
  roles {
    role warps 4..5 by thread 128 {
      for (u < 2) {
        for (i < TRIPS) {
          box_load s[2048*(i%2)] = xm at (32*i, 64*bx) on full[i%2] by thread 128
          box_load t[2048*(i%2)] = wm at (32*i + 64*u, 64*bx) on full[i%2] by thread 128
        }
      }
    }
  }
}
"""


@pytest.mark.parametrize(("trips", "fetched"), [(4, 2), (1, 1)])
def test_first_boxes_of_what_nobody_writes_are_fetched_ahead(trips: int, fetched: int) -> None:
    """Those of the first tile, as many as the ring has stages for."""
    ring = parse_kernel(RING.replace("TRIPS", str(trips)))
    k = place_launch_syncs(ring, LaunchOrder(True, (WHY,), lets_begin=True))
    texts = [print_statement(s) for s in k.body]
    boxes = [f"prefetch_box wm at ({32 * i}, 64*bx) by thread 128" for i in range(fetched)]
    assert texts[0].startswith("launch_dependents") and texts[1 : 1 + fetched] == boxes
    assert [t.split(" ")[0] for t in texts].count("prefetch_box") == fetched
    assert texts[-2].startswith("launch_wait") and texts[-1].startswith("roles")
    both = place_launch_syncs(ring, LaunchOrder(True, (WHY, (1, "RAW"))))
    assert "prefetch_box" not in "".join(map(print_statement, both.body))


def test_a_fetch_has_a_coordinate_for_each_dimension() -> None:
    wrong = "prefetch_box wm at (0) by thread 128\n  roles"
    k = parse_kernel(RING.replace("TRIPS", "4").replace("roles", wrong))
    with pytest.raises(SpecError, match="1 coordinates for the 2 dimensions of wm"):
        check_kernel(k, "lowered")
