"""ThreadScan expanded and not expanded compute the same, on every shape of block."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fusewright.errors import SpecError
from fusewright.kir.ir import Alloc, Exchange, Kernel
from fusewright.kir.passes.expand_scans import expand_scans
from fusewright.kir.pipeline import run_pipeline
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.memory import Memory
from fusewright.sim.machine import simulate
from fusewright.target import target_of

NAMES = ("tx", "ty", "tz")


def _kernel(block: tuple[int, ...], dim: str, fn: str, dtype: str, n: int, trips: int) -> Kernel:
    """Every thread reads `n` values a trip, scans each along `dim` with a carry of its own, and
    writes the prefixes."""
    t, weight = [], 1
    for name, extent in zip(NAMES, block, strict=False):
        t.append(f"{weight}*{name}")
        weight *= extent
    at = f"{n}*({' + '.join(t)} + {weight}*i)"
    first = {"add": "0", "max": "-1000", "mul": "1", "min": "1000"}[fn]
    identity = f"{first}:{dtype}"
    scans = "\n".join(
        f"d[{k}] = thread_scan.{fn}(r[{k}]) along {dim} carry c[{k}] identity {identity}"
        for k in range(n)
    )
    loads = "\n".join(f"r[{k}] = load x[{at} + {k}]" for k in range(n))
    stores = "\n".join(f"store y[{at} + {k}] = d[{k}]" for k in range(n))
    starts = "\n".join(f"c[{k}] = copy({identity})" for k in range(n))
    extents = ", ".join(f"{a} < {b}" for a, b in zip(NAMES, block, strict=False))
    return parse_kernel(
        f"""kernel scan {{
          param x: {dtype}[{n * weight * trips}]
          param y: {dtype}[{n * weight * trips}]
          grid (bx < 1)
          block ({extents})
          local c: {dtype}[{n}]
          {starts}
          for (i < {trips}) {{
            local r: {dtype}[{n}]
            local d: {dtype}[{n}]
            {loads}
            {scans}
            {stores}
          }}
        }}"""
    )


def _run(kernel: Kernel, x: np.ndarray, *, races: bool = False) -> np.ndarray:
    y = np.full_like(x, 77)
    found = simulate(
        kernel,
        dict(zip(kernel.params, (x.copy(), y), strict=True)),
        outputs=(kernel.params[1],),
        check_races=races,
    )
    assert found.races == []
    return y


def _expected(x: np.ndarray, block: tuple[int, ...], dim: str, fn: str, n: int, trips: int):
    """Trips are slower than the threads along the dimension: both are one axis."""
    f, first = {
        "add": (np.add, 0), "max": (np.maximum, -1000), "mul": (np.multiply, 1),
        "min": (np.minimum, 1000),
    }[fn]  # fmt: skip
    cube = x.reshape(trips, *reversed(block), n)
    axis = len(block) - NAMES.index(dim)
    line = np.moveaxis(cube, axis, 1)
    flat = line.reshape(-1, *line.shape[2:])
    before = np.roll(f.accumulate(flat, axis=0, dtype=x.dtype), 1, 0)
    before[0] = first
    return np.moveaxis(before.reshape(line.shape), 1, axis).reshape(-1)


BLOCKS = [
    (1,), (2,), (32,), (64,), (256,), (1024,), (7,), (24,), (33,), (48,), (96,), (100,), (4, 8),
    (8, 16), (32, 4), (32, 12), (16, 3), (3, 5), (24, 2), (5, 4, 3), (2, 3, 32), (64, 2, 3),
]  # fmt: skip
CASES = [(b, d) for b in BLOCKS for d in NAMES[: len(b)]]


@pytest.mark.parametrize(("block", "dim"), CASES)
def test_every_thread_gets_the_sum_of_those_before(block: tuple[int, ...], dim: str) -> None:
    kernel = _kernel(block, dim, "add", "int32", 2, 3)
    expanded = expand_scans(kernel)
    size = math.prod(block) * 6
    x = np.random.default_rng(size).integers(-50, 50, size, np.int32)
    wanted = _expected(x, block, dim, "add", 2, 3)
    assert not any(isinstance(s, Exchange) for s in walk_statements(expanded))
    assert np.array_equal(_run(kernel, x), wanted)
    assert np.array_equal(_run(expanded, x), wanted)


@pytest.mark.parametrize("fn", ["max", "min", "mul"])
def test_other_functions(fn: str) -> None:
    kernel = _kernel((96,), "tx", fn, "int64", 1, 2)
    x = np.random.default_rng(3).integers(-3, 4, 192, np.int64)
    assert np.array_equal(_run(expand_scans(kernel), x), _expected(x, (96,), "tx", fn, 1, 2))


@pytest.mark.parametrize(("block", "dim"), CASES)
def test_in_reverse_every_thread_gets_the_sum_of_those_behind(
    block: tuple[int, ...], dim: str
) -> None:
    """What a forward scan gives of the threads in the other order, trips in the order of time."""
    forward = _kernel(block, dim, "add", "int32", 2, 3)
    text = print_kernel(forward).replace(f"along {dim} ", f"along {dim} reverse ")
    kernel = parse_kernel(text)
    assert print_kernel(kernel) == text
    size = math.prod(block) * 6
    x = np.random.default_rng(size).integers(-50, 50, size, np.int32)
    cube, axis = (3, *reversed(block), 2), len(block) - NAMES.index(dim)
    turned = np.flip(x.reshape(cube), axis).reshape(-1)
    wanted = np.flip(_expected(turned, block, dim, "add", 2, 3).reshape(cube), axis).reshape(-1)
    assert np.array_equal(_run(kernel, x), wanted)
    assert np.array_equal(_run(expand_scans(kernel), x), wanted)


def test_scans_of_several_values_share_their_barriers() -> None:
    one, two = (
        run_pipeline(_kernel((128,), "tx", "add", "float32", n, 4), target_of("sm_90a"))
        for n in (1, 2)
    )
    counts = [print_kernel(k).count("block_sync") for k in (one, two)]
    assert counts[0] == counts[1] > 0
    x = np.random.default_rng(5).integers(0, 9, 1024).astype(np.float32)
    assert np.array_equal(_run(two, x, races=True), _expected(x, (128,), "tx", "add", 2, 4))


def test_within_a_warp_no_shared_memory_is_needed() -> None:
    expanded = expand_scans(_kernel((16, 4), "tx", "add", "int32", 1, 1))
    buffers = [s.buffer for s in walk_statements(expanded) if isinstance(s, Alloc)]
    assert all(b.memory is Memory.LOCAL for b in buffers)


def test_the_text_parses_back() -> None:
    text = print_kernel(_kernel((64,), "tx", "max", "int32", 1, 2))
    assert "thread_scan.max(" in text and print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("thread_scan.add", "thread_scan.exp", "'exp' is not one of add, mul, max, min"),
        ("along tx", "along ty", "ty is not a dimension of the block"),
        ("carry c[0]", "carry r[0]", "is its carry and its r"),
    ],
)
def test_the_spec_refuses_other_scans(old: str, new: str, message: str) -> None:
    text = print_kernel(_kernel((64,), "tx", "add", "int32", 1, 2)).replace(old, new)
    with pytest.raises(SpecError, match=message):
        check_kernel(parse_kernel(text), "lowered")
