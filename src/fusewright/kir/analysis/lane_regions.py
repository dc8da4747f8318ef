"""Regions in which single lanes of a vector are needed, joined to one for the whole vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from fusewright.core.regions import EVERYWHERE, PointRegion, Regions, hull
from fusewright.kir.analysis.uniformity import meeting_share
from fusewright.kir.ir import Kernel

FEW_WARPS = 1 / 16
"""A share of warps that does not count: those at the borders of pieces that are longer."""

KEPT = 1 << 10
"""Regions of a kernel whose share of warps is kept: each is compared with every hull."""


def joined_lanes(found: Iterable[Regions], kernel: Kernel) -> Mapping[PointRegion, PointRegion]:
    """For regions of lanes the region around those of all lanes.

    Values of which lanes are needed in regions of their own tell which belong together: as soon as
    hardly more warps have a thread in the hull of these regions than in any one of them. All other
    regions inside of the hull join it.
    """
    found = tuple(dict.fromkeys(found))
    if all(len(regions) < 2 for regions in found):
        return {}
    hulls: dict[PointRegion, None] = {}
    own: dict[PointRegion, PointRegion] = {}
    for regions in found:
        around = _tight(regions, kernel) if len(regions) > 1 else None
        if around is not None:
            hulls[around] = None
            own.update((r, around) for r in regions if r not in own)
    table: dict[PointRegion, PointRegion] = {}
    for r in dict.fromkeys(r for regions in found for r in regions if regions != EVERYWHERE):
        around = own.get(r) or next((h for h in hulls if _belongs(r, h, kernel)), None)
        if around is not None:
            table[r] = around
    return table


def _belongs(r: PointRegion, around: PointRegion, kernel: Kernel) -> bool:
    return r.lies_in(around) and _is_near(r, around, kernel)


def _tight(regions: Regions, kernel: Kernel) -> PointRegion | None:
    """The hull of regions, where it is near to each."""
    around = hull(regions)
    if around in EVERYWHERE or not all(_is_near(r, around, kernel) for r in regions):
        return None
    return around


def _is_near(r: PointRegion, around: PointRegion, kernel: Kernel) -> bool:
    return _share(around, kernel) - _share(r, kernel) <= FEW_WARPS


@lru_cache(maxsize=KEPT)
def _share(r: PointRegion, kernel: Kernel) -> float:
    """The share of warps that have a thread in a region."""
    return meeting_share(r.condition, kernel)
