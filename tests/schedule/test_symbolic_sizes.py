"""Symbolic sizes beside crops, flips, steps, broadcasts, scans and operands of rank 0.

Every kernel is run at sizes that leave nothing, one element, a ragged end and several blocks. What
holds for each program: no kernel is cut in two because lowering refuses what formation accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.axes.classes import AxisGraph
from fusewright.axes.words import ratio
from fusewright.core.conditions import And, Cond, Less
from fusewright.core.expr import Expr, Var, floordiv, variables
from fusewright.core.substitution import estimate
from fusewright.fusion.text import parse_fusion
from fusewright.host.halves import halves_of
from fusewright.host.segment import Segment
from fusewright.host.subspans import natural
from fusewright.kir.ir import Buffer, Memory, Store
from fusewright.kir.traverse import walk_statements
from fusewright.verify import random_values

Spec = fw.TensorSpec
X = Spec((4, "n", 64), "float32")
ROWS = Spec((17, "n"), "float32")
SCALAR = Spec((), "float32")
NOTHING = Spec((4, 0), "float32")


def given(specs: tuple[fw.TensorSpec, ...], n: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(n)
    shapes = [tuple(n if isinstance(e, str) else e for e in s.shape) for s in specs]
    return [random_values(rng, s, t.dtype) for s, t in zip(shapes, specs, strict=True)]  # type: ignore[arg-type]


def assert_right(program: fw.Program, fusion: fw.Fusion, arrays: list[Any]) -> None:
    found = program.simulate(*arrays)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=1e-4, atol=1e-5
        )


def compiled(fn: Callable[..., Any], *specs: fw.TensorSpec) -> tuple[fw.Program, fw.Fusion]:
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    assert not [r for r in program.reasons if "cut in two" in r.rule]
    return program, fusion


def turned(y: fw.Array, x: fw.Array) -> fw.Array:
    return y + fw.permute_dims(x, (1, 0))


def twice_a_step(x: fw.Array) -> fw.Array:
    v = x[:, 2:1:-1, ::-1]
    return fw.stack([v, v], axis=-1)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[fw.TensorSpec, ...]]] = {
    "a transposed operand over a new axis": (
        turned,
        (Spec((3, "n", 64), "float32"), Spec((64, "n"), "float32")),
    ),
    "a transposed operand over two new axes": (
        turned,
        (Spec((2, 3, "n", 64), "float32"), Spec((64, "n"), "float32")),
    ),
    "the last row": (lambda x: fw.exp(x[:, -1, :]), (X,)),
    "the first row": (lambda x: fw.exp(x[:, 0]), (X,)),
    "one row that keeps its axis": (lambda x: fw.exp(x[:, :1]), (X,)),
    "a row of a sum": (lambda x: fw.sum(x[:, -1, ::2], axis=-1), (X,)),
    "a row that is gathered from": (
        lambda x, i: fw.take(x[:, -1], i, axis=1),
        (X, Spec((2,), "int32")),
    ),
    "a row, and nothing of it computed": (lambda x: x[:, -1], (X,)),
    "the last element of all": (lambda x: x[-1, -1, -1] * 2.0, (X,)),
    "rank 0 beside a join": (
        lambda x, s: fw.concat([x * s, x + s], axis=1),
        (ROWS, SCALAR),
    ),
    "rank 0 beside a join of rows": (
        lambda x, s: fw.concat([x * s, x + s], axis=0),
        (ROWS, SCALAR),
    ),
    "rank 0 beside a stack": (lambda x, s: fw.stack([x * s, x], axis=-1), (ROWS, SCALAR)),
    "rank 0 beside a pad": (lambda x, s: fw.pad(x, ((0, 0), (1, 2))) * s, (ROWS, SCALAR)),
    "rank 0 in a pad": (
        lambda x, s: fw.pad(fw.broadcast_to(s, (17, x.shape[1])), ((0, 0), (1, 2))),
        (ROWS, SCALAR),
    ),
    "rank 0 spread over ragged rows": (
        lambda x, s: fw.broadcast_to(s, (17, x.shape[1])),
        (ROWS, SCALAR),
    ),
    "an index of rank 0": (
        lambda x, i: fw.take(x, i, axis=0),
        (Spec((17, "n", 1), "bfloat16"), Spec((), "int32")),
    ),
    "one array at two places of a join": (lambda x: fw.concat([x * 2.0, x + 2.0], axis=1), (ROWS,)),
    "what is gathered, at two places of a join": (
        lambda x, i: fw.concat([fw.take(x, i, axis=0), fw.take(x, i, axis=0) + 1.0], axis=1),
        (ROWS, Spec((2,), "int32")),
    ),
    "a value with coordinates, at two places of a join": (
        lambda x: fw.concat([y := x + fw.astype(fw.arange(17), "float32")[:, None], y * 2], axis=1),
        (ROWS,),
    ),
    "a crop that is stored and joined twice": (
        lambda x, s: (x[:-1], fw.concat([x[:-1] * s, x[:-1] + s], axis=0)),
        (Spec(("n", 4), "float32"), SCALAR),
    ),
    "a scan of a crop that may be empty": (
        lambda x: fw.cumulative_sum(x[:, 2:], axis=1),
        (Spec((4, "n"), "float32"),),
    ),
    "a scan of a flipped crop": (
        lambda x: fw.cumulative_sum(x[:, :1:-1], axis=1),
        (Spec((4, "n"), "float32"),),
    ),
    "a reduction of a crop that may be empty": (
        lambda x: fw.sum(x[:, 2:], axis=1),
        (Spec((4, "n"), "float32"),),
    ),
    "steps and flips, stacked": (twice_a_step, (Spec((9, 5, "n"), "float32"),)),
    "a product of sizes": (
        lambda x: fw.prod(fw.arange(x.shape[0]), keepdims=True)[::-2],
        (Spec(("n",), "float32"),),
    ),
    "a repetition as often as there are rows": (
        lambda x: fw.tile(x, (x.shape[0], 1)) * 2.0,
        (Spec(("n", 4), "float32"),),
    ),
    "elements as often as there are rows": (
        lambda x: fw.repeat(x, x.shape[0], axis=1),
        (Spec(("n", 4), "float32"),),
    ),
    "a roll by a size": (
        lambda x: fw.roll(x, x.shape[0] - 1, axis=0) * 2.0,
        (Spec(("n", 4), "float32"),),
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_symbolic_sizes_compile_to_what_they_mean(case: str) -> None:
    fn, specs = PROGRAMS[case]
    program, fusion = compiled(fn, *specs)
    for n in (2, 3, 37):
        assert_right(program, fusion, given(specs, n))


@pytest.mark.parametrize("shape", [(17, 33), (17, 3333), (4, 4), (1, 0)])
def test_one_element_is_loaded_once_for_all_lanes(shape: tuple[int, ...]) -> None:
    program, fusion = compiled(lambda s: fw.broadcast_to(s, shape), SCALAR)
    assert_right(program, fusion, [np.float32(3.0)])
    for k in program.kernels:
        assert sum("load" in str(s) for s in map(str, k.ir.body)) <= 1


@pytest.mark.parametrize("start", [(0, 0), (2, 0)])
def test_an_insert_into_nothing_gives_what_was_there(start: tuple[int, int]) -> None:
    program, fusion = compiled(lambda x: fw.insert(x, x[: 4 - start[0], :0], start), NOTHING)
    assert_right(program, fusion, [np.zeros((4, 0), np.float32)])


def test_the_value_of_a_size_is_not_known_while_tracing() -> None:
    def count(x: fw.Array) -> fw.Array:
        return fw.asarray(float(fw.sum(fw.arange(x.shape[0]))))

    with pytest.raises(fw.UserError, match="its value is not known while tracing"):
        fw.trace(count, Spec(("n",), "float32"))


@pytest.mark.parametrize("count", ["repeat", "tile", "roll"])
def test_counts_that_may_be_negative_are_refused(count: str) -> None:
    def f(x: fw.Array) -> fw.Array:
        times = x.shape[0] - 3
        if count == "roll":
            return fw.roll(x, "once", axis=0)  # type: ignore[arg-type]
        return fw.repeat(x, times) if count == "repeat" else fw.tile(x, (times,))

    message = "must be an int" if count == "roll" else "must not be negative"
    with pytest.raises(fw.UserError, match=message):
        fw.trace(f, Spec(("n",), "float32"))


# --- symbols of a kernel ------------------------------------------------------------------------


def test_a_fusion_knows_the_sizes_of_layouts_and_ops() -> None:
    (kernel,) = compiled(lambda x: fw.exp(x[:, -1]), X)[0].kernels
    assert [str(s) for s in kernel.ir.symbols] == ["n"]
    assert all("n" not in map(str, i.shape) for i in kernel.inputs)


def test_a_kernel_that_reads_a_row_can_be_saved(tmp_path: Path) -> None:
    program, fusion = compiled(lambda x: fw.exp(x[:, -1]), X)
    restored = fw.load(program.save(tmp_path / "row"))
    assert_right(restored, fusion, given((X,), 5))
    (kernel,), (known,) = restored.kernels, program.kernels
    assert list(map(str, kernel.inputs[0].strides)) == list(map(str, known.inputs[0].strides))


# --- exact quotients of sizes -------------------------------------------------------------------

N, M, K = Var("n", 2), Var("m", 2), Var("k", 2)
HALF = floordiv(N + 1, 2)


@pytest.mark.parametrize(
    ("quotient", "divisor"),
    [
        (HALF, HALF - 1),
        (HALF * M, HALF - 1),
        (N - 2, M - 1),
        (N * N + N * 3, N - 1),
        (N - M, N + M),
        (N * M - 3, K * N - 1),
        (N * N - N * 2 + 5, N - 3),
        (N * 4 - 4, M * 2 + 1),
        (N * M * K - N + 7, M - N * K + 2),
    ],
    ids=str,
)
def test_the_quotient_of_a_product_is_found(quotient: Expr, divisor: Expr) -> None:
    assert ratio(quotient * divisor, divisor) == quotient
    assert ratio(quotient * divisor + 1, divisor) is None


def test_an_axis_that_may_be_empty_is_split_where_it_divides() -> None:
    graph = AxisGraph()
    rows, columns = graph.axis(Var("r", 1), "r"), graph.axis(N - 2, "c")
    outer, inner = graph.split(graph.merge(rows, columns), N - 2)
    assert graph.normal(outer) is rows and graph.normal(inner) is columns


# --- estimates ----------------------------------------------------------------------------------


def test_twice_a_size_counts_as_twice_as_much() -> None:
    assert estimate(N * 2 - 2) == 2 * estimate(N) - 2
    assert estimate(floordiv(N + 31, 32)) == 128
    assert estimate(Var("s", 2, 64, 8)) == 64 and estimate(Var("l", 8192)) == 8192
    assert estimate(Var("o", 2, None, 3)) % 3 == 0


# --- refused kernels ----------------------------------------------------------------------------


def test_halves_of_a_kernel_write_all_that_the_kernel_wrote() -> None:
    """Also an input that is stored as it is."""
    fusion = parse_fusion(
        "x: float32[4] = Input(strides=(1,), alignment=16)\n"
        "a: float32[4] = Pointwise(x, fn='exp')\n"
        "b: float32[4] = Pointwise(a, fn='neg')\n"
        "return x, b, b"
    )
    values = {t.name: t for t in fusion.values}
    stores = tuple(natural(fw.fusion.ir.Tensor(n, *_like(values["a"]))) for n in ("p", "q", "r"))
    whole = Segment(fusion, (natural(values["x"]),), stores)
    halves = halves_of(whole)
    assert halves is not None
    written = [w for h in halves for w in h.writes]
    assert [sum(w is s for w in written) for s in stores] == [1, 1, 1]


def _like(t: Any) -> tuple[Any, ...]:
    return t.shape, t.dtype, t.op


def test_a_tile_is_filled_in_every_block() -> None:
    """What is stored in shared memory is not guarded by the number of the block."""
    specs = (Spec((3, "n", 64), "float32"), Spec((64, "n"), "float32"))
    (kernel,) = compiled(turned, *specs)[0].kernels
    blocks = {d.var for d in kernel.ir.grid}
    n = kernel.ir.symbols[0]
    stores = [s for s in walk_statements(kernel.ir) if isinstance(s, Store) and is_shared(s.dst)]
    guards = [c for s in stores for c in parts_of(s.predicate) if blocks.intersection(variables(c))]
    assert stores and all(n in variables(c) and isinstance(c, Less) for c in guards)


def is_shared(b: Buffer) -> bool:
    return b.memory is Memory.SHARED


def parts_of(c: Cond) -> tuple[Cond, ...]:
    return c.parts if isinstance(c, And) else (c,)
