"""Constant scalars on the host that a device reads."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

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
