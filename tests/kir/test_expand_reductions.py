"""ThreadReduce expanded and not expanded compute the same, on every shape of block."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fusewright.kir.ir import Alloc, Compute, Kernel, Load, Shuffle, Store, ThreadReduce
from fusewright.kir.passes.expand_reductions import expand_reductions
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
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
    out = f(cube, axis=axes, keepdims=True, dtype=None if fn in ("max", "min") else x.dtype) \
        if fn in ("add", "mul") else f(cube, axis=axes, keepdims=True)
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
