"""The PyTorch backend on CUDA tensors: torch's operator samples, streams, capture, whole models.

Every case stands alone, so that `pytest -n` spreads the compiling over all cores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "frontends"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch_checks as checks  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import backend, compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

pytestmark = pytest.mark.gpu
nn = torch.nn.functional

EVERY = Options(min_ops=1)
PARTS = 8
SWEEPS = [
    (torch.float32, True),
    (torch.bfloat16, False),
    (torch.float16, False),
    (torch.int64, True),
    (torch.bool, False),
]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("dtype", "inside"), SWEEPS, ids=str)
def test_every_operator_agrees_with_eager(dtype: torch.dtype, inside: bool, part: int) -> None:
    ops = checks.part_of(dtype, "cuda", part, PARTS)
    failed, fused = checks.failures(ops, dtype, "cuda", EVERY, limit=3, inside=inside)
    assert failed == []
    assert fused > 20


# --- calls --------------------------------------------------------------------------------------


def block(x: Any, w: Any) -> Any:
    return torch.softmax(nn.gelu(x @ w) * 2 + 1, -1)


scaled = fw.fuse(lambda x, y: fw.nn.softmax(x * 2 + y, -1))


def by_hand(x: Any, w: Any) -> Any:
    """A fused function between operators of torch."""
    return scaled(x @ w, w) * 2


CALLS = [torch.compile(block, backend=backend), by_hand]


def normal(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, device="cuda", dtype=dtype)


def eager(call: Callable[..., Any]) -> Callable[..., Any]:
    if call is by_hand:
        return lambda x, w: torch.softmax(x @ w * 2 + w, -1) * 2
    return block


@pytest.mark.parametrize("call", CALLS, ids=["compiled", "fused"])
def test_a_call_is_legal_inside_capture_and_repeats_bitwise(call: Callable[..., Any]) -> None:
    x, w = normal(256, 256), normal(256, 256)
    want = call(x, w)
    checks.assert_close([want], [eager(call)(x, w)])
    assert torch.equal(call(x, w), want)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(x, w)
    graph.replay()
    assert torch.equal(got, want)
    x.mul_(0.5)
    graph.replay()
    assert torch.equal(got, call(x, w))


@pytest.mark.parametrize("call", CALLS, ids=["compiled", "fused"])
def test_work_is_ordered_on_the_callers_stream(call: Callable[..., Any]) -> None:
    x, w = normal(2048, 2048) / 64, normal(2048, 2048) / 64
    call(x, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        moved = x
        for _ in range(30):  # long enough for a launch on another stream to overtake
            moved = moved @ w
        got = call(moved, w)
        total = got.sum()
    side.synchronize()
    torch.testing.assert_close(total, eager(call)(moved, w).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", CALLS, ids=["compiled", "fused"])
def test_inference_mode_and_autocast_agree_with_eager(call: Callable[..., Any]) -> None:
    x, w = normal(64, 64), normal(64, 64)
    with torch.inference_mode():
        got = call(x, w)
        assert got.is_inference()
        checks.assert_close([got], [eager(call)(x, w)])
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        got, want = call(x, w), eager(call)(x, w)
    torch.testing.assert_close(got.float(), want.float(), rtol=5e-2, atol=5e-2)


def test_a_training_step_can_be_captured() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)
    ).cuda()
    run = torch.compile(model, backend=backend)
    x = normal(32, 64)

    def step(fn: Callable[..., Any]) -> list[Any]:
        model.zero_grad(set_to_none=False)
        fn(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(run)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step(run)
    graph.replay()
    torch.cuda.synchronize()
    captured = [g.clone() for g in got]
    checks.assert_close(captured, step(model))


def test_strides_are_torchs() -> None:
    x = normal(2, 3, 4, 5).to(memory_format=torch.channels_last)
    run = torch.compile(lambda x: (x * 2 + 1).sigmoid(), backend=backend)
    assert run(x).stride() == x.stride()
    checks.assert_close([run(x)], [(x * 2 + 1).sigmoid()])


def test_dynamic_sizes_compile_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1) * x.shape[0]

    reports: list[GraphReport] = []
    run = torch.compile(f, backend=compiler(Options(), reports.append), dynamic=True)
    for n in (6, 10, 34):
        x = torch.randn(n, 64, device="cuda")
        checks.assert_close([run(x)], [f(x)])
    (graph,) = reports
    assert [r.failures for r in graph.regions] == [[]]


# --- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models_agree_with_eager_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("transformers")
    checks.assert_model_as_eager(named(name), dtype, "cuda", Options())


def named(name: str) -> Any:
    from bench.models import models

    return next(m for m in models("small") if m.name == name)
