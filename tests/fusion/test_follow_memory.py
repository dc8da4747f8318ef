"""Values in the order of memory: the same numbers, in axes that follow arguments or results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.core.expr import as_expr
from fusewright.fusion.ir import Fusion, IndexMap, Input, Permute, Reduce, Reshape
from fusewright.fusion.orders import order_of, reshaped_order, strides_in
from fusewright.fusion.passes.follow_memory import follow_memory, wanted_orders
from fusewright.fusion.text import parse_fusion

N, C, H, W = 3, 8, 5, 7
LAST = (0, 2, 3, 1)


def channels_last(*shape: int) -> fw.TensorSpec:
    sizes = tuple(map(as_expr, shape))
    strides = tuple(int(str(s)) for s in strides_in(sizes, LAST))
    return fw.TensorSpec(shape, "float32", strides=strides)


def traced(fn: Callable[..., Any], *specs: fw.TensorSpec) -> Fusion:
    return fw.trace(fn, *(specs or (channels_last(N, C, H, W),)))


def arrays(fusion: Fusion, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = [[int(str(s)) for s in t.shape] for t in fusion.inputs]
    return [rng.standard_normal(s).astype(np.float32) for s in sizes]


def assert_same(fusion: Fusion, other: Fusion, given: list[np.ndarray]) -> None:
    for a, b in zip(fw.evaluate(other, *given), fw.evaluate(fusion, *given), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def norm(x: Any, axes: Any) -> Any:
    d = x - fw.mean(x, axis=axes, keepdims=True)
    return d * fw.rsqrt(fw.mean(d * d, axis=axes, keepdims=True) + 1e-5)


def test_in_c_order_nothing_is_done() -> None:
    fusion = traced(lambda x: norm(fw.reshape(x, (6, 4)), 1), fw.TensorSpec((2, 3, 4), "float32"))
    assert follow_memory(fusion).fusion is fusion
    assert follow_memory(fusion, wanted_orders(fusion)).fusion is fusion


def test_reductions_follow_the_argument() -> None:
    fusion = traced(lambda x: fw.permute_dims(fw.exp(x - fw.sum(x, axis=1, keepdims=True)), LAST))
    followed = follow_memory(fusion)
    (summed,) = [t.op for t in followed.fusion.values if isinstance(t.op, Reduce)]
    assert summed.axes == (3,)
    (result,) = followed.fusion.outputs
    assert not isinstance(result.op, Permute)  # it lies as it is returned
    assert set(followed.orders.values()) == {LAST}
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_reductions_of_an_argument_alone_run_along_its_memory() -> None:
    fusion = traced(lambda x: (fw.sum(x, axis=(2, 3)), fw.max(x, axis=(0, 1))))
    followed = follow_memory(fusion)
    reduced = [t.op for t in followed.fusion.values if isinstance(t.op, Reduce)]
    assert [r.axes for r in reduced] == [(1, 2), (0, 3)]
    assert followed.orders == {}  # what they store lies in C order
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_long_reductions_of_an_argument_are_cut_along_its_memory() -> None:
    def fn(x: Any) -> Any:
        wide = fw.astype(x, fw.float32)
        return fw.sum(fw.exp(wide - fw.max(wide, axis=(0, 3, 4), keepdims=True)), axis=(0, 3, 4))

    strides = (1, 5218048, 1199, 652256, 9592)
    program = fw.compile(traced(fn, fw.TensorSpec((1199, 8, 8, 8, 68), "float16", strides=strides)))
    first, *_ = [k.heuristic for k in program.kernels]
    assert first is not None and first.scheduler.startswith("inner_")  # no copy of it
    assert len(program.launches) == 2


def test_a_result_keeps_its_order_and_is_read_in_it() -> None:
    def fn(x: Any) -> Any:
        y = fw.name(fw.exp(x), "y")
        return y, fw.sum(y, axis=1)

    fusion = traced(fn)
    followed = follow_memory(fusion)
    y, _ = followed.fusion.outputs
    assert (y.name, y.shape) == ("y", fusion.outputs[0].shape)
    (reads,) = [t for t in followed.fusion.values if isinstance(t.op, Reduce)]
    assert reads.op.operands == (y,)
    assert followed.orders == {"y_0": LAST}
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_axes_that_are_cut_keep_their_place() -> None:
    def fn(x: Any) -> Any:
        y = norm(fw.reshape(x, (N, 2, C // 2, H, W)), (2, 3, 4))
        return fw.permute_dims(fw.reshape(y, (N, C, H, W)), LAST)

    fusion = traced(fn)
    followed = follow_memory(fusion)
    shapes = [t.shape for t in followed.fusion.values if isinstance(t.op, Reshape)]
    assert tuple(map(as_expr, (N, H, W, 2, C // 2))) in shapes
    assert followed.fusion.outputs[0].shape == tuple(map(as_expr, (N, H, W, C)))
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_what_needs_c_order_gets_it() -> None:
    def fn(x: Any) -> Any:
        rows = fw.reshape(fw.exp(x), (N * C, H * W))
        return rows @ rows.T

    fusion = traced(fn)
    followed = follow_memory(fusion)
    (rows,) = [t for t in followed.fusion.values if isinstance(t.op, Reshape)]
    assert isinstance(rows.op.operands[0].op, Permute)
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_the_most_bytes_decide_where_operands_disagree() -> None:
    small, large = channels_last(N, C, 1, 1), fw.TensorSpec((N, C, H, W), "float32")
    fusion = traced(lambda a, b: a + b, small, large)
    assert follow_memory(fusion).orders == {}
    wide = traced(lambda a, b, c: fw.exp(a + b) + c, *[channels_last(N, C, H, W)] * 2, large)
    assert len(follow_memory(wide).orders) == 3  # two against one
    assert_same(wide, follow_memory(wide).fusion, arrays(wide))


def test_what_the_result_wants() -> None:
    fusion = traced(
        lambda x: fw.permute_dims(fw.cumulative_sum(fw.exp(x), axis=1), LAST),
        fw.TensorSpec((N, C, H, W), "float32"),
    )
    assert follow_memory(fusion).orders == {}
    followed = follow_memory(fusion, wanted_orders(fusion))
    assert set(followed.orders.values()) == {LAST}
    assert_same(fusion, followed.fusion, arrays(fusion))


def test_orders_of_strides() -> None:
    def of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
        return order_of(tuple(map(as_expr, shape)), tuple(map(as_expr, strides)))

    assert of((2, 3, 4), (12, 4, 1)) == (0, 1, 2)
    assert of((2, 3, 4), (12, 1, 3)) == (0, 2, 1)
    assert of((2, 3, 4), (0, 4, 1)) == (0, 1, 2)  # a repeated axis lies nowhere
    assert of((2, 1, 4), (4, 9, 1)) == (0, 1, 2)
    (x,) = traced(lambda x: x).inputs
    assert isinstance(x.op, Input) and order_of(x.shape, x.op.strides) == LAST


@pytest.mark.parametrize(
    ("old", "new", "order", "want"),
    [
        ((6, 4), (2, 3, 4), (1, 0), (2, 0, 1)),
        ((2, 3, 4), (6, 4), (2, 0, 1), (1, 0)),
        ((2, 3, 4), (6, 4), (1, 0, 2), None),
        ((2, 3, 4), (2, 12), (2, 0, 1), None),
        ((2, 3), (2, 1, 3), (1, 0), (2, 0, 1)),
        ((6,), (2, 3, 1), (0,), (0, 1, 2)),
        ((4, 6), (8, 3), (0, 1), (0, 1)),
        ((4, 6), (8, 3), (1, 0), None),
    ],
)
def test_reshapes(old: Any, new: Any, order: Any, want: Any) -> None:
    shapes = (tuple(map(as_expr, s)) for s in (old, new))
    found = reshaped_order(*shapes, order)
    if found is not None and want is not None and len(new) == 3 and new[1] == 1:
        found = tuple(a for a in found if a != 1)  # where an axis of size 1 stands means nothing
        want = tuple(a for a in want if a != 1)
    assert found == want


def test_moves_of_arguments_that_lie_across_are_read_back_from_their_text() -> None:
    across = fw.TensorSpec((4, 6, 3), "float32", strides=(18, 1, 6))
    followed = follow_memory(traced(lambda x: fw.cos(fw.tile(x, (1, 1, 2))), across)).fusion
    assert any(isinstance(t.op, IndexMap) for t in followed.values)
    assert str(parse_fusion(str(followed))) == str(followed)
