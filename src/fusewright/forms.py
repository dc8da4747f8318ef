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
from dataclasses import dataclass, field, replace

from fusewright import knobs
from fusewright.errors import InternalError, ScheduleError, SpecError, UnsupportedError
from fusewright.fusion.ir import (
    Alone,
    Fusion,
    IndexMap,
    Parts,
    Reduce,
    Resize,
    Scan,
    Take,
    TakeAlong,
    Tensor,
)
from fusewright.fusion.orders import Order, Orders
from fusewright.fusion.passes.chunk_reductions import chunk_reductions
from fusewright.fusion.passes.crop_joins import crop_joins
from fusewright.fusion.passes.crop_products import crop_products
from fusewright.fusion.passes.crop_reductions import crop_reductions
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.cut_joins import cut_joins
from fusewright.fusion.passes.decompose import decompose
from fusewright.fusion.passes.drop_identities import drop_identities
from fusewright.fusion.passes.fill_lines import fill_lines
from fusewright.fusion.passes.fold_crops import fold_crops
from fusewright.fusion.passes.fold_empty import fold_empty, is_empty
from fusewright.fusion.passes.fold_moves import fold_moves
from fusewright.fusion.passes.follow_memory import Followed, follow_memory, wanted_orders
from fusewright.fusion.passes.hoist_crops import hoist_crops
from fusewright.fusion.passes.hoist_gathers import hoist_gathers
from fusewright.fusion.passes.hoist_moves import hoist_moves, moves_to_hoist
from fusewright.fusion.passes.hold_scans import hold_scans
from fusewright.fusion.passes.merge_axes import merge_axes
from fusewright.fusion.passes.merge_sorts import merge_sorts
from fusewright.fusion.passes.move_rematerialisable import move_rematerialisable
from fusewright.fusion.passes.name_parts import name_parts
from fusewright.fusion.passes.narrow_moves import narrow_moves
from fusewright.fusion.passes.narrow_products import narrow_products
from fusewright.fusion.passes.narrow_sums import narrow_sums
from fusewright.fusion.passes.nest_reductions import nest_reductions
from fusewright.fusion.passes.own_operands import own_operands
from fusewright.fusion.passes.own_outputs import own_outputs
from fusewright.fusion.passes.row_partials import row_partials
from fusewright.fusion.passes.rows_of_reductions import rows_of_reductions, walked_variances
from fusewright.fusion.passes.select_joins import select_joins
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
from fusewright.host.fills import attach_fills
from fusewright.host.form import Formation
from fusewright.host.groups import MAX_OPERANDS
from fusewright.host.move_work import move_work
from fusewright.host.moves import Moves
from fusewright.host.place import place
from fusewright.host.product_forms import (
    prepare_products,
    product_kernels,
    products_in_place,
    whole_products,
)
from fusewright.host.segment import Segment, segments
from fusewright.host.subspans import Subspan
from fusewright.schedule.heuristics.cost import cost
from fusewright.schedule.heuristics.rating import (
    Decisions,
    decided,
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
MAX_ALONE = 3
"""Values that lie across of which each is looked at alone; of more, all together only."""
COUNTED = 0.9
"""The share of an array's bytes that the model counts at least where all are accessed: it looks at
a sample of warps."""
ROUNDING = 1e-9
"""By how much a sum of times may be off, relative to it, as it is rounded."""
READS_IN_PART = (Resize, IndexMap, Take, TakeAlong)
"""Operations that may leave a part of their operand unread."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A fusion as its kernels compute it, what each of them computes, and the orders of axes of
    values that lie in no C order, or would rather not."""

    fusion: Fusion
    formation: Formation
    orders: Orders = field(default_factory=Orders)
    handicap: float = 1.0
    """By how much it has to be faster than others: what moves more bytes, or takes more launches,
    is taken only where the errors of both predictions do not matter."""
    cluster_handicap: float = 1.0
    """By how much its launches whose blocks wait for each other have to be."""


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
    across, other, merged = values_across(fusion), _in_other_orders(fusion), merge_axes(fusion)
    if not across and not other and merged is fusion and len(forms) == 1:
        return forms[0]
    clock = _Clock(target, decisions or Decisions())
    best = _best(forms, clock)
    if merged is not fusion and _could_gain(best, clock):
        along = _moves_folded(merged, target, before=fusion)
        more = _forms(along, moves_to_hoist(along, target), target)
        best = _best([best, *(f for f in more if _is_other(f, best))], clock)
    for followed in other:
        for f in _followed(followed, merged, best):
            along = _moves_folded(f, target, before=fusion)
            more = _forms(along, moves_to_hoist(along, target), target, followed.orders)
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


def _best(forms: Sequence[Form], clock: _Clock) -> Form:
    """The first of the fewest kernels among those whose times the model does not tell apart from
    the least. A form that takes longer by its bytes alone is not scheduled, nor is the rest of one
    that does so with what is scheduled of it."""
    least, rated = math.inf, list[Form]()
    for f in forms:
        if clock.is_within(f, NEAR * least):
            least = min(least, clock.rank(f))
            rated.append(f)
    near = [f for f in rated if clock.rank(f) <= NEAR * least]
    return min(near, key=lambda f: len(f.formation.groups))


def _forms(
    moves: Fusion,
    simple: frozenset[Tensor],
    target: Target,
    orders: Mapping[str, Order] | None = None,
) -> list[Form]:
    """The fusion with the moves hoisted that cost nothing, then with others, where there are any,
    and with joins as selections; `orders` are those of values that lie in no C order."""
    listed = [(moves, simple)]
    more = moves_to_hoist(moves, target, reductions=True)
    if more != simple:
        listed.append((moves, more))
    parts = split_results(moves)
    if parts is not moves:
        listed.append((parts, moves_to_hoist(parts, target)))
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


def _in_other_orders(fusion: Fusion) -> list[Followed]:
    """The fusion with what is stored between kernels in the order of the arguments, and in that of
    the results, where these are others than that of the program."""
    first, second = follow_memory(fusion), follow_memory(fusion, wanted_orders(fusion))
    return [f for f in (first, second) if f.orders and (f is first or f.orders != first.orders)]


def _stored(form: Form) -> set[str]:
    """The names of what kernels of a form store for others."""
    home = {t: k for k, group in enumerate(form.formation.groups) for t in group}
    values = (t for group in form.formation.groups for t in group)
    return {o.name for t in values for o in t.op.operands if home.get(o, home[t]) != home[t]}


def _could_gain(form: Form, clock: _Clock) -> bool:
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


def _followed(followed: Followed, merged: Fusion, best: Form) -> Iterator[Fusion]:
    """A fusion that follows memory, where what it orders is stored between kernels, and with its
    axes merged, where reductions then run along fewer axes than in the order of the program."""
    if _stored(best) & followed.orders.keys():
        yield followed.fusion
    along = merge_axes(followed.fusion)
    if along is not followed.fusion and _reduced_axes(along) < _reduced_axes(merged):
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
    plain = hoist_gathers(decompose(flat, keeps=product_kernels(target)))
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
    if len(walks.values) == len(apart.values) and not has_scans:
        return found
    return [*found, _CutForm(_in_parts(apart, target), SHORTEST, target.calibration.margin**2)]


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
    small = cse(move_rematerialisable(split_maps(cse(read))))
    return cut_joins(prepare_products(small, target), MAX_OPERANDS)


def _in_parts(
    fusion: Fusion, target: Target, *, may_hold: bool = False, whole_scans: bool = False
) -> Fusion:
    """The fusion with long scans and reductions in parts; with `may_hold` without those whose
    operands the blocks of a cluster might hold, with `whole_scans` without scans, whose blocks hand
    each other the totals of their parts then."""
    scans = fusion if whole_scans else split_scans(fusion, target)
    cut = split_reductions(scans, target, may_hold=may_hold)
    return own_operands(name_parts(cut))


class _Clock:
    """Predicts times for a target. Kernels of one structure are scheduled once."""

    def __init__(self, target: Target, decisions: Decisions) -> None:
        self._target = target
        self._forms: dict[Form, tuple[float, float]] = {}
        self._items: dict[Form, tuple[Segment | Moves, ...]] = {}
        self._decisions = decisions
        self._refused: set[object] = set()

    def us(self, form: Form) -> float:
        """Microseconds of all launches of a form, one after the other."""
        return self._times(form)[0]

    def _times(self, form: Form) -> tuple[float, float]:
        """The same, and of those whose blocks wait for each other."""
        if form not in self._forms:
            times = [self._of_item(x) for x in self._launches(form)]
            in_clusters = sum(us for us, waits in times if waits)
            self._forms[form] = sum(us for us, _ in times), in_clusters
        return self._forms[form]

    def _launches(self, form: Form) -> tuple[Segment | Moves, ...]:
        if form not in self._items:
            placed = place(form.fusion, form.formation)
            items = segments(form.fusion, placed.items, placed.sites, placed.joined)
            self._items[form] = tuple(attach_fills(items))
        return self._items[form]

    def rank(self, form: Form) -> float:
        """The time by which forms are compared."""
        us, in_clusters = self._times(form)
        return (us + (form.cluster_handicap - 1) * in_clusters) * form.handicap

    def least_rank(self, form: Form) -> float:
        """A time that `rank` is not below, whatever the schedules."""
        bounds = (_least_us(x, self._target) for x in self._launches(form))
        return sum(bounds) * form.handicap

    def is_far(self, form: Form) -> bool:
        """Whether the time of a form is above the least by more than the model errs."""
        return self.us(form) > self._target.calibration.margin * self.least_rank(form)

    def is_within(self, form: Form, limit: float) -> bool:
        """Whether the time by which a form is compared may be below a limit, as far as that has to
        be scheduled to know it: a launch that is not takes the least that any schedule takes."""
        launches = self._launches(form)
        bounds = [_least_us(x, self._target) for x in launches]
        most = limit / form.handicap * (1 + ROUNDING)
        us, rest = 0.0, sum(bounds)
        for x, bound in zip(launches, bounds, strict=True):
            if us + rest > most:
                return False
            us, rest = us + self._of_item(x)[0], rest - bound
        return us <= most

    def bytes_us(self, fusion: Fusion) -> float:
        """Microseconds in which memory moves the arguments and the results once."""
        values = (*fusion.inputs, *fusion.outputs)
        return _moved_us(sum(map(nbytes_estimate, values)), self._target)

    def _of_item(self, item: Segment | Moves) -> tuple[float, bool]:
        if isinstance(item, Moves):
            return _of_moves(item, self._target), False
        if all(is_empty(s.tensor) for s in item.writes):
            return 0.0, False
        if any(isinstance(t.op, Alone) for t in item.fusion.outputs):
            return 0.0, False  # of the program's own, the same in every form
        return self._of_group(item)

    def _of_group(self, segment: Segment) -> tuple[float, bool]:
        """The predicted time of a group's kernel, and whether its blocks wait for each other;
        infinite where none can be scheduled."""
        key, known = segment.decided_by, self._decisions
        if key not in self._refused and key not in known.made:
            try:
                known.made[key], scheduled = decided(segment.dataflow, self._target)
            except (ScheduleError, UnsupportedError):
                self._refused.add(key)
            else:
                known.scheduled[key, segment.spelled_by] = scheduled
        if key in self._refused:
            return math.inf, False
        predicted = known.made[key].cost
        return predicted.us, predicted.cluster > 1 or predicted.gathers


def _least_us(item: Segment | Moves, target: Target) -> float:
    """The least time of a launch: what each has, and that in which memory moves what it writes, and
    what it reads, unless that may be a part of its arguments only."""
    if isinstance(item, Moves):
        return _of_moves(item, target)
    if any(isinstance(t.op, Alone) or is_empty(t) for t in item.fusion.outputs):
        return 0.0
    in_part = any(isinstance(t.op, READS_IN_PART) for t in item.fusion.values)
    known = target.calibration
    moved = sum(map(_site_nbytes, () if in_part else item.reads))
    moved += known.write_weight * sum(map(_site_nbytes, item.writes))
    start_us = known.launch_us + known.start_us + known.memory_latency_us
    return start_us + _moved_us(COUNTED * moved, target)


def _site_nbytes(site: Subspan) -> int:
    return site.root.dtype.nbytes * numel_estimate(site.shape)


def _of_moves(moves: Moves, target: Target) -> float:
    """The time of a launch that copies and fills."""
    return cost(move_work(moves), target).us


def _copy_us(values: Iterable[Tensor], target: Target) -> float:
    """The least time in which these values are copied."""
    return _moved_us(2 * sum(map(nbytes_estimate, values)), target)


def _moved_us(nbytes: float, target: Target) -> float:
    return nbytes / (target.memory_nbytes_per_us * target.calibration.read_share)
