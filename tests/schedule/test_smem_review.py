"""What reviewers asked of shared-memory reuse: parallel loops do not count, threads that touch only
what is theirs need no sync, one operand of two is enough, an epilogue takes its operands' place."""

from __future__ import annotations

import numpy as np
import pytest
from smem_cases import assert_agrees, bind, copies, flip, named, offsets, outline, shared

import fusewright as fw
from fusewright.fusion.array import Array
from fusewright.fusion.ir import Fusion
from fusewright.report.memory_map import memory_map_text
from fusewright.report.timeline import timeline
from fusewright.schedule.parallel import Parallel

# --- loops that are none in the kernel ----------------------------------------------------------


@pytest.mark.parametrize("grid", [None, fw.BIDx, fw.BIDy])
def test_a_parallel_loop_between_allocation_and_use_is_no_scope(grid: Parallel | None) -> None:
    """(8, 64): the outer loop around both buffers does not make them live at once. On the grid it
    does not appear in the kernel; as a serial loop each tensor runs its own."""

    def fn(x: Array) -> Array:
        a = named(fw.copy(x), "a")
        b = named(fw.copy(fw.negative(a)), "b")
        return fw.negative(b)

    s = shared(fw.trace(fn, fw.TensorSpec((8, 64), "float32")), "a", "b")
    bind(s, fw.TIDx, axis=1)
    if grid is not None:
        bind(s, grid, axis=0)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0}
    assert k.launch.shared_nbytes == (256 if grid else 8 * 256)
    assert not k.syncs
    assert_agrees(k, s, np.arange(512, dtype=np.float32).reshape(8, 64))


def test_all_loops_trivial() -> None:
    """Every loop is bound or runs once: nothing is left of the nests but straight code."""
    s = shared(copies(64, flip), "a", "b", promote=("a",))
    for t in s.tensors:
        if t not in s.inputs:
            t.split(0, 64).parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0} and outline(k) == "a= B a B b= b"
    assert_agrees(k, s, np.arange(64, dtype=np.float32))


# --- threads that touch only what is theirs -------------------------------------------------------


def test_x_at_tid_is_reused_without_a_sync() -> None:
    """`t0 = X[tid]; ..; X[tid] = t1`."""
    s = bind(shared(copies(64, fw.negative), "a", "b"))
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0} and not k.syncs
    assert_agrees(k, s, np.arange(64, dtype=np.float32))


def test_x_at_tid_plus_n_i_in_two_nests_is_reused_without_a_sync() -> None:
    """`for i: t0 = X[tid + n*i]` and then, in a loop of its own, `for i: X[tid + n*i] = t1`."""
    s = shared(copies(256, fw.negative), "a", "b")
    for t in s.tensors:
        if t not in s.inputs:
            t.split(0, 64).parallelize(1, fw.TIDx)
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0} and not k.syncs
    assert k.launch.shared_nbytes == 1024
    assert_agrees(k, s, np.arange(256, dtype=np.float32))


def test_a_completely_serial_kernel_needs_no_sync() -> None:
    s = shared(copies(64, flip), "a", "b")
    k = s.lower()
    assert offsets(k) == {"a": 0, "b": 0} and not k.syncs
    assert_agrees(k, s, np.arange(64, dtype=np.float32))


# --- products with an epilogue through shared memory ----------------------------------------------


def product(m: int, k: int, n: int, kind: str) -> Fusion:
    """c = a @ b, read across threads: "plain", "a again" (+ a), or "f(a)" (b made from a)."""

    def plain(a: Array, b: Array) -> Array:
        return named(flip(named(fw.matmul(a, b), "c")), "out")

    def again(a: Array, b: Array) -> Array:
        return flip(named(fw.matmul(a, b), "c")) + fw.flip(a, axis=0)

    def from_a(a: Array) -> Array:
        b = named(fw.negative(fw.permute_dims(a, (1, 0))), "b")
        return flip(named(fw.matmul(a, b), "c"))

    a, b = fw.TensorSpec((m, k), "float32"), fw.TensorSpec((k, n), "float32")
    match kind:
        case "plain":
            return fw.trace(plain, a, b)
        case "a again":
            return fw.trace(again, a, b)
        case _:
            return fw.trace(from_a, a)


def with_epilogue(f: Fusion, promote: str) -> fw.Schedule:
    """Tiles of the operands and of the product in shared memory: a thread an element of c."""
    s = fw.Schedule(f)
    first = s.inputs[0]
    tiles = {"a": first.cache_after().set_memory(fw.SHARED)}
    tiles["b"] = s.inputs[1].cache_after() if len(s.inputs) > 1 else s["b"]
    tiles["b"].set_memory(fw.SHARED)
    s["c"].set_memory(fw.SHARED)
    for t in s.tensors:
        if t in s.inputs or not t.axes:
            continue
        if len(t.axes) == 3 and t.name != "c":
            t.reorder([0, 2, 1])
        t.parallelize(0, fw.TIDy).parallelize(1, fw.TIDx)
    s["c_0"].inline_at(s["c_2"], 3)
    s["c_1"].inline_at(s["c_2"], 3)
    s["c_2"].inline_at(s["c"], 3)
    for name in promote:
        tiles[name].promote_reuse()
    return s


def operands(f: Fusion) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=[int(str(e)) for e in x.shape]).astype(np.float32) for x in f.inputs]


@pytest.mark.parametrize("promote", ["a", "b", "ab"])
@pytest.mark.parametrize(
    ("k", "total"), [(16, 2048), (4, 1024)], ids=["operands are larger", "epilogue is larger"]
)
def test_an_epilogue_needs_the_larger_of_operands_and_result(
    k: int, total: int, promote: str
) -> None:
    """max(a + b, c). Asked for one operand, the sync frees both: their last uses are one loop."""
    f = product(16, k, 16, "plain")
    s = with_epilogue(f, promote)
    kernel = s.lower()
    assert kernel.launch.shared_nbytes == total == max(2 * 64 * k, 1024)
    assert sum(x.why.startswith("reuse") for x in kernel.syncs) == 1
    assert_agrees(kernel, s, *operands(f), rtol=1e-4)


def test_without_a_sync_the_epilogue_stands_beside_its_operands() -> None:
    f = product(16, 16, 16, "plain")
    s = with_epilogue(f, "")
    kernel = s.lower()
    assert kernel.launch.shared_nbytes == 3 * 1024
    assert outline(kernel) == "x0= x1= B x0 x1 c= W c".replace("x0", kernel.smem[0].name).replace(
        "x1", kernel.smem[1].name
    )
    assert_agrees(kernel, s, *operands(f), rtol=1e-4)


@pytest.mark.parametrize(("promote", "total"), [("", 3072), ("a", 3072), ("b", 2048), ("ab", 2048)])
def test_an_operand_read_by_the_epilogue_keeps_its_place(promote: str, total: int) -> None:
    """`a @ b + a`: c may take b's place and never a's, whatever was asked for."""
    f = product(16, 16, 16, "a again")
    s = with_epilogue(f, promote)
    kernel = s.lower()
    a, b, c = kernel.smem
    assert kernel.launch.shared_nbytes == total
    assert c.offset >= a.offset + a.nbytes or a.offset >= c.offset + c.nbytes
    assert (c.offset == b.offset) is ("b" in promote)
    assert_agrees(kernel, s, *operands(f), rtol=1e-4)


@pytest.mark.parametrize(("promote", "total"), [("", 3072), ("a", 2048), ("ab", 2048)])
def test_an_operand_made_from_the_other_is_no_use_of_it_in_the_epilogue(
    promote: str, total: int
) -> None:
    """`a @ f(a)`: a has two readers, and both are done before c is written."""
    f = product(16, 16, 16, "f(a)")
    s = with_epilogue(f, promote)
    kernel = s.lower()
    assert kernel.launch.shared_nbytes == total
    assert_agrees(kernel, s, *operands(f), rtol=1e-4)


def test_reuse_that_decides_whether_a_kernel_fits_is_not_asked_for() -> None:
    """(32, 896) @ (896, 32): operands of 224 KiB leave no room for a result of 4 KiB beside them
    in the 227 KiB of a block, so the sync that frees them is bought unasked."""
    s = fw.Schedule(product(32, 896, 32, "plain"))
    for x, axis, other in zip(s.inputs, (1, 0), (0, 2), strict=True):
        tile = x.cache_after().set_memory(fw.SHARED).split(axis, 32)
        tile.parallelize(axis + 1, fw.TIDx if axis else fw.TIDy)
        tile.parallelize(other, fw.TIDy if axis else fw.TIDx)
    s["c"].set_memory(fw.SHARED)
    for name in ("c_0", "c_1", "c_2"):
        s[name].reorder([0, 2, 1])
    for name in ("c_0", "c_1", "c_2", "c", "out"):
        s[name].parallelize(0, fw.TIDy).parallelize(1, fw.TIDx)
    s["c_0"].inline_at(s["c_2"], 3)
    s["c_1"].inline_at(s["c_2"], 3)
    s["c_2"].inline_at(s["c"], 3)
    kernel = s.lower()
    assert kernel.launch.shared_nbytes == 224 * 1024
    assert [x.why.startswith("reuse") for x in kernel.syncs] == [False, True, False]


# --- arriving early -------------------------------------------------------------------------------


def turned_product(promote: tuple[str, ...], between: bool) -> fw.Schedule:
    """Rows of 512: x turned around, times y, turned around; y is loaded before b is written, all of
    it or (not `between`) element by element."""

    def fn(x: Array, y: Array) -> Array:
        a = named(fw.copy(x), "a")
        turned = named(flip(a), "turned")
        factor = named(fw.copy(y), "factor")
        b = named(turned * factor, "b")
        return named(flip(b), "out")

    spec = fw.TensorSpec((3, 512), "float32")
    s = shared(fw.trace(fn, spec, spec), "a", "b", promote=promote)
    for name in ("a", "turned", "factor", "b", "out"):
        s[name].split(1, 128).parallelize(0, fw.BIDx).parallelize(2, fw.TIDx)
    if not between:
        s["factor"].inline_at(s["b"], -1)
    return s


SPLIT = ["MbarInit", "BlockSync", "MbarArrive", "MbarWait", "BlockSync"]


@pytest.mark.parametrize(
    ("promote", "between", "nbytes", "kinds"),
    [
        ((), True, 4096, ["BlockSync", "BlockSync"]),
        (("a",), False, 2056, SPLIT),
        (("a",), True, 2056, SPLIT),
    ],
)
def test_a_promotion_with_a_load_in_between_arrives_early(
    promote: tuple[str, ...], between: bool, nbytes: int, kinds: list[str]
) -> None:
    """What nvFuser's promotion never does (gap M9): arrive behind the last read, load, wait."""
    s = turned_product(promote, between)
    k = s.lower()
    assert [x.kind for x in k.syncs] == kinds
    assert k.launch.shared_nbytes == s.predict().shared_nbytes == nbytes
    x, y = np.random.default_rng(0).normal(size=(2, 3, 512)).astype(np.float32)
    assert_agrees(k, s, x, y)


def test_every_part_of_a_split_barrier_says_what_it_orders_and_is_drawn() -> None:
    k = turned_product(("a",), between=True).lower()
    parts = [x for x in k.syncs if x.kind.startswith("Mbar")]
    assert len(parts) == 3 and all(x.orders == parts[0].orders != () for x in parts)
    assert all(x.why.startswith("reuse smem a") and f"fw-sync {x.id}" in k.cuda for x in parts)
    drawn = timeline(k.ir, k.smem, k.syncs)
    assert [m.id for m in drawn.marks] == [x.id for x in k.syncs]
    gate = next(b for b in drawn.boxes if b.name == "gate")
    assert (gate.offset, gate.nbytes) == (2048, 8) and "gate" in memory_map_text(drawn)


def test_without_mbarriers_the_promotion_is_a_full_sync() -> None:
    k = turned_product(("a",), between=True).lower("sm_80")
    assert [x.kind for x in k.syncs] == ["BlockSync"] * 3
