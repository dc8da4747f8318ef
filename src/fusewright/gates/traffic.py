"""Gates on traffic: a kernel moves at most so much more than it has to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusewright.kernel import Kernel
from fusewright.sim.traffic import Traffic, traffic


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a kernel may need, as multiples of the least possible: `sectors` its requests
    fill, `wavefronts` its accesses to shared memory take, `nbytes` of large arrays it moves."""

    sectors: float = 1.25
    wavefronts: float = 1.25
    nbytes: float = 1.1


LIMITS: Mapping[str, Limits] = {
    # Lanes of 2 bytes beside lanes of 4: two accesses each take every other half of a sector, and
    # the second finds it in the first-level cache. Arrays read along two axes, or at an offset
    # beside themselves, are read twice, mostly from the second-level cache.
    "pointwise": Limits(sectors=2.0, nbytes=1.5),
    "transpose": Limits(nbytes=1.5),
    "inner_persistent": Limits(sectors=2.0),
    "inner_shared": Limits(sectors=2.0),
    "inner_cluster_persistent": Limits(sectors=2.0),
    "inner_cluster_shared": Limits(sectors=2.0),
    "outer_persistent": Limits(sectors=2.0),
    "rows": Limits(sectors=2.0),
    # Each pass over what does not fit a block reads it again.
    "inner_multi_pass": Limits(sectors=2.0, nbytes=3.0),
    "outer_multi_pass": Limits(sectors=2.0, nbytes=2.0),
}
"""By scheduler; others keep the defaults."""


@dataclass(frozen=True, slots=True)
class Exempt:
    """A fusion of the corpus whose kernels may exceed a limit, and why. None: the usual one."""

    reason: str
    sectors: float | None = None
    wavefronts: float | None = None
    nbytes: float | None = None

    def of(self, limits: Limits) -> Limits:
        """The limits that hold for it."""
        given = {
            name: getattr(self, name)
            for name in ("sectors", "wavefronts", "nbytes")
            if getattr(self, name) is not None
        }
        return replace(limits, **given)


EXEMPT: Mapping[str, Exempt] = {
    "causal_attention": Exempt(
        "its products are broadcasts and sums, not tiles: operands are read once an output",
        sectors=5.0,
        nbytes=90.0,
    ),
    "embedding_backward": Exempt("a sum of products with a one-hot matrix", nbytes=17.0),
}
"""By fusion; the reason says what would have to change."""


def traffic_problems(fusion: str, kernel: Kernel) -> list[str]:
    """Where a kernel of a fusion of the corpus moves more than its limits allow; one of several
    parts, whose blocks differ, where a part does."""
    if kernel.parts:
        return [p for part in kernel.parts for p in traffic_problems(fusion, part)]
    scheduler = kernel.heuristic.scheduler if kernel.heuristic is not None else ""
    limits = LIMITS.get(scheduler, Limits())
    if fusion in EXEMPT:
        limits = EXEMPT[fusion].of(limits)
    found = excesses(traffic(kernel.ir, kernel.arguments()), limits)
    return [f"kernel {kernel.name} ({scheduler}) {e}" for e in found]


def excesses(found: Traffic, limits: Limits) -> list[str]:
    """Which limits the traffic exceeds, in words."""
    checks = (
        ("sectors of global memory", found.sectors, found.sectors_least, limits.sectors),
        (
            "wavefronts of shared memory",
            found.wavefronts,
            found.wavefronts_least,
            limits.wavefronts,
        ),
        ("bytes of its large arrays", found.nbytes, found.nbytes_least, limits.nbytes),
    )
    return [
        f"moves {n:,} {what}, {n / least:.2f} times the least possible; its limit is {limit:g}"
        for what, n, least, limit in checks
        if n > limit * least
    ]
