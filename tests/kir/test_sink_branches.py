# ruff: noqa: E501  (kernel texts)
"""Chosen values become branches: which statements stand under which condition, and what they
compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_kernels import random_kernel, run

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.dtypes import bfloat16
from fusewright.fusion.ir import TensorSpec
from fusewright.kir.analysis.occupancy import spare_registers
from fusewright.kir.ir import Compute, If, Kernel, Load
from fusewright.kir.passes import sink_branches as module
from fusewright.kir.passes.simplify import simplify
from fusewright.kir.passes.sink_branches import sink_branches
from fusewright.kir.passes.unroll import unroll
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import walk_statements
from fusewright.sim.machine import simulate
from fusewright.target import target_of
from fusewright.verify import random_values

TARGET = target_of("sm_90a")


def _kernel(body: str) -> Kernel:
    return parse_kernel(
        f"""kernel k {{
        param x: float32[1024] align 16
        param z: float32[1024] align 16
        param y: float32[1024] align 16
        grid (bx < 16)
        block (tx < 64)
        {body}
        }}"""
    )


def _lines(kernel: Kernel) -> list[str]:
    text = print_kernel(simplify(kernel))
    return [line for line in text.split("\n\n")[1].splitlines()[:-1] if "local" not in line]


def _work(target: str, source: str, n: int) -> list[str]:
    """A chain of `n` operations."""
    lines = [f"{target}[0] = exp({source}[0])"]
    return lines + [f"{target}[0] = mul({target}[0], {source}[0])"] * (n - 1)


def _two_pieces(left: str, right: str, *, n: int = 10, stores: str = "") -> Kernel:
    """y = chain(x) where `left` holds, else chain(z) where `right` holds."""
    lines = ["local a: float32[1]", "local b: float32[1]", "local p: float32[1]"]
    lines += ["local q: float32[1]", "local t: float32[1]"]
    lines += [f"a[0] = load x[64*bx + tx] if ({left}) else 0.0:float32"]
    lines += [f"b[0] = load z[64*bx + tx] if ({right}) else 0.0:float32"]
    lines += [*_work("p", "a", n), *_work("q", "b", n), stores]
    lines += ["t[0] = copy(0.0:float32)", f"t[0] = copy(p[0]) if ({left})"]
    lines += [f"t[0] = copy(q[0]) if ({right})", "store y[64*bx + tx] = t[0]"]
    return _kernel("\n".join(lines))


def _assert_same(kernel: Kernel, changed: Kernel) -> None:
    check_kernel(changed, "lowered")
    assert np.array_equal(_run(kernel), _run(changed))


def _run(kernel: Kernel) -> np.ndarray:
    x, z = (np.random.default_rng(s).random(1024, np.float32) for s in (1, 2))
    y = np.full(1024, 77, np.float32)
    arrays = dict(zip(kernel.params, (x, z, y), strict=True))
    simulate(kernel, arrays, outputs=(kernel.params[2],))
    return y


def test_each_piece_under_its_condition() -> None:
    kernel = _two_pieces("bx < 8", "bx >= 8")
    sunk = sink_branches(kernel, TARGET)
    lines = _lines(sunk)
    assert lines[0] == "  if (bx < 8) {"
    assert lines[1] == "    a[0] = load x[64*bx + tx]"
    assert lines[11:14] == ["    p[0] = mul(p[0], a[0])", "    t[0] = copy(p[0])", "  } else {"]
    assert lines[14] == "    b[0] = load z[64*bx + tx]"
    assert lines[-2:] == ["  }", "  store y[64*bx + tx] = t[0]"]
    assert "  t[0] = copy(0.0:float32)" not in lines  # the pieces leave nothing for it
    _assert_same(kernel, sunk)


def test_what_one_branch_uses_is_allocated_there() -> None:
    (branch,) = (
        s for s in sink_branches(_two_pieces("bx < 8", "bx >= 8"), TARGET).body if isinstance(s, If)
    )
    allocated = [str(s.buffer) for s in branch.then if hasattr(s, "buffer")]
    assert allocated == ["a", "p"]


def test_a_gap_keeps_the_other_value() -> None:
    kernel = _two_pieces("bx < 4", "bx >= 8")
    sunk = sink_branches(kernel, TARGET)
    assert "  t[0] = copy(0.0:float32)" in _lines(sunk)
    _assert_same(kernel, sunk)


def test_overlapping_pieces_keep_their_order() -> None:
    kernel = _two_pieces("bx < 10", "bx >= 8")
    sunk = sink_branches(kernel, TARGET)
    assert any(isinstance(s, If) for s in sunk.body)
    _assert_same(kernel, sunk)


def test_cheap_choices_stay_selects() -> None:
    kernel = _two_pieces("bx < 8", "bx >= 8", n=4)
    assert sink_branches(kernel, TARGET) is kernel


def test_threads_that_part_need_more_work() -> None:
    lanes = "tx%2 < 1", "tx%2 >= 1"
    kernel = _two_pieces(*lanes, n=40)
    assert sink_branches(kernel, TARGET) is kernel
    kernel = _two_pieces(*lanes, n=80)
    assert sink_branches(kernel, TARGET) is not kernel
    _assert_same(kernel, sink_branches(kernel, TARGET))


def test_pieces_within_a_warp_load_first() -> None:
    """Lanes of a warp part here, so no load waits for another side's computation."""
    sunk = sink_branches(_two_pieces("64*bx + tx < 500", "64*bx + tx >= 500"), TARGET)
    loads, work = (s for s in sunk.body if isinstance(s, If))
    assert [s.src.name for s in walk_statements(loads) if isinstance(s, Load)] == ["x", "z"]
    assert not any(isinstance(s, Compute) for s in walk_statements(loads))
    assert not any(isinstance(s, Load) for s in walk_statements(work))
    _assert_same(_two_pieces("64*bx + tx < 500", "64*bx + tx >= 500"), sunk)


def test_loads_stay_in_front_of_stores() -> None:
    kernel = _two_pieces("bx < 8", "bx >= 8", stores="store y[64*bx + tx] = a[0]")
    sunk = sink_branches(kernel, TARGET)
    lines = _lines(sunk)
    first_store = next(i for i, line in enumerate(lines) if "store" in line)
    last_load = max(i for i, line in enumerate(lines) if "load" in line)
    assert last_load < first_store
    _assert_same(kernel, sunk)


def test_a_condition_on_a_register_is_no_branch() -> None:
    body = "local i: int32[1]\nlocal p: float32[1]\nlocal t: float32[1]\ni[0] = copy(index(tx):int32)\n"
    body += "p[0] = load x[tx]\n" + "\n".join(_work("t", "p", 20)[1:])
    body += "\nt[0] = copy(p[0]) if (i[0] < 3)\nstore y[64*bx + tx] = t[0]"
    kernel = _kernel(body)
    assert sink_branches(kernel, TARGET) is kernel


def test_accumulation_is_no_choice() -> None:
    body = (
        "local p: float32[1]\nlocal q: float32[1]\nlocal t: float32[1]\nt[0] = copy(0.0:float32)\n"
    )
    body += "for (i < 9) {\np[0] = load x[tx + 64*i] if (i < 8) else 0.0:float32\n"
    body += "\n".join(_work("q", "p", 20))
    body += "\nt[0] = add(t[0], q[0]) if (i < 8)\n}\nstore y[64*bx + tx] = t[0]"
    kernel = _kernel(body)
    assert sink_branches(kernel, TARGET) is kernel


@pytest.mark.parametrize("seed", range(120))
def test_random_kernels_compute_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every choice worth a branch."""
    monkeypatch.setattr(module, "UNIFORM_WORK", 0)
    monkeypatch.setattr(module, "PARTING_WORK", 0)
    kernel = simplify(unroll(random_kernel(seed)))
    sunk = sink_branches(kernel, TARGET)
    check_kernel(simplify(sunk), "lowered")
    assert np.array_equal(run(kernel), run(sunk), equal_nan=True)


def _several(n: int) -> Kernel:
    """y[k] = chain(x[k]) in even threads, chain(z[k]) in odd ones, for `n` elements in turn, whose
    sum is stored."""
    left, right = "tx % 2 < 1", "tx % 2 >= 1"
    lines = [f"local {v}{k}: float32[1]" for k in range(n) for v in ("a", "b", "p", "q", "t")]
    lines += ["local sum: float32[1]", "sum[0] = copy(0.0:float32)"]
    for k in range(n):
        at = f"64*bx + {k}"
        lines += [f"a{k}[0] = load x[{at}] if ({left}) else 0.0:float32"]
        lines += [f"b{k}[0] = load z[{at}] if ({right}) else 0.0:float32"]
        lines += [*_work(f"p{k}", f"a{k}", 20), *_work(f"q{k}", f"b{k}", 20)]
        lines += [f"t{k}[0] = copy(0.0:float32)", f"t{k}[0] = copy(p{k}[0]) if ({left})"]
        lines += [f"t{k}[0] = copy(q{k}[0]) if ({right})", f"sum[0] = add(sum[0], t{k}[0])"]
    return _kernel("\n".join([*lines, "store y[64*bx + tx] = sum[0]"]))


def _batches(kernel: Kernel) -> list[int]:
    """How many loads a thread has under way in each run of branches without work."""
    found: list[int] = []
    for s in kernel.body:
        inner = list(walk_statements(s))
        loads = sum(isinstance(i, Load) for i in inner)
        if isinstance(s, If) and loads:
            assert not any(isinstance(i, Compute) for i in inner)
            found.append(loads // 2)
    return found


def test_loads_of_all_elements_start_before_the_work_on_any() -> None:
    kernel = _several(6)
    sunk = sink_branches(kernel, TARGET)
    assert _batches(sunk) == [6]
    _assert_same(kernel, sunk)


def test_no_more_loads_start_at_once_than_registers_suffice_for() -> None:
    """Blocks of 64 threads of which a multiprocessor is to hold 32 have 32 registers a thread; what
    addresses take leaves a few."""
    kernel = dataclasses.replace(_several(16), min_blocks=32)
    spare = spare_registers(kernel, TARGET)
    assert 1 < spare < 16
    sunk = sink_branches(kernel, TARGET)
    assert max(_batches(sunk)) == spare and sum(_batches(sunk)) == 16
    _assert_same(kernel, sunk)


# --- whole programs -----------------------------------------------------------------------------


def _cat(axis: int) -> Callable[..., Any]:
    return lambda a, b, c: fw.concat([fw.nn.gelu(a), fw.nn.relu(b), c * 0.5], axis=axis)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "columns": (_cat(1), [(64, 1024)] * 3),
    "rows": (_cat(0), [(64, 1024)] * 3),
    "uneven": (_cat(1), [(96, 1000), (96, 1008), (96, 504)]),
    "odd": (_cat(1), [(64, 333), (64, 77), (64, 1)]),
    "odd rows": (_cat(1), [(64, 2049), (64, 1023), (64, 2051)]),
    "plain": (lambda a, b: fw.concat([a, b], axis=1), [(64, 2048)] * 2),
    "pad": (lambda x: fw.pad(fw.nn.gelu(x), ((1, 1), (8, 8))), [(100, 1024)]),
    "bias_pad": (lambda x, b: fw.pad(fw.nn.relu(x + b), ((3, 0), (16, 8))), [(64, 1000), (1000,)]),
    "nested": (
        lambda a, b, c: fw.concat([fw.concat([fw.exp(a), fw.tanh(b)], axis=1), fw.sin(c)], axis=0),
        [(32, 1024), (32, 1024), (32, 2048)],
    ),
    "pad_of_concat": (
        lambda a, b: fw.pad(fw.concat([fw.nn.gelu(a), b * 2.0], axis=1), ((0, 0), (1024, 0))),
        [(64, 1024)] * 2,
    ),
    "twice": (lambda x: fw.concat([fw.nn.gelu(x), fw.nn.silu(x)], axis=1), [(64, 2048)]),
    "normalised": (
        lambda a, b: fw.nn.softmax(fw.concat([fw.exp(a), b * 0.5], axis=1), axis=1),
        [(16, 512), (16, 512)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree_with_the_oracle(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    fusion = fw.trace(fn, *(TensorSpec(s, bfloat16) for s in shapes))
    program = fw.compile(fusion)
    rng = np.random.default_rng(3)
    arrays = [random_values(rng, shape, bfloat16) for shape in shapes]
    found = program.simulate(*arrays)
    assert not found.races
    for got, want in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["columns", "rows", "plain"])
def test_a_block_reads_its_own_piece_only(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    big = [TensorSpec((s[0] * 64, s[1] * 4), bfloat16) for s in shapes]
    (kernel,) = fw.compile(fw.trace(fn, *big)).kernels
    outside = [s for s in kernel.ir.body if isinstance(s, Load)]
    inside = [s for s in walk_statements(kernel.ir) if isinstance(s, Load)]
    assert not outside and {s.src.name for s in inside} == {"a", "b", "c"} - (
        {"c"} if name == "plain" else set()
    )
    assert all(s.fill is None and s.width == 8 for s in inside)
    threads = {str(d.var) for d in kernel.ir.block if constant_value(d.extent) != 1}
    conditions = [str(s.condition) for s in walk_statements(kernel.ir) if isinstance(s, If)]
    assert conditions and not any(t in c for t in threads for c in conditions)


def test_a_vector_that_spans_pieces_does_the_work_of_those_it_touches() -> None:
    """Rows begin at any element: each lane is needed under a condition of its own."""
    spec = TensorSpec((8192, 4097), bfloat16)
    (kernel,) = fw.compile(fw.trace(_cat(1), spec, spec, spec)).kernels
    pieces = [s for s in kernel.ir.body if isinstance(s, If) and not s.otherwise]
    loads = [[s for s in walk_statements(p) if isinstance(s, Load)] for p in pieces]
    assert [[s.src.name for s in found] for found in loads] == [["a"], ["b"], ["c"]]
    assert all(s.lanes.is_cut and s.width == 8 for found in loads for s in found)
    work = [s.fn for s in kernel.ir.body if isinstance(s, Compute)]
    assert set(work) == {"cast"}
    edges = [str(p.condition) for p in pieces]
    assert all(e.count("&&") == n for e, n in zip(edges, (0, 1, 0), strict=True))


def test_loads_start_first_where_warps_take_several_pieces() -> None:
    """Pieces of 127 elements are shorter than what a warp takes."""
    spec = TensorSpec((65536, 127), bfloat16)
    (kernel,) = fw.compile(fw.trace(_cat(1), spec, spec, spec)).kernels
    branches = [list(walk_statements(s)) for s in kernel.ir.body if isinstance(s, If)]
    works = [any(isinstance(s, Compute) for s in b) for b in branches]
    starts = [any(isinstance(s, Load) for s in b) for b in branches]
    assert any(works) and not any(w and s for w, s in zip(works, starts, strict=True))
