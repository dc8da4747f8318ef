"""ThreadReduce expanded and not expanded compute the same, on every shape of block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from fusewright.core.expr import Int
from fusewright.errors import InternalError
from fusewright.kir.ir import (
    Alloc,
    Body,
    Compute,
    For,
    Kernel,
    Load,
    Shuffle,
    Statement,
    Store,
    ThreadReduce,
)
from fusewright.kir.passes.expand_reductions import expand_reductions, group_of
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.schedule.block_reduction import meeting, pieces_of
from fusewright.sim.machine import simulate

NAMES = ("tx", "ty", "tz")


def _kernel(block: tuple[int, ...], dims: tuple[str, ...], fn: str, dtype: str, n: int) -> Kernel:
    """Every thread reads `n` values, reduces each over `dims`, and writes the results."""
    names = NAMES[: len(block)]
    linear, weight = [], 1
    for name, extent in zip(names, block, strict=True):
        linear.append(f"{weight}*{name}")
        weight *= extent
    t = " + ".join(linear)
    identity = {"add": "0", "max": "-inf", "mul": "1", "min": "inf"}[fn]
    if dtype.startswith("int"):
        identity = {"add": "0", "max": "-2147483648", "mul": "1", "min": "2147483647"}[fn]
    lines = [f"r[{i}] = load x[{n}*({t}) + {i}]" for i in range(n)]
    lines += [
        f"r[{i}] = thread_reduce.{fn}(r[{i}]) over ({', '.join(dims)}) identity {identity}:{dtype}"
        for i in range(n)
    ]
    lines += [f"store y[{n}*({t}) + {i}] = r[{i}]" for i in range(n)]
    extents = ", ".join(f"{a} < {b}" for a, b in zip(names, block, strict=True))
    body = "\n".join(lines)
    return parse_kernel(
        f"""kernel reduce {{
          param x: {dtype}[{n * weight}]
          param y: {dtype}[{n * weight}]
          grid (bx < 1)
          block ({extents})
          local r: {dtype}[{n}]
          {body}
        }}"""
    )


def _run(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, 77)
    simulate(
        kernel,
        dict(zip(kernel.params, (x.copy(), y), strict=True)),
        outputs=(kernel.params[1],),
        check_races=False,
    )
    return y


def _expected(x: np.ndarray, block: tuple[int, ...], dims: tuple[str, ...], fn: str, n: int):
    cube = x.reshape(*reversed(block), n)
    axes = tuple(len(block) - 1 - NAMES.index(d) for d in dims)
    f = {"add": np.sum, "max": np.max, "mul": np.prod, "min": np.min}[fn]
    out = (
        f(cube, axis=axes, keepdims=True, dtype=None if fn in ("max", "min") else x.dtype)
        if fn in ("add", "mul")
        else f(cube, axis=axes, keepdims=True)
    )
    return np.broadcast_to(out, cube.shape).reshape(-1)


BLOCKS = [
    (1,), (2,), (32,), (64,), (128,), (1024,), (7,), (24,), (33,), (48,), (96,), (100,), (289,),
    (1023,), (4, 8), (8, 16), (32, 4), (16, 3), (3, 5), (24, 2), (12, 40), (5, 4, 3), (8, 2, 4),
    (2, 3, 32), (64, 2, 3), (6, 4, 8),
]  # fmt: skip


def _subsets(rank: int):
    for size in range(1, rank + 1):
        yield from itertools.combinations(NAMES[:rank], size)


CASES = [(b, d) for b in BLOCKS for d in _subsets(len(b))]


@pytest.mark.parametrize(("block", "dims"), CASES)
def test_every_thread_gets_the_sum(block: tuple[int, ...], dims: tuple[str, ...]) -> None:
    kernel = _kernel(block, dims, "add", "int32", 1)
    expanded = expand_reductions(kernel)
    x = np.random.default_rng(math.prod(block)).integers(-50, 50, math.prod(block), np.int32)
    assert not any(isinstance(s, ThreadReduce) for s in walk_statements(expanded))
    assert np.array_equal(_run(expanded, x), _expected(x, block, dims, "add", 1))


@pytest.mark.parametrize(("fn", "dtype"), [("max", "float32"), ("min", "int32"), ("mul", "int64")])
@pytest.mark.parametrize("block", [(96,), (24, 2), (8, 2, 4), (320,)])
def test_functions_and_types(block: tuple[int, ...], fn: str, dtype: str) -> None:
    kernel = expand_reductions(_kernel(block, ("tx",), fn, dtype, 1))
    x = np.random.default_rng(3).integers(-4, 4, math.prod(block)).astype(dtype)
    assert np.array_equal(_run(kernel, x), _expected(x, block, ("tx",), fn, 1))


@pytest.mark.parametrize("block", [(32,), (33,), (256,), (8, 16), (24,), (1023,)])
def test_expanded_equals_not_expanded(block: tuple[int, ...]) -> None:
    dims = NAMES[: len(block)]
    kernel = _kernel(block, dims, "add", "float32", 2)
    x = np.random.default_rng(5).standard_normal(2 * math.prod(block)).astype(np.float32)
    before, after = _run(kernel, x), _run(expand_reductions(kernel), x)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-4)
    assert len(np.unique(after[::2])) == 1, "all threads of a group get bitwise the same"


def _kinds(kernel: Kernel) -> list[str]:
    """The statements between the loads and the stores of the kernel, by kind."""
    return [
        f"{type(s).__name__.lower()} {s.src if isinstance(s, Load) else s.dst}"
        for s in walk_statements(kernel)
        if isinstance(s, Load | Store)
        and "workspace" in str(s.src if isinstance(s, Load) else s.dst)
    ]


@pytest.mark.parametrize("block", [(32,), (2,), (24,), (8, 4), (31,), (4, 8), (3, 5), (32, 4)])
def test_groups_inside_a_warp_use_no_shared_memory(block: tuple[int, ...]) -> None:
    dims = ("tx",)
    kernel = expand_reductions(_kernel(block, dims, "add", "int32", 1))
    allocs = [s for s in walk_statements(kernel) if isinstance(s, Alloc)]
    assert all(a.buffer.memory is Memory.LOCAL for a in allocs)
    assert any(isinstance(s, Shuffle) for s in walk_statements(kernel))


def test_joint_reductions_store_before_they_load() -> None:
    kernel = expand_reductions(_kernel((128,), ("tx",), "add", "float32", 3))
    kinds = _kinds(kernel)
    assert kinds == [f"store workspace{i}" for i in (1, 2, 3)] + [
        f"load workspace{i}" for i in (1, 2, 3)
    ]


def test_a_block_of_32_warps_shares_one_load_a_thread() -> None:
    text = print_kernel(expand_reductions(_kernel((1024,), ("tx",), "add", "float32", 1)))
    assert "store workspace1[tx//32] = r[0] if (tx%32 == 0)" in text
    assert "r[0] = load workspace1[tx%32]\n" in text
    assert text.count("shuffle.xor") == 10


def test_four_warps_load_all_partials_at_once() -> None:
    text = print_kernel(expand_reductions(_kernel((128,), ("tx",), "add", "float32", 1)))
    assert "parts1[0..4] = load workspace1[0]\n" in text
    assert "r[0] = add(parts1[0], parts1[2])" in text


def test_missing_partials_read_as_the_identity() -> None:
    text = print_kernel(expand_reductions(_kernel((672,), ("tx",), "max", "float32", 1)))
    assert "r[0] = load workspace1[tx%32] if (tx%32 < 21) else -inf:float32" in text


def test_dependent_reductions_are_not_joined() -> None:
    text = """kernel k {
      param y: int32[64]
      grid (bx < 1)
      block (tx < 64)
      local r: int32[2]
      r[0] = copy(index(tx):int32)
      r[0] = thread_reduce.add(r[0]) over (tx) identity 0:int32
      r[1] = thread_reduce.add(r[0]) over (tx) identity 0:int32
      store y[tx] = r[1]
    }"""
    kernel = expand_reductions(parse_kernel(text))
    y = np.zeros(64, np.int32)
    simulate(kernel, {kernel.params[0]: y}, outputs=kernel.params, check_races=False)
    assert (y == 2016 * 64).all()
    assert [k.split()[0] for k in _kinds(kernel)] == ["store", "load"] * 2


def test_reductions_join_across_what_is_independent_of_them() -> None:
    text = """kernel k {
      param x: int32[128]
      param y: int32[64]
      grid (bx < 1)
      block (tx < 64)
      local r: int32[4]
      r[0] = load x[tx]
      r[0] = thread_reduce.add(r[0]) over (tx) identity 0:int32
      r[1] = load x[tx + 64]
      r[1] = mul(r[1], 2:int32)
      r[1] = thread_reduce.add(r[1]) over (tx) identity 0:int32
      r[2] = copy(r[1])
      r[0] = thread_reduce.add(r[2]) over (tx) identity 0:int32
      store y[tx] = r[0]
    }"""
    kernel = expand_reductions(parse_kernel(text))
    assert [k.split()[0] for k in _kinds(kernel)] == ["store"] * 2 + ["load"] * 2 + [
        "store",
        "load",
    ]
    x, y = np.arange(128, dtype=np.int32), np.zeros(64, np.int32)
    arrays = dict(zip(kernel.params, (x, y), strict=True))
    simulate(kernel, arrays, outputs=kernel.params[1:], check_races=False)
    assert (y == 64 * 2 * x[64:].sum()).all()


def test_nothing_to_expand_is_the_same_kernel() -> None:
    kernel = expand_reductions(_kernel((64,), ("tx",), "add", "int32", 1))
    assert expand_reductions(kernel) is kernel
    assert not [s for s in walk_statements(kernel) if isinstance(s, Compute) and s.fn == "copy"]


def test_a_symbolic_block_is_refused() -> None:
    text = """kernel k {
      symbol n in [2, 64]
      param y: int32[64]
      grid (bx < 1)
      block (tx < n)
      local r: int32[1]
      r[0] = thread_reduce.add(r[0]) over (tx) identity 0:int32
    }"""
    with pytest.raises(InternalError, match="the block extent n of tx is not constant"):
        expand_reductions(parse_kernel(text))


@pytest.mark.parametrize("count", [4, 5, 8, 19])
def test_threads_with_many_sums_add_up_a_part_each_for_all(count: int) -> None:
    kernel = _kernel((32, 8), ("ty",), "add", "float32", count)
    expanded = expand_reductions(kernel)
    loads = [s for s in walk_statements(expanded) if isinstance(s, Load)]
    inside = [s for s in loads if s.src.name.startswith("workspace")]
    assert len(inside) == -(-count // 8)  # in loops over the 8 partials
    x = np.random.default_rng(count).normal(size=count * 256).astype(np.float32)
    want = _expected(x, (32, 8), ("ty",), "add", count)
    np.testing.assert_allclose(_run(expanded, x), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(_run(kernel, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("block", "count"), [((3, 128), 4), ((7, 81), 8), ((5, 60), 4)])
def test_several_threads_add_up_a_piece_of_each_sum(block: tuple[int, int], count: int) -> None:
    kernel = _kernel(block, ("ty",), "add", "float32", count)
    expanded = expand_reductions(kernel)
    loops = [s for s in walk_statements(expanded) if isinstance(s, For)]
    trips = [s.extent.value for s in loops if isinstance(s.extent, Int)]
    pieces = pieces_of(count, block[1])
    assert pieces > 1 and trips == [-(-block[1] // pieces), pieces]
    x = np.random.default_rng(count).normal(size=count * block[0] * block[1]).astype(np.float32)
    want = _expected(x, block, ("ty",), "add", count)
    np.testing.assert_allclose(_run(expanded, x), want, rtol=1e-5, atol=1e-5)


def _stored_in_between(first: str, second: str) -> Kernel:
    """Two reductions over 8 warps, the first one's result stored in front of the second one."""
    text = f"""kernel k {{
      param x: float32[256]
      param y: float32[512]
      grid (bx < 1)
      block (tx < 32, ty < 8)
      local r: float32[3]
      r[0] = load x[tx + 32*ty]
      r[1] = copy(r[0])
      {first}
      local v: float32[1]
      v[0] = mul(r[0], 2.0:float32)
      store y[tx + 32*ty] = v[0]
      {second}
      store y[tx + 32*ty + 256] = r[1]
    }}"""
    return parse_kernel(text)


SUM = "r[0] = thread_reduce.add(r[0]) over (ty) identity 0:float32"


def _assert_same_results(kernel: Kernel, expanded: Kernel, *, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=256).astype(np.float32)
    outputs = []
    for k in (kernel, expanded):
        y = np.full(512, 77, np.float32)
        given = dict(zip(k.params, (x, y), strict=True))
        simulate(k, given, outputs=k.params[1:], check_races=False)
        outputs.append(y)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("second", "is_joined"),
    [
        ("r[1] = thread_reduce.max(r[1]) over (ty) identity -inf:float32", True),
        ("r[1] = thread_reduce.max(r[0]) over (ty) identity -inf:float32", False),
        ("r[1] = thread_reduce.max(v[0]) over (ty) identity -inf:float32", False),
        (
            "v[0] = thread_reduce.max(r[1]) over (ty) identity -inf:float32\n r[1] = copy(v[0])",
            False,
        ),
    ],
    ids=["independent", "of the result", "of what is stored", "into what is stored"],
)
def test_reductions_join_across_stores_of_what_they_do_not_need(
    second: str, is_joined: bool
) -> None:
    kernel = _stored_in_between(SUM, second)
    expanded = expand_reductions(kernel)
    kinds = [k.split()[0] for k in _kinds(expanded)]
    assert (kinds[:2] == ["store", "store"]) is is_joined
    _assert_same_results(kernel, expanded, seed=5)


@pytest.mark.parametrize(
    ("between", "is_joined"),
    [
        ("r[1] = mul(r[1], 2.0:float32)", True),
        ("r[1] = add(r[1], v[0])", False),
        ("v[0] = copy(r[1])", False),
        ("r[1] = load y[tx + 32*ty]", False),
    ],
    ids=["independent", "what is made behind", "over what is read behind", "what is stored"],
)
def test_rows_of_a_thread_are_reduced_at_once(between: str, is_joined: bool) -> None:
    """The second row is loaded and reduced in front of what is made of the first one's result."""
    loaded = "r[1] = load x[255 - tx - 32*ty]"
    kernel = _stored_in_between(SUM, f"{loaded}\n {between}\n {SUM.replace('r[0]', 'r[1]')}")
    expanded = expand_reductions(kernel)
    kinds = [k.split()[0] for k in _kinds(expanded)]
    assert (kinds[:2] == ["store", "store"]) is is_joined
    _assert_same_results(kernel, expanded, seed=6)


@pytest.mark.parametrize(
    ("block", "dims", "count"),
    [
        ((32, 8), ("ty",), 1), ((32, 8), ("ty",), 8), ((32, 16), ("ty",), 8),
        ((32, 16), ("ty",), 3), ((8, 64), ("ty",), 4), ((16, 32), ("ty",), 8),
        ((8, 4), ("ty",), 2), ((32, 2), ("ty",), 8),
        ((64, 4), ("ty",), 19), ((3, 128), ("ty",), 4), ((7, 81), ("ty",), 8),
    ],
)  # fmt: skip
def test_what_threads_hand_each_other_is_what_the_model_counts(
    block: tuple[int, int], dims: tuple[str, ...], count: int
) -> None:
    expanded = expand_reductions(_kernel(block, dims, "add", "float32", count))
    group = group_of(expanded, dims)
    accesses = 0.0
    for s, trips in _executed(expanded.body, 1):
        match s:
            case Load(src=buffer, width=width) if buffer.memory is Memory.SHARED:
                accesses += trips * width
            case Store(dst=buffer) if buffer.memory is Memory.SHARED:
                accesses += trips / group.lanes
            case _:
                pass
    assert meeting(count, group.lanes, group.rest).through_shared == accesses


def _executed(body: Body, trips: int) -> Iterator[tuple[Statement, int]]:
    for s in body:
        if isinstance(s, For):
            assert isinstance(s.extent, Int)
            yield from _executed(s.body, trips * s.extent.value)
        else:
            yield s, trips
