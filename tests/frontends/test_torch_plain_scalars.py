"""Constant scalars on the host that a device reads, and biases of convolutions."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.plain_biases import plain_biases  # noqa: E402
from fusewright.frontends.torch.plain_scalars import plain_scalars  # noqa: E402

aten = torch.ops.aten
node = torch.fx.node


class Drawn:
    """An aten graph over one operand on a device and a constant on the host."""

    def __init__(self, dtype: Any, constant: Any) -> None:
        self.mode = torch._subclasses.fake_tensor.FakeTensorMode()
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.root.constant = constant
        self.x = self.graph.placeholder("x")
        self.constant = self.graph.get_attr("constant")
        with self.mode:
            self.x.meta["val"] = torch.empty(4, 8, dtype=dtype, device="cuda")
        self.constant.meta["val"] = self.mode.from_tensor(constant)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        made = self.graph.call_function(target, args, kwargs)
        given, named = node.map_arg((args, kwargs), lambda o: o.meta["val"])
        with self.mode:
            made.meta["val"] = target(*given, **named)
        return made

    def rewritten(self, *results: Any) -> None:
        self.graph.output(results)
        with self.mode:  # as torch.compile calls a backend
            plain_scalars(torch.fx.GraphModule(self.root, self.graph))


def test_a_scalar_that_is_computed_of_constants_is_its_number() -> None:
    drawn = Drawn(torch.bfloat16, torch.tensor(64.0))
    tripled = drawn.call(aten.mul.Tensor, drawn.constant, 3)
    root = drawn.call(
        aten._to_copy.default, drawn.call(aten.sqrt.default, tripled), dtype=torch.bfloat16
    )
    read = drawn.call(aten.div.Tensor, drawn.x, root)
    drawn.rewritten(read)
    assert read.args == (drawn.x, torch.tensor(192.0).sqrt().bfloat16().item())


def test_a_number_that_would_give_another_type_stays_a_tensor() -> None:
    drawn = Drawn(torch.int32, torch.tensor(2.5, dtype=torch.float64))
    wide = drawn.call(aten.mul.Tensor, drawn.x, drawn.constant)  # float64, as no number gives it
    drawn.rewritten(wide)
    assert wide.args == (drawn.x, drawn.constant)


def test_what_is_written_to_or_drawn_at_random_is_no_constant() -> None:
    drawn = Drawn(torch.float32, torch.tensor(0.5))
    chance = drawn.call(aten.bernoulli.default, drawn.constant)
    read = drawn.call(aten.mul.Tensor, drawn.x, chance)
    drawn.rewritten(read)
    assert read.args == (drawn.x, chance)
    drawn = Drawn(torch.float32, torch.tensor(0.5))
    read = drawn.call(aten.mul.Tensor, drawn.x, drawn.constant)
    drawn.call(aten.add_.Tensor, drawn.constant, 1.0)
    drawn.rewritten(read)
    assert read.args == (drawn.x, drawn.constant)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_bias_is_added_behind_its_convolution(device: str) -> None:
    given = [
        torch.randn(s, generator=torch.Generator().manual_seed(0))
        for s in ((2, 3, 8, 7), (4, 3, 3, 3), (4,))
    ]
    mode = torch._subclasses.fake_tensor.FakeTensorMode()
    graph = torch.fx.Graph()
    operands = [graph.placeholder(f"a{k}") for k in range(3)]
    with mode:
        for n, a in zip(operands, given, strict=True):
            n.meta["val"] = torch.empty(a.shape, device=device)
        at = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        n = graph.call_function(aten.convolution.default, (*operands, *at))
        n.meta["val"] = n.target(*(o.meta["val"] for o in operands), *at)
    graph.output(n)
    plain_biases(graph)
    graph.lint()
    called = [n for n in graph.nodes if n.op == "call_function"]
    assert [n.args[2] is None for n in called if n.target is aten.convolution.default] == [
        device == "cuda"
    ]
    assert all(n.meta["val"].device.type == device for n in called)
    result = torch.fx.GraphModule({}, graph)(*given)
    torch.testing.assert_close(result, torch.nn.functional.conv2d(*given))
