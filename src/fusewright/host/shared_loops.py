"""Whether the values of a group can run in the loops of one kernel, asked of the axis graph.

A kernel has one nest of loops. The group's widest value gives it: the largest one, or what its
reductions reduce. All others run along its axes, or along some of them: loops over an axis that a
value lacks would compute it again and again, and an axis that the nest lacks would be a loop in
every thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.cover import coincide, covers, overlap
from fusewright.axes.frames import Frame
from fusewright.core.expr import Expr, constant_value
from fusewright.fusion.inputs_behind import fast_kept, in_memory_order
from fusewright.fusion.ir import (
    Broadcast,
    Concat,
    IndexMap,
    MatMul,
    Parts,
    Permute,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Shape,
    Sort,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.partitioning import held_of
from fusewright.fusion.persistent_rows import LEAST_ROWS_OF_BLOCK
from fusewright.fusion.small_tiles import MOST_OF_THREAD, is_held
from fusewright.host.groups import (
    Axes,
    FusionGroup,
    axes_of_source,
    is_computed,
    joins_parts,
    only_units,
    tie,
)
from fusewright.host.products import has_products, operand_views, product_problem
from fusewright.target import MAX_CLUSTER, MAX_VECTOR_NBYTES, SECTOR_NBYTES, WARP_SIZE

LEAST_PARTS = 64
"""Parts of the rows, a block each, from which row results and those of columns share a kernel."""
MOST_ROWS = 2 * LEAST_ROWS_OF_BLOCK
"""Rows, or packs of them, of a part of which there are fewer than half of the multiprocessors
would hold."""

MOST_COLUMNS = WARP_SIZE * MAX_VECTOR_NBYTES
"""Columns of a strip at most: a warp with a word for each lane takes no more side by side."""


def relate_reductions(g: FusionGroup) -> None:
    """Lets reductions that have no axis in common but the same sizes run along the same loops, and
    reads of a source in parts along those of its other readers: kernels with reductions read a
    source once, as it lies."""
    if not g.reductions:
        return
    _relate_parts(g)
    first = g.reductions[0]
    own = _domain(g, first)
    for other in g.reductions[1:]:
        axes = _domain(g, other)
        if axes == own or form(first) != form(other):
            continue
        if not any(g.graph.depends(c, own) for c in axes):
            tie(g.graph, axes, own)


def _relate_parts(g: FusionGroup) -> None:
    readers: dict[Tensor, list[Frame]] = {}
    rows = _cuts(g)
    for t, frame in g.frames.items():
        if not isinstance(t.op, Parts | Reshape):
            continue
        (o,) = t.op.operands
        if isinstance(o.op, Permute) and t in rows and o in g.frames:
            (o,), frame = o.op.operands, g.frames[o]
        if o not in g.members:
            readers.setdefault(o, []).append(frame)
    for o, frames in readers.items():
        if o in g.axes or len(frames) > 1:
            axes = axes_of_source(g, o)
            for frame in frames:
                tie(g.graph, frame.operands[0], axes)


def loop_problem(g: FusionGroup, parts: Sequence[FusionGroup], new: Iterable[Tensor]) -> str | None:
    """Why the values of a group could not run in one nest of loops: groups that became one, and
    the ops that were added to them. Notes the widest value. The axis that a broadcast adds is open
    until something with a known axis meets it."""
    is_product = has_products(g.members)
    if is_product and (problem := product_problem(g.members)) is not None:
        return problem
    in_place = any(isinstance(t.op, MatMul | Take | TakeAlong) for t in g.members)
    views = operand_views(g.members) if in_place else set[Tensor]()
    values = [p.widest for p in parts if p.widest is not None]
    values += [t for t in new if not isinstance(t.op, Broadcast) and t not in views]
    is_known = [len(p.reductions) for p in parts] == [len(g.reductions)]
    reduces = bool(g.reductions) and not is_product
    if reduces:
        problem = _scan_problem(g) or _regrouping_problem(g)
        problem = problem or (None if is_known and not _cuts(g) else _nest_problem(g))
        if problem is not None:
            return problem
    widest = g.widest
    for t in values if not reduces else ():
        if widest is None or (not _reaches(g, widest, t) and _reaches(g, t, widest)):
            widest = t
    g.widest = widest
    lost = next((t for t in values if widest is not None and not _reaches(g, widest, t)), None)
    if lost is None:
        return None
    nest = ("scans" if g.has_scans else "reductions") if reduces else "largest value"
    return f"{lost.name} has axes that the kernel's {nest} lack{'' if reduces else 's'}"


def _nest_problem(g: FusionGroup) -> str | None:
    """Why the reductions of a kernel would not run in one nest: they reduce the same axes, and of
    what they keep one has all; but for results of parts of the rows beside those of whole rows.
    Notes what the widest one reduces."""
    partials, across = _partials(g), _across(g)
    rows = [r for r in g.reductions if r not in partials and r not in across]
    kind = "scans" if g.has_scans else "reductions"
    for some in (rows, partials):
        alike = all(coincide(g.graph, _reduced(g, some[0]), _reduced(g, r)) for r in some[1:])
        if not alike and (partials or _cuts(g) or g.has_scans or not _is_tile(g, rows)):
            return f"the kernel's {kind} would run over different axes"
    widest = g.reductions[0]
    for r in g.reductions[1:]:
        if not covers(g.graph, _domain(g, widest), _domain(g, r)):
            widest = r
    if not all(covers(g.graph, _domain(g, widest), _domain(g, r)) for r in g.reductions):
        return f"the kernel's {kind} would keep different axes"
    g.widest = widest.op.operands[0]
    return _partials_problem(g, rows, partials) if rows and partials else None


def _is_tile(g: FusionGroup, reductions: Sequence[Tensor]) -> bool:
    """Whether reductions run along different axes of one tile, which lies in runs of whole sectors
    in memory, and which threads hold in registers."""
    first = _domain(g, reductions[0])
    if not all(coincide(g.graph, first, _domain(g, r)) for r in reductions[1:]):
        return False
    reduced = [_reduced(g, r) for r in reductions]
    by = [tuple(g.graph.depends(c, axes) for axes in reduced) for c in first]
    sides: dict[tuple[bool, ...], list[Expr]] = {}
    for c, own in zip(first, by, strict=True):
        if any(own) and not c.is_unit:
            sides.setdefault(own, []).append(c.extent)
    sizes = [_numel(tuple(own)) for own in sides.values()]
    if len(sizes) < 2 or not all(sizes) or not is_held(sizes):
        return False
    source = reductions[0].op.operands[0]
    sized = [a for a, c in enumerate(first) if not c.is_unit]
    order = in_memory_order(source, sized, lambda v: v.op.operands)
    run = takewhile(lambda a: any(by[a]), reversed(order))
    itemsize = min((s.dtype.nbytes for s in g.sources if s.shape == source.shape), default=1)
    return _numel(tuple(first[a].extent for a in run)) * itemsize >= SECTOR_NBYTES


def _regrouping_problem(g: FusionGroup) -> str | None:
    """Why what a kernel reduces could not be cut along its axes: a reshape of what it computes
    gives them parts of a box and of its sides."""
    if not any(_regroups(g, t) for t in g.members):
        return None
    mixed = next((r for r in g.reductions if overlap(g.graph, _domain(g, r))), None)
    return None if mixed is None else f"a reshape regroups the axes that {mixed.name} runs over"


def _cuts(g: FusionGroup) -> list[Tensor]:
    """The members that cut axes in parts."""
    return [t for t in g.frames if isinstance(t.op, Parts)]


def _is_strip(t: Tensor) -> bool:
    """Whether an axis is cut in strips: a block has one of what it holds for other reductions."""
    return isinstance(t.op, Parts) and t.op.partition.is_strip


def _partials(g: FusionGroup) -> list[Tensor]:
    """The reductions over some of the axes that rows became in parts, and maybe others."""
    normal = g.graph.normal
    cuts = [
        {normal(c) for c in g.axes[t][t.op.axes[0] :][: len(t.op.partition.shape)]}
        for t in _cuts(g)
        if isinstance(t.op, Parts)
    ]
    found: list[Tensor] = []
    for r in g.reductions if cuts else ():
        reduced = {normal(c) for c in _reduced(g, r) if not c.is_unit}
        if any(reduced & own and not own <= reduced for own in cuts):
            found.append(r)
    return found


def _partials_problem(
    g: FusionGroup, rows: Sequence[Tensor], partials: Sequence[Tensor]
) -> str | None:
    """Why no block could walk over parts of the rows with their partial results in registers."""
    depends, all_axes = g.graph.depends, [_domain(g, r) for r in g.reductions]
    if any(map(_is_strip, _cuts(g))):
        return _strips_problem(g, rows, partials)
    if any(not depends(c, b) for a in all_axes for c in a if not c.is_unit for b in all_axes):
        return "the kernel's reductions would run over different axes"
    cuts = [t.op for t in _cuts(g) if isinstance(t.op, Parts)]
    if any(p.axes[0] for p in cuts):
        return "one of the kernel's reductions has parts behind axes that all of them have"
    read = [(g.axes[o], p) for p in cuts if (o := p.operands[0]) in g.axes]
    whole = [axes[a] for axes, p in read for a in p.axes]
    if any(depends(c, whole) for r in rows for c in _reduced(g, r)):
        return "one of the kernel's reductions would run over what another one has in parts"
    if not all(_runs_over_parts(g, p) for p in partials):
        return "one of the kernel's reductions takes parts of the rows in another order"
    beside = [_fast_kept(g, r) for r in rows]
    if any(depends(c, whole) for axes in beside for c in axes):
        return "one of the kernel's reductions keeps parts of the axis along which memory runs"
    if not all(coincide(g.graph, beside[0], axes) for axes in beside[1:]):
        return "the kernel's reductions of rows would keep different axes along which memory runs"
    kept = [c for c in g.axes[partials[0]] if all(depends(c, g.axes[p]) for p in partials)]
    kept += [c for axes in beside for c in axes]
    if any(not depends(c, [*whole, *kept]) for r in rows for c in g.axes[r] if not c.is_unit):
        return "one of the kernel's reductions leaves columns that another one makes results of"
    (source,) = cuts[0].operands
    length = _length(g, rows[0])
    if not length:
        return "parts of rows of unknown size have no partial results"
    rows_of_part = cuts[0].partition.each
    blocks = _numel(partials[0].op.operands[0].shape) // (rows_of_part * length)
    held = held_of(g.sources, _numel(source.shape), length, len(partials))
    at_once = held.fewest_blocks(length, _numel(tuple(c.extent for c in beside[0])))
    if not at_once and not beside[0] and (slices := held.slices(length, MAX_CLUSTER)):
        blocks, at_once = blocks * max(s.cluster for s in slices), 1
    if blocks < LEAST_PARTS:
        return f"{blocks} parts of the rows are too few blocks"
    if not at_once:
        return "the registers of a block do not hold a row and the partial results of its columns"
    if rows_of_part > MOST_ROWS * cuts[0].partition.pack and blocks < at_once * LEAST_PARTS:
        return f"{blocks} parts of {rows_of_part} rows are too few blocks of {at_once} side by side"
    return None


def _strips_problem(
    g: FusionGroup, columns: Sequence[Tensor], partials: Sequence[Tensor]
) -> str | None:
    """Why no block could hold a strip of columns and make partial results of its rows."""
    cuts = {t: t.op for t in _cuts(g) if isinstance(t.op, Parts)}
    are_strips = all(_is_strip(t) and p.partition.each <= MOST_COLUMNS for t, p in cuts.items())
    if g.has_scans or not are_strips:
        return "the kernel's reductions would run over different axes"
    if len({p.partition for p in cuts.values()}) > 1:
        return "the kernel's reductions would have different strips of a row"
    own = _reduced(g, partials[0])
    if any(g.graph.depends(c, own) for r in columns for c in _reduced(g, r)):
        return "one of the kernel's reductions would run over what another one has in strips"
    return None


def _runs_over_parts(g: FusionGroup, partial: Tensor) -> bool:
    """Whether a reduction takes parts of the rows as they are cut, or what is computed of each of
    their elements."""
    normal, own = g.graph.normal, _domain(g, partial)
    cuts = (g.axes[t] for t in _cuts(g))
    return any(list(map(normal, axes)) == list(map(normal, own)) for axes in cuts)


def _fast_kept(g: FusionGroup, row: Tensor) -> Axes:
    """The axes that a reduction of rows keeps, faster in memory than those that it reduces."""
    kept = fast_kept(row, lambda v: v.op.operands if v in g.members else ())
    return tuple(_domain(g, row)[a] for a in kept)


def walk_problem(g: FusionGroup, shortest: int) -> str | None:
    """Why blocks should not walk over the rows of a group, with partial results of their columns:
    they have fewer elements than `shortest`."""
    partials = _partials(g) if shortest > 1 else []
    row = next((r for r in g.reductions if r not in partials), None) if partials else None
    length = shortest if row is None else _length(g, row)
    if length >= shortest:
        return None
    return f"rows of {length} elements are too short for a walk over them; {shortest} would do"


def _length(g: FusionGroup, row: Tensor) -> int:
    """The elements of a row that a reduction reduces, also to several results, 0 where they are not
    known."""
    shape = row.op.operands[0].shape
    return _numel((*(shape[a] for a in form(row)[1]), *(c.extent for c in _fast_kept(g, row))))


def _numel(shape: Shape) -> int:
    """The product of constant sizes, 0 where one is not known."""
    return math.prod(constant_value(e) or 0 for e in shape)


def _scan_problem(g: FusionGroup) -> str | None:
    """Why no block could walk along the lines of a kernel's scans. None for kernels without."""
    if not g.has_scans:
        return None
    if _sorts(g) and len(g.reductions) > 1:
        return "a kernel sorts once, and with no scan or reduction"
    if (problem := _ends_problem(g)) is not None:
        return problem
    if any(_rejoins(g, t) for t in g.members):
        return "a scan stands in no kernel that reshapes or joins what it computes"
    across = _across(g)
    first, *others = (_domain(g, r) for r in g.reductions if r not in across)
    if not all(coincide(g.graph, first, axes) for axes in others):
        return "the kernel's scans would run over different axes"
    if len({r.op.reverse for r in g.reductions if isinstance(r.op, Scan)}) > 1:
        return "the kernel's scans would run in both directions"
    return None


def _ends_problem(g: FusionGroup) -> str | None:
    """Why threads that walk along lines for scans could not reduce lines on the way: they walk over
    each line once, so that nothing along it is computed of results of reductions."""
    reductions = [r for r in g.reductions if isinstance(r.op, Reduce)]
    if not reductions:
        return None
    if _sorts(g):
        return "a kernel sorts once, and with no scan or reduction"
    across, line = _across(g), _line(g)
    ends = [r for r in reductions if r not in across]
    totals = {r.op.operands[0] for r in ends if isinstance(r.op.operands[0].op, Parts)}
    if any(isinstance(r.op, Scan) and r.op.operands[0] in totals for r in g.reductions):
        # What is scanned would be stored until the totals are known; its source is smaller.
        return "a scan of parts stands in no kernel with their totals, which another one scans"
    if across and (problem := _across_problem(g, across)) is not None:
        return problem
    if not all(coincide(g.graph, _reduced(g, r), line) for r in ends):
        return "a scan stands in no kernel with reductions along other axes"
    later = _behind(g, ends)
    if any(g.graph.depends(c, line) for t in later for c in g.axes[t] if not c.is_unit):
        return "a scan stands in no kernel that computes its lines of results of reductions"
    return None


def _line(g: FusionGroup) -> Axes:
    """The axes along which a kernel scans; none for a kernel that does not."""
    return next((_reduced(g, r) for r in g.reductions if isinstance(r.op, Scan)), ())


def _across(g: FusionGroup) -> list[Tensor]:
    """The reductions of a kernel with scans along no axis of a line, so that each place of the
    lines has a result: threads that walk along all lines that one runs over have what it needs."""
    line = _line(g)
    return [
        r
        for r in (g.reductions if line else ())
        if isinstance(r.op, Reduce)
        and not any(g.graph.depends(c, line) for c in _reduced(g, r) if not c.is_unit)
    ]


def _across_problem(g: FusionGroup, across: Sequence[Tensor]) -> str | None:
    """Why no threads could walk along all the lines that some reductions run over: they run over
    the same ones, so few that registers have an element of each, and read no other place of
    them."""
    what = "a scan stands in no kernel with reductions along other axes"
    scan = next(r for r in g.reductions if isinstance(r.op, Scan))
    first = _domain(g, scan)
    if not all(covers(g.graph, first, _domain(g, r)) for r in across):
        return what
    reduced = [_reduced(g, r) for r in across]
    if not all(coincide(g.graph, reduced[0], axes) for axes in reduced[1:]):
        return f"{what}, of which there are several"
    lines = _numel(tuple(c.extent for c in reduced[0]))
    fast, nbytes = _neighbours(g, scan)
    are_beside = fast is not None and g.graph.depends(fast, reduced[0])
    most = WARP_SIZE * math.gcd(lines, MAX_VECTOR_NBYTES // nbytes)
    most = most if are_beside else MOST_OF_THREAD
    if not 0 < lines <= most:
        return f"{what} of more than {most} elements"
    if any(isinstance(t.op, IndexMap) and is_computed(g, t.op.operands[0]) for t in g.members):
        return f"{what} and reads other places of its lines"
    # Where all neighbours are in a sector, scans alone have as few blocks.
    beside = SECTOR_NBYTES // nbytes
    if are_beside and lines <= beside:
        return None
    held = [*_line(g), *reduced[0]]
    blocks = _numel(tuple(c.extent for c in first if not g.graph.depends(c, held)))
    if fast is not None and not g.graph.depends(fast, held):
        blocks //= beside
    return None if blocks >= LEAST_PARTS else f"{what} in {blocks} blocks; {LEAST_PARTS} would do"


def _neighbours(g: FusionGroup, reduction: Tensor) -> tuple[AxisClass | None, int]:
    """The axis of what is reduced along which neighbours lie in memory, if it has several elements,
    and the bytes of an element of the narrowest source of its size."""
    (source,), axes = reduction.op.operands, _domain(g, reduction)
    sized = [a for a, c in enumerate(axes) if not c.is_unit]
    order = in_memory_order(source, sized, lambda v: v.op.operands)
    size = _numel(source.shape)
    found = (s.dtype.nbytes for s in g.sources if _numel(s.shape) == size)
    return axes[order[-1]] if order else None, min(found, default=source.dtype.nbytes)


def _behind(g: FusionGroup, ends: Sequence[Tensor]) -> set[Tensor]:
    """The members that are computed of some of them, and these."""
    known = dict.fromkeys(ends, True)

    def is_behind(t: Tensor) -> bool:
        if t not in known:
            known[t] = t in g.members and any(map(is_behind, t.op.operands))
        return known[t]

    return {t for t in g.members if is_behind(t)}


def _rejoins(g: FusionGroup, t: Tensor) -> bool:
    """Whether an op regroups what a kernel with scans computes, but not to join their parts. Pads
    and crops do not: what they move stands before all scans, and threads compute it where they read
    it."""
    return _regroups(g, t) and not isinstance(t.op, Resize) and not joins_parts(g, t)


def _sorts(g: FusionGroup) -> list[Tensor]:
    return [r for r in g.reductions if isinstance(r.op, Sort)]


def form(reduction: Tensor) -> tuple[Shape, tuple[int, ...]]:
    """Equal for reductions that could run along each other's loops: the sizes of what is reduced,
    and the places of the reduced axes among them."""
    op = reduction.op
    assert isinstance(op, Reduce | Scan | Sort)
    return op.operands[0].shape, op.axes if isinstance(op, Reduce) else (op.axis,)


def form_of_sums(g: FusionGroup) -> tuple[Shape, tuple[int, ...]] | None:
    """The form of a group's reductions if it has one, all read each element once, and nothing of
    their size is computed from their results; None for other groups."""
    forms = {form(r) for r in g.reductions}
    if len(forms) != 1 or g.has_scans or max(g.depths.values()) > 1:
        return None
    reduced = [c for r in g.reductions for c in _reduced(g, r)]
    later = (t for t in g.members if g.depths[t])
    if any(g.graph.depends(c, reduced) for t in later for c in g.axes[t]):
        return None
    return next(iter(forms))


def runs_along(g: FusionGroup, shared: Tensor) -> bool:
    """Whether all members run over axes of one shared source, padded ones too, or over none. A
    source that is only read through a reshape has those of what that makes of it."""
    whole = (t for t in g.frames if isinstance(t.op, Reshape) and t.op.operands[0] is shared)
    read = next(whole, None)
    axes = g.axes.get(shared, () if read is None else g.axes[read])
    nest = () if g.widest is None else g.axes[g.widest]
    open_axes = (g.axes[t] for t in g.members if isinstance(t.op, Broadcast))
    beside = (own for own in open_axes if not nest or not covers(g.graph, nest, own))
    return all(
        covers(g.graph, axes, own) or _is_padded(g.graph, own, axes) for own in (*beside, nest)
    )


def _is_padded(graph: AxisGraph, axes: Axes, source: Axes) -> bool:
    """Whether loops over some axes come by all of a source, and by nothing but what pads it."""
    return covers(graph, axes, source) and all(c.is_unit or graph.depends(c, source) for c in axes)


def _regroups(g: FusionGroup, t: Tensor) -> bool:
    moves = isinstance(t.op, Reshape | Resize | Concat) and not only_units(t)
    return moves and any(o in g.members for o in t.op.operands)


def _reaches(g: FusionGroup, t: Tensor, other: Tensor) -> bool:
    """Whether loops over a value come by every element of another one."""
    return covers(g.graph, g.axes[t], g.axes[other])


def _domain(g: FusionGroup, reduction: Tensor) -> Axes:
    return g.axes[reduction.op.operands[0]]


def _reduced(g: FusionGroup, reduction: Tensor) -> Axes:
    domain = _domain(g, reduction)
    return tuple(domain[a] for a in form(reduction)[1])
