"""Pooling and the columns of windows through torch.compile: results, gradients and strides beside
eager, what a forward graph keeps of maxima, and what is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as f  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch import dynamo, from_torch, places  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402

SHAPE = (2, 3, 11, 13)


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def graphs_of(
    monkeypatch: pytest.MonkeyPatch,
    fn: Callable[[Any], Any],
    x: Any,
    cpu: str = "oracle",
    **modes: Any,
) -> tuple[list[list[Any]], list[str]]:
    """The tensors that the forward and the backward graph of a function give, and what is left to
    torch; result, gradient and their strides are eager's."""
    torch.compiler.reset()
    given: list[list[Any]] = []
    reports: list[Any] = []
    real = dynamo.partition

    def noted(graph: Any, options: Options) -> Any:
        (output,) = (n for n in graph.nodes if n.op == "output")
        values = [n.meta["val"] for n in output.args[0] if n is not None]
        given.append([v for v in values if isinstance(v, torch.Tensor)])
        return real(graph, options)

    monkeypatch.setattr(dynamo, "partition", noted)
    found: list[tuple[Any, Any]] = []
    compiled = torch.compile(fn, backend=compiler(Options(cpu=cpu), reports.append), **modes)
    for run in (fn, compiled):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = run(leaf)
        wave = torch.cos(torch.arange(y.numel(), dtype=torch.float32)).reshape(y.shape)
        found.append((y, torch.autograd.grad(y, leaf, wave.to(y.dtype))[0]))
    for own, eager in zip(*reversed(found), strict=True):
        torch.testing.assert_close(own, eager, rtol=2e-5, atol=2e-5)
        assert own.stride() == eager.stride()
    return given, [str(op) for r in reports for op, _ in r.left]


POOLS = [
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, False),
    (3, 1, 1, 1, False),
    ((3, 2), (2, 3), (1, 0), 1, True),
    (5, 3, 2, 1, True),
    (2, 3, 0, 1, False),
    (3, 2, 1, 2, False),
]


@pytest.mark.parametrize("sizes", POOLS)
@pytest.mark.parametrize("cpu", ["oracle", pytest.param("sim", marks=pytest.mark.slow)])
def test_maxima_keep_a_byte_each(monkeypatch: pytest.MonkeyPatch, sizes: Any, cpu: str) -> None:
    given, left = graphs_of(
        monkeypatch, lambda x: f.max_pool2d(x.relu(), *sizes) * 2, rand(*SHAPE), cpu
    )
    assert left == []
    kept = [t.dtype for t in given[0]]
    assert kept.count(torch.int8) == 1 and torch.int64 not in kept


def test_maxima_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rand(1, 8, 7, 9).to(memory_format=torch.channels_last)
    _, left = graphs_of(monkeypatch, lambda x: f.max_pool2d(x.relu(), 3, 2, 1) * 2, x, "sim")
    assert left == []


def test_maxima_alone_and_in_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    given, left = graphs_of(monkeypatch, lambda x: f.max_pool2d(x, 3, 2, 1), rand(*SHAPE))
    assert left == [] and torch.int8 in [t.dtype for t in given[0]]
    given, left = graphs_of(monkeypatch, lambda x: f.max_pool3d(x, 2) * 2, rand(2, 3, 6, 5, 4))
    assert left == [] and torch.int8 in [t.dtype for t in given[0]]


def test_equal_elements_and_nan_choose_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(0, 2, SHAPE, generator=torch.Generator().manual_seed(0)).float()
    graphs_of(monkeypatch, lambda x: f.max_pool2d(x * 2, 3, 2, 1) * 2, x)
    x[0, 0, 4, 4] = float("nan")
    x[0, 0, 5, 5] = float("nan")
    torch.compiler.reset()
    run = torch.compile(lambda x: f.max_pool2d(x * 2, 3, 2, 1) * 2, backend=compiler(Options()))
    gradients: list[Any] = []
    for pool in (run, lambda x: f.max_pool2d(x * 2, 3, 2, 1) * 2):
        leaf = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(pool(leaf).sum(), leaf)[0])
    torch.testing.assert_close(*gradients)


def test_indices_that_are_read_stay_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpooled(x: Any) -> Any:
        y, at = f.max_pool2d(x * 2, 2, return_indices=True)
        return f.max_unpool2d(y.sin(), at, 2, output_size=x.shape)

    given, _ = graphs_of(monkeypatch, unpooled, rand(2, 3, 8, 8))
    assert torch.int8 not in [t.dtype for t in given[0]]


def test_windows_of_more_places_than_a_byte_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 x 10 places are counted as 12 x 11 where windows are 11 apart along the last axis."""
    for lengths, strides, is_kept in (((12, 10), (12, 10), True), ((12, 10), (12, 11), False)):
        given, _ = graphs_of(
            monkeypatch,
            lambda x, n=lengths, s=strides: f.max_pool2d(x * 2, n, s) * 2,
            rand(1, 2, 25, 33),
        )
        assert (torch.int8 in [t.dtype for t in given[0]]) == is_kept


def test_symbolic_sizes_keep_torch_s_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = graphs_of(
        monkeypatch, lambda x: f.max_pool2d(x.relu(), 3, 2, 1) * 2, rand(*SHAPE), dynamic=True
    )
    assert torch.int8 not in [t.dtype for t in given[0]]


@pytest.mark.parametrize("sizes", POOLS)
def test_what_torch_computes_of_the_operators(sizes: Any) -> None:
    """Where a region is given up, torch runs them: the same numbers, and the way back from them."""
    x = rand(*SHAPE)
    lengths, strides, paddings, dilations = (
        [n, n] if isinstance(n, int) else list(n) for n in sizes[:4]
    )
    given = lengths, strides, paddings, dilations, sizes[4]
    y, at = torch.ops.fusewright.max_pool_with_places(x, *given)
    want, indices = torch.ops.aten.max_pool2d_with_indices(x, *given)
    assert torch.equal(y, want) and at.dtype is torch.int8
    g = rand(*y.shape)
    got = torch.ops.fusewright.max_pool_places_backward(g, at, list(x.shape), *given)
    expected = torch.ops.aten.max_pool2d_with_indices_backward(g, x, *given, indices)
    torch.testing.assert_close(got, expected)
    assert torch.equal(numbers(x, given), at.to(torch.int32))


def numbers(x: Any, given: Any) -> Any:
    """The places as a kernel counts them."""
    fusion = from_torch(lambda t: places.WITH_PLACES(t, *given)[1], x)
    return torch.from_numpy(fw.evaluate(fusion, x.numpy())[0]).to(torch.int32)


@pytest.mark.parametrize(
    "sizes",
    [
        (3, 2, 1, False, True, None),
        (2, 2, 0, False, True, None),
        (3, 1, 1, False, False, None),
        (3, 2, 1, True, True, None),
        (3, 2, 1, True, False, None),
        (3, 2, 0, False, True, 5),
        (2, 3, 0, False, True, None),
        (6, 1, 3, False, False, None),
    ],
)
def test_averages(monkeypatch: pytest.MonkeyPatch, sizes: Any) -> None:
    _, left = graphs_of(monkeypatch, lambda x: f.avg_pool2d(x.relu(), *sizes) * 2, rand(*SHAPE))
    assert left == []


def test_averages_of_volumes_and_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    _, left = graphs_of(
        monkeypatch,
        lambda x: f.avg_pool3d(x.relu(), 2, 2, 1, False, False) * 2,
        rand(2, 3, 6, 5, 4),
    )
    assert left == []
    pool = lambda x: f.avg_pool2d(x.relu(), 3, 2, 1, True, False) * 2  # noqa: E731
    _, left = graphs_of(monkeypatch, pool, rand(1, 8, 7, 9), "sim")
    assert left == []


def test_columns_and_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns(x: Any) -> Any:
        return f.unfold(x.relu(), 3, padding=1, stride=2) * 2

    def summed(x: Any) -> Any:
        return f.fold(x.relu(), (7, 6), 3, padding=1, stride=2) * 2

    assert graphs_of(monkeypatch, columns, rand(*SHAPE))[1] == []
    assert graphs_of(monkeypatch, summed, rand(2, 18, 12))[1] == []


def test_averages_read_what_is_stored_for_them_as_short_as_it_is() -> None:
    """A gelu has a kernel of its own where windows share elements: in 16 bits each way."""

    def averaged(x: Any) -> Any:
        return f.avg_pool2d(f.gelu(x), 3, 2, 1)

    x = torch.empty(8, 64, 56, 56, dtype=torch.bfloat16)
    program = fw.compile(from_torch(averaged, x), target="sm_90a")
    small = 2 * 8 * 64 * 28 * 28
    assert program.host.stats["bytes_moved"] == 3 * 4 * small + small
