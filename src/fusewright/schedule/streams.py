"""Stream-K: blocks take whole tiles while there is one for each, and share the depths of the rest.

    for u < waves - 1:  tile (u, bx, by):   all steps of the depth
    for s < rest:       tile (last, s, by): the steps of part bx, combined as the request says

In the last wave two loops of the product change places: the one that is bound to BIDx, over the
tiles of a wave, and one over as many parts of the depth. So the schedule is that of blocks which
walk over tiles, and the rest is one edit of it; each tile is reached once, as the first form
reaches those of all waves but the last, and the second one those of the last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from fusewright.axes.classes import AxisClass
from fusewright.core.conditions import prove, substitute_condition
from fusewright.core.expr import Var, constant_value
from fusewright.errors import ScheduleError
from fusewright.fusion.ir import MatMul
from fusewright.schedule.graph import Dataflow, Stage
from fusewright.schedule.nest import computed, reduced_loops
from fusewright.schedule.parallel import GRID_DIMS, Loop, Parallel
from fusewright.schedule.views import loop_variables, view


@dataclass(frozen=True, slots=True)
class Stream:
    """The products of which blocks share the last wave, and the loops of all stages that say how:
    over the waves, over the tiles of a wave along BIDx, and over the steps of a tile. `rest` is how
    many tiles a block has a part of."""

    products: tuple[Stage, ...]
    waves: AxisClass
    tiles: AxisClass
    depth: AxisClass
    rest: int

    @property
    def whole(self) -> int:
        """The waves of whole tiles."""
        return (constant_value(self.waves.extent) or 1) - 1

    @property
    def blocks(self) -> int:
        """Those that share a tile of the rest."""
        return constant_value(self.tiles.extent) or 1


def stream_of(flow: Dataflow) -> Stream | None:
    """What the requests of a schedule ask for; None where no last wave is shared. Raises
    ScheduleError where its loops are not those of a stream."""
    found = tuple(s for s in computed(flow.stages) if s.streams)
    if not found:
        return None
    first = found[0]
    what = f"request_serial_grid_reduction({first.name}, {first.grid_mode!r}, stream=True)"
    waves, tiles, depth = _loops(flow, first, what)
    _check_alike(flow, found, (waves, tiles), what)
    count = constant_value(tiles.axis.extent) or 1
    has_waves = count > 1 and (constant_value(waves.axis.extent) or 1) > 1
    rest = _tiles_left(flow, first, waves, tiles) if has_waves else count
    if rest == count:
        raise ScheduleError(
            f"{what}: {waves.axis.extent} waves of which the last has {rest} of {count} tiles "
            "along BIDx have no whole wave with a rest behind it; leave stream out"
        )
    return Stream(found, waves.axis, tiles.axis, depth.axis, rest)


def _loops(flow: Dataflow, product: Stage, what: str) -> tuple[Loop, Loop, Loop]:
    """The loops of a product over waves, over the tiles of one along BIDx, and over the depth.
    Raises ScheduleError where these are not there."""
    reduced = reduced_loops(flow.graph, product)
    waves = product.loops[0]
    kept = (x for i, x in enumerate(product.loops) if i not in reduced)
    tiles = next((x for x in kept if x.parallel is Parallel.BIDX), None)
    deep = (product.loops[i] for i in reduced)
    depth = next((x for x in deep if x.parallel.is_serial), None)
    found = [x for x in (waves, tiles, depth) if x and constant_value(x.axis.extent) is not None]
    if tiles is None or depth is None or len(found) < 3 or not waves.parallel.is_serial:
        raise ScheduleError(
            f"{what}: blocks walk over waves of tiles first; let the outermost loop be serial, "
            "over the waves, one over the tiles of a wave be bound to BIDx, and one over the depth "
            "be serial, all of them of constant extents"
        )
    return waves, tiles, depth


def _check_alike(
    flow: Dataflow, found: tuple[Stage, ...], loops: tuple[Loop, Loop], what: str
) -> None:
    """Raises ScheduleError where not all that a kernel computes walks over the same tiles, by
    blocks of its own."""
    stages = computed(flow.stages)
    products = [s for s in stages if isinstance(s.op, MatMul)]
    if len({(s.streams, s.grid_mode) for s in products}) > 1 or len(products) != len(found):
        raise ScheduleError(
            f"{what}: all products of a kernel walk over the same tiles; ask for all of them in "
            "one mode"
        )
    apart = [s.name for s in stages if not set(loops) <= set(s.loops)]
    if apart:
        raise ScheduleError(
            f"{what}: {', '.join(apart)} lacks the loops of {found[0].name} over waves and tiles; "
            "call transform_like first"
        )
    if any(x.parallel is Parallel.CLUSTERX for s in stages for x in s.loops):
        raise ScheduleError(
            f"{what}: the blocks of a cluster begin and end tiles together; leave ClusterX out"
        )
    if any(s.ping_pong for s in stages):
        raise ScheduleError(
            f"{what}: two warpgroups take whole tiles in turn, not parts; leave ping_pong out"
        )


def _tiles_left(flow: Dataflow, product: Stage, waves: Loop, tiles: Loop) -> int:
    """How many tiles along BIDx the last wave has, in the group of blocks that has the most: those
    whose first element there is."""
    own = loop_variables(flow.graph, product.loops)
    conditions = view(flow.graph, product, own).path.predicates
    wave, tile = (own[product.loops.index(x)] for x in (waves, tiles))
    assert isinstance(wave, Var) and isinstance(tile, Var)
    first = {v: 0 for v in own if isinstance(v, Var)}
    first[wave] = (constant_value(waves.axis.extent) or 1) - 1
    beside = {
        v: range(constant_value(x.axis.extent) or 1)
        for x, v in zip(product.loops, own, strict=True)
        if isinstance(v, Var) and x.parallel in GRID_DIMS and v is not tile
    }
    groups = list(itertools.product(*beside.values()))

    def exists(n: int) -> bool:
        places = ({**first, tile: n, **dict(zip(beside, g, strict=True))} for g in groups)
        return any(all(prove(substitute_condition(c, p)) for c in conditions) for p in places)

    return max(n + 1 for n in range(constant_value(tiles.axis.extent) or 1) if exists(n))


def take_whole(stream: Stream) -> None:
    """The form of all waves but the last one: nobody shares a tile.

    rewrite:  request(mode, stream)  ->  no request
    """
    for s in stream.products:
        s.grid_mode, s.streams = None, False


def take_rest(flow: Dataflow, stream: Stream) -> None:
    """The form of the last wave: the blocks along BIDx share the depth of each of its tiles.

    rewrite:  [waves, BIDx{n} tiles, .., k, ..]  ->  [waves, tiles, .., BIDx{n}, ceil(k/n), ..]
    """
    parts, steps = flow.graph.split(stream.depth, stream.blocks, inner=False)
    for s in computed(flow.stages):
        loops: list[Loop] = []
        for i, x in enumerate(s.loops):
            if x.axis is stream.tiles:
                loops.append(replace(x, parallel=Parallel.SERIAL))
            elif x.axis is stream.depth:
                loops += (Loop(parts, Parallel.BIDX), Loop(steps, x.parallel))
                s.inline_depth += i < s.inline_depth
            else:
                loops.append(x)
        s.loops = tuple(loops)
