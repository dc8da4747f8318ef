"""The known traps of axis graphs, one minimal case each."""

from __future__ import annotations

import math
import random
import time

import pytest
from brute import everything, loop_vars, size, visits

from fusewright.axes import paths
from fusewright.axes.checks import check_graph, check_linear
from fusewright.axes.classes import AxisClass, AxisGraph, Digit
from fusewright.axes.paths import Path, Refusal, domain_path, value_of
from fusewright.core.conditions import Less
from fusewright.core.expr import ONE, Int, Var
from fusewright.core.substitution import evaluate
from fusewright.errors import InternalError, ScheduleError


@pytest.fixture
def graph() -> AxisGraph:
    return AxisGraph()


def axes(graph: AxisGraph, name: str, *shape: int) -> tuple[AxisClass, ...]:
    """The axes of a new op, registered as its domain."""
    out = tuple(graph.axis(n, f"{name}{k}") for k, n in enumerate(shape))
    graph.register_domain(out)
    return out


def ties(graph: AxisGraph, index, producer) -> list[bool]:
    return [graph.tie(c, p) for c, p in zip(index, producer, strict=True)]


def flat(graph: AxisGraph, out) -> AxisClass:
    merged = out[0]
    for c in out[1:]:
        merged = graph.merge(merged, c)
    return merged


def covers(graph: AxisGraph, loops, domain) -> Path:
    """The path; every domain point is visited exactly once."""
    known = loop_vars(loops)
    path = domain_path(graph, known, domain)
    assert isinstance(path, Path), path
    assert visits(path, known) == everything(domain)
    return path


def refusal(graph: AxisGraph, loops, domain) -> str:
    path = domain_path(graph, loop_vars(loops), domain)
    assert isinstance(path, Refusal), path
    return path.reason


def test_1_intermediate_bounds_are_predicates(graph: AxisGraph) -> None:
    (a,) = axes(graph, "a", 10)
    outer, inner = graph.split(a, 4)
    path = covers(graph, [outer, *graph.split(inner, 3)], [a])
    assert [str(c) for c in path.predicates] == ["3*v1 + v2 < 4", "4*v0 + 3*v1 + v2 < 10"]


def test_outer_chain_needs_only_the_last_bound(graph: AxisGraph) -> None:
    (a,) = axes(graph, "a", 10)
    outer, inner = graph.split(a, 4)
    path = covers(graph, [*graph.split(outer, 2), inner], [a])
    assert [str(c) for c in path.predicates] == ["8*v0 + 4*v1 + v2 < 10"]


def test_2_outer_split_has_exactly_that_many_parts(graph: AxisGraph) -> None:
    (a,) = axes(graph, "a", 5)
    outer, inner = graph.split(a, 4, inner=False)
    assert (size(outer), size(inner)) == (4, 2)
    covers(graph, [outer, inner], [a])


def test_3_a_loop_twice_is_refused(graph: AxisGraph) -> None:
    a, b = axes(graph, "x", 4, 3)
    assert "visited twice" in refusal(graph, [graph.merge(a, b), b], [a, b])


def elementwise_with_transpose(graph: AxisGraph, *shape: int):
    """Frames of e + e.T over the last two axes; the ties of e.T's use of e."""
    e, t, o = (axes(graph, n, *shape) for n in "eto")
    assert all(ties(graph, o, e)) and all(ties(graph, o, t))
    return e, t, o, ties(graph, (*t[:-2], t[-1], t[-2]), e)


def test_9_transpose_of_itself_is_refused(graph: AxisGraph) -> None:
    e, t, o, tied = elementwise_with_transpose(graph, 4, 4)
    assert tied == [False, False]
    check_graph(graph)
    assert graph.normal(o[0]) is graph.normal(e[0]) and not graph.depends(e[0], [e[1]])
    index = value_of(graph, loop_vars(o), t[1])
    assert index is not None and str(index[0]) == "v1"


def test_10_batch_axis_stays_tied(graph: AxisGraph) -> None:
    *_, tied = elementwise_with_transpose(graph, 2, 4, 4)
    assert tied == [True, False, False]


def test_11_two_views_of_one_tensor(graph: AxisGraph) -> None:
    e, t = axes(graph, "e", 4, 6), axes(graph, "t", 6, 4)
    (v,), (w,), (o,) = (axes(graph, n, 24) for n in "vwo")
    assert graph.tie(o, v) and graph.tie(o, w)
    assert all(ties(graph, graph.split(v, 6), e)) and all(ties(graph, graph.split(w, 4), t))
    assert ties(graph, (t[1], t[0]), e) == [False, False]
    check_graph(graph)
    covers(graph, [o], e)
    covers(graph, [o], t)


def test_12_row_of_another_loop_is_refused(graph: AxisGraph) -> None:
    x, s = axes(graph, "x", 4, 6), axes(graph, "s", 4, 6)
    (v,), z = axes(graph, "v", 24), axes(graph, "z", 24, 4)
    assert all(ties(graph, s, x))
    assert graph.tie(z[0], v) and graph.tie(z[1], graph.axis(4, "y"))
    assert all(ties(graph, graph.split(v, 6), x))
    assert not graph.tie(z[1], s[0])
    check_graph(graph)


def test_13_stencil_is_refused(graph: AxisGraph) -> None:
    (e,), (a,), (b,), (o,) = (axes(graph, n, k) for n, k in zip("eabo", (10, 9, 9, 9), strict=True))
    assert graph.tie(o, a) and graph.tie(o, b)
    assert graph.tie(graph.resize(a, 1, 0), e)
    assert not graph.tie(graph.resize(b, 0, 1), e)
    index = value_of(graph, loop_vars([o]), graph.resize(b, 0, 1))
    assert index is not None and str(index[0]) == "v0"
    index = value_of(graph, loop_vars([o]), e)
    assert index is not None and str(index[0]) == "v0 + 1"


def test_14_rotary_halves(graph: AxisGraph) -> None:
    (x,), (low,), (high,), (out,) = (
        axes(graph, n, k) for n, k in zip("xlho", (8, 4, 4, 8), strict=True)
    )
    pieces = graph.resize(out, 0, -4), graph.resize(out, -4, 0)
    assert graph.tie(pieces[0], low) and graph.tie(pieces[1], high)
    assert graph.tie(graph.resize(low, 0, 4), x)
    assert graph.tie(graph.resize(high, 4, 0), x)
    assert graph.normal(x) is graph.normal(out)
    (swapped,) = axes(graph, "s", 8)
    assert graph.tie(graph.resize(swapped, 0, -4), high)
    assert not graph.tie(graph.resize(swapped, -4, 0), low)


def test_15_slice_to_one_depends_on_the_line(graph: AxisGraph) -> None:
    (e,), (s,), (o,) = (axes(graph, n, k) for n, k in zip("eso", (10, 1, 10), strict=True))
    assert graph.tie(o, e)
    assert graph.tie(graph.resize(s, 2, 7), e)
    assert graph.depends(o, [s])
    path = covers(graph, [o], [s])
    assert [str(c) for c in path.predicates] == ["1 < v0", "v0 < 3"]
    index = value_of(graph, [(s, Int(0))], e)
    assert index is not None and index[0] == Int(2)


def test_16_radices_that_do_not_nest(graph: AxisGraph) -> None:
    x, y = axes(graph, "x", 4, 6), axes(graph, "y", 6, 4)
    (a,), (b,), (o,) = (axes(graph, n, 24) for n in "abo")
    assert graph.tie(o, a) and graph.tie(o, b)
    assert all(ties(graph, graph.split(a, 6), x)) and all(ties(graph, graph.split(b, 4), y))
    check_graph(graph)
    loops = graph.split(o, 5)
    assert [str(v) for v in covers(graph, loops, x).values] == ["(5*v0 + v1)//6", "(5*v0 + v1)%6"]
    covers(graph, loops, y)
    covers(graph, list(x), y)


@pytest.mark.parametrize(
    ("sizes", "parts"), [((5, 6, 4), 8), ((3, 10, 8), 16), ((7, 9, 2, 6), 4), ((7, 2, 34, 3), 12)]
)
def test_parts_across_the_borders_of_axes(
    graph: AxisGraph, sizes: tuple[int, ...], parts: int
) -> None:
    p, q = axes(graph, "p", parts, math.prod(sizes) // parts)
    rest, digits = graph.merge(p, q), []
    for n in reversed(sizes[1:]):
        rest, digit = graph.split(rest, n)
        digits.append(digit)
    domain = [rest, *reversed(digits)]
    covers(graph, [p, q], domain)
    covers(graph, [p, *graph.split(q, 4)], domain)
    assert rest is graph.split(graph.merge(p, q), math.prod(sizes[1:]))[0]


def test_what_is_left_of_a_box_is_a_digit_of_its_definition(graph: AxisGraph) -> None:
    p, q = axes(graph, "p", 6, 10)
    rest, c = graph.split(graph.merge(p, q), 3)
    rest, b = graph.split(rest, 5)
    first, a = graph.split(rest, 2)
    path = covers(graph, graph.split(graph.merge(p, q), 8), [first, a, b, c])
    digits = ["(8*v0 + v1)//30", "((8*v0 + v1)//15)%2", "((8*v0 + v1)//3)%5", "(8*v0 + v1)%3"]
    assert [str(v) for v in path.values] == digits
    assert [str(c) for c in path.predicates] == ["8*v0 + v1 < 60"]
    path = covers(graph, [p, q], [first, a, b, c])
    assert str(path.values[0]) == "v0//3" and not path.predicates


def test_a_slice_of_an_axis_across_borders(graph: AxisGraph) -> None:
    x, y = axes(graph, "x", 32, 2, 3), axes(graph, "y", 6, 32)
    rest, last = graph.split(flat(graph, y), 3)
    assert all(ties(graph, (*graph.split(rest, 2), last), x))
    part = (graph.resize(x[0], -5, -7), *x[1:])
    loops = graph.split(flat(graph, y), 16)
    covers(graph, loops, x)
    path = domain_path(graph, loop_vars(loops), part)
    assert isinstance(path, Path), path


def test_an_axis_is_tied_to_a_word_with_a_part_of_itself(graph: AxisGraph) -> None:
    (a,), (b,) = axes(graph, "a", 12), axes(graph, "b", 4)
    high, low = graph.split(a, 4)
    assert graph.tie(a, graph.merge(high, b))
    assert graph.normal(b) is graph.normal(low)
    check_graph(graph)


def test_a_box_is_opened_before_its_digits_are_taken(graph: AxisGraph) -> None:
    """Blocks of eight elements cut the box of `a` and `b` behind half of the pairs of a. Taken
    first, the upper digit of a would leave a part of what the box is made of."""
    a, b, c = axes(graph, "a", 16, 3, 4)
    upper, lower = graph.split(a, 4)
    blocks, inside = graph.split(flat(graph, (a, b, c)), 8)
    for domain in ((upper, lower, b, c), (b, upper, lower, c), (lower, c, b, upper)):
        covers(graph, [blocks, inside], domain)


def test_17_ragged_split_under_a_view(graph: AxisGraph) -> None:
    (x,), v = axes(graph, "x", 24), axes(graph, "v", 6, 4)
    assert graph.tie(flat(graph, v), x)
    loops = graph.split(flat(graph, v), 9)
    path = covers(graph, loops, v)
    assert [str(c) for c in path.predicates] == ["9*v0 + v1 < 24"]
    covers(graph, loops, [x])


def test_18_view_there_and_back_is_the_same_class(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 6)
    c, d = graph.split(graph.merge(a, b), 12)
    assert graph.split(graph.merge(c, d), 6) == (a, b)


@pytest.mark.parametrize("sign", [1, -1])
def test_19_pad_and_slice_back_is_the_same_class(graph: AxisGraph, sign: int) -> None:
    a, b = axes(graph, "a", 4, 6)
    for c in (a, graph.merge(a, b)):
        moved = graph.resize(c, sign, 2 * sign)
        assert moved is not c
        assert graph.resize(moved, -sign, -2 * sign) is c


def test_20_pads_of_two_units_are_two_classes(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 1, 1)
    assert graph.resize(a, 1, 1) is not graph.resize(b, 1, 1)
    _, unit = graph.split(graph.axis(4), 1)
    assert graph.resize(unit, 1, 1) is not graph.resize(unit, 1, 1)


def test_22_a_free_digit_is_guarded(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 5, 3)
    loops = graph.split(graph.merge(a, b), 4)
    path = covers(graph, loops, [a])
    assert [str(c) for c in path.free_conditions] == ["(4*v0 + v1)%3 == 0"]
    assert path.free == (Digit(b.digits[0].atom, ONE, Int(3)),)


def test_loops_that_a_value_does_not_run_over_count_by_themselves(graph: AxisGraph) -> None:
    """Eights of rows of nine that are counted from words: a digit of either loop is a part of a row
    and of words. A value that lacks rows and columns is found once, where both loops are 0."""
    rows, columns = axes(graph, "x", 4, 9)
    (own,) = axes(graph, "y", 6)
    skewed = graph.skew(columns, rows, 9, 4)
    loops = [*graph.split(graph.merge(rows, skewed), 8), own]
    path = covers(graph, loops, [own])
    assert [str(v) for v in path.values] == ["v2"]
    assert len(path.free_conditions) > 1


def test_26_loops_over_a_part_are_refused(graph: AxisGraph) -> None:
    (a,) = axes(graph, "a", 4)
    part = graph.resize(a, 0, -1)
    assert "cover only a part" in refusal(graph, [part], [a])
    with pytest.raises(InternalError, match=r"I4: the loops .* cover only a part"):
        check_linear(graph, loop_vars([part]), [a])


def test_34_the_second_piece_of_itself_is_refused(graph: AxisGraph) -> None:
    (t,), (z,) = axes(graph, "t", 4), axes(graph, "z", 8)
    assert graph.tie(graph.resize(z, 0, -4), t)
    assert not graph.tie(graph.resize(z, -4, 0), t)


def test_36_disjoint_ranges_are_not_independent(graph: AxisGraph) -> None:
    (b,) = axes(graph, "b", 20)
    top, _ = graph.split(b, 10)
    _, low = graph.split(b, 4)
    assert graph.depends(top, [low])
    assert not graph.depends(top, [graph.split(b, 5)[1]])


def test_40_digits_fold_back() -> None:
    t = Var("t", 0, 127)
    assert 32 * (t // 32) + 4 * ((t // 4) % 8) + t % 4 == t


def test_undetermined_and_dependent_loops_are_refused(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 3)
    assert "do not determine" in refusal(graph, [a], [a, b])
    assert "leave" in refusal(graph, [a, graph.resize(a, 1, 1)], [a])
    assert value_of(graph, loop_vars([a]), b) is None


def test_a_dependent_domain_is_an_internal_error(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 3)
    with pytest.raises(InternalError, match="depend on each other"):
        graph.register_domain([a, graph.merge(a, b)])


def test_a_refused_tie_changes_nothing(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 6)
    c, d = axes(graph, "c", 6, 4)
    merged = graph.merge(a, b)
    assert graph.tie(graph.merge(c, d), merged)
    before = [str(graph.normal(x)) for x in (a, b, c, d)]
    lines = len(graph.lines.definition)
    assert not graph.tie(b, c)
    assert not graph.tie(a, graph.axis(5))
    assert [str(graph.normal(x)) for x in (a, b, c, d)] == before
    assert len(graph.lines.definition) == lines
    check_graph(graph)


def test_a_class_cannot_be_part_of_itself(graph: AxisGraph) -> None:
    n = graph.axis(4, "n")
    wide = graph.merge(n, graph.axis(3, "m"))
    box = graph.resize(graph.resize(wide, 1, 0), -1, -8)
    assert size(box) == 4
    assert not graph.tie(box, n)
    check_graph(graph)


def test_swizzle_undoes_itself_and_names_its_rule(graph: AxisGraph) -> None:
    a, b, c = axes(graph, "a", 8, 32, 6)
    kept, swizzled = graph.swizzle(a, b)
    assert kept is a and size(swizzled) == 32
    covers(graph, [a, swizzled], [a, b])
    assert graph.swizzle(a, swizzled) == (a, b)
    with pytest.raises(ScheduleError, match="constant power of two"):
        graph.swizzle(c, b)


def test_a_swizzle_there_and_across_is_rejected(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 4, 4)
    _, swizzled = graph.swizzle(a, b)
    with pytest.raises(ScheduleError, match="share a digit"):
        graph.swizzle(swizzled, a)


def test_a_swizzle_by_a_slice_covers_a_part_only(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 3, 4)
    part = graph.resize(a, 0, -1)
    _, swizzled = graph.swizzle(part, b)
    wide = graph.resize(part, 0, 4)
    assert "only where v0 < 2" in refusal(graph, [wide, swizzled], [a, b])
    covers(graph, [wide, swizzled], [part, b])


def test_a_swizzle_by_a_guarded_loop_is_refused(graph: AxisGraph) -> None:
    unit, b = axes(graph, "a", 1, 4)
    by, swizzled = graph.swizzle(graph.resize(unit, 1, 0), b)
    assert "only where 0 < v0" in refusal(graph, [graph.resize(by, 1, 0), swizzled], [b])


def test_a_serpentine_runs_backwards_along_odd_rows(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 5, 7)
    turned = graph.serpentine(columns, rows)
    covers(graph, [rows, turned], [rows, columns])
    merged = graph.merge(rows, turned)
    covers(graph, list(graph.split(merged, 4)), [rows, columns])
    assert graph.serpentine(turned, rows) is columns
    assert graph.serpentine(columns, graph.split(rows, 5)[0]) is columns
    with pytest.raises(ScheduleError, match="turn an axis by one that does not depend on it"):
        graph.serpentine(merged, rows)


def test_what_is_turned_keeps_what_turns_it(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 4, 6)
    merged = graph.merge(rows, graph.serpentine(columns, rows))
    assert graph.project(merged, [columns]) is merged
    assert graph.project(merged, [rows]) is rows
    assert graph.project(graph.merge(rows, columns), [columns]) is columns


def test_rows_of_ragged_groups_turn_too(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 7, 5)
    groups, inner = graph.split(rows, 3)
    turned = graph.serpentine(columns, groups)
    covers(graph, [groups, turned, inner], [rows, columns])
    covers(
        graph,
        list(graph.split(graph.merge(graph.merge(groups, turned), inner), 4)),
        [rows, columns],
    )


def test_a_skew_counts_rows_from_aligned_positions(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 5, 9)
    skewed = graph.skew(columns, rows, 9, 4)
    assert size(skewed) == 9 + 3
    steps, lanes = graph.split(skewed, 4)
    covers(graph, [rows, steps, lanes], [rows, columns])
    covers(graph, [steps, rows, lanes], [rows, columns])
    assert graph.skew(columns, rows, 8, 4) is columns
    with pytest.raises(ScheduleError, match="share a digit"):
        graph.skew(skewed, rows, 9, 4)


def test_a_skew_by_the_low_digit_of_rows_is_enough(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 12, 5)
    outer, low = graph.split(rows, 4)
    path = covers(graph, [outer, graph.skew(columns, low, 5, 4), low], [rows, columns])
    assert len(path.predicates) == 2 and not path.free  # both ends of a row, nothing twice


def test_columns_alone_follow_from_a_skew_by_rows_in_ragged_blocks(graph: AxisGraph) -> None:
    """Where there is no row the skew has no value, but the first row is always there."""
    rows, columns = axes(graph, "x", 5, 3)
    skewed = graph.skew(columns, rows, 3, 4)
    outer, inner = graph.split(rows, 4)
    path = covers(graph, [outer, inner, skewed], [columns])
    assert any("< 5" in str(c) for c in path.predicates)
    assert len(path.free) == 2
    covers(graph, [outer, inner, skewed], [rows, columns])


def test_what_is_skewed_depends_on_its_base_and_is_moved_by_the_rest(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 5, 9)
    steps, lanes = graph.split(graph.skew(columns, rows, 9, 4), 4)
    for part in (steps, lanes):
        assert graph.depends(part, [columns]) and not graph.depends(part, [rows])
        assert graph.is_moved_by(part, [rows]) and not graph.is_moved_by(part, [columns])
        assert graph.project(part, [columns]) is part and graph.project(part, [rows]).is_unit


def test_a_skewed_axis_alone_says_nothing_of_its_columns(graph: AxisGraph) -> None:
    rows, columns = axes(graph, "a", 5, 9)
    assert "do not determine" in refusal(graph, [graph.skew(columns, rows, 9, 4)], [columns])


def test_project_drops_what_a_tensor_lacks(graph: AxisGraph) -> None:
    a, b = axes(graph, "a", 5, 4)
    assert graph.project(graph.merge(a, b), [a]) is a
    assert graph.project(b, [a]).is_unit
    outer, _ = graph.split(graph.merge(a, b), 3)
    assert graph.project(outer, [a]) is outer


def test_split_rejects_a_factor_that_may_be_zero(graph: AxisGraph) -> None:
    with pytest.raises(InternalError, match="not known to be positive"):
        graph.split(graph.axis(4), Var("f", 0, 3))


@pytest.mark.parametrize("inner", [True, False])
def test_symbolic_split(graph: AxisGraph, inner: bool) -> None:
    n, f = Var("n", 2), Var("f", 2)
    a = graph.axis(n, "a")
    loops = [(c, Var(f"v{k}", 0, c.extent - 1)) for k, c in enumerate(graph.split(a, f, inner))]
    path = domain_path(graph, loops, [a])
    assert isinstance(path, Path) and len(path.predicates) == 1 and not path.free
    divided = graph.axis(4 * n, "b")
    loops = [(c, Var(f"v{k}", 0, c.extent - 1)) for k, c in enumerate(graph.split(divided, 4))]
    path = domain_path(graph, loops, [divided])
    assert isinstance(path, Path) and path.predicates == ()


def test_symbolic_view_and_ragged_chain(graph: AxisGraph) -> None:
    n, m = Var("n", 2), Var("m", 2)
    a, b = graph.axis(n, "a"), graph.axis(m, "b")
    outer, inner = graph.split(graph.merge(a, b), 128)
    classes = [*graph.split(outer, 4), inner]
    loops = [(c, Var(f"v{k}", 0, c.extent - 1)) for k, c in enumerate(classes)]
    path = domain_path(graph, loops, [a, b])
    assert isinstance(path, Path)
    assert [str(c) for c in path.predicates] == ["512*v0 + 128*v1 + v2 < m*n"]
    point = {n: 5, m: 7, loops[0][1]: 0, loops[1][1]: 0, loops[2][1]: 23}
    assert [evaluate(v, point) for v in path.values] == [3, 2]


def test_chain_of_softmaxes_ties_fast(graph: AxisGraph) -> None:
    """128 softmaxes are 513 tensors; two seconds here is ten times what it takes."""
    start = time.perf_counter()
    previous = axes(graph, "x", 1024, 512)
    for _ in range(128):
        peak, e = axes(graph, "m", 1024, 512), axes(graph, "e", 1024, 512)
        total, out = axes(graph, "s", 1024, 512), axes(graph, "d", 1024, 512)
        assert all(ties(graph, peak, previous) + ties(graph, e, previous))
        assert graph.tie(e[0], peak[0])
        assert all(ties(graph, total, e) + ties(graph, out, e))
        assert graph.tie(out[0], total[0])
        previous = out
    assert time.perf_counter() - start < 2
    assert graph.normal(previous[1]) is graph.normal(out[1])


# --- what is found once -------------------------------------------------------------------------


def test_paths_of_the_same_loops_are_found_once(graph: AxisGraph) -> None:
    a, b = axes(graph, "d", 12, 8)
    outer, inner = graph.split(flat(graph, (a, b)), 4)

    def path() -> Path | Refusal:
        loops = [(c, graph.variable(f"i{k}", c.extent)) for k, c in enumerate((outer, inner))]
        return domain_path(graph, loops, (a, b))

    first = path()
    assert isinstance(first, Path) and path() is first
    other = [(c, Var(f"i{k}", 0, c.extent - 1)) for k, c in enumerate((outer, inner))]
    found = domain_path(graph, other, (a, b))
    assert isinstance(found, Path) and found is not first, "variables are told apart by identity"
    assert list(map(str, found.values)) == list(map(str, first.values))
    axes(graph, "e", 5)
    assert path() is not first, "the graph has changed"


def test_variables_of_loops_are_one_for_a_name_and_an_extent(graph: AxisGraph) -> None:
    i = graph.variable("i", Int(8))
    assert graph.variable("i", Int(8)) is i and i.interval == (0, 7)
    assert graph.variable("i", Int(9)) is not i and graph.variable("j", Int(8)) is not i
    assert AxisGraph().variable("i", Int(8)) is not i


@pytest.mark.parametrize("shape", [(4, 9), (8, 9), (8, 15), (16, 9), (9, 8), (3, 4, 9)])
def test_a_merged_axis_is_covered_however_it_is_split(shape: tuple[int, ...]) -> None:
    """Twice by divisors: what is known of one axis then begins at one place in several lengths."""
    total = math.prod(shape)
    for lanes in (n for n in range(2, total) if total % n == 0):
        for threads in (n for n in range(2, total // lanes) if total // lanes % n == 0):
            graph = AxisGraph()
            domain = axes(graph, "a", *shape)
            rest, lane = graph.split(flat(graph, domain), lanes)
            covers(graph, [*graph.split(rest, threads), lane], domain)
            check_graph(graph)


def test_a_path_is_looked_for_once_whatever_its_loops_are_called(
    graph: AxisGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = axes(graph, "a", 10, 7)
    outer, inner = graph.split(graph.merge(a, b), 16)
    looked: list[object] = []
    original = paths._domain_path
    monkeypatch.setattr(paths, "_domain_path", lambda *x: looked.append(x) or original(*x))
    for names in ("xy", "yx", "ab"):
        known = [(c, Var(n, 0, c.extent - 1)) for c, n in zip((outer, inner), names, strict=True)]
        path = domain_path(graph, known, [a, b])
        assert isinstance(path, Path)
        assert visits(path, known) == everything([a, b])
        assert path == original(graph, known, [a, b])
    assert len(looked) == 1
    half = [(outer, Var("x", 0, 1)), (inner, Var("y", 0, 15))]  # not over all of the first loop
    path = domain_path(graph, half, [a, b])
    assert path == original(graph, half, [a, b])
    assert len(looked) == 2


@pytest.mark.parametrize("left", [-2, 0])
def test_what_a_row_is_skewed_by_exists_for_some_of_the_rows(graph: AxisGraph, left: int) -> None:
    """Six of ten rows, `q < 2` of `4*q + i < 8`: those of all are below 10 then, too."""
    rows, columns = axes(graph, "a", 10, 13)
    some = graph.resize(rows, Int(left), Int(-4 - left))
    outer, inner = graph.split(rows, 4)
    path = covers(graph, [outer, inner, graph.skew(columns, rows, Int(13), 4)], (some, columns))
    assert not any("< 10" in str(c) for c in path.predicates)


@pytest.mark.parametrize("seed", range(200))
def test_an_inequality_that_is_implied_holds_wherever_the_other_does(seed: int) -> None:
    rng = random.Random(seed)
    q, i = Var("q", 0, 4), Var("i", 0, 5)
    points = [{q: a, i: b} for a in range(5) for b in range(6)]

    def drawn() -> Less:
        a, b = (rng.choice([-6, -4, -3, -1, 0, 1, 2, 3, 4]) for _ in range(2))
        return Less(q * a + i * b, Int(rng.randint(-8, 24)))

    for _ in range(40):
        strong, weak = drawn(), drawn()
        if paths._implies(strong, weak):
            inside = [p for p in points if evaluate(strong.gap, p) >= 0]
            assert all(evaluate(weak.gap, p) >= 0 for p in inside), (strong, weak)
