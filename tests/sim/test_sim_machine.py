"""Values: every node against plain numpy or a loop over threads, and what must be refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sim_kernels import Builder, softmax

from fusewright.core.atoms import minimum, xor
from fusewright.core.conditions import FALSE, any_of, equal, less
from fusewright.core.expr import Int, Var
from fusewright.dtypes import bfloat16, bool_, float32, int32, int64
from fusewright.errors import SpecError, UserError
from fusewright.kir import ir
from fusewright.kir.text import parse_kernel
from fusewright.memory import Cache, Memory
from fusewright.sim.machine import SimResult, simulate


def run(kernel: ir.Kernel, *arrays: np.ndarray, **keywords: object) -> SimResult:
    """Simulate with arrays by position; the parameters named y, z are outputs."""
    outputs = [p for p in kernel.params if p.name in "yz"]
    given = dict(zip(kernel.params, arrays, strict=True))
    return simulate(kernel, given, outputs=outputs, **keywords)  # type: ignore[arg-type]


def floats(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_softmax() -> None:
    x, y = floats(16 * 512), np.empty(16 * 512, np.float32)
    result = run(softmax(16, 512), x, y)
    e = np.exp(x.reshape(16, 512) - x.reshape(16, 512).max(1, keepdims=True))
    np.testing.assert_allclose(y.reshape(16, 512), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert result.races == []
    assert (
        result.outputs[0].base is y
        or result.outputs[0] is y
        or np.shares_memory(y, result.outputs[0])
    )


@pytest.mark.parametrize("blocks", [None, "sample", [3, 5]])
def test_blocks_chooses_what_runs(blocks: object) -> None:
    b = Builder(9, 32)
    y = b.param("y", 9 * 32, int32)
    v = b.reg("v", dtype=int32)
    b.compute("copy", v, ir.Index(b.bx, int32))
    b.store(y, b.bx * 32 + b.tx, v)
    out = np.empty(9 * 32, np.int32)
    stats = run(b.kernel(), out, blocks=blocks).stats
    done = {None: set(range(9)), "sample": {0, 1, 4, 7, 8}}.get(
        blocks if not isinstance(blocks, list) else "", {3, 5}
    )
    assert {int(k) for k in out} - {-1} == done
    assert stats["blocks"] == len(done)
    assert stats["threads"] == 32 * len(done)


def test_widths_predicates_and_fill() -> None:
    n = 70
    b = Builder(2, 32)
    x, y = b.param("x", n), b.param("y", 128)
    for k in range(2):
        b.load(
            b.reg("v", k, 2),
            x,
            b.bx * 64 + b.tx * 2 + k,
            predicate=less(b.bx * 64 + b.tx * 2 + k, n),
            fill=ir.Imm(-5.0, float32),
        )
    b.store(y, b.bx * 64 + b.tx * 2, b.reg("v", 0, 2), 2)
    data, out = floats(n), np.empty(128, np.float32)
    assert run(b.kernel(), data, out).races == []
    np.testing.assert_array_equal(out, np.concatenate([data, np.full(58, -5, np.float32)]))


def test_a_predicated_load_without_fill_keeps_the_register() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("y", 32)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(9.0, float32))
    b.load(v, x, b.tx, predicate=less(b.tx, 10))
    b.store(y, b.tx, v)
    data, out = floats(32), np.empty(32, np.float32)
    run(b.kernel(), data, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 10, data, 9))


def test_a_load_that_no_thread_makes_fills() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("y", 32)
    b.load(b.reg("v"), x, b.tx, predicate=FALSE, fill=ir.Imm(2.0, float32))
    b.store(y, b.tx, b.reg("v"))
    out = np.empty(32, np.float32)
    assert run(b.kernel(), floats(32), out).races == []
    assert (out == 2).all()


def test_divergent_branches_and_uniform_loops() -> None:
    b = Builder(3, 64)
    y = b.param("y", 3 * 64, int32)
    v = b.reg("v", dtype=int32)
    b.compute("copy", v, ir.Imm(0, int32))
    i = Var("i", 0, 3)
    then, otherwise, loop = b.nested(), b.nested(), b.nested()
    then.compute("add", v, v, ir.Index(i * 10, int32))
    otherwise.compute("sub", v, v, ir.Index(b.tx, int32))
    loop.add(
        ir.If(any_of([less(b.tx, 7), equal(b.bx, 2)]), tuple(then.body), tuple(otherwise.body))
    )
    b.add(ir.For(i, b.bx + 1, tuple(loop.body)))
    b.store(y, b.bx * 64 + b.tx, v)
    out = np.empty(3 * 64, np.int32)
    assert run(b.kernel(), out).races == []
    for bx in range(3):
        for tx in range(64):
            expected = sum(i * 10 if tx < 7 or bx == 2 else -tx for i in range(bx + 1))
            assert out[bx * 64 + tx] == expected


def test_gather_and_dynamic_registers() -> None:
    b = Builder(2, 32)
    p, x, y = b.param("p", 64, int64), b.param("x", 100), b.param("y", 64)
    i = b.reg("i", dtype=int64)
    b.load(i, p, b.bx * 32 + b.tx)
    at = ir.RegVar(i, 0, 99)
    b.load(b.reg("v", b.tx % 3, 3), x, at)
    b.compute("add", b.reg("w"), b.reg("v", b.tx % 3, 3), ir.Index(at % 7, float32))
    b.store(y, b.bx * 32 + b.tx, b.reg("w"))
    rng = np.random.default_rng(1)
    where, data, out = rng.integers(0, 100, 64), floats(100), np.empty(64, np.float32)
    assert run(b.kernel(), where, data, out).races == []
    np.testing.assert_allclose(out, data[where] + where % 7, rtol=1e-6)


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("mode", ["xor", "down", "up", "index"])
def test_shuffle(mode: str, width: int) -> None:
    b = Builder(2, 64)
    x, y = b.param("x", 128), b.param("y", 128)
    b.load(b.reg("v"), x, b.bx * 64 + b.tx)
    b.add(ir.Shuffle(b.reg("w"), b.reg("v"), mode, Int(3), width))
    b.store(y, b.bx * 64 + b.tx, b.reg("w"))
    data, out = floats(128), np.empty(128, np.float32)
    assert run(b.kernel(), data, out).races == []
    for t in range(128):
        lane, start = t % 32, t % 32 // width * width
        source = {"xor": lane ^ 3, "down": lane + 3, "up": lane - 3, "index": start + 3}[mode]
        if not start <= source < start + width:
            source = lane
        assert out[t] == data[t - lane + source]


def test_shuffle_by_a_different_amount_in_each_thread() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("y", 32)
    b.load(b.reg("v"), x, b.tx)
    b.add(ir.Shuffle(b.reg("w"), b.reg("v"), "index", 31 - b.tx))
    b.store(y, b.tx, b.reg("w"))
    data, out = floats(32), np.empty(32, np.float32)
    run(b.kernel(), data, out)
    np.testing.assert_array_equal(out, data[::-1])


@pytest.mark.parametrize("fn", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("dims", [("tx",), ("ty",), ("tx", "ty")])
def test_thread_reduce(fn: str, dims: tuple[str, ...]) -> None:
    b = Builder(2, 16)
    ty = Var("ty", 0, 3)
    x, y = b.param("x", 128), b.param("y", 128)
    at = b.bx * 64 + ty * 16 + b.tx
    b.load(b.reg("v"), x, at)
    b.add(ir.ThreadReduce(fn, b.reg("w"), b.reg("v"), dims, ir.Imm(0.0, float32)))
    b.store(y, at, b.reg("w"))
    kernel = b.kernel()
    block = (*kernel.block, ir.Dim(ty, Int(4)))
    kernel = ir.Kernel("k", kernel.params, (), (), kernel.grid, block, kernel.body)
    data, out = floats(128), np.empty(128, np.float32)
    assert run(kernel, data, out).races == []
    ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[fn]
    axes = tuple({"ty": 1, "tx": 2}[d] for d in dims)
    expected = ufunc.reduce(data.reshape(2, 4, 16), axis=axes, keepdims=True)
    expected = np.broadcast_to(expected, (2, 4, 16)).reshape(-1)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_bool_thread_reduce() -> None:
    b = Builder(1, 64)
    x, y = b.param("x", 64, int32), b.param("y", 64, int32)
    b.load(b.reg("i", dtype=int32), x, b.tx)
    b.compute("gt", b.reg("p", dtype=bool_), b.reg("i", dtype=int32), ir.Imm(10, int32))
    b.add(
        ir.ThreadReduce(
            "or", b.reg("q", dtype=bool_), b.reg("p", dtype=bool_), ("tx",), ir.Imm(False, bool_)
        )
    )
    b.compute("cast", b.reg("o", dtype=int32), b.reg("q", dtype=bool_))
    b.store(y, b.tx, b.reg("o", dtype=int32))
    out = np.empty(64, np.int32)
    data = np.zeros(64, np.int32)
    run(b.kernel(), data, out)
    assert (out == 0).all()
    data[63] = 11
    run(b.kernel(), data, out)
    assert (out == 1).all()


def test_short_floats_are_stored_and_computed_wide() -> None:
    b = Builder(1, 64)
    x, y = b.param("x", 64, bfloat16), b.param("y", 64, bfloat16)
    s = b.shared("s", 64, bfloat16)
    narrow, wide = b.reg("n", dtype=bfloat16), b.reg("w")
    b.load(narrow, x, b.tx)
    b.compute("cast", wide, narrow)
    b.compute("exp", wide, wide)
    b.compute("cast", narrow, wide)
    b.store(s, 63 - b.tx, narrow)
    b.sync()
    b.load(narrow, s, b.tx)
    b.store(y, b.tx, narrow)
    data, out = floats(64).astype(ml_dtypes.bfloat16), np.empty(64, ml_dtypes.bfloat16)
    assert run(b.kernel(), data, out).races == []
    expected = np.exp(data.astype(np.float32)).astype(ml_dtypes.bfloat16)[::-1]
    np.testing.assert_array_equal(out, expected)


def test_index_arithmetic_and_symbols() -> None:
    n = Var("n", 1, None)
    b = Builder(4, 32)
    y = b.param("y", 128, int64)
    v = b.reg("v", dtype=int64)
    e = minimum((b.bx * 32 + b.tx) // 3 + xor(b.tx % 5, 3) * n, (b.tx + 7) % n)
    b.compute("copy", v, ir.Index(e, int64))
    b.store(y, b.bx * 32 + b.tx, v)
    out = np.empty(128, np.int64)
    run(b.kernel(symbols=(n,)), out, symbols={n: 11})
    for bx in range(4):
        for tx in range(32):
            expected = min((bx * 32 + tx) // 3 + (tx % 5 ^ 3) * 11, (tx + 7) % 11)
            assert out[bx * 32 + tx] == expected


def test_arguments() -> None:
    b = Builder(1, 32)
    y = b.param("y", 32)
    scale = ir.Argument("scale", float32)
    b.compute("copy", b.reg("v"), ir.Arg(scale))
    b.store(y, b.tx, b.reg("v"))
    k = b.kernel()
    k = ir.Kernel("k", k.params, (scale,), (), k.grid, k.block, k.body)
    out = np.empty(32, np.float32)
    run(k, out, arguments={scale: 2.5})
    assert (out == 2.5).all()
    with pytest.raises(UserError, match="no value for the kernel argument scale"):
        run(k, out)


def test_in_place_arrays_share_a_space() -> None:
    """x and y are one array: reading the neighbour's element is a race, one's own is not."""
    for shift, races in ((0, 0), (1, 1)):
        b = Builder(1, 32)
        x, y = b.param("x", 32), b.param("w", 32)
        b.load(b.reg("v"), x, (b.tx + shift) % 32)
        b.store(y, b.tx, b.reg("v"))
        data = floats(32)
        found = simulate(b.kernel(), {x: data, y: data}).races
        assert len(found) == races


def test_the_seed_draws_the_order_of_blocks() -> None:
    """Blocks that write one place race, and the seed decides who comes last."""
    b = Builder(40, 32)
    y = b.param("y", 32, int32)
    v = b.reg("v", dtype=int32)
    b.compute("copy", v, ir.Index(b.bx, int32))
    b.store(y, b.tx, v)
    last = []
    for seed in (0, 1, 1):
        out = np.empty(32, np.int32)
        found = run(b.kernel(), out, seed=seed)
        assert found.races[0].seed == seed
        last.append(int(out[0]))
    assert last[0] == 39
    assert last[1] == last[2] != 39


# --- findings ---------------------------------------------------------------------------------


def test_out_of_range_is_reported_and_skipped() -> None:
    b = Builder(2, 32)
    x, y = b.param("x", 60), b.param("y", 64)
    b.load(b.reg("v"), x, b.bx * 32 + b.tx)
    b.store(y, b.bx * 32 + b.tx, b.reg("v"), predicate=less(b.bx * 32 + b.tx, 60))
    data, out = floats(60), np.empty(64, np.float32)
    (finding,) = run(b.kernel(), data, out).races
    assert finding.kind == "range"
    assert "x[60 : +1] is outside its 60 elements" in str(finding)
    assert "by thread 28 of block 1" in str(finding)
    assert finding.count == 4
    np.testing.assert_array_equal(out[:60], data)


def test_non_coherent_loads_of_written_memory() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("w", 32)
    b.load(b.reg("v"), x, b.tx, cache=Cache.NON_COHERENT)
    b.store(y, b.tx, b.reg("v"))
    data = floats(32)
    assert simulate(b.kernel(), {x: data, y: data.copy()}).races == []
    (finding,) = simulate(b.kernel(), {x: data, y: data}).races
    assert "reads x by the non-coherent path, but the kernel writes that memory" in finding.message


def test_negative_and_misaligned_accesses() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 64), b.param("y", 64)
    b.load(b.reg("v", 0, 2), x, b.tx * 2 + 1, 2, predicate=less(b.tx, 31))
    b.load(b.reg("w"), x, b.tx - 1)
    kinds = {r.kind: r for r in run(b.kernel(), floats(64), np.empty(64, np.float32)).races}
    assert "x[1 : +2] is not a multiple of the width 2" in kinds["rule"].message
    assert "x[-1 : +1] is outside its 64 elements" in kinds["range"].message
    assert y.size == Int(64)


def test_registers_outside_their_buffer() -> None:
    b = Builder(1, 32)
    i = Var("i", 0, 3)
    inner = b.nested()
    inner.compute("copy", b.reg("v", i, 3), ir.Imm(1.0, float32), predicate=less(i, 3))
    b.loop(i, 4, inner)
    assert run(b.kernel()).races == []
    inner.compute("copy", b.reg("v", i, 3), ir.Imm(1.0, float32))
    b.loop(i, 4, inner)
    (finding,) = run(b.kernel()).races
    assert "register v[3 .. 3] is outside its 3 elements" in finding.message
    x = b.param("x", 128)
    b.load(b.reg("w", b.tx % 2, 4), x, b.tx * 4, 4)
    found = run(b.kernel(), floats(128)).races
    assert "register w[0 .. 4] is outside its 4 elements" in found[1].message
    b.load(b.reg("u", 0, 2), x, b.tx * 4, 4)
    with pytest.raises(SpecError, match="moves 4 elements, u has only 2"):
        run(b.kernel(), floats(128))


def test_a_gathered_index_outside_its_promise() -> None:
    b = Builder(1, 32)
    p, x = b.param("p", 32, int32), b.param("x", 32)
    b.load(b.reg("i", dtype=int32), p, b.tx)
    b.load(b.reg("v"), x, ir.RegVar(b.reg("i", dtype=int32), 0, 9))
    found = run(b.kernel(), np.arange(32, dtype=np.int32), floats(32)).races
    assert found[0].kind == "range"
    assert "is 10 in thread 10 of block 0, outside its declared range 0 .. 9" in found[0].message


def test_storing_an_unwritten_register() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("y", 32)
    v, w = b.reg("v"), b.reg("w")
    b.load(v, x, b.tx, predicate=less(b.tx, 30))
    b.compute("add", w, v, ir.Imm(1.0, float32))
    b.store(y, b.tx, w)
    (finding,) = run(b.kernel(), floats(32), np.empty(32, np.float32)).races
    assert finding.kind == "uninitialised"
    assert "stored register w was never written in thread 30 of block 0" in finding.message
    assert finding.count == 2


def test_where_hides_what_it_discards() -> None:
    b = Builder(1, 32)
    x, y = b.param("x", 32), b.param("y", 32)
    v, p = b.reg("v"), b.reg("p", dtype=bool_)
    b.load(v, x, b.tx, predicate=less(b.tx, 30))
    b.compute("lt", p, ir.Index(b.tx, int32), ir.Imm(30, int32))
    b.compute("where", v, p, v, ir.Imm(0.0, float32))
    b.store(y, b.tx, v)
    assert run(b.kernel(), floats(32), np.empty(32, np.float32)).races == []


def test_undefined_values_are_followed_through_shared_memory() -> None:
    b = Builder(1, 32)
    y = b.param("y", 32)
    s = b.shared("s", 32)
    b.store(s, b.tx, b.reg("v"))
    b.load(b.reg("w"), s, b.tx)
    b.store(y, b.tx, b.reg("w"))
    (finding,) = run(b.kernel(), np.empty(32, np.float32)).races
    assert "stored register w was never written" in finding.message


def test_reading_an_output_nobody_wrote() -> None:
    b = Builder(1, 32)
    y, z = b.param("y", 32), b.param("z", 32)
    b.compute("copy", b.reg("v"), ir.Imm(1.0, float32))
    b.store(y, b.tx, b.reg("v"), predicate=less(b.tx, 16))
    b.load(b.reg("v"), y, b.tx)
    b.store(z, b.tx, b.reg("v"))
    (finding,) = run(b.kernel(), np.empty(32, np.float32), np.empty(32, np.float32)).races
    assert finding.kind == "uninitialised"
    assert "y[16] was never written in thread 16" in finding.message


def test_trip_counts_must_be_uniform() -> None:
    b = Builder(1, 32)
    inner = b.nested()
    inner.compute("copy", b.reg("v"), ir.Imm(0.0, float32))
    b.add(ir.For(Var("i", 0, 31), b.tx, tuple(inner.body)))
    (finding,) = run(b.kernel()).races
    assert finding.kind == "rule"
    assert "differs between threads of block 0 (0 .. 31)" in finding.message


def test_a_shuffle_in_half_a_warp_diverges() -> None:
    b = Builder(1, 32)
    v = b.reg("v")
    b.compute("copy", v, ir.Imm(0.0, float32))
    b.add(ir.If(less(b.tx, 16), (ir.Shuffle(v, v, "xor", Int(1)),)))
    (finding,) = run(b.kernel()).races
    assert finding.kind == "divergence"


def test_a_shuffle_needs_whole_warps() -> None:
    b = Builder(1, 48)
    v = b.reg("v")
    b.compute("copy", v, ir.Index(b.tx, float32))
    b.add(ir.Shuffle(v, v, "xor", Int(16)))
    (finding,) = run(b.kernel()).races
    assert "reads lanes beyond the 48 threads" in finding.message


# --- stats ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (16, 32)])
def test_sectors(stride: int, sectors: int) -> None:
    b = Builder(5, 32)
    x = b.param("x", 5 * 32 * 16)
    b.load(b.reg("v"), x, b.bx * 512 + b.tx * stride)
    stats = run(b.kernel(), floats(5 * 512)).stats
    assert stats["sectors_read"] == 5 * sectors
    assert stats["global_bytes_read"] == 5 * 128
    assert stats["loads"] == 5 * 32


@pytest.mark.parametrize(
    ("stride", "width", "wavefronts", "least"),
    [
        (1, 1, 1, 1),
        (2, 1, 2, 1),
        (32, 1, 32, 1),
        (33, 1, 1, 1),
        (0, 1, 1, 1),
        (4, 4, 4, 4),
        (32, 4, 32, 4),
    ],
)
def test_bank_conflicts(stride: int, width: int, wavefronts: int, least: int) -> None:
    b = Builder(3, 32)
    s = b.shared("s", 2048)
    for k in range(width):
        b.compute("copy", b.reg("v", k, width), ir.Imm(0.0, float32))
    b.store(s, b.tx * stride, b.reg("v", 0, width), width)
    stats = run(b.kernel(), check_races=False).stats
    assert stats["shared_wavefronts"] == 3 * wavefronts
    assert stats["shared_wavefronts_least"] == 3 * least


# --- refusals ---------------------------------------------------------------------------------


def _copy(n: int = 32) -> ir.Kernel:
    b = Builder(1, 32)
    x, y = b.param("x", n), b.param("y", n)
    b.load(b.reg("v"), x, b.tx)
    b.store(y, b.tx, b.reg("v"))
    return b.kernel()


def test_arrays_that_do_not_fit_are_refused() -> None:
    kernel = _copy()
    x, y = kernel.params
    good = np.empty(32, np.float32)
    with pytest.raises(UserError, match="no array for the kernel parameter y"):
        simulate(kernel, {x: good})
    with pytest.raises(UserError, match=r"got shape \(4, 8\) of float32; pass array.reshape"):
        simulate(kernel, {x: good.reshape(4, 8), y: good})
    with pytest.raises(UserError, match=r"of float32, got shape \(32,\) of float64"):
        simulate(kernel, {x: good.astype(np.float64), y: good})
    with pytest.raises(UserError, match="has 32 elements, its array only 31"):
        simulate(kernel, {x: good, y: good[:31]})
    with pytest.raises(UserError, match="block 7 is not in the grid of 1 blocks"):
        simulate(kernel, {x: good, y: good.copy()}, blocks=[7])


def test_kernels_that_break_their_contract_are_refused() -> None:
    def check(statement: ir.Statement, match: str) -> None:
        b = Builder(1, 32)
        b.add(statement)
        with pytest.raises(SpecError, match=match):
            run(b.kernel())

    b = Builder(1, 32)
    v, i = b.reg("v"), b.reg("i", dtype=int32)
    stray = ir.Buffer("stray", float32, Int(4), Memory.SHARED)
    check(ir.Store(stray, Int(0), v), "shared buffer stray has no Alloc")
    check(ir.Compute("lt", v, (v, v)), "computes bool into a register of float32")
    check(ir.Compute("nope", v, (v,)), "no scalar function is named 'nope'")
    check(ir.Compute("add", v, (v,)), "add takes 2 operands, got 1")
    check(ir.Shuffle(v, v, "round", Int(1)), "shuffle mode 'round'")
    check(
        ir.ThreadReduce("exp", v, v, ("tx",), ir.Imm(0.0, float32)),
        "ThreadReduce cannot 'exp'; use one of",
    )
    check(ir.Compute("copy", i, (ir.Index(Var("q"), int32),)), "variable q is used but is no")


RAGGED = """kernel k {
  param x: float32[13] align 16
  param y: float32[32] align 16
  grid (bx < 1)
  block (tx < 8)
  local r: float32[4] align 16
  r[0..4] = load x[4*tx - 3] if (4*tx < 16) begins anywhere lanes 3 - 4*tx..16 - 4*tx
  store y[4*tx] = r[0..4]
}"""


def test_lanes_that_do_not_exist_are_neither_read_nor_defined() -> None:
    x, y = floats(13), np.zeros(32, np.float32)
    result = run(parse_kernel(RAGGED), x, y)
    assert result.races == []
    assert np.isnan(y[:3]).all() and np.isnan(y[16:]).all()
    np.testing.assert_array_equal(y[3:16], x)


def test_loads_begin_where_they_say() -> None:
    text = RAGGED.replace("begins anywhere", "begins 1")
    x, y = floats(13), np.zeros(32, np.float32)
    assert run(parse_kernel(text), x, y).races == []
    np.testing.assert_array_equal(y[3:16], x)
    wrong = run(parse_kernel(text.replace("begins 1", "begins 3")), floats(13), y)
    assert "is not 3 more than a multiple of the width 4" in wrong.races[0].message


def test_aligned_lanes_must_be_aligned_all_the_same() -> None:
    text = RAGGED.replace(" begins anywhere", "").replace("x[4*tx - 3]", "x[tx + 1]")
    result = run(parse_kernel(text), floats(13), np.zeros(32, np.float32))
    assert any("not a multiple of the width 4" in r.message for r in result.races)
