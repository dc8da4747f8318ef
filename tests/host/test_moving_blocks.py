"""Blocks at positions that only the device knows are written alone, into memory that is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import ZERO, Int
from fusewright.errors import ScheduleError, SpecError
from fusewright.fusion.ir import position
from fusewright.fusion.text import parse_fusion
from fusewright.host.ir import EdgeKind
from fusewright.host.moving import with_places
from fusewright.host.subspans import Moving, natural

S = fw.TensorSpec
RNG = np.random.default_rng(1601)
PLACES = (-3, 0, 5, 13, 100, 2**31 - 1)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def appended(
    fn: Callable[..., Any],
    calls: Sequence[Sequence[np.ndarray]],
    donate: Sequence[str] = ("c",),
    tolerance: float = 0.0,
) -> fw.Program:
    """The program of a function, which gives what the oracle does at every call, without races."""
    fusion = fw.trace(fn, *(S(np.shape(a), a.dtype.name) for a in calls[0]))
    assert str(parse_fusion(str(fusion))) == str(fusion)
    program = fw.compile(fusion, donate=donate)
    for arrays in calls:
        result = program.simulate(*arrays)
        assert result.races == []
        for found, want in zip(result.outputs, fw.evaluate(fusion, *arrays), strict=True):
            np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)
    return program


def at(k: int, dtype: str = "int32") -> np.ndarray:
    return np.asarray(k, dtype)


def moved(program: fw.Program) -> tuple[int, int]:
    """Launches, and bytes that they read and write."""
    return program.host.stats["launches"], program.host.stats["bytes_moved"]


def test_only_the_block_is_written() -> None:
    def fn(c, v, s):
        return fw.insert(c, v * 2, (s, 0))

    calls = [(draw(64, 8), draw(3, 8), at(k)) for k in PLACES]
    program = appended(fn, calls)
    assert moved(program) == (1, 2 * 3 * 8 * 4 + 4)  # of 2,048 bytes that the array has
    for c, v, s in calls:
        want, k = c.copy(), min(max(int(s), 0), 61)
        want[k : k + 3] = v * 2
        assert np.array_equal(program.simulate(c, v, s).outputs[0], want)
    (_, written) = program.host.launches[0].bindings[1:]
    assert written.anywhere and not written.total and written.root.name == "c"
    assert any("from (s, 0) on, which the device knows" in r.rule for r in program.reasons)
    assert fw.verify(program).missing == []


@pytest.mark.parametrize("donate", [(), ("c",)])
def test_the_array_is_copied_where_it_is_not_given(donate: tuple[str, ...]) -> None:
    calls = [(draw(64, 8), draw(3, 8), at(k)) for k in PLACES[:3]]
    program = appended(lambda c, v, s: fw.insert(c, v * 2, (s, 0)), calls, donate)
    assert (moved(program)[1] < 64 * 8 * 4) == bool(donate)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "uint64"])
def test_positions_of_every_dtype(dtype: str) -> None:
    calls = [(draw(50), draw(7), at(k, dtype)) for k in (0, 9, 100)]
    appended(lambda c, v, s: fw.insert(c, v, (s,)), calls)


def test_sums_of_positions_take_no_launch() -> None:
    calls = [(draw(16, 8), draw(3, 8), at(k), at(2, "int64")) for k in PLACES[:5]]
    program = appended(lambda c, v, s, r: fw.insert(c, v, (s + r - 1, 0)), calls)
    assert moved(program)[0] == 1


def test_a_narrow_sum_wraps_as_it_does_elsewhere() -> None:
    calls = [(draw(300), draw(7), at(k, "uint8")) for k in (0, 255)]
    program = appended(lambda c, v, s: fw.insert(c, v, (s + fw.asarray(2, dtype="uint8"),)), calls)
    want = calls[1][0].copy()
    want[1:8] = calls[1][1]
    assert np.array_equal(program.simulate(*calls[1]).outputs[0], want)


def test_several_axes_beside_known_places() -> None:
    calls = [
        (draw(7, 9, 16), draw(2, 3, 5), at(k), at(j, "int64")) for k in PLACES[:5] for j in (0, 4)
    ]
    program = appended(lambda c, v, s, r: fw.insert(c, v, (s, 2, r)), calls)
    assert moved(program)[0] == 1


def test_blocks_of_what_kernels_compute() -> None:
    softmax = [(draw(64, 1000), draw(3, 1000), at(k)) for k in PLACES[:3]]
    program = appended(
        lambda c, v, s: fw.insert(c, fw.nn.softmax(v, -1), (s, 0)), softmax, tolerance=1e-5
    )
    assert moved(program) == (1, 2 * 3 * 1000 * 4 + 4)
    heads = [(draw(4, 32, 8), draw(2, 4, 8), at(k)) for k in PLACES[:3]]
    program = appended(
        lambda c, v, s: fw.insert(c, fw.permute_dims(v, (1, 0, 2)), (0, s, 0)), heads
    )
    assert moved(program)[0] == 1
    constant = [(draw(16, 8), at(k)) for k in PLACES]
    assert moved(appended(lambda c, s: fw.insert(c, fw.zeros((3, 8)), (s, 0)), constant))[0] == 1


def test_a_product_stores_its_block_without_boxes() -> None:
    specs = S((256, 128), "bfloat16"), S((64, 64), "bfloat16"), S((64, 128), "bfloat16")
    fusion = fw.trace(lambda c, x, w, s: fw.insert(c, x @ w, (s, 0)), *specs, S((), "int32"))
    program = fw.compile(fusion, donate=("c",))
    (kernel,) = program.kernels
    assert len(program.launches) == 1
    assert {m.buffer.name for m in kernel.ir.maps} <= {"x", "w"}
    arrays = [draw(*map(int, s.shape)).astype(s.dtype.numpy) for s in specs]
    result = program.simulate(*arrays, at(77))
    assert result.races == []
    want = fw.evaluate(fusion, *arrays, at(77))[0]
    np.testing.assert_allclose(
        result.outputs[0].astype("f4"), want.astype("f4"), rtol=2e-2, atol=0.1
    )


def test_symbolic_sizes() -> None:
    n = fw.Sym("n", min=8)
    fusion = fw.trace(
        lambda c, v, s: fw.insert(c, v * 2, (s, 0)), S((n, 8), "f4"), S((3, 8), "f4"), S((), "i4")
    )
    program = fw.compile(fusion, donate=("c",))
    assert len(program.launches) == 1
    for size in (9, 20):
        for k in PLACES:
            arrays = draw(size, 8), draw(3, 8), at(k)
            result = program.simulate(*arrays)
            assert result.races == []
            assert np.array_equal(result.outputs[0], fw.evaluate(fusion, *arrays)[0])


def test_a_saved_program_writes_the_block(tmp_path: Path) -> None:
    fusion = fw.trace(
        lambda c, v, s: fw.insert(c, v * 2, (s + 1, 0)),
        S((16, 8), "f4"),
        S((3, 8), "f4"),
        S((), "i4"),
    )
    program = fw.compile(fusion, donate=("c",))
    program.save(tmp_path / "p.fw")
    loaded = fw.load(tmp_path / "p.fw")
    assert str(loaded.host) == str(program.host)
    (binding,) = (b for b in loaded.host.launches[0].bindings if b.access.writes)
    assert binding.anywhere


# --- what else touches the array ----------------------------------------------------------------


def test_what_reads_a_part_may_meet_the_block() -> None:
    def fn(c, v, s):
        c = fw.insert(c, v * 2, (s, 0))
        return c, fw.sum(c[:8], axis=0)

    calls = [(draw(16, 8), draw(3, 8), at(k)) for k in PLACES]
    program = appended(fn, calls, tolerance=1e-5)
    (edge,) = program.host.edges
    assert edge.kind is EdgeKind.MAYBE
    assert "the device decides where" in edge.why
    assert program.host.stats["edges"]["maybe"] == 1


def test_what_reads_all_of_it_surely_does() -> None:
    def fn(c, v, s):
        c = fw.insert(c, v * 2, (s, 0))
        return c, fw.sum(c)

    program = appended(fn, [(draw(16, 8), draw(3, 8), at(k)) for k in PLACES], tolerance=1e-5)
    assert [e.kind for e in program.host.edges] == [EdgeKind.RAW]


def test_blocks_over_blocks_keep_their_order() -> None:
    def fn(c, v, w, s):
        return fw.insert(fw.insert(c, v * 2, (s, 0)), w + 1, (s + 2, 0))

    calls = [(draw(16, 8), draw(3, 8), draw(3, 8), at(k)) for k in PLACES]
    program = appended(fn, calls)
    assert moved(program) == (2, 2 * (2 * 96 + 4))
    assert [e.kind for e in program.host.edges] == [EdgeKind.MAYBE]


def test_old_content_is_read_before() -> None:
    def fn(c, v, s):
        return fw.insert(c, v * 2, (s, 0)), fw.sum(c)

    program = appended(fn, [(draw(16, 8), draw(3, 8), at(k)) for k in PLACES], tolerance=1e-5)
    assert [e.kind for e in program.host.edges] == [EdgeKind.WAR]
    assert moved(program)[1] < 2 * 16 * 8 * 4


def test_two_arrays_beside_each_other() -> None:
    def fn(c, d, v, s):
        return fw.insert(c, v * 2, (s, 0)), fw.insert(d, v * 3, (s, 0))

    calls = [(draw(16, 8), draw(16, 8), draw(3, 8), at(k)) for k in PLACES]
    assert moved(appended(fn, calls, ("c", "d"))) == (1, 3 * 96 + 4)


def test_a_block_that_others_read_has_memory_of_its_own() -> None:
    def fn(c, v, s):
        block = fw.exp(v)
        return fw.insert(c, block, (s, 0)), block, fw.sum(block, axis=1)

    calls = [(draw(16, 8), draw(3, 8), at(k)) for k in PLACES]
    assert moved(appended(fn, calls, tolerance=1e-5))[0] == 1


def test_a_position_that_a_kernel_makes() -> None:
    calls = [(draw(16, 8), draw(3, 8), RNG.integers(0, 3, 9).astype("i4")) for _ in range(4)]
    program = appended(lambda c, v, m: fw.insert(c, v * 2, (fw.sum(m), 0)), calls)
    assert moved(program)[0] == 2 and moved(program)[1] < 16 * 8 * 4
    program = appended(lambda c, v, m: fw.insert(c, v * fw.sum(m), (fw.sum(m), 0)), calls)
    assert moved(program)[0] == 2


def test_a_kernel_does_not_read_the_place_that_it_makes() -> None:
    def fn(c, m):
        return fw.insert(c, m * fw.sum(m), (fw.sum(m),))

    calls = [(RNG.integers(0, 9, 64).astype("i4"), RNG.integers(0, 3, 9).astype("i4"))] * 2
    program = appended(fn, calls)
    (why,) = program.host.stats["not_placed"].values()
    assert "the kernel that makes the block makes its place too" in why


@pytest.mark.parametrize(
    ("shape", "block", "is_wide"), [((64, 4096), (3, 4096), True), ((4194304,), (2097152,), False)]
)
def test_vectors_fit_every_place(
    shape: tuple[int, ...], block: tuple[int, ...], is_wide: bool
) -> None:
    specs = S(shape, "float32"), S(block, "float32"), S((), "int32")
    fusion = fw.trace(lambda c, v, s: fw.insert(c, v * 2, (s, *[0] * (len(shape) - 1))), *specs)
    (kernel,) = fw.compile(fusion, donate=("c",)).kernels
    assert ("fw_store<2>(" in kernel.cuda or "fw_store<4>(" in kernel.cuda) == is_wide


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda c, v, s: fw.insert(c, c[:3] * v, (s, 0)), "reads elements of c in other threads"),
        (
            lambda c, v, s: (fw.insert(c, v * 2, (s, 0)), fw.insert(c, v * 3, (s, 0))),
            "lies there",
        ),
    ],
)
def test_why_all_of_it_is_written(fn: Any, why: str) -> None:
    program = appended(fn, [(draw(16, 8), draw(3, 8), at(k)) for k in PLACES])
    found = program.host.stats["not_placed"].values()
    assert any("all around its block is written" in w and why in w for w in found)


# --- loops, derivatives, vmap --------------------------------------------------------------------


def test_a_loop_that_the_device_ends_writes_blocks() -> None:
    def fn(c, x):
        def body(state):
            k, c = state
            return k + 1, fw.insert(c, fw.slice(x, (k, 0), (1, 8)) * 2, (k, 0))

        return fw.while_loop(lambda s: s[0] < 6, body, (0, c))[1]

    program = appended(fn, [(draw(16, 8), draw(16, 8)) for _ in range(2)])
    rules = [r.rule for r in program.reasons]
    assert any("which the device knows" in r for r in rules)
    assert not any("second place" in r for r in rules)
    body = program.launches[-1].bodies[1]
    written = [b for x in body.host.launches for b in x.bindings if b.access.writes]
    assert [str(b.content) for b in written if b.anywhere] == ["32"]  # of the 512 bytes of c


def test_the_derivative_leaves_the_block_out() -> None:
    def loss(c, v, s):
        return fw.sum(fw.insert(c, v * v, (s, 0)) ** 2)

    specs = S((16, 8), "f4"), S((3, 8), "f4"), S((), "i4")
    program = fw.compile(fw.trace(fw.grad(loss, argnums=(0, 1)), *specs))
    c, v = draw(16, 8), draw(3, 8)
    for k in PLACES:
        of_c, of_v = program.simulate(c, v, at(k)).outputs
        want, first = 2 * c, min(max(k, 0), 13)
        want[first : first + 3] = 0
        np.testing.assert_allclose(of_c, want, rtol=1e-5)
        np.testing.assert_allclose(of_v, 4 * v**3, rtol=1e-4)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, 0, None)])
def test_slices_have_places_of_their_own(axes: tuple[int | None, ...]) -> None:
    mapped = fw.vmap(lambda c, v, s: fw.insert(c, v, (s, 0)), in_axes=axes)
    places = np.asarray([0, 3, 9, 13, 40] if axes[2] == 0 else 7, np.int32)
    arrays = draw(5, 16, 8), draw(5, 3, 8), places
    program = fw.compile(fw.trace(mapped, *(S(a.shape, a.dtype.name) for a in arrays)))
    want = arrays[0].copy()
    for b, k in enumerate(np.broadcast_to(places, 5)):
        first = min(max(k, 0), 13)
        want[b, first : first + 3] = arrays[1][b]
    assert np.array_equal(program.simulate(*arrays).outputs[0], want)


# --- rejections ---------------------------------------------------------------------------------

TEXT = """\
c: float32[16, 8] = Input(strides=(8, 1), alignment=16)
v: {block} = Input(strides=(8, 1), alignment=16)
s: {place} = Input(strides=(), alignment=16)
t: float32[16, 8] = Insert({operands}, start=({start}, 0))
return t
"""


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"block": "float64[3, 8]"}, "is no block of"),
        ({"place": "float32[]"}, "is no place"),
        ({"operands": "c", "start": "0"}, "an array, a block of it"),
        ({"operands": "c, v"}, "no size 'at0'"),
        ({"start": "at1"}, "no size 'at1'"),
    ],
)
def test_texts_that_are_no_insertion(changed: dict[str, str], rule: str) -> None:
    usual = {"block": "float32[3, 8]", "place": "int32[]", "operands": "c, v, s", "start": "at0"}
    assert parse_fusion(TEXT.format(**usual))
    with pytest.raises(SpecError, match=rule):
        parse_fusion(TEXT.format(**usual | changed))


def test_boxes_do_not_begin_where_the_device_says() -> None:
    specs = S((512, 512), "bfloat16"), S((512, 512), "bfloat16"), S((), "int32")
    fusion = fw.trace(lambda x, w, s: (x @ w, s + 1), *specs)
    kernel = next(k for k in fw.compile(fusion).kernels if "matmul" in k.name)
    assert kernel.lowered is not None
    assert any(m.buffer in kernel.lowered.params[2:] for m in kernel.lowered.maps)
    site = natural(fusion.inputs[0])
    moving = replace(site, moving=Moving((natural(fusion.inputs[2]),), ((0, ZERO),)))
    with pytest.raises(ScheduleError, match="begins where the device says"):
        with_places(kernel.lowered, 2, [moving])


def test_blocks_in_turns_add_up_a_result_that_begins_where_the_device_says() -> None:
    """Turns guard what is stored, and loads find it there."""
    s = fw.Schedule(fw.trace(lambda x: fw.sum(x, axis=0), S((96, 64), "float32")))
    t = s.outputs[0]
    t.split(1, 32).parallelize(0, fw.TIDx).parallelize(1, fw.BIDx)
    t.request_serial_grid_reduction("vector")
    kernel = s.lower("sm_90a")
    assert kernel.lowered is not None
    (result,) = kernel.lowered.stored_in_turns
    place = fw.trace(lambda x, s: x + s, S((64,), "float32"), S((), "int32")).inputs
    site = replace(natural(place[0]), shape=(Int(256),), moving=None)
    moving = Moving((natural(place[1]),), ((0, position(0)),))
    moved = with_places(kernel.lowered, 1, [replace(site, moving=moving)])
    text = str(moved)
    assert [b.name for b in moved.stored_in_turns] == [result.name]
    assert f"= load {result.name}[start_0[0] + tx]" in text
    assert f"store {result.name}[start_0[0] + tx]" in text
    assert text.count("first(start_0[0])") == 2
