"""The form in which a fusion reaches the schedulers: what passes make of it, and the groups that
become kernels.

Most passes know by themselves what is better. Whether a value is computed again at the places that
a move reads depends on the kernels that come of it, where reductions are computed again too, and so
does the order of axes in which values lie between kernels: the forms are scheduled then, and the
one that is predicted to take the least time is kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewright import knobs
from fusewright.errors import InternalError, SpecError
from fusewright.form_times import Clock, Form, moved_us
from fusewright.fusion.bordered import bordered_groups, may_lie
from fusewright.fusion.ir import (
    Fusion,
    Parts,
    Reduce,
    Scan,
    Tensor,
)
from fusewright.fusion.least_orders import least_orders
from fusewright.fusion.orders import Order, Orders, c_order
from fusewright.fusion.passes.chunk_reductions import chunk_reductions
from fusewright.fusion.passes.copy_pieces import copy_pieces
from fusewright.fusion.passes.crop_joins import crop_joins
from fusewright.fusion.passes.crop_products import crop_products
from fusewright.fusion.passes.crop_reductions import crop_reductions, crop_shifts
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.cut_joins import cut_joins
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.drop_identities import drop_identities
from fusewright.fusion.passes.fill_lines import fill_lines
from fusewright.fusion.passes.fold_crops import fold_crops
from fusewright.fusion.passes.fold_empty import fold_empty
from fusewright.fusion.passes.fold_moves import fold_moves
from fusewright.fusion.passes.follow_memory import Followed, follow_memory, wanted_orders
from fusewright.fusion.passes.hoist_crops import hoist_crops
from fusewright.fusion.passes.hoist_gathers import hoist_gathers
from fusewright.fusion.passes.hoist_moves import hoist_moves, moves_to_hoist
from fusewright.fusion.passes.hold_scans import hold_scans
from fusewright.fusion.passes.merge_axes import merge_axes
from fusewright.fusion.passes.merge_sorts import merge_sorts
from fusewright.fusion.passes.merge_steps import merge_steps
from fusewright.fusion.passes.move_rematerialisable import move_rematerialisable
from fusewright.fusion.passes.name_parts import name_parts
from fusewright.fusion.passes.narrow_moves import narrow_moves
from fusewright.fusion.passes.narrow_positions import narrow_positions
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.fusion.passes.narrow_sums import narrow_sums
from fusewright.fusion.passes.nest_reductions import nest_reductions
from fusewright.fusion.passes.open_reductions import open_reductions
from fusewright.fusion.passes.own_operands import own_operands
from fusewright.fusion.passes.own_outputs import own_outputs
from fusewright.fusion.passes.reduce_by_parts import reduce_by_parts
from fusewright.fusion.passes.reduce_runs import reduce_runs
from fusewright.fusion.passes.row_partials import row_partials
from fusewright.fusion.passes.rows_of_reductions import rows_of_reductions, walked_variances
from fusewright.fusion.passes.select_joins import select_joins
from fusewright.fusion.passes.select_results import select_results
from fusewright.fusion.passes.sink_reshapes import sink_reshapes
from fusewright.fusion.passes.split_maps import split_maps, split_results
from fusewright.fusion.passes.split_reductions import split_reductions
from fusewright.fusion.passes.split_scans import split_scans
from fusewright.fusion.passes.store_across import store_across, values_across
from fusewright.fusion.passes.strip_partials import strip_partials
from fusewright.fusion.passes.tile_partials import tile_partials
from fusewright.fusion.passes.turn_scans import turn_scans
from fusewright.fusion.passes.unroll_reductions import unroll_reductions
from fusewright.fusion.sizes import nbytes_estimate, numel_estimate
from fusewright.fusion.spec import check_body
from fusewright.fusion.walked_rows import SHORTEST
from fusewright.host.choose_partitions import formed, reductions_before_scans
from fusewright.host.groups import MAX_OPERANDS
from fusewright.host.product_forms import (
    prepare_products,
    product_kernels,
    products_in_place,
    whole_products,
)
from fusewright.host.product_rows import store_in_longer_rows
from fusewright.schedule.heuristics.rating import (
    Decisions,
)
from fusewright.target import Target

NEAR = 1.03
"""Times of forms that count as equal: the model leaves out effects of a few percent, and of equal
forms the one of fewer launches is the safer choice."""
HELD_MARGIN = 1.25
"""By how much kernels whose blocks hold rows or columns together, in clusters or in the grid, have
to be predicted faster than those that read them twice: what ten in clusters took beyond their
prediction in the geometric mean (60127, 41029, 41102, 50069, 9055, 60044, 80056 and 130057 of the
lot, 1.18 to 1.37 on an H100, 20039 and 17006, 1.20 and 1.22 on an H200, 2026-11-23 to 27), while
predictions of the others held."""
MAX_HELD = 16
"""Reductions in parts at most of which a form without parts is looked at: each would have a launch
of its own, where lists of tensors have one for many. Of 40 tensors, 37 of them in parts, it took a
third of the time of Python and was never near."""
MAX_ASKED = 64
"""Times that groups are asked what they take with their borders in given orders."""
MAX_ALONE = 3
"""Values that lie across of which each is looked at alone; of more, all together only."""


def chosen_form(
    fusion: Fusion,
    target: Target,
    *,
    given: Collection[Tensor] = (),
    decisions: Decisions | None = None,
) -> Form:
    """The form of a fusion that is predicted to take the least time. Where the memory of arguments
    may hold results (of those `given`) moves stay, which then cost nothing. How kernels of the
    forms would be scheduled is added to `decisions`, by `Segment.decided_by`."""
    moves = _moves_folded(fusion, target, given)
    simple = moves_to_hoist(moves, target)
    if given:
        return Form(*formed(_checked(_cut(moves, simple, target)), target))
    forms = _forms(moves, simple, target)
    if len(forms[0].formation.groups) > 1:
        forms += _of_terms(moves, target)
        forms += _by_parts(moves, target)
        forms += _with_copies(moves, target)
        forms += results_forms(fusion, target)
    across, other, merged = values_across(fusion), _in_other_orders(fusion), merge_axes(fusion)
    if not across and not other and merged is fusion and len(forms) == 1:
        return forms[0]
    clock = Clock(target, decisions or Decisions())
    best = _best(forms, clock)
    if merged is not fusion and _could_gain(best, clock):
        along = _moves_folded(merged, target, before=fusion)
        more = _forms(along, moves_to_hoist(along, target), target)
        best = _best([best, *(f for f in more if _is_other(f, best))], clock)
    for followed in other:
        if more := results_forms(followed.fusion, target, followed.orders):
            best = _best([best, *more], clock)
        for f in _followed(followed, merged, best, clock):
            best = _best([best, *_forms_of(f, fusion, target, followed.orders)], clock)
    chosen = _by_groups(fusion, other, best, target, clock)
    if chosen is not None and chosen.orders not in [f.orders for f in other]:
        more = _forms_of(chosen.fusion, fusion, target, chosen.orders)
        best = _best([best, *more], clock)
    for chosen in _choices(across):
        least = _copy_us(chosen, target) + clock.bytes_us(fusion)
        if clock.us(best) > least:
            moves = _moves_folded(store_across(fusion, chosen), target)
            more = _forms(moves, moves_to_hoist(moves, target), target)
            best = _best([best, *more], clock)
    if not other:
        return best
    return replace(best, orders=Orders(other[0].orders, best.orders.actual))


def _best(forms: Sequence[Form], clock: Clock) -> Form:
    """The first of the fewest kernels among those whose times the model does not tell apart from
    the least. A form that takes longer by its bytes alone is not scheduled, nor is the rest of one
    that does so with what is scheduled of it: so those that may take the least are looked at first.
    """
    if len(forms) == 1:
        return forms[0]
    least, rated = math.inf, set[Form]()
    for f in sorted(forms, key=clock.least_rank):
        if clock.is_within(f, NEAR * least):
            least = min(least, clock.rank(f))
            rated.add(f)
    near = [f for f in forms if f in rated and clock.rank(f) <= NEAR * least]
    return min(near, key=lambda f: len(f.formation.groups))


def _forms(
    moves: Fusion,
    simple: frozenset[Tensor],
    target: Target,
    orders: Mapping[str, Order] | None = None,
) -> list[Form]:
    """The fusion with the moves hoisted that cost nothing, then with others, where there are any,
    with what shifts leave computed in part, and with joins as selections; `orders` are those of
    values that lie in no C order."""
    listed = [(moves, simple)]
    more = moves_to_hoist(moves, target, reductions=True)
    if more != simple:
        listed.append((moves, more))
    cropped = crop_shifts(moves)
    if cropped is not moves:
        listed.append((cropped, moves_to_hoist(cropped, target)))
    parts = split_results(moves)
    if parts is not moves:
        plain, behind = (moves_to_hoist(parts, target, reductions=r) for r in (False, True))
        listed.append((parts, plain))
        if behind != plain:
            listed.append((parts, behind))
    selected = select_joins(moves)
    if selected is not moves:
        listed.append((selected, moves_to_hoist(selected, target, reductions=True)))
    ranks = {t.name: t.ndim for t in moves.values}
    stored = {n: o for n, o in (orders or {}).items() if ranks.get(n) == len(o)}
    known = Orders({}, stored)
    cuts = [cut for m, hoisted in listed for cut in _cuts(m, hoisted, target)]
    return [
        Form(
            *formed(_checked(c.fusion), target, c.shortest, scans_apart=c.scans_apart),
            known,
            c.handicap,
            c.cluster_handicap,
        )
        for c in cuts
    ]


def _checked(fusion: Fusion) -> Fusion:
    """The fusion, if it keeps the spec of fusions: what passes made of a program, or of the body of
    a region, is checked where dispatch formation takes it. Raises InternalError."""
    if knobs.SPEC.get():
        try:
            check_body(fusion)
        except SpecError as e:
            raise InternalError(f"passes over fusions left one that breaks its spec: {e}") from e
    return fusion


def _of_terms(moves: Fusion, target: Target) -> list[Form]:
    """The fusion with short reductions as terms, where other reductions read them. What is stored
    otherwise has the size of all pairs: it has to be faster by more than the model errs."""
    terms = unroll_reductions(moves)
    if terms is moves:
        return []
    forms = _forms(terms, moves_to_hoist(terms, target), target)
    return [replace(f, handicap=f.handicap / target.calibration.kin_margin) for f in forms]


def _by_parts(moves: Fusion, target: Target) -> list[Form]:
    """The fusion with reductions of the parts in which rows are read behind them."""
    parts = reduce_by_parts(moves)
    if parts is moves:
        return []
    return _forms(parts, moves_to_hoist(parts, target, reductions=True), target)


def _with_copies(moves: Fusion, target: Target) -> list[Form]:
    """The fusion with arguments that are joined with what is reduced of them copied where they are
    read."""
    copied = copy_pieces(moves)
    return [] if copied is moves else _forms(copied, moves_to_hoist(copied, target), target)


def results_forms(
    fusion: Fusion, target: Target, orders: Mapping[str, Order] | None = None
) -> list[Form]:
    """The fusion with joins of what is computed of a product's results as selections at the
    product's own places, where there are any: of products of warpgroups, whose threads hold all
    columns of their rows of a tile. Single warps share the columns."""
    in_place, whole = products_in_place(target), whole_products(target)
    results = select_results(fusion, lambda t: in_place(t) and whole(t))
    if results is fusion:
        return []
    moves = _moves_folded(results, target, before=fusion)
    return _forms(moves, moves_to_hoist(moves, target), target, orders)


def _in_other_orders(fusion: Fusion) -> list[Followed]:
    """The fusion with what is stored between kernels in the order of the arguments, and in that of
    the results, where these are others than that of the program."""
    first, second = follow_memory(fusion), follow_memory(fusion, wanted_orders(fusion))
    moved = [f for f in (first, second) if f.fusion is not fusion]
    return [f for f in moved if f is first or f.orders != first.orders]


def _forms_of(
    other: Fusion, fusion: Fusion, target: Target, orders: Mapping[str, Order]
) -> list[Form]:
    """The forms of a fusion on axes in `other` orders."""
    along = _moves_folded(other, target, before=fusion)
    return _forms(along, moves_to_hoist(along, target), target, orders)


def _by_groups(
    fusion: Fusion, other: Sequence[Followed], best: Form, target: Target, clock: Clock
) -> Followed | None:
    """The fusion with each value that kernels hand on in the order for which all groups together
    take the least, where several may lie in several orders. None where groups and values make no
    tree, or would have to be asked too often."""
    stored = _stored(best)
    domains = {
        t.name: tuple(
            dict.fromkeys(
                (c_order(t.ndim), *(f.orders[t.name] for f in other if t.name in f.orders))
            )
        )
        for t in fusion.values
        if t.name in stored and may_lie(t)
    }
    if sum(len(orders) > 1 for orders in domains.values()) < 2 or fusion.numbers:
        return None

    def us(part: Fusion) -> float:
        moves = _moves_folded(part, target)
        return clock.us(_best(_forms(moves, moves_to_hoist(moves, target), target), clock))

    homes = {t.name: k for k, group in enumerate(best.formation.groups) for t in group}
    groups = bordered_groups(fusion, homes, domains, us)
    asked = sum(math.prod(len(domains[n]) for n in g.borders) for g in groups)
    chosen = least_orders(domains, groups) if asked <= MAX_ASKED else None
    if chosen is None:
        return None
    return follow_memory(fusion, {t: chosen[t.name] for t in fusion.values if t.name in chosen})


def _stored(form: Form) -> set[str]:
    """The names of what kernels of a form store for others."""
    home = {t: k for k, group in enumerate(form.formation.groups) for t in group}
    values = (t for group in form.formation.groups for t in group)
    return {o.name for t in values for o in t.op.operands if home.get(o, home[t]) != home[t]}


def _could_gain(form: Form, clock: Clock) -> bool:
    """Whether other loops could help: there are kernels to join, or one that is far from the time
    in which memory moves its bytes."""
    return len(form.formation.groups) > 1 or clock.is_far(form)


def _is_other(merged: Form, form: Form) -> bool:
    """Whether a form with merged axes is worth scheduling: it has other kernels, or one whose loops
    are looked at again. Kernels that reduce as often hold the same operations as a rule, and their
    schedulers join axes themselves (`schedule/heuristics/space`): of 14 draws none gained by more
    than a hundredth."""
    return len(form.formation.groups) == 1 or _reductions(merged) != _reductions(form)


def _reductions(form: Form) -> list[int]:
    """How many reductions each of the kernels of a form has."""
    return sorted(sum(isinstance(t.op, Reduce) for t in g) for g in form.formation.groups)


def _followed(followed: Followed, merged: Fusion, best: Form, clock: Clock) -> Iterator[Fusion]:
    """A fusion that follows memory, where what it orders is stored between kernels, and with its
    axes merged, where reductions then run along fewer axes than in the order of the program, or
    along others, as far as the best form is from the time of its bytes: what is cut in parts is cut
    along the axes that follow each other in the program, which may lie apart in memory."""
    if _stored(best) & followed.orders.keys():
        yield followed.fusion
    along = merge_axes(followed.fusion)
    reduced = _reduced_axes(along)
    is_worth = reduced < _reduced_axes(merged) or (reduced and clock.is_far(best))
    if along is not followed.fusion and is_worth:
        yield along


def _reduced_axes(fusion: Fusion) -> int:
    """The axes along which a fusion reduces, those of all reductions together."""
    return sum(len(t.op.axes) for t in fusion.values if isinstance(t.op, Reduce))


def _choices(across: list[Tensor]) -> list[frozenset[Tensor]]:
    """Which of some values to store in the order of the program: all of them, and each alone."""
    if not 1 < len(across) <= MAX_ALONE:
        return [frozenset(across)] if across else []
    return [frozenset(across), *(frozenset((t,)) for t in across)]


def prepare(fusion: Fusion, target: Target) -> Fusion:
    """The fusion as dispatch formation takes it: shared values, no ops without a kernel form, wide
    joins and long reductions in parts."""
    moves = _moves_folded(fusion, target)
    return _cut(moves, moves_to_hoist(moves, target), target)


def _moves_folded(
    fusion: Fusion,
    target: Target,
    given: Collection[Tensor] = (),
    *,
    before: Fusion | None = None,
) -> Fusion:
    """The fusion in ops that have a kernel form, with one move for each place that is read. What
    were two results in the fusion `before` other rewrites are two."""
    owned = own_outputs(merge_sorts(drop_identities(fusion)), before=before or fusion)
    products = crop_products(narrow_products(fold_empty(owned)), products_in_place(target))
    flat = sink_reshapes(products, products_in_place(target))
    plain = open_reductions(hoist_gathers(decompose(flat, keeps=product_kernels(target))))
    parts = crop_joins(hoist_crops(narrow_moves(narrow_sums(cse(plain)))), given)
    moves = fold_moves(fold_crops(hoist_crops(crop_reductions(parts))))
    held = hold_scans(fold_crops(moves), target)
    return own_outputs(turn_scans(held), before=owned)


def _cut(moves: Fusion, hoisted: frozenset[Tensor], target: Target) -> Fusion:
    """The fusion with the chosen moves hoisted, wide joins and long reductions in parts."""
    rows, *_ = _by_rows(_joined(moves, hoisted, target), target)
    return _in_parts(row_partials(rows, target), target)


@dataclass(frozen=True, slots=True, eq=False)
class _CutForm:
    """A fusion with long reductions in parts, the shortest rows that blocks walk over, and by how
    much its form, or launches in clusters of it, have to be faster than others."""

    fusion: Fusion
    shortest: int = 1
    handicap: float = 1.0
    cluster_handicap: float = 1.0
    scans_apart: bool = False
    """Whether scans read from memory the reductions of which their operands are computed."""


def _cuts(moves: Fusion, hoisted: frozenset[Tensor], target: Target) -> list[_CutForm]:
    """The same, and where reductions of a product's results could begin in its kernel, also so;
    where blocks would walk over rows of a few elements, also as these and their
    columns are reduced by kernels of their own, or where the walk computes variances, also as those
    are; and where reductions are cut whose operands clusters might hold, or scans, also with these
    whole."""
    joined = _joined(moves, hoisted, target)
    found = [cut for rows in _by_rows(joined, target) for cut in _walks(rows, target)]
    tiles = tile_partials(joined, whole_products(target))
    if tiles is not joined:
        found += [cut for rows in _by_rows(tiles, target) for cut in _walks(rows, target)]
    return [*found, *_whole(joined, found[0].fusion, target)]


def _whole(joined: Fusion, cut: Fusion, target: Target) -> list[_CutForm]:
    """A fusion with fewer reductions in parts than where it is `cut`: those whose operands the
    blocks of a cluster might hold are whole. None where that makes no difference."""
    if not 0 < (count := _parts(cut)) <= MAX_HELD:
        return []
    narrow = nest_reductions(chunk_reductions(joined, target, may_hold=True))
    rows = row_partials(rows_of_reductions(narrow, target), target)
    whole = _in_parts(rows, target, may_hold=True)
    if _parts(whole) >= count:
        return []
    return [_CutForm(whole, 1, target.calibration.sure_margin, HELD_MARGIN)]


def _parts(fusion: Fusion) -> int:
    """How many values of a fusion are others in parts."""
    return sum(isinstance(t.op, Parts) for t in fusion.values)


def _walks(narrow: Fusion, target: Target) -> list[_CutForm]:
    """The same of a fusion with its reductions by rows."""
    walks, apart = row_partials(narrow, target), row_partials(narrow, target, SHORTEST)
    clusters = cluster_partials(narrow, target)
    has_scans = any(isinstance(t.op, Scan) for t in walks.values)
    found = [_CutForm(_in_parts(walks, target))]
    strips = strip_partials(walks, target)
    found += [_CutForm(_in_parts(strips, target))] if strips is not walks else []
    tiles = strip_partials(narrow, target, across=True)
    found += [_CutForm(_in_parts(tiles, target))] if tiles is not narrow else []
    lines = fill_lines(walks)
    found += [_CutForm(_in_parts(lines, target))] if lines is not walks else []
    if len(clusters.values) > len(walks.values):
        found.append(_CutForm(_in_parts(clusters, target)))
    if has_scans and split_scans(walks, target) is not walks:
        found.append(
            _CutForm(_in_parts(walks, target, whole_scans=True), 1, target.calibration.margin)
        )
    if reductions_before_scans(walks):
        found.append(
            _CutForm(_in_parts(walks, target), 1, target.calibration.margin, scans_apart=True)
        )
    is_same = len(walks.values) == len(apart.values)
    if is_same and not (has_scans or _has_chunks_of_short_rows(walks)):
        return found
    return [*found, _CutForm(_in_parts(apart, target), SHORTEST, target.calibration.margin**2)]


def _has_chunks_of_short_rows(fusion: Fusion) -> bool:
    """Whether rows of a few elements are reduced beside chunks of the same rows, which are dealt to
    blocks one by one: a block that walks over them asks for a sector for each."""
    dealt = [
        t
        for t in fusion.values
        if isinstance(t.op, Parts)
        and t.op.partition.is_interleaved
        and t.op.partition.pack == 1
        and numel_estimate(t.shape[t.op.axes[0] + 2 :]) < SHORTEST
    ]
    return any(
        isinstance(t.op, Reduce) and t.op.operands[0] in {p.op.operands[0] for p in dealt}
        for t in fusion.values
    )


def cluster_partials(narrow: Fusion, target: Target) -> Fusion:
    """The same where clusters of blocks walk over rows that no block holds."""
    return row_partials(narrow, target, max_cluster=target.max_cluster)


def _by_rows(joined: Fusion, target: Target) -> list[Fusion]:
    """A fusion with reductions in the steps that they share: by rows in whatever directions they
    go, then by rows along the fast axes alone, with variances in chunks, where that is another
    fusion."""
    chunks = nest_reductions(chunk_reductions(joined, target))
    plain = rows_of_reductions(chunks, target, of_all=False)
    nested = nest_reductions(joined)
    walked = walked_variances(nested, target)
    if walked:
        chunks = nest_reductions(chunk_reductions(nested, target, walked))
    rows = rows_of_reductions(chunks, target)
    return [rows] if len(rows.values) == len(plain.values) else [rows, plain]


def _joined(moves: Fusion, hoisted: frozenset[Tensor], target: Target) -> Fusion:
    """The fusion with the chosen moves hoisted, and no wide joins."""
    read = own_outputs(fold_moves(hoist_moves(moves, hoisted)), before=moves)
    small = cse(narrow_positions(move_rematerialisable(split_maps(cse(read)))))
    products = prepare_products(store_in_longer_rows(small, target), target)
    return cut_joins(reduce_runs(products, MAX_OPERANDS), MAX_OPERANDS)


def _in_parts(
    fusion: Fusion, target: Target, *, may_hold: bool = False, whole_scans: bool = False
) -> Fusion:
    """The fusion with long scans and reductions in parts; with `may_hold` without those whose
    operands the blocks of a cluster might hold, with `whole_scans` without scans, whose blocks hand
    each other the totals of their parts then."""
    scans = fusion if whole_scans else split_scans(fusion, target)
    cut = merge_steps(split_reductions(scans, target, may_hold=may_hold))
    return own_operands(name_parts(cut))


def _copy_us(values: Iterable[Tensor], target: Target) -> float:
    """The least time in which these values are copied."""
    return moved_us(2 * sum(map(nbytes_estimate, values)), target)
