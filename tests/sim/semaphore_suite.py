"""Kernels whose blocks take turns, with and without what they need, as text."""

from __future__ import annotations

from async_suite import Case

HEAD = """kernel turns {
  param x: float32[4*3*64] align 16
  param y: float32[4*64] align 16
  param w: float32[4*64] align 16
  param f: uint32[4]
  semaphores (f)
  scratch (w)
  grid (bx < 4, by < 3)
  block (tx < 64)
  local r: float32[2]
  local c: uint32[1]
"""
PART = "r[0] = load x[192*bx + 64*by + tx]\n"
GUARDED = "guarded(w) first(64*bx) size(64) issuer(0)"
ACQUIRE = f"semaphore_acquire #0 semaphore(f) index(bx) value(by) {GUARDED}\n"
ENTER = "block_sync #1\n"
STEP = """if (0 < by) {
  r[1] = load w[64*bx + tx]
  r[0] = add(r[1], r[0])
}
if (by < 2) {
  store w[64*bx + tx] = r[0]
}
"""
LEAVE = "block_sync #2\n"
RELEASE = f"semaphore_release #3 semaphore(f) index(bx) value((by + 1) % 3) {GUARDED}\n"
LAST = "store y[64*bx + tx] = r[0] if (by == 2)\n"
TURN = (PART, ACQUIRE, ENTER, STEP, LEAVE, RELEASE, LAST)


def text(*parts: str) -> str:
    return HEAD + "".join(parts) + "}"


def turn(**changed: str) -> str:
    """The turn with some of its parts replaced."""
    return text(*(changed.get(name, globals()[name]) for name in NAMES))


NAMES = ("PART", "ACQUIRE", "ENTER", "STEP", "LEAVE", "RELEASE", "LAST")

BULK_HEAD = HEAD.replace("  local r", "  shared s: float32[64] align 16 offset 0\n  local r")
FILL = "store s[tx] = r[0]\nproxy_fence #4 space(shared)\n"
BEFORE = "proxy_fence #5 space(global)\n"
ADD = """if (by < 1) {
  bulk_store w[64*bx] = s[0] size 64 by thread 0
}
if (0 < by) {
  bulk_reduce.add w[64*bx] = s[0] size 64 by thread 0
}
"""
COMMIT = "async_commit #6 kind(bulk)\n"
WAIT = "async_wait #7 kind(bulk)\n"
READ_BACK = """if (by == 2) {
  r[1] = load w[64*bx + tx]
  store y[64*bx + tx] = r[1]
}
"""
BULK_NAMES = (
    "PART", "FILL", "ENTER", "ACQUIRE", "BEFORE", "ADD", "COMMIT", "WAIT", "RELEASE", "LEAVE",
    "READ_BACK",
)  # fmt: skip


def bulk_turn(**changed: str) -> str:
    """The same sum made by the copy engine; the last block, which nobody follows, reads it back."""
    parts = (changed.get(name, globals()[name]) for name in BULK_NAMES)
    return BULK_HEAD + "".join(parts) + "}"


CLUSTERS = """kernel clusters {
  param x: float32[3*2*64] align 16
  param y: float32[64] align 16
  param w: float32[3*64] align 16
  param f: uint32[1]
  semaphores (f)
  scratch (w)
  grid (bx < 3)
  block (tx < 64)
  cluster (cx < 2)
  local r: float32[2]
  shared s: float32[128] align 16 offset 0
  cluster_arrive #5
  cluster_wait #6
  r[0] = load x[128*bx + 64*cx + tx]
  remote_store s[64*cx + tx] of block (0) = r[0]
  cluster_arrive #7
  cluster_wait #8
  if (cx == 0) {
    r[0] = load s[tx]
    r[1] = load s[64 + tx]
    r[0] = add(r[0], r[1])
    semaphore_acquire #0 semaphore(f) index(0) value(bx) guarded(w) first(0) size(64) issuer(0)
    block_sync #1
    if (0 < bx) {
      r[1] = load w[tx]
      r[0] = add(r[1], r[0])
    }
    if (bx < 2) {
      store w[tx] = r[0]
    }
    block_sync #2
    semaphore_release #3 semaphore(f) index(0) value((bx + 1) % 3) GUARDED
    store y[tx] = r[0] if (bx == 2)
  }
}""".replace("GUARDED", "guarded(w) first(0) size(64) issuer(0)")
"""Clusters reduce first, and the first block of each takes turns with those of others."""

ALL_HEAD = HEAD.replace("w: float32[4*64]", "w: float32[4*3*64]").replace(
    "grid (bx < 4, by < 3)", "grid (by < 3, bx < 4)"
)
PUT = "store w[192*bx + 64*by + tx] = r[0]\n"
ARRIVE = (
    "semaphore_arrive #0 semaphore(f) index(bx) period(6) guarded(w) first(192*bx + 64*by) "
    "size(64) issuer(0)\n"
)
ALL = "semaphore_acquire #3 semaphore(f) index(bx) value(3) guarded(w) first(192*bx) size(192) "
ALL += "issuer(0)\n"
GO = "semaphore_leave #4 semaphore(f) index(bx) period(6) issuer(0)\n"
SHARE = """if (64*by < 3*tx + 1 && 3*tx < 64*by + 64) {
  r[0] = load w[192*bx + tx]
  for (k < 2) {
    r[1] = load w[192*bx + 64*k + tx + 64]
    r[0] = add(r[0], r[1])
  }
  store y[64*bx + tx] = r[0]
}
"""
GATHERED = ("PART", "PUT", "LEAVE", "ARRIVE", "ALL", "GO", "ENTER", "SHARE")


def gathering(**changed: str) -> str:
    """The sum by parts that all blocks put side by side, each a share of it."""
    return ALL_HEAD + "".join(changed.get(name, globals()[name]) for name in GATHERED) + "}"


SUITE = [
    Case("turns", turn(), needed=(0, 1, 2, 3)),
    Case("no turn", turn(ACQUIRE=""), wrong=("race",)),
    Case("a turn too early", turn(ACQUIRE=ACQUIRE.replace("value(by)", "value(max(by - 1, 0))")),
         wrong=("race",)),
    Case("the others do not wait", turn(ENTER=""), wrong=("race",)),
    Case("the others are not gathered", turn(LEAVE=""), wrong=("race",)),
    Case("released before the stores",
         text(PART, ACQUIRE, ENTER, RELEASE, STEP, LEAVE, LAST), wrong=("race",)),
    Case("not reset", turn(RELEASE=RELEASE.replace("(by + 1) % 3", "by + 1")), wrong=("rule",)),
    Case("released for the block",
         turn(RELEASE=RELEASE.replace("issuer(0)", "issuer(0) scope(block)")), wrong=("race",)),
    Case("an acquire for the block",
         turn(ACQUIRE=ACQUIRE.replace("issuer(0)", "issuer(0) scope(block)")), wrong=("race",)),
    Case("later blocks first",
         turn(ACQUIRE=ACQUIRE.replace("value(by)", "value(2 - by)"),
              RELEASE=RELEASE.replace("(by + 1) % 3", "(3 - by) % 3"),
              STEP=STEP.replace("0 < by", "by < 2").replace("if (by < 2) {\n  store",
                                                           "if (0 < by) {\n  store"),
              LAST=LAST.replace("by == 2", "by == 0")),
         wrong=("rule",)),
    Case("nobody passes the turn", turn(RELEASE=""), wrong=("deadlock",)),
    Case("read before the last turn",
         text(PART, ACQUIRE, ENTER, STEP, LEAVE, RELEASE,
              "r[1] = load w[64*bx + tx]\nstore y[64*bx + tx] = r[1] if (by == 1)\n"),
         wrong=("race",)),
    Case("gathering", gathering(), needed=(0, 1, 2, 3, 4)),
    Case("parts are read before the last is there",
         gathering(ALL=ALL.replace("value(3)", "value(2)")), wrong=("race", "uninitialised")),
    Case("nobody waits for the others", gathering(ALL=""), wrong=("race", "uninitialised")),
    Case("arrived before the part is there",
         gathering(PUT="", ARRIVE=ARRIVE + PUT), wrong=("race",)),
    Case("nobody leaves", gathering(GO=""), wrong=("rule",)),
    Case("one block too few arrives",
         gathering(ARRIVE="if (0 < by) {\n" + ARRIVE + "}\n"), wrong=("deadlock",)),
    Case("bulk turns", bulk_turn(), needed=(0, 1, 2, 3, 4, 5, 6, 7)),
    Case("the sources are free, the sum is not there",
         bulk_turn(WAIT=WAIT.replace("kind(bulk)", "kind(bulk) reads_only(true)")),
         wrong=("race",)),
    Case("one group is left under way",
         bulk_turn(WAIT=WAIT.replace("kind(bulk)", "kind(bulk) keep(1)")), wrong=("race", "rule")),
    Case("a bulk turn passed on before it is complete", bulk_turn(WAIT="", RELEASE=RELEASE + WAIT),
         wrong=("race",)),
    Case("two threads add", bulk_turn(ADD=ADD + """if (0 < by) {
  bulk_reduce.add w[64*bx] = s[0] size 64 by thread 32
}
"""), wrong=("race",)),
]  # fmt: skip
