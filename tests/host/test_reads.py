"""A launch binds what it reads of a value, and no more: against bytes counted one by one."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from host_runs import run_on_bytes

import fusewright as fw
from fusewright.core.expr import Expr
from fusewright.core.substitution import evaluate
from fusewright.fusion.passes.hoist_crops import hoist_crops
from fusewright.host.accesses import bound, overlaps
from fusewright.host.graph import ancestors
from fusewright.host.ir import Binding, RootKind

S = fw.TensorSpec
X = S((24, 40), "float32")


def soft(x):
    return fw.nn.softmax(x, axis=-1)


def compiled(fn, *specs: Any, sizes: dict[str, int] | None = None) -> fw.Program:
    """The program; oracle, simulator and host program on bytes agree."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    rng = np.random.default_rng(0)
    named = [[getattr(e, "name", e) for e in s.shape] for s in specs]
    arrays = [
        rng.standard_normal([(sizes or {}).get(e, e) for e in shape]).astype(s.dtype.numpy)
        for s, shape in zip(specs, named, strict=True)
    ]
    wanted = fw.evaluate(fusion, *arrays)
    result = program.simulate(*arrays)
    assert result.races == []
    for outputs in (result.outputs, run_on_bytes(program, *arrays)):
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return program


def reads(p: fw.Program, launch: int = 0) -> list[tuple[str, str]]:
    """The ranges of bytes that a launch reads."""
    bindings = [b for b in p.host.launches[launch].bindings if not b.access.writes]
    return [(str(b.offset), str(b.offset + b.nbytes)) for b in bindings]


def test_a_slice_of_rows_is_its_range_of_bytes() -> None:
    p = compiled(lambda x: soft(x[3:9]), X)
    assert reads(p) == [(str(3 * 160), str(9 * 160))]
    assert p.host.stats["bytes_moved"] == 2 * 6 * 160


def test_a_slice_of_columns_is_a_box() -> None:
    p = compiled(lambda x: x[2:5, 8:16] * 2, X)
    (b, _) = p.host.launches[0].bindings
    assert reads(p) == [(str(2 * 160 + 32), str(4 * 160 + 64))]
    assert b.box is not None and [str(e) for e in b.box.extent] == ["3", "8"]
    assert str(b.content) == str(3 * 8 * 4), "without the holes"


def test_parts_far_apart_are_bindings_of_their_own() -> None:
    p = compiled(lambda x: x[:1] - x[20:21], X)
    assert reads(p) == [("0", "160"), (str(20 * 160), str(21 * 160))]


def test_parts_that_overlap_or_touch_share_a_binding() -> None:
    assert reads(compiled(lambda x: x[2:] - x[1:-1], X)) == [("160", "3840")]
    assert reads(compiled(lambda x: x[:, :8] * x[:, 8:16], X)) == [("0", str(23 * 160 + 64))]


def test_a_shared_binding_holds_no_byte_outside_of_what_is_read() -> None:
    """The box of a cross has corners that nobody reads."""
    p = compiled(lambda x: x[:3, 1:2] + fw.reshape(x[1:2, :3], (3, 1)), S((3, 3), "float32"))
    assert reads(p) == [("4", "32"), ("12", "24")]


def test_who_reads_all_binds_all_once() -> None:
    assert reads(compiled(lambda x: x[1:2] + x, X)) == [("0", "3840")]


def test_slices_behind_views_are_found() -> None:
    assert reads(compiled(lambda x: x.T[5:9] * 2, X)) == [("20", str(23 * 160 + 36))]
    p = compiled(lambda x: fw.reshape(x, (24, 5, 8))[:, 1] * 2, X)
    assert reads(p) == [("32", str(23 * 160 + 64))]
    p = compiled(lambda x: fw.broadcast_to(x, (3, 24, 40))[1:2, 4:6] * 2, X)
    assert reads(p) == [(str(4 * 160), str(6 * 160))]
    p = compiled(lambda x: fw.reshape(x.T[8:16], (1, 8, 2, 12))[:, 1:3] * 2, X)
    assert reads(p) == [("36", str(23 * 160 + 44))]


def test_a_slice_across_what_a_reshape_joined_stays_behind_it() -> None:
    fusion = fw.trace(lambda x: fw.reshape(x, (960,))[30:50] * 2, X)
    assert hoist_crops(fusion) is fusion
    fusion = fw.trace(lambda x: fw.reshape(x, (24, 5, 8))[:, 1:3, 2:4] * 2, X)
    assert hoist_crops(fusion) is fusion, "no box of x holds these and no others"
    assert reads(compiled(lambda x: fw.reshape(x, (960,))[30:50] * 2, X)) == [("0", "3840")]


def test_equal_slices_at_other_offsets_share_a_kernel() -> None:
    p = compiled(lambda x: [soft(part) for part in (x[:6], x[6:12], x[12:18], x[18:])], X)
    assert len(p.kernels) == 1 and p.host.stats["launches"] == 4


def test_alignment_follows_the_offset() -> None:
    """Rows of 40 floats: from an even column on two fit a vector, from an odd one none do."""
    for column, alignment in ((4, 16), (2, 8), (1, 4)):
        p = compiled(lambda x, c=column: x[:, c : c + 4] * 2, X)
        assert p.kernels[0].ir.params[0].alignment == alignment
        (b, _) = p.host.launches[0].bindings
        assert evaluate(b.offset, {}) % alignment == 0


def test_symbolic_offsets_are_numbers_of_the_call() -> None:
    x = S((fw.Sym("n", min=4), 8), "float32")
    p = compiled(lambda x: (soft(x[:-3]), x[-3:] * 2), x, sizes={"n": 9})
    assert reads(p, 0) == [("0", "32*n - 96")]
    assert reads(p, 1) == [("32*n - 96", "32*n")]


def test_writers_and_readers_of_other_parts_have_no_edge() -> None:
    def f(x, y, z):
        c = fw.concat([soft(x), soft(y)], axis=0)
        return c, fw.cumulative_sum(c[:24] + z, axis=0), fw.cumulative_prod(c[24:], axis=0)

    p = compiled(f, X, X, X)
    edges = [(e.producer, e.consumer, e.kind.value) for e in p.host.edges]
    assert edges == [(0, 2, "RAW"), (1, 3, "RAW")]


# --- against bytes ------------------------------------------------------------------------------


def touched(offset: int, box: list[tuple[int, int]], steps: list[int], size: int) -> set[int]:
    """The bytes of a box, one element after the other."""
    places = product(*(range(start, start + extent) for start, extent in box))
    firsts = (offset + sum(i * s for i, s in zip(at, steps, strict=True)) for at in places)
    return {first + k for first in firsts for k in range(size)}


def bytes_of(b: Binding) -> set[int]:
    """The bytes that a binding says it may touch."""
    start, nbytes = evaluate(b.offset, {}), evaluate(b.nbytes, {})
    if b.box is None:
        return set(range(start, start + nbytes))
    steps = [evaluate(e, {}) for e in b.box.step]
    box = [
        (evaluate(s, {}), evaluate(n, {})) for s, n in zip(b.box.start, b.box.extent, strict=True)
    ]
    inside = touched(evaluate(b.box.base, {}), box, steps, min(steps))
    assert (min(inside), max(inside) + 1) == (start, start + nbytes), "the hull is the least one"
    return inside


@pytest.mark.parametrize("seed", range(40))
def test_random_slices_bind_the_bytes_they_read(seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randrange(2, 7) for _ in range(rng.randrange(1, 4))]
    pieces: list[list[tuple[int, int]]] = []
    extent = [rng.randrange(1, n + 1) for n in shape]
    for _ in range(rng.randrange(1, 4)):
        pieces.append([(rng.randrange(n - m + 1), m) for n, m in zip(shape, extent, strict=True)])

    def f(x):
        parts = [x[tuple(slice(a, a + m) for a, m in p)] for p in pieces]
        return fw.exp(sum(parts[1:], start=parts[0]))

    order = rng.sample(range(len(shape)), len(shape))
    steps = [0] * len(shape)
    pitch = 4
    for a in reversed(order):
        steps[a] = pitch
        pitch *= shape[a] + rng.randrange(2)
    strides = tuple(s // 4 for s in steps)
    p = compiled(f, S(tuple(shape), "float32", strides=strides))
    bound = [b for b in p.host.launches[0].bindings if b.root.kind is RootKind.INPUT]
    for b in bound:
        assert b.box is None or evaluate(b.content, {}) == len(bytes_of(b))
    covered = set().union(*map(bytes_of, bound))
    wanted = [touched(0, piece, steps, 4) for piece in pieces]
    assert set().union(*wanted) <= covered, seed
    hulls = {(evaluate(b.offset, {}), evaluate(b.offset + b.nbytes, {})) for b in bound}
    ends = {min(w) for w in wanted}, {max(w) + 1 for w in wanted}
    assert all(low in ends[0] and high in ends[1] for low, high in hulls), "no hull is too large"


@pytest.mark.parametrize("seed", range(200))
def test_overlap_of_boxes_against_bytes(seed: int) -> None:
    """Never apart when a byte is common; boxes of one pitch meet only when one is."""
    rng = random.Random(seed)
    shape = [rng.randrange(1, 6) for _ in range(2)]

    def f(x):
        boxes = [[sorted(rng.sample(range(n + 1), 2)) for n in shape] for _ in range(2)]
        parts = [x[tuple(slice(a, b) for a, b in box)] for box in boxes]
        return tuple(fw.exp(fw.reshape(p, (-1,))) for p in parts)

    p = fw.compile(fw.trace(f, S(tuple(shape), "float32")))
    bindings = [b for x in p.host.launches for b in x.bindings if b.root.kind is RootKind.INPUT]
    for a, b in product(bindings, bindings):
        assert overlaps(bound(0, a), bound(1, b)) is bool(bytes_of(a) & bytes_of(b)), seed


def test_symbolic_slices_against_bytes() -> None:
    """What is bound under every size is what is read under it."""

    def f(x):
        return soft(x[2:-1, 1:]), fw.exp(x[:2])

    p = fw.compile(fw.trace(f, S((fw.Sym("n", min=4), 6), "float32")))
    (n,) = p.fusion.symbols
    for size in (4, 5, 9):
        values: dict[Expr, int] = {n: size}
        found = [b for x in p.host.launches for b in x.bindings if b.root.kind is RootKind.INPUT]
        ranges = [
            (evaluate(b.offset, values), evaluate(b.offset + b.nbytes, values)) for b in found
        ]
        assert ranges == [(2 * 24 + 4, (size - 1) * 24), (0, 48)]


def halves(a, b, g):
    joined = fw.concat([soft(a), soft(b)], axis=1)
    return g(joined[:, :96]), g(joined[:, 96:])


def test_halves_of_joins_that_follow_each_other_in_the_arena() -> None:
    """Parts of one value and of the next one in its bytes are compared as bytes: whoever writes
    there waits for whoever reads."""

    def around(s):
        q = soft(s)
        return q * fw.sum(fw.cumulative_sum(q, axis=1), axis=1, keepdims=True)

    def f(s, a, b, c, d):
        first = halves(a, b, lambda x: fw.sum(x * 2, axis=0))
        second = halves(c, d, lambda x: fw.cumulative_sum(x, axis=0))
        return around(s * 2.0), first, around(s * 3.0), second

    specs = [S((1, 64), "float32"), *[S((5, 96), "float32")] * 4]
    program = fw.compile(fw.trace(f, *specs))
    launches, edges = program.host.launches, program.host.edges
    before = ancestors(edges, len(launches))
    late = [
        (p, c)
        for c, x in enumerate(launches)
        for p, y in enumerate(launches[:c])
        for b, a in product(x.bindings, y.bindings)
        if a.root is b.root and a.root.kind is RootKind.ARENA and bytes_of(a) & bytes_of(b)
        if (a.access.writes or b.access.writes) and not before[c] >> p & 1
    ]
    assert late == []


def test_edges_follow_the_write_that_a_read_sees() -> None:
    """Data flows from the writers of pieces to the readers of the whole, in one memory."""
    program = fw.compile(fw.trace(lambda a, b: halves(a, b, fw.flip), X, X))
    assert {e.kind.value for e in program.host.edges} == {"RAW"}


def test_an_index_map_is_the_box_that_it_reaches_over() -> None:
    p = compiled(lambda x: fw.flip(x[3:9], axis=0) + 1, X)
    assert reads(p) == [(str(3 * 160), str(9 * 160))]
    p = compiled(lambda x: x[4:20:4, 3:30:3] + 1, X)
    assert reads(p) == [(str(4 * 160 + 12), str(16 * 160 + 28 * 4))]
    for whole in (lambda x: x[1::2] + 1, lambda x: fw.roll(x[1:], 3, axis=1) + x[1:]):
        compiled(whole, X)
    assert reads(compiled(lambda x: x[1::2] + x[::2], X)) == [("0", "3840")]
    n = S((fw.Sym("n", min=12), 40), "float32")
    compiled(lambda x: fw.flip(x[3:-2], axis=0)[::3] * 2, n, sizes={"n": 23})


def test_an_index_map_does_not_wait_for_what_it_does_not_reach() -> None:
    def f(x, y):
        joined = fw.concat([soft(x), soft(y)], axis=0)
        return joined, fw.cumulative_sum(fw.flip(joined[24:], axis=0) * 2, axis=0)

    host = compiled(f, X, X).host
    assert len(host.launches) == 3
    assert [(e.producer, e.consumer, e.kind.value) for e in host.edges] == [(1, 2, "RAW")]


@pytest.mark.parametrize("n", [3, 6, 7, 15])
def test_a_map_that_a_size_leaves_empty_reads_no_less_than_nothing(n: int) -> None:
    """The step of three begins behind the sixth element, which the array may not have."""

    def every_third(x):
        return fw.diagonal(fw.stack([x] * 4, axis=1), offset=6)[:, ::-3]

    compiled(every_third, S((33, "n"), "int16"), sizes={"n": n})
