"""The PyTorch backend on CUDA tensors: torch's operator samples, models forward and backward."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "frontends"))
sys.path.insert(0, str(Path(__file__).parents[2]))

pytest.importorskip("expecttest")  # torch's own tables of samples need it
import torch_checks as checks  # noqa: E402

from fusewright.frontends.torch.dynamo import backend, compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

pytestmark = pytest.mark.gpu

EVERY = Options(min_ops=1)
COMMON = (
    *("add", "mul", "div", "sub", "pow", "where", "clamp", "exp", "tanh", "sigmoid", "erf"),
    *("floor_divide", "remainder", "fmod", "eq", "lt", "logical_and", "bitwise_xor", "sum", "mean"),
    *("amax", "argmax", "var", "std_mean", "cumsum", "prod", "any", "softmax", "log_softmax"),
    *("nn.functional.layer_norm", "nn.functional.group_norm", "nn.functional.gelu"),
    *("nn.functional.silu", "nn.functional.embedding", "nn.functional.cross_entropy"),
    *("cat", "stack", "split", "narrow", "gather", "index_select", "flip", "roll", "tril"),
    *("expand", "reshape", "permute", "masked_fill"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COMMON)
def test_common_operators_agree_with_eager(name: str, dtype: torch.dtype) -> None:
    for op in checks.named(name, dtype, "cuda"):
        checks.check_op(op, dtype, "cuda", EVERY, limit=4, inside=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_every_operator_agrees_with_eager(dtype: torch.dtype) -> None:
    failed: list[str] = []
    for op in checks.operators(dtype, "cuda"):
        if op.name.startswith("linalg"):
            continue
        try:
            checks.check_op(op, dtype, "cuda", EVERY, limit=3)
        except Exception as e:
            failed.append(f"{op.name}.{op.variant_test_name}: {type(e).__name__}: {str(e)[:200]}")
    assert failed == []


def _models() -> list[object]:
    pytest.importorskip("transformers")
    from bench.models import models

    return models("small")


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models_agree_with_eager_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    from bench.models import step

    model = next(m for m in _models() if m.name == name)
    torch.manual_seed(0)
    torch.compiler.reset()
    exact = model.build().to("cuda")
    inputs = model.inputs(2, 32, "cuda")
    eager = copy.deepcopy(exact).to(dtype)
    ours = copy.deepcopy(exact).to(dtype)
    reports: list[GraphReport] = []
    run = torch.compile(ours, backend=compiler(Options(), reports.append))
    for m, f in ((exact, exact), (eager, eager), (ours, run)):
        m.loss = step(f, inputs).item()
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    assert sum(len(g.regions) for g in reports) >= 4
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    assert abs(ours.loss - exact.loss) <= bound * abs(exact.loss)
    for e, t, o in zip(exact.parameters(), eager.parameters(), ours.parameters(), strict=True):
        if e.grad is None:
            continue
        scale = e.grad.abs().max().item()
        error = (o.grad.float() - e.grad).abs().max().item()
        eagers = (t.grad.float() - e.grad).abs().max().item()
        assert error <= 2 * eagers + (1e-4 if dtype is torch.float32 else 1e-2) * scale + 1e-6


def test_a_call_is_legal_inside_cuda_graph_capture_and_repeats_bitwise() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.gelu(x @ w) * 2 + 1, -1)

    run = torch.compile(f, backend=backend)
    x, w = (torch.randn(256, 256, device="cuda") for _ in range(2))
    want = run(x, w)
    assert torch.equal(run(x, w), want)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(x, w)
    graph.replay()
    assert torch.equal(got, want)


def test_dynamic_sizes_compile_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, -1) * x.shape[0]

    reports: list[GraphReport] = []
    run = torch.compile(f, backend=compiler(Options(), reports.append), dynamic=True)
    for n in (6, 10, 34):
        x = torch.randn(n, 64, device="cuda")
        checks.check_close([run(x)], [f(x)])
    (graph,) = reports
    assert [r.failures for r in graph.regions] == [[]]
