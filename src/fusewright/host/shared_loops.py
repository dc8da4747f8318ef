"""Whether the values of a group can run in the loops of one kernel, asked of the axis graph.

A kernel has one nest of loops. The group's widest value gives it: the largest one, or what its
reductions reduce. All others run along its axes, or along some of them: loops over an axis that a
value lacks would compute it again and again, and an axis that the nest lacks would be a loop in
every thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewright.axes.cover import coincide, covers
from fusewright.fusion.ir import Broadcast, Concat, Reduce, Reshape, Resize, Scan, Shape, Tensor
from fusewright.host.groups import Axes, FusionGroup, only_units, tie
from fusewright.host.products import has_products, operand_views, product_problem


def relate_reductions(g: FusionGroup) -> None:
    """Lets reductions that have no axis in common but the same sizes run along the same loops."""
    for other in g.reductions[1:]:
        first = g.reductions[0]
        a, b = _domain(g, first), _domain(g, other)
        if form(first) == form(other) and not any(g.graph.depends(c, a) for c in b):
            tie(g.graph, b, a)


def loop_problem(
    g: FusionGroup, parts: Sequence[FusionGroup], new: Iterable[Tensor]
) -> str | None:
    """Why the values of a group could not run in one nest of loops: groups that became one, and
    the ops that were added to them. Notes the widest value. The axis that a broadcast adds is open
    until something with a known axis meets it."""
    if has_products(g.members) and (problem := product_problem(g.members)) is not None:
        return problem
    views = operand_views(g.members) if has_products(g.members) else set[Tensor]()
    values = [p.widest for p in parts if p.widest is not None]
    values += [t for t in new if not isinstance(t.op, Broadcast) and t not in views]
    if g.reductions:
        return _reduction_problem(g, values)
    widest = g.widest
    for t in values:
        if widest is None or (not _reaches(g, widest, t) and _reaches(g, t, widest)):
            widest = t
    g.widest = widest
    lost = next((t for t in values if widest is not None and not _reaches(g, widest, t)), None)
    return lost and f"{lost.name} has axes that the kernel's largest value lacks"


def _reduction_problem(g: FusionGroup, values: Sequence[Tensor]) -> str | None:
    """Why loops over what is reduced would not do for all: reductions of a kernel reduce the same
    axes, and of what they keep one has all. Scans also run over the same axes, beside no reduction.
    """
    first = g.reductions[0]
    if (problem := _scan_problem(g)) is not None:
        return problem
    kind = "scans" if g.has_scans else "reductions"
    widest = first
    for r in g.reductions[1:]:
        if not coincide(g.graph, _reduced(g, first), _reduced(g, r)):
            return f"the kernel's {kind} would run over different axes"
        if not covers(g.graph, _domain(g, widest), _domain(g, r)):
            widest = r
    if any(not covers(g.graph, _domain(g, widest), _domain(g, r)) for r in g.reductions):
        return f"the kernel's {kind} would keep different axes"
    g.widest = widest.op.operands[0]
    lost = next((t for t in values if not _reaches(g, g.widest, t)), None)
    return lost and f"{lost.name} has axes that the kernel's {kind} lack"


def _scan_problem(g: FusionGroup) -> str | None:
    """Why no block could walk along the lines of a kernel's scans. None for kernels without."""
    if not g.has_scans:
        return None
    if any(isinstance(r.op, Reduce) for r in g.reductions):
        return "a scan stands in no kernel with reductions"
    if any(_regroups(g, t) for t in g.members):
        return "a scan stands in no kernel that reshapes, pads or joins what it computes"
    first = _domain(g, g.reductions[0])
    if not all(coincide(g.graph, first, _domain(g, r)) for r in g.reductions[1:]):
        return "the kernel's scans would run over different axes"
    return None


def form(reduction: Tensor) -> tuple[Shape, tuple[int, ...]]:
    """Equal for reductions that could run along each other's loops: the sizes of what is reduced,
    and the places of the reduced axes among them."""
    op = reduction.op
    assert isinstance(op, Reduce | Scan)
    return op.operands[0].shape, (op.axis,) if isinstance(op, Scan) else op.axes


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
    """Whether all members run over axes of one shared source, or over none."""
    open_axes = (t for t in g.members if isinstance(t.op, Broadcast))
    values = [*open_axes, *([] if g.widest is None else [g.widest])]
    return all(covers(g.graph, g.axes.get(shared, ()), g.axes[t]) for t in values)


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
