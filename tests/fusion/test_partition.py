"""Partitions: which element lies where, what they are chosen from, and what is no partition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import fusewright as fw
from fusewright.errors import SpecError
from fusewright.forms import prepare
from fusewright.fusion import build
from fusewright.fusion.ir import Fusion, Parts, Reduce, Tensor, topological
from fusewright.fusion.partition import Partition
from fusewright.fusion.partitioning import (
    BYTES_PER_ROW,
    PartitionFacts,
    beside_rows,
    divisors,
    held_of,
    in_chunks,
    number_of_rows,
    number_of_runs,
    of_line,
    to_fill,
    whole_slices,
)
from fusewright.fusion.persistent_rows import RowRegisters
from fusewright.fusion.row_alignment import lanes_of_word
from fusewright.fusion.text import parse_fusion
from fusewright.target import target_of

TARGET = target_of("sm_90a")


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    size = draw(st.integers(1, 60))
    count, each = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    each = max(each, -(-size // count))
    is_interleaved = draw(st.booleans())
    packs = [n for n in range(1, each + 1) if each % n == 0] if is_interleaved else [1]
    return Partition(size, count, each, is_interleaved, draw(st.sampled_from(packs)))


def parts_of(fusion: Fusion) -> list[Partition]:
    return [t.op.partition for t in fusion.values if isinstance(t.op, Parts)]


def cut(x: np.ndarray, p: Partition, fill: float = -1.0) -> np.ndarray:
    """The parts of a vector by the oracle, a row each."""
    fusion = fw.trace(lambda x: fw.exp(x), fw.TensorSpec(x.shape, "float32"))
    out = build.parts(fusion.inputs[0], (0,), p, fill)
    out.name = "parts"
    (found,) = fw.evaluate(Fusion(fusion.inputs, (out,), (*fusion.inputs, out)), x)
    return np.moveaxis(found, p.part_axis, 0).reshape(p.count, p.each)


# --- the value ----------------------------------------------------------------------------------


@given(partitions())
def test_every_element_lies_in_one_part_in_order(p: Partition) -> None:
    found = cut(np.arange(p.size, dtype=np.float32), p)
    assert found.shape == (p.count, p.each)
    real = found[found >= 0]
    assert sorted(real) == list(range(p.size))
    for row in found:
        own = row[row >= 0]
        assert list(own) == sorted(own) and (row[: len(own)] >= 0).all()
    for k in range(1, p.each):
        is_next = not p.is_interleaved or k % p.pack
        step = 1 if is_next else (p.count - 1) * p.pack + 1
        assert all(row[k] - row[k - 1] == step for row in found if row[k] >= 0)


@given(partitions())
def test_parts_have_the_lengths_they_say(p: Partition) -> None:
    found = cut(np.arange(p.size, dtype=np.float32), p)
    assert [int((row >= 0).sum()) for row in found] == [p.length(k) for k in range(p.count)]
    assert p.missing == int((found < 0).sum()) and p.is_even == (p.missing == 0)


@given(st.integers(1, 400), st.integers(1, 40))
def test_interleaved_parts_differ_by_one_element_at_most(size: int, count: int) -> None:
    p = Partition.by_count(size, count, is_interleaved=True)
    lengths = [p.length(k) for k in range(count)]
    assert max(lengths) - min(lengths) <= 1 and sum(lengths) == size and max(lengths) == p.each


@given(st.integers(1, 400), st.integers(1, 40))
def test_runs_by_length_leave_only_the_last_one_short(size: int, each: int) -> None:
    p = Partition.by_length(size, each)
    lengths = [p.length(k) for k in range(p.count)]
    assert lengths[:-1] == [each] * (p.count - 1) and 0 < lengths[-1] <= each
    assert sum(lengths) == size


def test_the_axes_are_in_the_order_of_the_elements() -> None:
    runs, dealt = Partition(10, 3, 4), Partition(10, 3, 4, is_interleaved=True)
    assert [str(n) for n in runs.shape] == ["3", "4"] and runs.part_axis == 0
    assert [str(n) for n in dealt.shape] == ["4", "3"] and dealt.part_axis == 1
    np.testing.assert_array_equal(cut(np.arange(10.0, dtype="f4"), runs)[1], [4, 5, 6, 7])
    np.testing.assert_array_equal(cut(np.arange(10.0, dtype="f4"), dealt)[1], [1, 4, 7, -1])
    packs = Partition(10, 3, 4, is_interleaved=True, pack=2)
    assert [str(n) for n in packs.shape] == ["2", "3", "2"] and packs.place_axes == (0, 2)
    np.testing.assert_array_equal(cut(np.arange(10.0, dtype="f4"), packs)[1], [2, 3, 8, 9])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((10, 3, 3), r"count=3, each=3.*: 3 parts of 3 hold fewer elements"),
        ((0, 1, 1), "a partition has elements, parts and places in them"),
        ((10, 0, 10), "a partition has elements, parts and places in them"),
        ((10, 10, -1), "a partition has elements, parts and places in them"),
        ((10, 3, 4, True, 3), "3 places are no pack of interleaved 4"),
        ((10, 3, 4, True, 0), "0 places are no pack of interleaved 4"),
        ((10, 3, 4, False, 2), "2 places are no pack of interleaved 4"),
    ],
)
def test_rejects_parts_that_do_not_hold_all(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Partition(*numbers)


# --- the op -------------------------------------------------------------------------------------

TEXT = """x: float32[2, 3, 5] = Input(strides=(15, 5, 1), alignment=16)
p: float32[2, 4, 5] = Parts(x, {})
return p"""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "axes=(0, 2), partition=Partition(size=10, count=2, each=5), fill=0.0",
            r"axes \(0, 2\) are no run of axes",
        ),
        ("axes=(), partition=Partition(size=1, count=1, each=1), fill=0.0", "are no run of axes"),
        (
            "axes=(2, 3), partition=Partition(size=10, count=2, each=5), fill=0.0",
            "axis 3 is outside rank 3",
        ),
        (
            "axes=(0, 1), partition=Partition(size=8, count=2, each=4), fill=0.0",
            "its axes must have the 8 elements that are cut in parts",
        ),
        (
            "axes=(0, 1), partition=Partition(size=6, count=4, each=2), fill=0.0",
            r"its shape must be \(4, 2, 5\)",
        ),
        ("axes=(0, 1), partition=Partition(size=6, count=2, each=2), fill=0.0", "hold fewer"),
        ("axes=(0, 1), partition=6, fill=0.0", "'6' is no Partition"),
        ("axes=(0, 1), partition=Partition(6, 2, 3), fill=0.0", "is no Partition"),
        ("axes=(0, 1), partition=Partition(size=6, parts=2), fill=0.0", "parts"),
        ("axes=(0, 1), partition=Partition(size=n, count=2, each=3), fill=0.0", "no.* literal"),
    ],
)
def test_rejects_parts_that_do_not_fit(fields: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_fusion(TEXT.format(fields))


@pytest.mark.parametrize("fill", ["0.0", "-inf", "nan", "2.5"])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_parts_print_as_text_that_parses_back(fill: str, is_interleaved: bool) -> None:
    each, count = (2, 4) if is_interleaved else (4, 2)
    partition = f"Partition(size=6, count={count}, each={each}, is_interleaved={is_interleaved}"
    text = TEXT.format(f"axes=(0, 1), partition={partition}, pack=1, is_strip=False), fill={fill}")
    parsed = parse_fusion(text)
    assert str(parsed) == text
    x = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    (got,) = fw.evaluate(parsed, x)
    padded = np.concatenate([x.reshape(6, 5), np.full((2, 5), float(fill), np.float32)])
    np.testing.assert_array_equal(got, padded.reshape(2, 4, 5))


@settings(max_examples=25, deadline=None)
@given(partitions(), st.sampled_from(["add", "max"]), st.booleans())
def test_kernels_read_parts_as_the_oracle_does(p: Partition, fn: str, is_of_parts: bool) -> None:
    """Around other axes, through a function, with a fill that shows."""
    shape = (3, p.size, 2)
    fusion = fw.trace(lambda x: fw.exp(x), fw.TensorSpec(shape, "float32"))
    reduced = p.place_axes if is_of_parts else (p.part_axis,)
    axes = tuple(1 + a for a in reduced)
    out = build.reduce(fn, build.parts(fusion.outputs[0], (1,), p, 0.5), axes)
    values = topological((out,), fusion.inputs)
    for k, t in enumerate(values):
        t.name = f"v{k}"
    whole = Fusion(fusion.inputs, (out,), values)
    x = np.random.default_rng(p.size).standard_normal(shape).astype(np.float32)
    result = fw.compile(whole).simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(whole, x)[0], rtol=1e-5, atol=1e-5)


# --- the choice ---------------------------------------------------------------------------------


def test_runs_divide_and_follow_whole_axes() -> None:
    assert number_of_runs([64, 56, 56], 784) == 896
    assert number_of_runs([1 << 28], 264) == 256
    assert number_of_runs([7], 1) == 1
    assert number_of_runs([100003], 30) == 30  # a prime: the last run is short
    assert number_of_runs([41575, 768], 264) == 256
    assert number_of_runs([41575, 768], 264, lanes=4) == 240, "all runs begin with a vector"
    assert number_of_runs([2 * 100003], 264, lanes=4) == 264


@pytest.mark.parametrize(
    ("lengths", "wanted", "period", "count"),
    [
        ([4096], 4, 1, 4),
        ([4096], 5, 4, 4),
        ([4099], 5, 4, 4),  # parts differ by a row
        ([7, 12], 20, 4, 12),  # 28 divides, but not in whole slices
        ([4099], 3, 8, 3),  # none that keeps vectors aligned is near
        ([4099], 6, 8, 8),
        ([4, 1111], 4, 2, 1),  # 2 and 4 divide, but not in whole slices
        ([3], 2, 1, 3),
    ],
)
def test_rows_are_interleaved_over_a_divisor_near_or_any_number(
    lengths: list[int], wanted: int, period: int, count: int
) -> None:
    assert number_of_rows(lengths, wanted, period, 1.0) == count


def test_parts_beside_rows_are_never_more_than_blocks() -> None:
    for size in (700, 4099, 8192, 100_000):
        facts = PartitionFacts((size,), 1024, 1024, 1024, 2, is_inner=False)
        for sums in range(0, 300, 7):
            held = RowRegisters((2,), (), sums)
            blocks = held.blocks(1024)
            found = beside_rows(facts, held, 1024, TARGET)
            assert found is None or found.count <= blocks * TARGET.multiprocessors
            assert found is None or (found.is_interleaved and 4 * found.count <= size)
            assert found is not None or not blocks


def test_one_part_has_all_rows_where_kept_axes_have_enough_rows_under_way() -> None:
    held = RowRegisters((2,), (), 1)
    several = held.fewest_blocks(1024) * TARGET.multiprocessors // 2
    assert held.blocks(1024) >= 3 * held.fewest_blocks(1024)
    for kept, count in ((several - 1, 6), (several, 1)):
        facts = PartitionFacts((24,), kept * 1024, 1024, 1024, 2, is_inner=False)
        found = beside_rows(facts, held, 1024, TARGET, may_be_whole=True)
        assert found is not None and (found.count, found.each) == (count, -(-24 // count))
    assert beside_rows(facts, RowRegisters((), (), 1), 1024, TARGET, may_be_whole=True) is None
    again = beside_rows(facts, held, 1024, TARGET)
    assert again is not None and again.count == 6
    few = PartitionFacts((2,), 66 * 1024, 1024, 1024, 2, is_inner=False)
    assert beside_rows(few, held, 1024, TARGET) is None
    assert beside_rows(few, held, 1024, TARGET, may_be_whole=True) == Partition(
        2, 1, 2, is_interleaved=True
    )


@pytest.mark.parametrize(
    ("length", "nbytes", "sums", "apart", "pack"),
    [
        (5, 4, 1, 5, 256),
        (5, 2, 1, 5, 512),
        (6, 4, 1, 6, 256),
        (8, 4, 1, 8, 16),
        (13, 4, 1, 13, 256),
        (23, 4, 1, 23, 1),
        (13, 4, 8, 13, 1),
        (5, 4, 1, 7, 1),
    ],
    ids=["odd", "of halves", "no words", "words", "long", "too long", "many sums", "apart"],
)
def test_short_rows_of_no_words_are_dealt_in_packs_of_what_threads_take(
    length: int, nbytes: int, sums: int, apart: int, pack: int
) -> None:
    """A pack is whole words, so that no sector belongs to two blocks."""
    facts = PartitionFacts((4_000_037,), length, apart, apart, nbytes, is_inner=False)
    found = beside_rows(facts, RowRegisters((nbytes,), (), sums), length, TARGET)
    assert found is not None and found.pack == pack
    assert pack == 1 or pack * length % lanes_of_word(nbytes) == 0
    fewer = PartitionFacts((200_003,), length, apart, apart, nbytes, is_inner=False)
    dealt = beside_rows(fewer, RowRegisters((nbytes,), (), sums), length, TARGET)
    assert dealt is not None
    if pack > 16:  # all that two blocks on each multiprocessor leave, without a rest
        packs = 200_003 // (2 * TARGET.multiprocessors * pack)
        assert (dealt.pack, dealt.each) == (pack, packs * pack)
        assert dealt.count == -(-200_003 // dealt.each)
    few = PartitionFacts((60_003,), length, apart, apart, nbytes, is_inner=False)
    dealt = beside_rows(few, RowRegisters((nbytes,), (), sums), length, TARGET)
    assert dealt is not None and dealt.pack in (1, 16)


def test_slices_of_a_long_axis_are_found_without_walking_along_it() -> None:
    assert sorted(whole_slices([3, 12], 36)) == [1, 3, 3, 6, 9, 12, 18, 36]
    assert sorted(whole_slices([3, 12], 9)) == [1, 3, 3, 6, 9]
    assert whole_slices([1 << 62], 1 << 12) == [1 << k for k in range(12, -1, -1)]


def test_divisors() -> None:
    for n in (*range(1, 200), 7 * 128_264, 65_537):
        assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
    assert divisors(1 << 62) == [1 << k for k in range(63)]


@pytest.mark.parametrize(
    "facts",
    [
        PartitionFacts((1 << 16,), 1, 1, 1, 4, is_inner=True),  # small
        PartitionFacts((1 << 20,), 4096, 1, 1, 4, is_inner=True),  # blocks enough
        PartitionFacts((512,), 4096, 4096, 4096, 4, is_inner=False),  # few rows
    ],
)
def test_what_needs_no_parts_gets_none(facts: PartitionFacts) -> None:
    assert to_fill(facts, TARGET) is None
    assert of_line(PartitionFacts((16_383,), 1, 1, 1, 4, is_inner=True), TARGET) is None
    small = PartitionFacts((1 << 10,), 1 << 9, 1, 1, 4, is_inner=True)
    assert in_chunks(small, 4, TARGET, is_shifted=False) is None


@pytest.mark.parametrize("nbytes", [2, 4])
def test_parts_begin_where_a_block_alone_takes_longer_than_a_second_kernel(nbytes: int) -> None:
    """Of bytes, not elements: what a multiprocessor reads in the time of a launch."""
    known = TARGET.calibration
    us = known.launch_us + known.start_us + known.memory_latency_us + known.exchange_us
    edge = int(us * known.l2_nbytes_per_clock * TARGET.clock_mhz) // nbytes
    for size, has_parts in ((edge - 64, False), (edge + 64, True)):
        facts = PartitionFacts((size,), 1, 1, 1, nbytes, is_inner=True)
        assert (to_fill(facts, TARGET) is not None) == has_parts


@given(st.integers(1 << 22, 1 << 29), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_no_multiprocessor_has_a_part_more_than_most(size: int, kept: int, nbytes: int) -> None:
    """Blocks that run at once are as long as those of the fullest multiprocessor. Runs that are not
    full all begin with a vector."""
    found = to_fill(PartitionFacts((size,), kept, 1, 1, nbytes, is_inner=True), TARGET)
    assert found is not None
    mean = found.count * kept / TARGET.multiprocessors
    assert mean <= 1 or math.ceil(mean) <= mean / (1 - 1 / 16)
    assert found.is_even or found.each % lanes_of_word(nbytes) == 0


@pytest.mark.parametrize(
    ("lengths", "count"),
    [((11624, 2380, 2), 264), ((149, 1550, 831), 264), ((14, 592, 2, 1381, 3), 518)],
    ids=["not 280", "not 298", "not 224"],
)
def test_even_parts_are_left_for_ones_that_keep_multiprocessors_busy(
    lengths: tuple[int, ...], count: int
) -> None:
    found = to_fill(PartitionFacts(lengths, 1, 1, 1, 2, is_inner=True), TARGET)
    assert found is not None and found.count == count


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 12), st.sampled_from([1, 2, 4, 8]))
def test_no_part_is_empty_or_small(size: int, kept: int, nbytes: int) -> None:
    for inner in (False, True):
        facts = PartitionFacts((size,), kept, 1 if inner else kept, kept, nbytes, inner)
        found = to_fill(facts, TARGET)
        if found is not None:
            assert found.size == size and found.length(0) >= found.each - 1
            assert found.count * (4096 if inner else 256) <= size
            assert found.is_interleaved <= (not inner)


# --- metamorphic --------------------------------------------------------------------------------

Program = Callable[..., Any]


def partitions_of(fn: Program, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Partition]:
    specs = [fw.TensorSpec(s, dtype) for s in shapes]
    return parts_of(prepare(fw.trace(fn, *specs), TARGET))


def backward(y: Any, dy: Any) -> Any:
    rows = fw.sum(y * dy, axis=-1, keepdims=True)
    return y * (dy - rows), fw.sum(dy * y, axis=tuple(range(dy.ndim - 1)))


CASES: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {
    "all": (lambda x: fw.sum(x), ((4096, 1024),)),
    "columns": (lambda x: fw.sum(x, axis=tuple(range(x.ndim - 1))), ((8192, 1000),)),
    "odd columns": (lambda x: fw.sum(x, axis=tuple(range(x.ndim - 1))), ((8190, 999),)),
    "beside rows": (backward, ((4096, 520), (4096, 520))),
    "variance": (lambda x: fw.var(x, axis=tuple(range(x.ndim - 1))), ((16_384, 96),)),
    "logsumexp": (lambda x: fw.nn.log_softmax(x, axis=-1)[:, :1], ((10, 131_072),)),
}


@pytest.mark.parametrize("name", CASES)
def test_names_do_not_change_a_partition(name: str) -> None:
    fn, shapes = CASES[name]

    def renamed(*args: Any) -> Any:
        return fn(*(fw.name(a * 1.0, f"sum_{k}") for k, a in enumerate(args)))

    assert partitions_of(fn, *shapes) and partitions_of(renamed, *shapes) == partitions_of(
        fn, *shapes
    )


@pytest.mark.parametrize("name", ["columns", "odd columns", "beside rows", "variance"])
@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_axes_of_size_one_do_not_change_a_partition(name: str, lead: tuple[int, ...]) -> None:
    fn, shapes = CASES[name]
    wider = [(*lead, *s) for s in shapes]
    assert partitions_of(fn, *wider) == partitions_of(fn, *shapes) != []


@pytest.mark.parametrize("name", ["all", "columns", "odd columns", "beside rows", "variance"])
def test_splitting_contiguous_axes_does_not_change_a_partition(name: str) -> None:
    """Rows on two axes instead of one, where the number of parts is no slice of the rows."""
    fn, shapes = CASES[name]
    plain = partitions_of(fn, *shapes)
    apart = partitions_of(fn, *[(2, s[0] // 2, *s[1:]) for s in shapes])
    assert plain == apart != []


@pytest.mark.parametrize("name", ["columns", "odd columns"])
def test_merging_contiguous_axes_in_the_program_does_not_change_a_partition(name: str) -> None:
    fn, ((rows, columns),) = CASES[name]

    def merged(x: Any) -> Any:
        return fn(fw.reshape(x, (rows, columns)))

    assert partitions_of(merged, (2, rows // 2, columns)) == partitions_of(fn, (rows, columns))


def test_the_fast_axis_is_that_of_memory() -> None:
    """Not of the value: what is transposed before it is reduced, and arguments with strides."""
    turned = partitions_of(lambda x: fw.sum(fw.exp(x.T), axis=1), (8192, 1000))
    assert turned == partitions_of(lambda x: fw.sum(fw.exp(x), axis=0), (8192, 1000)) != []
    spec = fw.TensorSpec((64, 4096), "float32", strides=(1, 64))
    (t,) = (t for t in fw.trace(lambda x: fw.sum(x, axis=1), spec).values if _is_sum(t))
    facts = PartitionFacts.of(t.op.operands[0], (1,))
    assert facts is not None and not facts.is_inner


def _is_sum(t: Tensor) -> bool:
    return isinstance(t.op, Reduce)


def test_bytes_are_those_of_memory() -> None:
    """Through casts and reshapes: how many rows begin alike follows from what is stored."""

    def fn(x: Any) -> Any:
        return fw.sum(fw.reshape(fw.astype(x, fw.float32), (4096, 520)), axis=0)

    (t,) = (
        t
        for t in fw.trace(fn, fw.TensorSpec((64, 64, 520), "bfloat16")).values
        if isinstance(t.op, Reduce)
    )
    facts = PartitionFacts.of(t.op.operands[0], (0,))
    assert facts is not None and facts.nbytes == 2


@pytest.mark.parametrize("shape", [("n", 64), (0, 64)])
def test_there_are_no_facts_of_sizes_that_are_unknown_or_empty(shape: tuple[Any, ...]) -> None:
    fusion = fw.trace(lambda x: fw.exp(x), fw.TensorSpec(shape, "float32"))
    assert PartitionFacts.of(fusion.outputs[0], (0,)) is None


def test_registers_hold_rows_twice_and_shared_vectors_once() -> None:
    fusion = fw.trace(
        lambda a, b, w, s: a + b * w + s,
        *[fw.TensorSpec(s, "float32") for s in ((64, 512), (64, 512), (512,), (64, 1))],
    )
    held = held_of(fusion.inputs, 64 * 512, 512, 3)
    assert held.moving == (4, 4) and held.shared == (4,) and held.words == 3 + 4 + 1
    assert held.blocks(512) > 0 and held.blocks(1 << 16) == 0
    assert held_of([], 64, 8, 1).blocks(8) == 0
    assert math.isclose(held_of(fusion.inputs[:1], 64 * 512, 512, 1).words, 3)


def test_what_is_gathered_from_tells_nothing_of_the_places_it_is_gathered_to() -> None:
    """One element of each row: the rows are the only axis, and a large tensor is behind them."""
    specs = [fw.TensorSpec((1 << 20, 128), "float32"), fw.TensorSpec((1 << 20, 1), "int64")]

    def fn(x: Any, i: Any) -> Any:
        return fw.sum(fw.take_along_axis(x, i, axis=1)[:, 0])

    found = parts_of(prepare(fw.trace(fn, *specs), TARGET))
    assert found and not found[0].is_interleaved


def test_even_parts_are_one_value_whatever_they_would_be_filled_with() -> None:
    both = partitions_of(lambda x: (fw.max(x), fw.min(x)), (8192, 256))
    assert len(both) == 1 and both[0].is_even
    odd = partitions_of(lambda x: (fw.max(x), fw.min(x)), (100_003, 11))
    assert len(odd) == 2 and not odd[0].is_even


@pytest.mark.parametrize(("columns", "nbytes"), [(6, 4), (2, 4), (20, 2)])
def test_few_columns_have_no_more_chunks_than_a_small_kernel_combines(
    columns: int, nbytes: int
) -> None:
    """Two blocks of short rows side by side for every multiprocessor, not of whole ones."""
    facts = PartitionFacts((1351190,), columns, columns, columns, nbytes, is_inner=False)
    found = in_chunks(facts, nbytes, TARGET, is_shifted=True)
    assert found is not None
    row = found.count * columns * nbytes
    assert TARGET.multiprocessors * BYTES_PER_ROW < 2 * row < 4 * TARGET.multiprocessors * 512


@pytest.mark.parametrize("lengths", [(1, 228, 8, 34536), (1001, 62937), (256, 246069 * 3)])
def test_runs_of_a_reduction_are_whole_vectors_or_slices(lengths: tuple[int, ...]) -> None:
    """Even runs of an odd length would be read element by element."""
    x = fw.trace(lambda x: x + 1, fw.TensorSpec(lengths, "float32")).outputs[0]
    facts = PartitionFacts.of(x, range(len(lengths)))
    assert facts is not None
    cut = to_fill(facts, TARGET)
    assert cut is not None and cut.count > 1
    assert cut.each % 4 == 0 or lengths[-1] % cut.each == 0
