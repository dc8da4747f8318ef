"""What forward graphs keep for backward graphs, in bytes; gradients beside eager."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.decompositions import decompositions  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.saving import cut  # noqa: E402

partitioners: Any = importlib.import_module("torch._functorch.partitioners")
common: Any = importlib.import_module("torch._dynamo.backends.common")


def kept(fn: Callable[..., Any], *args: Any) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and types of what the forward graph makes beside its result; gradients are eager's."""
    found: list[tuple[tuple[int, ...], Any]] = []

    def forward(module: Any, example_inputs: Any) -> Any:
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        made = [n for n in output.args[0][1:] if n.op != "placeholder"]
        found.extend((tuple(n.meta["val"].shape), n.meta["val"].dtype) for n in made)
        return boxed(module, example_inputs)

    def boxed(module: Any, example_inputs: Any) -> Any:
        def run(given: list[Any]) -> Any:
            return module.forward(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    torch.compiler.reset()
    backend = common.aot_autograd(
        fw_compiler=forward, bw_compiler=boxed, decompositions=decompositions(), partition_fn=cut
    )
    results = [f(*args).square().sum() for f in (torch.compile(fn, backend=backend), fn)]
    torch.testing.assert_close(*(torch.autograd.grad(r, args) for r in results))
    return found


def test_what_a_norm_reads_is_made_again_in_its_kernel() -> None:
    """A chain of elements between a product and a norm: only the product's result is kept."""
    torch.manual_seed(0)
    x, w = torch.randn(6, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)

    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        return torch.nn.functional.layer_norm(torch.tanh(y * 2) * y, (24,))

    whole = [(s, d) for s, d in kept(fn, x, w) if s == (6, 24)]
    assert len(whole) == 1


def test_torch_is_told_for_one_cut_alone() -> None:
    before = partitioners.get_default_op_list
    with pytest.raises(Exception, match=r".+"):
        cut(torch.fx.symbolic_trace(lambda x: x + 1), None, num_fwd_outputs="none")
    assert partitioners.get_default_op_list is before


def test_a_graph_runs_backward_as_often_as_it_is_retained() -> None:
    """What the forward graph keeps of its own is read, and never overwritten."""

    def fn(x: Any) -> Any:
        return (torch.softmax(x, -1) * x.sin()).sum()

    torch.manual_seed(0)
    x = torch.randn(5, 12, requires_grad=True)
    torch.compiler.reset()
    run = torch.compile(fn, backend=compiler(Options()))
    found = [*torch.autograd.grad(run(x), x)]
    loss = run(x)
    found += [torch.autograd.grad(loss, x, retain_graph=k == 0)[0] for k in range(2)]
    (want,) = torch.autograd.grad(fn(x), x)
    for g in found:
        torch.testing.assert_close(g, want)
