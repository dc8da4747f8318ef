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
