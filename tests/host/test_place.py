"""Pieces of joined values are made where they end up: no copies, no edges between them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from host_runs import run_on_bytes

import fusewright as fw
from fusewright.core.substitution import evaluate

S = fw.TensorSpec
X = S((24, 40), "float32")


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def arrays_for(specs: list[Any], sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    named = [[getattr(e, "name", e) for e in s.shape] for s in specs]
    shapes = [[(sizes or {}).get(e, e) for e in shape] for shape in named]
    return [
        rng.standard_normal(n).astype(s.dtype.numpy) for s, n in zip(specs, shapes, strict=True)
    ]


def checked(fn, *specs: Any, sizes: dict[str, int] | None = None) -> fw.Program:
    """The program; oracle, simulator and host program on bytes agree in three orders."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    arrays = arrays_for(list(specs), sizes)
    wanted = fw.evaluate(fusion, *arrays)
    result = program.simulate(*arrays)
    assert result.races == []
    runs = [result.outputs, *(run_on_bytes(program, *arrays, seed=k) for k in range(3))]
    for outputs in runs:
        for got, want in zip(outputs, wanted, strict=True):
            a, b = got.astype(np.float64), want.astype(np.float64)
            scale = 1e-2 if got.dtype.itemsize < 4 else 1e-4
            np.testing.assert_allclose(a, b, rtol=scale, atol=scale)
    return program


def figures(p: fw.Program) -> tuple[int, int, int, int]:
    """Launches, fills, copies, edges."""
    s = p.host.stats
    return s["launches"], s["fills"], s["copies"], s["edges"]["total"]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_concat_of_separate_kernels_is_no_kernel(axis: int) -> None:
    p = checked(lambda x, y: fw.concat([soft(x), soft(y)], axis=axis), X, X)
    assert figures(p) == (2, 0, 0, 0)
    assert len(p.host.stats["placed"]) == 2 and p.host.stats["not_placed"] == {}
    assert p.host.stats["peak_bytes"] == 0 and p.host.stats["critical_path"] == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stacks_of_any_axis(axis: int) -> None:
    p = checked(lambda x, y: fw.stack([soft(x), y + fw.sum(y, axis=0)], axis=axis), X, X)
    assert figures(p) == (2, 0, 0, 0)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize("axis", [0, 1])
def test_many_pieces_in_any_order(count: int, axis: int) -> None:
    def join(*xs):
        made = [soft(x) for x in xs]
        return fw.concat(random.Random(count).sample(made, count), axis=axis)

    p = checked(join, *[S((3, 5), "float32")] * count)
    assert figures(p) == (count, 0, 0, 0)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_pad_of_a_row_kernel_is_filled_by_it(value: float) -> None:
    p = checked(lambda x: fw.pad(soft(x), ((1, 2), (3, 0)), constant_values=value), X)
    assert figures(p) == (1, 0, 0, 0)
    rows, columns = 24 + 3, 40 + 3
    assert p.host.stats["bytes_moved"] == 4 * (24 * 40 + rows * columns), "each byte once"
    assert p.host.stats["peak_bytes"] == 0


def test_pads_of_reductions_are_their_kernels() -> None:
    assert figures(checked(lambda x: fw.pad(fw.sum(x, axis=1), (2, 3)), X)) == (1, 0, 0, 0)
    p = checked(
        lambda x: fw.pad(fw.max(x, axis=1), (1, 1)), S(("n", 40), "bfloat16"), sizes={"n": 7}
    )
    assert figures(p) == (1, 0, 0, 0)
    p = checked(lambda x: fw.pad(soft(x), ((700, 0), (0, 0))), S((4, 32), "float32"))
    assert figures(p) == (1, 0, 0, 0), "more border than threads"


def test_pads_with_other_numbers_share_a_kernel() -> None:
    def f(x, y):
        return [fw.pad(soft(v), ((1, 1), (0, 0)), constant_values=c) for v, c in ((x, 3), (y, 7))]

    p = checked(f, X, S((24, 40), "float32"))
    assert figures(p) == (2, 0, 0, 0) and len(p.kernels) == 1


def test_a_border_much_larger_than_its_kernel_is_a_fill_beside_it() -> None:
    """Few threads would write it for long; nobody waits for it."""
    fusion = fw.trace(lambda x: fw.pad(soft(x), ((1 << 18, 0), (0, 0))), S((4, 32), "float32"))
    p = fw.compile(fusion)
    assert figures(p) == (2, 1, 0, 0)
    assert p.host.stats["bytes_filled"] == (1 << 18) * 32 * 4


def test_a_pad_of_a_pointwise_value_is_its_kernel() -> None:
    p = checked(lambda x: fw.pad(fw.exp(x), ((1, 2), (3, 0))), X)
    assert figures(p) == (1, 0, 0, 0)


def test_a_piece_that_is_also_a_result_is_stored_twice() -> None:
    def f(x, y):
        a = soft(x)
        return fw.concat([a, soft(y)], axis=0), a

    assert figures(checked(f, X, X)) == (2, 0, 0, 0)


def test_one_value_into_four_joins_is_one_launch() -> None:
    def f(x, *others):
        v = soft(x)
        return tuple(fw.concat([v, soft(o)], axis=1) for o in others)

    p = checked(f, X, *[S((24, 3 + k), "float32") for k in range(4)])
    assert figures(p) == (5, 0, 0, 0)


def test_the_same_value_twice() -> None:
    assert figures(checked(lambda x: fw.concat([soft(x), soft(x)], axis=0), X)) == (1, 0, 0, 0)


def test_a_value_joined_very_often_is_copied_to_the_rest() -> None:
    p = checked(lambda x: fw.concat([soft(x)] * 10, axis=0), S((3, 5), "float32"))
    assert p.host.stats["copies"] == 1
    assert "more than 8 places" in next(iter(p.host.stats["not_placed"].values()))


def test_joins_of_joins_are_one_root() -> None:
    def f(x, y, z):
        inner = fw.concat([soft(x), soft(y)], axis=0)
        return fw.pad(
            fw.concat([fw.pad(inner, ((0, 0), (1, 1))), soft(z)], axis=0), ((2, 0), (0, 0))
        )

    p = checked(f, X, X, S((5, 42), "float32"))
    assert figures(p) == (3, 0, 0, 0)
    assert {r.kind.value for r in p.host.roots} == {"input", "output"}


def test_a_join_that_is_also_joined() -> None:
    def f(x, y, z):
        c = fw.concat([soft(x), soft(y)], axis=0)
        return c, fw.concat([c, soft(z)], axis=0)

    assert figures(checked(f, X, X, X)) == (3, 0, 0, 0)


def test_split_work_concat_moves_nothing() -> None:
    p = checked(lambda x: fw.concat([soft(x[:9]), soft(x[9:])], axis=0), X)
    assert figures(p) == (2, 0, 0, 0)


def test_readers_of_a_join_wait_for_its_pieces_only() -> None:
    def f(x, y):
        c = fw.concat([soft(x), soft(y)], axis=1)
        return c, fw.sum(c * c, axis=0), soft(y * 2)

    p = checked(f, X, X)
    assert p.host.stats["copies"] == 0
    reader = next(i for i, x in enumerate(p.launches) if p.fusion.outputs[0] in x.inputs)
    assert {e.consumer for e in p.host.edges} == {reader}


def test_a_reader_of_one_piece_waits_for_that_piece() -> None:
    def f(x, y):
        a, b = soft(x), soft(y)
        return fw.concat([a, b], axis=1), fw.sum(a, axis=0)

    p = checked(f, X, X)
    kinds = [(e.producer, e.kind.value) for e in p.host.edges]
    assert kinds == [(0, "RAW")], "the reader does not wait for the neighbour in the same rows"


def test_arguments_are_copied_by_one_launch() -> None:
    p = checked(lambda d, x: fw.insert(d, soft(x), (2, 5)), S((100, 138), "float32"), X)
    assert figures(p) == (2, 0, 1, 0)
    assert p.host.stats["bytes_copied"] == 4 * (100 * 138 - 24 * 40)
    reasons = set(p.host.stats["not_placed"].values())
    assert reasons == {"d belongs to the caller: its bytes are copied"}


def test_what_it_is_joined_with_may_be_computed_in_place_too() -> None:
    p = checked(lambda x, y: fw.concat([soft(x), fw.exp(y)], axis=0), X, X)
    assert figures(p) == (2, 0, 0, 0)


def test_what_is_around_a_block_is_one_kernel() -> None:
    """Parts of an argument that a join computes with are read as parts, however large it is."""
    p = checked(
        lambda d, x: fw.insert(fw.maximum(d, 0), soft(x), (5, 7)), S((60, 64), "float32"), X
    )
    assert figures(p)[0] == 2 and p.host.stats["bytes_moved"] <= 4 * (2 * 60 * 64 + 3 * 24 * 40)


@pytest.mark.parametrize("other", [True, False])
def test_parts_of_a_value_are_made_where_they_end_up(other: bool) -> None:
    """A value of which only a join reads parts is not stored."""

    def fn(x, y):
        v = soft(x)
        inner = fw.concat([v[20:], *([soft(y)] if other else [])], axis=0)
        return fw.concat([inner, v[:3]], axis=0)

    p = checked(fn, X, S((5, 40), "float32"))
    assert figures(p) == (1 + other, 0, 0, 0) and p.host.stats["peak_bytes"] == 0
    assert p.host.stats["bytes_moved"] == 160 * (24 + 7 + 10 * other)


def test_parts_beside_what_a_kernel_makes_of_other_parts_are_made_where_they_end_up() -> None:
    """Halves of a function of a scan are exchanged, and one of them is negated."""

    def exchanged(x: fw.Array) -> fw.Array:
        y = fw.sqrt(fw.abs(fw.cumulative_sum(x, axis=0)))
        return fw.concat([-y[:, 20:], y[:, :20]], axis=1)

    p = checked(exchanged, X)
    assert figures(p) == (1, 0, 0, 0)
    assert p.host.stats["not_placed"] == {} and p.host.stats["peak_bytes"] == 0


def test_parts_of_a_value_that_others_read_are_copied() -> None:
    p = checked(lambda x: ((v := soft(x)), fw.concat([v[20:], v[:3]], axis=0)), X)
    assert figures(p) == (2, 0, 1, 1)


def test_many_small_pieces_are_not_worth_their_launches() -> None:
    def f(x, *ys):
        return fw.concat([soft(x), *(fw.exp(y) for y in ys)], axis=0)

    p = checked(f, X, *[X] * 6)
    assert p.host.stats["placed"] == {}
    assert "more launches to save" in next(iter(p.host.stats["not_placed"].values()))


def test_a_transposed_piece_is_not_written_against_its_order() -> None:
    p = checked(lambda x, y: fw.concat([soft(x).T, soft(y)], axis=0), X, S((3, 24), "float32"))
    assert len(p.host.stats["placed"]) == 2, "the transposition writes into the result"
    assert p.host.stats["copies"] == 1


def test_parts_of_one_value_around_another_are_copied_by_one_launch() -> None:
    p = checked(lambda x: fw.insert(soft(x), soft(x[1:3, 2:4]), (1, 0)), S((4, 5), "float32"))
    assert figures(p)[:3] == (3, 0, 1)
    assert all("which is stored whole" in r for r in p.host.stats["not_placed"].values())


def test_flat_joins() -> None:
    p = checked(lambda x, y: fw.concat([soft(x), soft(y)], axis=None), X, S((3, 5), "float32"))
    assert figures(p) == (2, 0, 0, 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_symbolic_sizes_leave_no_doubt(axis: int) -> None:
    shapes = [("n", 7), ("m", 7)] if axis == 0 else [(7, "n"), (7, "m")]
    p = checked(
        lambda x, y: fw.concat([soft(x), soft(y)], axis=axis),
        *[S(s, "float32") for s in shapes],
        sizes={"n": 5, "m": 11},
    )
    assert figures(p) == (2, 0, 0, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float64"])
def test_odd_offsets_of_narrow_types(dtype: str) -> None:
    """Rows of three elements: no piece but the first is aligned to a vector."""

    def f(x, y):
        a, b = fw.cumulative_sum(x, axis=1), fw.cumulative_sum(y, axis=1)
        return fw.concat([a, b], axis=0)

    p = checked(f, S((3, 3), dtype), S((4, 3), dtype))
    assert p.host.stats["copies"] == 0


# --- random joins -------------------------------------------------------------------------------


class Random:
    """A random tree of joins over row kernels, all of rank 2."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.specs: list[Any] = []
        self.has_argument = False

    def leaf(self, rows: int, columns: int):
        position = len(self.specs)
        self.specs.append(S((rows, columns), "float32"))
        return lambda xs: soft(xs[position])

    def tree(self, rows: int, columns: int, depth: int):
        kind = self.rng.choice(["leaf", "rows", "columns", "pad", "stack"]) if depth else "leaf"
        if kind == "rows" and rows > 1:
            cut = self.rng.randrange(1, rows)
            a, b = self.tree(cut, columns, depth - 1), self.tree(rows - cut, columns, depth - 1)
            return lambda xs: fw.concat([a(xs), b(xs)], axis=0)
        if kind == "columns" and columns > 3:
            cut = self.rng.randrange(2, columns - 1)
            a, b = self.tree(rows, cut, depth - 1), self.tree(rows, columns - cut, depth - 1)
            return lambda xs: fw.concat([a(xs), b(xs)], axis=1)
        if kind == "pad" and rows > 2 and columns > 4:
            up, left = self.rng.randrange(2), self.rng.randrange(3)
            inner = self.tree(rows - 1 - up, columns - 1 - left, depth - 1)
            return lambda xs: fw.pad(inner(xs), ((up, 1), (left, 1)), constant_values=0.5)
        if kind == "stack" and rows % 2 == 0:
            a, b = (
                self.tree(rows // 2, columns, depth - 1),
                self.tree(rows // 2, columns, depth - 1),
            )
            return lambda xs: fw.reshape(fw.stack([a(xs), b(xs)], axis=0), (rows, columns))
        return self.leaf(rows, columns)


@pytest.mark.parametrize("seed", range(25))
def test_random_joins_copy_nothing(seed: int) -> None:
    made = Random(seed)
    shape = (made.rng.randrange(2, 12), made.rng.randrange(4, 16))
    tree = made.tree(*shape, depth=3)
    p = checked(lambda *xs: tree(xs), *made.specs)
    stats = p.host.stats
    assert (stats["copies"], stats["edges"]["total"]) == (0, 0), seed
    assert stats["launches"] <= len(made.specs) + 1, seed
    written = sum(
        evaluate(b.content, {}) for x in p.host.launches for b in x.bindings if b.access.writes
    )
    assert written == 4 * shape[0] * shape[1], "every byte of the result is written once"


SQUEEZED: dict[str, Any] = {
    "keepdims": lambda a: fw.sum(a, axis=1, keepdims=True),
    "expand_dims": lambda a: fw.expand_dims(fw.max(a, axis=1), axis=1),
    "reshape": lambda a: fw.reshape(fw.sum(a, axis=2), (4, 1, 3)),
    "softmax, squeezed": lambda a: fw.squeeze(soft(a[:, :1]), axis=1),
}
JOINED: dict[str, Any] = {
    "concat": lambda s: fw.concat([fw.exp(s), s], axis=1),
    "stack": lambda s: fw.stack([s, s]),
    "insert": lambda s: fw.insert(fw.concat([s, s], axis=1), s, (0,) * s.ndim),
    "pad": lambda s: fw.pad(s, [(1, 0)] * s.ndim),
    "nested": lambda s: fw.stack([fw.concat([s, s], axis=1), fw.concat([s, s + 1], axis=1)]),
}
READERS: dict[str, Any] = {
    "flip": fw.flip,
    "scan": lambda s: fw.cumulative_sum(s, axis=s.ndim - 1),
    "softmax": soft,
    "itself": lambda s: s,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("joined", JOINED)
@pytest.mark.parametrize("squeezed", SQUEEZED)
def test_a_view_that_is_joined_and_read_by_others_is_in_both_places(
    squeezed: str, joined: str, reader: str
) -> None:
    """The view has memory, and the join of it is looked through to what the view shows."""

    def f(a):
        s = SQUEEZED[squeezed](a)
        return JOINED[joined](s), READERS[reader](s)

    p = checked(f, S((4, 3, 64), "float32"))
    written = [
        (b.root, b.offset, b.axes)
        for x in p.host.launches
        for b in x.bindings
        if "W" in b.access.value
    ]
    assert len(set(written)) == len(written)


def test_joins_of_arguments_and_of_a_view_that_another_kernel_reads() -> None:
    """The kernel of the sums has the argument too, and stores it beside them; the flip is apart."""

    def f(a):
        s = fw.sum(a, axis=1, keepdims=True)
        return fw.concat([a, s], axis=1), fw.flip(s)

    p = checked(f, S((4, 3, 64), "float32"))
    assert [x.role for x in p.host.launches] == ["kernel", "copy"]
    assert "t0" in p.host.stats["placed"]


@pytest.mark.parametrize("reader", READERS)
def test_a_join_that_is_joined_again_and_read_by_others(reader: str) -> None:
    """Its pieces lie in both joins, and nobody writes or copies the inner one as a whole."""

    def f(a, b):
        inner = fw.concat([soft(a), soft(b)])
        return fw.concat([inner, soft(a + b)]), READERS[reader](inner)

    p = checked(f, X, X)
    assert p.host.stats["copies"] == (reader == "flip")
    assert len(p.host.stats["placed"]) == 3


def test_an_inner_join_that_is_a_result_is_looked_through() -> None:
    """Only the argument is copied into the outer one."""

    def f(a, b):
        inner = fw.concat([soft(a), soft(b)])
        return fw.concat([inner, a]), inner

    p = checked(f, X, X)
    assert [x.role for x in p.host.launches] == ["kernel", "kernel", "copy"]
    assert p.host.stats["bytes_copied"] == 24 * 40 * 4


def test_a_value_of_one_element_that_two_kernels_read() -> None:
    """Its reads are boxes without axes."""

    def f(a: Any) -> Any:
        m = fw.mean(a, keepdims=True)
        return fw.pad(fw.repeat(m, 3)[:-1], ((1, 0),)), fw.max(m, keepdims=True)

    checked(f, S((12,), "bfloat16"))
