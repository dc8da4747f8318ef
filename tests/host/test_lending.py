"""Values between kernels in the memory of arguments that are given away and hold no result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.host.invariants import problems


def chain(x: Any) -> Any:
    """Three kernels, two values between them; the result has another dtype than the argument."""
    h = fw.name(fw.cumulative_sum(fw.nn.softmax(x, axis=-1), axis=0), "h")
    k = fw.name(fw.cumulative_sum(h, axis=1), "k")
    return fw.astype(fw.cumulative_sum(k * 2, axis=0), "float16")


def compiled(fn: Any = chain, shape: tuple[Any, ...] = (64, 96), **options: Any) -> fw.Program:
    return fw.compile(fw.trace(fn, fw.TensorSpec(shape, "float32")), **options)


def test_what_is_made_behind_the_last_reader_lies_in_the_argument(tmp_path: Path) -> None:
    kept, program = compiled(), compiled(donate=("x",))
    assert kept.host.stats["lent"] == {}
    lent = program.host.stats["lent"]
    assert set(lent.values()) == {"x"} and len(lent) >= 1
    assert program.workspace_nbytes < kept.workspace_nbytes
    assert program.host.stats["bytes_moved"] == kept.host.stats["bytes_moved"]
    assert fw.load(program.save(tmp_path / "p.fw")).host.stats == program.host.stats
    x = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_array_equal(result.outputs[0], kept.simulate(x).outputs[0])


def test_what_the_readers_make_does_not() -> None:
    """The first kernel reads the argument while it writes: its result has memory of its own."""
    program = compiled(donate=("x",))
    first = program.launches[0]
    assert any(t.name == "x" for t in first.inputs)
    lent = program.host.stats["lent"]
    assert all(t.name not in lent for t in first.outputs)


def test_launches_that_reuse_an_argument_wait_for_its_readers() -> None:
    host = compiled(donate=("x",)).host
    assert problems(host) == []
    for k in range(len(host.edges)):
        without = replace_edges(host, [e for j, e in enumerate(host.edges) if j != k])
        assert problems(without) != []


def replace_edges(host: Any, edges: list[Any]) -> Any:
    made = object.__new__(type(host))
    made.__dict__.update({**host.__dict__, "edges": tuple(edges)})
    return made


def test_an_argument_in_use_is_not_written() -> None:
    """An invariant sees it when a value takes bytes that are read later."""

    def fn(x: Any) -> Any:
        h = fw.cumulative_sum(x, axis=0)
        k = fw.cumulative_sum(h, axis=1)
        return fw.astype(fw.cumulative_sum(k, axis=0) + fw.cumulative_sum(x, axis=1), "float16")

    program = compiled(fn, donate=("x",))
    readers = [k for k, d in enumerate(program.launches) if any(t.name == "x" for t in d.inputs)]
    for name in program.host.stats["lent"]:
        (maker,) = (
            k for k, d in enumerate(program.launches) if any(t.name == name for t in d.outputs)
        )
        assert maker > max(readers)
    x = program.fusion.inputs[0]
    wrong = next(b.memory for d in program.host.launches for b in d.bindings if b.access.writes)
    forced = moved_to_input(program, wrong)
    assert {p.kind for p in problems(forced)} >= {"twice"}
    assert x.name in " ".join(p.message for p in problems(forced))


def moved_to_input(program: fw.Program, memory: Any) -> Any:
    """The host program with a value between kernels moved to the start of the first argument."""
    host = program.host
    root = host.roots[0]
    lying = replace(memory, root=root)
    launches = []
    for d in host.launches:
        bindings = tuple(
            replace(b, root=root, memory=lying, offset=b.offset - b.offset)
            if b.memory is memory
            else b
            for b in d.bindings
        )
        launches.append(replace(d, bindings=bindings))
    made = object.__new__(type(host))
    values = tuple(lying if v is memory else v for v in host.values)
    made.__dict__.update({**host.__dict__, "launches": tuple(launches), "values": values})
    made.__dict__.pop("stats", None)
    return made


def test_symbolic_sizes_lie_where_they_surely_fit() -> None:
    program = compiled(shape=("n", 96), donate=("x",))
    assert set(program.host.stats["lent"].values()) == {"x"}
    x = np.random.default_rng(2).standard_normal((50, 96)).astype(np.float32)
    np.testing.assert_array_equal(
        program.simulate(x).outputs[0], compiled(shape=("n", 96)).simulate(x).outputs[0]
    )


def test_memory_with_holes_is_not_lent() -> None:
    """The bytes between its rows belong to somebody else."""
    spec = fw.TensorSpec((64, 96), "float32", strides=(128, 1))
    assert fw.compile(fw.trace(chain, spec), donate=("x",)).host.stats["lent"] == {}
    small = fw.TensorSpec((64, 96), "float32", alignment=4)
    assert fw.compile(fw.trace(chain, small), donate=("x",)).host.stats["lent"] == {}


@pytest.mark.parametrize("shape", [(64, 96), (33, 70)])
def test_an_argument_that_holds_a_result_is_no_scratch(shape: tuple[int, int]) -> None:
    def fn(x: Any) -> Any:
        return fw.cumulative_sum(fw.cumulative_sum(fw.cumulative_sum(x, axis=0), axis=1), axis=0)

    program = compiled(fn, shape, donate=("x",))
    if program.holders == (0,):
        assert program.host.stats["lent"] == {}
