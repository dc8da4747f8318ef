"""How pointwise groups that are fast along different dimensions are tiled: which dimensions, in
which sizes.

`near` is the dimension along which most bytes are fast, and along which the group is computed;
`far` tensors are fast along another one. Either may be several dimensions that all tensors which
are fast along the innermost of them have next to each other, innermost first:

    x[8, 11, 3, 50257] -> y[11, 50257, 8, 3]     near is (8, 3), 24 neighbours of y, not the 3 alone

Every choice of dimensions and of a tile's sides is rated by what an element takes: sectors that
are filled, lanes that lie beyond a dimension, accesses that are narrower than 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.core.conditions import less, prove
from fusewright.core.instructions import CODE
from fusewright.core.substitution import estimate
from fusewright.fusion.sizes import power_of_two
from fusewright.schedule.graph import Stage
from fusewright.schedule.heuristics.candidates import Candidate, Listed, Refused
from fusewright.schedule.heuristics.common import Params, numel
from fusewright.schedule.heuristics.traffic import StridedAccess, StridedTraffic, runs_on
from fusewright.target import (
    BLOCK,
    ISSUE_PER_CLOCK,
    LINE_NBYTES,
    MAX_VECTOR_NBYTES,
    SECTOR_NBYTES,
    SHARED_BANK_NBYTES,
    SHARED_BANKS,
    WARP_SIZE,
    Target,
)

THREADS = BLOCK
TILE_NBYTES = 16 * 1024
TILES_NBYTES = 48 * 1024
LEAST_TILE = WARP_SIZE
MAX_VECTORS = 8
SINGLES = 16
"""Elements of a thread where a side moves them one by one: they share their index arithmetic."""
MAX_JOINED = 4
"""Dimensions that one side of a tile joins at most."""
MAX_PLANS = 5
"""Tiles that are worth listing."""
EQUAL = 1.03
"""Tiles that take no more than so many times the least count as equal."""
IDLE_CLOCKS = 0.1
"""Of a lane that lies beyond a dimension: a dozen instructions."""
START_CLOCKS = 40 / (ISSUE_PER_CLOCK * WARP_SIZE)
"""Of a thread: the instructions that do not depend on how many elements it has."""
LONG_RUN_NBYTES = LINE_NBYTES
SHORT_RUN_COST = 0.1
"""By so much more shorter runs cost, for every time that they are shorter."""
WRITE_COST = 3
"""What a sector that is written in part costs, in sectors read: it is read, merged and written. A
run of 64 to 512 bytes costs 80 bytes more (bench/variants-2026-11-23-h200.json, seed 9249)."""
ROW_NBYTES = SHARED_BANKS * SHARED_BANK_NBYTES
"""Bytes in one pass through the banks."""


@dataclass(frozen=True, slots=True)
class TransposePlan:
    """The two dimensions with their extents in a tile and the elements of a vector along each, how
    many planes of them a block takes, the far accesses, the bytes of the largest far element, and
    whether neighbouring tiles along `far` run together, not those along `near`."""

    dims: tuple[AxisClass, ...]
    near: AxisClass
    far: AxisClass
    near_tile: int
    far_tile: int
    planes: int
    near_width: int
    far_width: int
    walks: tuple[StridedAccess, ...]
    nbytes: int
    is_far_first: bool

    @property
    def size(self) -> int:
        """The elements of a tile."""
        return self.near_tile * self.far_tile * self.planes

    @property
    def params(self) -> Params:
        """The parameters by name."""
        names = dict.fromkeys(w.tensor.name for w in self.walks)
        return Params.of(
            "transpose",
            tile=f"{self.planes}x{self.far_tile}x{self.near_tile}",
            vectors=f"{self.far_width}, {self.near_width}",
            threads=self.threads,
            through_shared=", ".join(names),
        )

    @property
    def threads(self) -> int:
        """As many as have a vector on both sides, at most 256."""
        return min(THREADS, self.size // max(self.near_width, self.far_width))

    def rows(self, own_width: int, other_width: int) -> int:
        """Neighbouring vectors of a thread: not more than it has, nor than the other side takes
        at once."""
        return min(self.size // (own_width * self.threads), other_width)

    def granule(self, writer_width: int, reader_width: int, writer_tile: int) -> int:
        """Elements of a tile's row that keep together: what either side takes at once, a whole
        bank, and no less than spreads the vectors of a writer's tile over all banks."""
        word = max(reader_width, self.rows(writer_width, reader_width)) * self.nbytes
        spread = ROW_NBYTES * writer_width // writer_tile
        nbytes = max(word, SHARED_BANK_NBYTES, min(spread, MAX_VECTOR_NBYTES))
        return max(1, nbytes // self.nbytes)


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a tile is decided from: the traffic, the two dimensions with the elements of a vector
    along each, the far accesses, the bytes of the largest far element, and the elements that a
    tile may have."""

    found: StridedTraffic
    near: AxisClass
    far: AxisClass
    widths: tuple[int, int]
    walks: tuple[StridedAccess, ...]
    nbytes: int
    budget: int


def crossings(graph: AxisGraph, reference: Stage, found: StridedTraffic) -> Iterator[Crossing]:
    """The two dimensions, then those with what lies next to either of them; none where accesses
    are fast along one or along none. What goes through a tile has all that its sides join: a tile
    of a tensor that is repeated along a part of a side would be filled at its first place only."""
    weight: dict[AxisClass, int] = {}
    own = next(w.fast for w in found.walks if w.tensor is reference)
    for w in found.walks:
        if w.fast is not None:
            is_large = 2 * numel(w.tensor.shape) >= numel(reference.shape)
            weight[w.fast] = weight.get(w.fast, 0) + (w.nbytes if is_large else 0)
    if not weight:
        return
    near = max(weight, key=lambda d: (weight[d], d is own))
    crossing = [w for w in found.walks if w.fast is not near and near in w.strides]
    others = [w.fast for w in crossing if w.fast is not None]
    if not others:
        return
    far = max(others, key=lambda d: weight[d])
    nears, fars = _chain(found, near, far), _chain(found, far, near)
    for a in range(1, len(nears) + 1):
        for b in range(1, len(fars) + 1):
            sides = (*nears[:a], *fars[:b])
            through = [w for w in crossing if w.fast is far]
            has_all = all(d in w.strides for w in through for d in sides)
            if has_all and len(set(sides)) == len(sides):
                c = _crossing(graph, found, nears[:a], fars[:b])
                if not _is_beside(c):
                    yield c


def _chain(found: StridedTraffic, first: AxisClass, other: AxisClass) -> list[AxisClass]:
    """Dimensions that follow each other in memory, the fast one first, in every large tensor that
    is fast along it; up to the other one."""
    most = max(w.nbytes for w in found.walks)
    tables = [w.strides for w in found.walks if w.fast is first and 2 * w.nbytes >= most]
    chain = [first]
    while tables and len(chain) < MAX_JOINED:
        free = [d for d in found.dims if d not in (*chain, other)]
        last = chain[-1]
        following = [d for d in free if all(d in t and runs_on(t, d, last) for t in tables)]
        if not following:
            break
        chain.append(following[0])
    return chain


def _crossing(
    graph: AxisGraph, found: StridedTraffic, nears: Sequence[AxisClass], fars: Sequence[AxisClass]
) -> Crossing:
    """A crossing of joined dimensions, each given innermost first."""
    joined = _joined(graph, _joined(graph, found, nears), fars)
    near, far = _whole(graph, nears), _whole(graph, fars)
    walks = tuple(w for w in joined.walks if w.fast is far and near in w.strides)
    nbytes = max(w.tensor.dtype.nbytes for w in walks)
    near_walks = [w for w in joined.walks if w.fast is near]
    widths = (
        min(MAX_VECTOR_NBYTES // nbytes, *(w.width() for w in near_walks)),
        min(w.width() for w in walks),
    )
    budget = min(TILE_NBYTES, TILES_NBYTES // len(walks)) // nbytes
    budget = min(budget, THREADS * max(MAX_VECTORS * min(widths), SINGLES))
    return Crossing(joined, near, far, widths, walks, nbytes, budget)


def _whole(graph: AxisGraph, dims: Sequence[AxisClass]) -> AxisClass:
    """One dimension of several, the innermost first."""
    whole = dims[0]
    for d in dims[1:]:
        whole = graph.merge(d, whole)
    return whole


def _joined(graph: AxisGraph, found: StridedTraffic, dims: Sequence[AxisClass]) -> StridedTraffic:
    """The traffic in which some dimensions, the innermost first, are one. A tensor that does not
    have them next to each other keeps the strides of the outer ones as well."""
    if len(dims) == 1:
        return found
    whole = _whole(graph, dims)
    walks: list[StridedAccess] = []
    for w in found.walks:
        adjacent = all(runs_on(w.strides, b, a) for a, b in pairwise(dims))
        strides = {d: s for d, s in w.strides.items() if not (adjacent and d in dims[1:])}
        if dims[0] in strides:
            strides[whole] = strides.pop(dims[0])
        moved, shifted = (
            frozenset(whole if d in dims else d for d in some) for some in (w.moved, w.shifted)
        )
        walks.append(replace(w, strides=strides, moved=moved, shifted=shifted))
    kept = [whole if d is dims[0] else d for d in found.dims if d not in dims[1:]]
    return StridedTraffic(tuple(kept), tuple(walks))


def plans(found: Iterable[Crossing], target: Target) -> Iterator[Listed[TransposePlan]]:
    """The tiles of all crossings, the one that takes least for an element first; among equals the
    square one, of the fewest dimensions. Behind these, for what is moved to places that no words
    can be put together of, those of which it is read one by one."""
    crossings = list(found)
    yield from _rated(crossings, target)
    moved = [c for c in crossings if c.widths[1] > _word_width(c.walks)]
    if any(w.moved for c in moved for w in c.walks):
        words = [replace(c, widths=(c.widths[0], _word_width(c.walks))) for c in moved]
        yield from (c for c in _rated(words, target) if isinstance(c, Candidate))


def _word_width(walks: Iterable[StridedAccess]) -> int:
    return min(w.word_width() for w in walks)


def _rated(found: Iterable[Crossing], target: Target) -> Iterator[Listed[TransposePlan]]:
    rated: list[tuple[float, Candidate[TransposePlan]]] = []
    refused: list[Refused] = []
    for c in found:
        for tile in _shapes(c, target):
            what = f"tile of {tile[1]} by {tile[0]} through shared memory"
            if min(tile) * c.nbytes < MAX_VECTOR_NBYTES:
                refused.append(Refused(what, f"a side is less than {MAX_VECTOR_NBYTES} bytes"))
            else:
                plan = _plan_of(c, tile, target)
                rated.append((_clocks(c, plan, target), Candidate(what, plan.params, plan)))
    least = min((clocks for clocks, _ in rated), default=1.0)
    rated.sort(key=lambda r: max(r[0], least * EQUAL))
    yield from (c for _, c in rated[:MAX_PLANS])
    yield from refused


def _shapes(c: Crossing, target: Target) -> list[tuple[int, int]]:
    """The sides of tiles: as square as may be, then half of that and twice as long as wide, and so
    on while no more than a part of 16 lies beyond a dimension."""
    near, far = _tile(c.found, (c.near, c.far), c.budget, c.walks, target)
    sizes = [power_of_two(estimate(d.extent)) for d in (c.near, c.far)]
    shapes = [(near, far)]
    for k in (1, 2, 4, 8):
        shapes += [(near, far // k), (near // k, far), (k * near, far // k), (near // k, k * far)]
    return [t for t in dict.fromkeys(shapes) if 0 < t[0] <= sizes[0] and 0 < t[1] <= sizes[1]]


def _clocks(c: Crossing, plan: TransposePlan, target: Target) -> float:
    """Clocks of a multiprocessor for an element, but for a part of what it computes: bytes in whole
    sectors against what memory moves, and narrow accesses, also of lanes that are beyond."""
    sides = (
        (plan.near_tile, c.near, plan.near_width, [w for w in c.found.walks if w.fast is c.near]),
        (plan.far_tile, c.far, plan.far_width, list(c.walks)),
    )
    loads = sum(w.position is not None for w in c.walks)
    stores = len(c.walks) - loads
    nbytes = narrow = 0.0
    lanes = 1.0
    for (tile, dim, width, walks), through in zip(sides, (2 * loads, 2 * stores), strict=True):
        extent = estimate(dim.extent)
        lanes *= -(-extent // tile) * tile / extent
        run = min(tile, extent)
        nbytes += sum(_asked(w, run, min(width, w.word_width())) for w in walks)
        sizes = [*(w.tensor.dtype.nbytes for w in walks), *[c.nbytes] * through]
        narrow += sum(width * n < MAX_VECTOR_NBYTES for n in sizes) / width
    start = START_CLOCKS * plan.threads / plan.size
    known = target.calibration
    each = (known.narrow_clocks + CODE.single_access / ISSUE_PER_CLOCK) / WARP_SIZE
    moved = nbytes / _copied_per_clock(target)
    return moved + lanes * (narrow * each + start) + (lanes - 1) * IDLE_CLOCKS


def _copied_per_clock(target: Target) -> float:
    """Bytes a clock of a multiprocessor's share of memory, half of them written."""
    known = target.calibration
    share = known.read_share * 2 / (1 + known.write_weight)
    return share * target.memory_nbytes_per_us / (target.multiprocessors * target.clock_mhz)


def _asked(walk: StridedAccess, run: int, width: int) -> float:
    """The bytes that an element moves, in runs of so many elements: whole sectors, one more where
    runs begin anywhere, which costs a write more, and more for short runs."""
    nbytes = walk.tensor.dtype.nbytes
    length = run * nbytes
    beyond = 0 if width * nbytes >= MAX_VECTOR_NBYTES else SECTOR_NBYTES - width * nbytes
    beyond *= WRITE_COST if walk.position is None else 1
    sectors = max(1.0, (length + beyond) / length, SECTOR_NBYTES / length)
    return nbytes * (sectors + SHORT_RUN_COST * max(0, LONG_RUN_NBYTES // length - 1))


def _plan_of(c: Crossing, tile: tuple[int, int], target: Target) -> TransposePlan:
    has_all = all(d in w.strides for w in c.walks for d in c.found.dims)
    most = c.budget // (tile[0] * tile[1]) if has_all else 1
    return TransposePlan(
        c.found.dims,
        c.near,
        c.far,
        *tile,
        _planes(c.found, (c.near, c.far), most, tile, target),
        min(c.widths[0], tile[0]),
        min(c.widths[1], tile[1]),
        c.walks,
        c.nbytes,
        _is_far_first(c),
    )


def _is_far_first(c: Crossing) -> bool:
    """Whether runs along `far` end inside of pairs of sectors, which memory moves whole, and none
    along `near` do: what tiles share of a pair is in the cache when they run together. bfloat16
    [2097152, 80] with rows of 176 bytes was read 1.5 times otherwise (one H100, 2026-11-26)."""
    near = [w for w in c.found.walks if w.fast is c.near]
    return not any(map(_shares_pairs, near)) and any(map(_shares_pairs, c.walks))


def _shares_pairs(w: StridedAccess) -> bool:
    return not w.has_rows_of(2 * SECTOR_NBYTES // w.tensor.dtype.nbytes)


def _tile(
    found: StridedTraffic,
    dims: tuple[AxisClass, AxisClass],
    budget: int,
    walks: Sequence[StridedAccess],
    target: Target,
) -> tuple[int, int]:
    """The extents of a tile of at most `budget` elements: square but for short dimensions, small
    enough for blocks on every multiprocessor. A row of a tile in shared memory, which runs along
    what its reader wants, does not get shorter than one pass through the banks."""
    nbytes = max(w.tensor.dtype.nbytes for w in walks)
    sizes = [power_of_two(estimate(d.extent)) for d in dims]
    tile = [1, 1]
    while True:
        growing = [k for k in (0, 1) if tile[k] < sizes[k]]
        if not growing or 2 * tile[0] * tile[1] > budget:
            break
        tile[min(growing, key=lambda k: tile[k])] *= 2
    is_read = [any(w.position is not None for w in walks), any(w.position is None for w in walks)]
    least = [ROW_NBYTES // nbytes if r else LEAST_TILE for r in is_read]
    total = numel([d.extent for d in found.dims])
    while total // (tile[0] * tile[1]) < 2 * target.multiprocessors:
        shrinking = [k for k in (0, 1) if tile[k] > least[k]]
        if not shrinking:
            break
        tile[max(shrinking, key=lambda k: tile[k])] //= 2
    return tile[0], tile[1]


def _planes(
    found: StridedTraffic,
    dims: tuple[AxisClass, AxisClass],
    most: int,
    tile: tuple[int, int],
    target: Target,
) -> int:
    """How many planes of both dimensions a block takes when one is no more than a tile."""
    if any(estimate(d.extent) > t for d, t in zip(dims, tile, strict=True)):
        return 1
    total = numel([d.extent for d in found.dims if d not in dims])
    planes = 1
    while 2 * planes <= min(most, total // (2 * target.multiprocessors)):
        planes *= 2
    return planes


def _is_beside(c: Crossing) -> bool:
    """Whether neighbours along `far` are in one sector of the near tensors, so that a warp that
    walks along `near` uses whole sectors of the far ones, too."""
    return any(
        c.far in w.strides
        and prove(less(w.strides[c.far] * w.tensor.dtype.nbytes, SECTOR_NBYTES)) is True
        for w in c.found.walks
        if w.fast is c.near
    )
