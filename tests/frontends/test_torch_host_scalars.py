"""Scalars on the host beside tensors on a device: what becomes a region, and what it computes.

No device is there: tensors on it have types alone, and regions are computed by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.decompositions import decompositions  # noqa: E402
from fusewright.frontends.torch.direct import Directly  # noqa: E402
from fusewright.frontends.torch.dynamo import parts_to_fuse  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.partition import GraphPartition  # noqa: E402
from fusewright.frontends.torch.region import FallbackCalls, FusedRegion, GraphPart  # noqa: E402
from fusewright.frontends.torch.rewrite import rewrite  # noqa: E402

aten = torch.ops.aten
SCALAR = torch.tensor(0.37)
LARGE = (512, 768)


def _cut(
    fn: Callable[..., Any], shape: tuple[int, ...], *scalars: Any, dtype: Any = torch.float32
) -> tuple[Any, list[GraphPart], GraphPartition]:
    """The graph of a function of a tensor on a device and scalars on the host, and its parts."""
    mode = torch._subclasses.fake_tensor.FakeTensorMode()
    with mode:
        x = torch.empty(shape, dtype=dtype, device="cuda")
        given = [mode.from_tensor(s) for s in scalars]
        module = make_fx(fn, decomposition_table=decompositions())(x, *given)
        parts, found = parts_to_fuse(module, Options())
    return module, parts, found


def _brought(part: GraphPart) -> list[Any]:
    """The scalars on the host that a part reads on its device, each by its number."""
    return [
        n.args[1].args[0]
        for n in part.inputs
        if n.target is aten.full.default
        and n.args[1].target is aten._local_scalar_dense.default
        and n.meta["val"].device.type == "cuda"
    ]


def _computed(part: GraphPart, values: dict[str, Any]) -> list[Any]:
    """What the oracle makes of a part's inputs: of graph arguments by their names, of scalars
    by those of the arguments that they are read from."""
    names = [_brought_name(n) for n in part.inputs]
    arrays = [values[name].numpy() for name in names]
    specs = [fw.TensorSpec(a.shape, a.dtype) for a in arrays]

    def traced(*given: Any) -> list[Any]:
        return part.trace(dict(zip(part.inputs, given, strict=True)))

    return [torch.from_numpy(np.asarray(a)) for a in fw.evaluate(fw.trace(traced, *specs), *arrays)]


def _brought_name(node: Any) -> str:
    return str(node.args[1].args[0] if node.target is aten.full.default else node)


def test_a_scalar_cuts_no_region() -> None:
    def fn(x: Any, s: Any) -> Any:
        return torch.tanh(x.exp() / s) + s

    _, parts, found = _cut(fn, LARGE, SCALAR)
    (part,) = parts
    assert not found.reasons
    (scalar,) = _brought(part)
    assert scalar.op == "placeholder"
    x = torch.randn(LARGE)
    names = [n.name for n in part.inputs if n.op == "placeholder"]
    (made,) = _computed(part, {names[0]: x, scalar.name: SCALAR})
    torch.testing.assert_close(made, fn(x, SCALAR))


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_scalars_of_other_types_promote_as_torch_has_it(kind: Any) -> None:
    scalar = torch.tensor(3).to(kind)

    def fn(x: Any, s: Any) -> Any:
        return (x.neg() * s).neg() - s.neg().neg() if kind is not torch.bool else (-x * s).neg()

    _, parts, _ = _cut(fn, LARGE, scalar)
    (part,) = [p for p in parts if p.tensors[0].meta["val"].device.type == "cuda"]
    assert [n.meta["val"].dtype for n in part.outputs] == [torch.float32]
    assert [s.meta["val"].dtype for s in _brought(part)] == [kind] * len(_brought(part))
    assert _brought(part)


def test_what_the_host_computes_stays_there_and_is_brought_once() -> None:
    def fn(x: Any, s: Any) -> Any:
        t = (s * 3 + 1).sqrt()
        y = (x.exp() * t).sin()
        return (torch.mm(y, y.t()) / t).exp(), t

    module, parts, _ = _cut(fn, LARGE, SCALAR)
    host = [p for p in parts if p.tensors[0].meta["val"].device.type == "cpu"]
    device = [p for p in parts if p not in host]
    assert len(host) == 1 and len(device) == 2
    (of_host,) = host[0].outputs
    assert [_brought(p) for p in device] == [[of_host], [of_host]]
    fills = [n for n in module.graph.nodes if n.target is aten.full.default]
    assert len(fills) == 1 and all(fills[0] in p.inputs for p in device)
    kinds = {n.meta["val"].device.type for p in device for n in p.nodes}
    assert kinds == {"cuda"}


def test_an_operator_alone_takes_the_scalar_as_torch_does() -> None:
    module, parts, found = _cut(lambda x, s: torch.mm(x * s, x.t()), LARGE, SCALAR)
    assert not parts
    assert all(n.target is not aten.full.default for n in module.graph.nodes)
    (mul,) = [n for n in module.graph.nodes if n.target is aten.mul.Tensor]
    assert [a.op for a in mul.args] == ["placeholder"] * 2
    assert found.reasons[mul].startswith("alone")


def test_launches_for_scalars_are_weighed_against_what_a_region_saves() -> None:
    def fn(x: Any, s: Any, t: Any, u: Any) -> Any:
        return (x * s + t) / u

    _, few, found = _cut(fn, (4, 8), SCALAR, SCALAR + 1, SCALAR + 2)
    assert not few and any("the host's scalars" in r for r in found.reasons.values())
    _, (part,), _ = _cut(fn, LARGE, SCALAR, SCALAR + 1, SCALAR + 2)
    assert len(_brought(part)) == 3


def test_a_move_of_a_scalar_to_the_device_is_no_call_of_its_own() -> None:
    def fn(x: Any, s: Any) -> Any:
        return (x.exp() * aten._to_copy.default(s, device=x.device)).sin()

    _, (part,), found = _cut(fn, LARGE, SCALAR)
    assert not found.reasons and len(_brought(part)) == 1


def test_a_scalar_is_read_before_it_is_written() -> None:
    def fn(x: Any, s: Any) -> Any:
        y = (x.exp() * s).sin()
        s.copy_(s + 1)
        return y

    module, parts, _ = _cut(torch.func.functionalize(fn), LARGE, SCALAR)
    new = rewrite(module, parts, lambda p: FusedRegion(p, FallbackCalls(p, Options(), object())))
    targets = [n.target for n in new.graph.nodes]
    assert targets.index(aten._local_scalar_dense.default) < targets.index(aten.copy_.default)


def test_the_number_of_a_scalar_is_asked_by_plain_calls() -> None:
    module, _, _ = _cut(lambda x, s: (x.exp() * s).sin(), LARGE, SCALAR)
    (fill,) = [n for n in module.graph.nodes if n.target is aten.full.default]
    calls = Directly()
    number = calls.of(fill.args[1])(SCALAR)
    assert number == SCALAR.item()
    options = dict(fill.kwargs) | {"device": "cpu"}
    assert torch.equal(calls.of(fill)([], number, **options), SCALAR)


def _sunk(x: Any, s: Any) -> Any:
    """What a later region alone reads is computed on the host."""
    t = (s * 3 + 1).sqrt()
    return (torch.mm(x, x.t()) * t).exp()


def _beside(x: Any, s: Any) -> Any:
    """The host and the device read the same scalar."""
    return (s * 3 + 1).sqrt(), (x.exp() * s).sin()


@pytest.mark.parametrize("fn", [_sunk, _beside])
def test_a_region_computes_on_one_device(fn: Callable[..., Any]) -> None:
    _, parts, _ = _cut(fn, LARGE, SCALAR)
    kinds = [{n.meta["val"].device.type for n in p.nodes} for p in parts]
    assert sorted(map(sorted, kinds)) == [["cpu"], ["cuda"]]
    assert sum(len(_brought(p)) for p in parts) == 1
