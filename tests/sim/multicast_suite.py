"""Kernels whose blocks of a cluster bring each other tiles, as text, with known verdicts.

A stage of the ring holds four rows of `x` that its block alone uses, and eight rows of `w` that all
blocks of the cluster use: each block copies its share of them to all.
"""

from __future__ import annotations

from async_suite import Case

STAGES, TRIPS = 2, 5


def ring_text(cluster: int = 2, *, stages: int = STAGES, trips: int = TRIPS) -> str:
    """Sums of `x[block, k] * w[k]` over `trips` tiles, by a warp that copies and two that add."""
    share = 8 // cluster
    at, on = "(k % STAGES)", "on full[k % STAGES] by thread 0"
    to_all = f"to {cluster} blocks {on}"
    release = "\n".join(
        f"        mbar_arrive #{20 + r} empty[j % STAGES] of block {r} per_warp"
        for r in range(cluster)
    )
    text = f"""kernel ring {{
  param x: float32[{cluster * trips * 128}] align 16
  param w: float32[{trips * 256}] align 16
  param y: float32[{cluster * 64}] align 16
  map xm: x sizes (32, {cluster * trips * 4}) strides (1, 32) box (32, 4)
  map wm: w sizes (32, {trips * 8}) strides (1, 32) box (32, {share})
  grid (bx < 1)
  block (tx < 96)
  cluster (cx < {cluster})
  shared sx: float32[STAGES*128] align 128
  shared sw: float32[STAGES*256] align 128
  shared full: uint64[STAGES]
  shared empty: uint64[STAGES]
  for (i < STAGES) {{
    mbar_init #0 full[i] count 1 by thread 0
    mbar_init #1 empty[i] count {2 * cluster} by thread 0
  }}
  proxy_fence #3 space(shared)
  cluster_arrive #2 relaxed(true)
  cluster_wait #5
  roles {{
    role warps 0..1 {{
      for (k < {trips}) {{
        mbar_wait #6 empty[k % STAGES] parity (k // STAGES + 1) % 2 by thread 0
        mbar_expect #7 full[k % STAGES] nbytes 1536 by thread 0
        box_load sx[128*{at}] = xm at (0, {4 * trips}*cx + 4*k) {on}
        box_load sw[256*{at} + {32 * share}*cx] = wm at (0, 8*k + {share}*cx) {to_all}
      }}
    }}
    role warps 1..3 {{
      local sum: float32[1]
      local a: float32[1]
      local b: float32[1]
      sum[0] = copy(0.0:float32)
      for (j < {trips}) {{
        mbar_wait #10 full[j % STAGES] parity (j // STAGES) % 2
        for (r < 4) {{
          a[0] = load sx[128*(j % STAGES) + 32*r + tx % 32]
          b[0] = load sw[256*(j % STAGES) + 64*r + (tx - 32)]
          sum[0] = fma(a[0], b[0], sum[0])
        }}
        warp_sync #13
{release}
      }}
      store y[64*cx + (tx - 32)] = sum[0]
    }}
  }}
  cluster_arrive #11
  cluster_wait #12
}}
"""
    return text.replace("STAGES", str(stages))


RING = ring_text()
OWN_ARRIVALS_ONLY = RING.replace("count 4 by", "count 2 by").replace(
    "        mbar_arrive #20 empty[j % 2] of block 0 per_warp\n"
    "        mbar_arrive #21 empty[j % 2] of block 1 per_warp\n",
    "        mbar_arrive #20 empty[j % 2] per_warp\n",
)
HALF_EXPECTED = RING.replace("nbytes 1536", "nbytes 1024")
FENCE_BEHIND_THE_ARRIVAL = RING.replace(
    "  proxy_fence #3 space(shared)\n  cluster_arrive #2 relaxed(true)\n",
    "  cluster_arrive #2 relaxed(true)\n  proxy_fence #3 space(shared)\n",
)
NO_DRAIN = RING.replace("  cluster_arrive #11\n  cluster_wait #12\n", "")
NOT_BEGUN = RING.replace("  cluster_arrive #2 relaxed(true)\n", "").replace(
    "  cluster_wait #5\n", ""
)
EARLY_ARRIVAL = RING.replace("  cluster_arrive #2 relaxed(true)\n", "").replace(
    "  for (i < 2) {\n    mbar_init #0",
    "  cluster_arrive #2 relaxed(true)\n  for (i < 2) {\n    mbar_init #0",
)
OVERLAPPING = RING.replace(" + 128*cx] = wm at (0, 8*k + 4*cx)", "] = wm at (0, 8*k)")
OTHER_SLOT = RING.replace("mbar_arrive #21 empty[j % 2]", "mbar_arrive #21 empty[(j + 1) % 2]")
RELEASED_EARLY = RING.replace(
    "        mbar_arrive #21 empty[j % 2] of block 1 per_warp\n", ""
).replace(
    "        mbar_wait #10 full[j % 2] parity (j // 2) % 2\n",
    "        mbar_wait #10 full[j % 2] parity (j // 2) % 2\n"
    "        mbar_arrive #21 empty[j % 2] of block 1 per_warp\n",
)

HANDED_ON = """kernel k {
  param x: float32[64] align 16
  param w: float32[64] align 16
  param y: float32[64] align 16
  grid (bx < 1)
  block (tx < 32)
  cluster (cx < 2)
  local r: float32[1]
  shared free: uint64[1]
  r[0] = load x[tx]
  mbar_init #0 free[0] count 64 by thread 0
  cluster_arrive #1 relaxed(true)
  cluster_wait #2
  if (cx == 0) {
    store y[tx] = r[0]
  }
  mbar_arrive #3 free[0] of block 1
  if (cx == 1) {
    mbar_wait #4 free[0] parity 0
    r[0] = load y[tx]
    store y[32 + tx] = r[0]
  }
  cluster_arrive #5
  cluster_wait #6
}
"""
"""A block reads what another stored, behind its arrival."""
HANDED_ON_AT_A_BARRIER = HANDED_ON.replace(
    "  if (cx == 1) {", "  cluster_arrive #7\n  cluster_wait #8\n  if (cx == 1) {"
)

NEEDED = (0, 1, 2, 3, 5, 6, 7, 10, 11, 12, 13, 20, 21)
SUITE: tuple[Case, ...] = (
    Case("multicast_ring", RING, needed=NEEDED),
    Case("multicast_ring_of_4", ring_text(4, stages=3, trips=7), needed=(*NEEDED, 22, 23)),
    Case("own_arrivals_only", OWN_ARRIVALS_ONLY, wrong=("race", "rule")),
    Case("half_expected", HALF_EXPECTED, wrong=("deadlock", "rule")),
    Case("fence_behind_the_arrival", FENCE_BEHIND_THE_ARRIVAL, wrong=("race",)),
    Case("no_drain", NO_DRAIN, wrong=("rule",)),
    Case("not_begun", NOT_BEGUN, wrong=("deadlock", "race", "rule")),
    Case("early_arrival", EARLY_ARRIVAL, wrong=("race",)),
    Case("overlapping", OVERLAPPING, wrong=("race", "uninitialised")),
    Case("other_slot", OTHER_SLOT, wrong=("rule",)),
    Case("handed_on", HANDED_ON, wrong=("race",)),
    Case("handed_on_at_a_barrier", HANDED_ON_AT_A_BARRIER),
    Case("released_early", RELEASED_EARLY, wrong=("race", "rule")),
)
