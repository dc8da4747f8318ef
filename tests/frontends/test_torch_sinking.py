"""What small tensors do to where an operator is computed: nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch import explain  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402


def two_norms() -> Any:
    """Convolutions, with batch norms of what they compute between."""
    convolutions = (torch.nn.Conv2d(16, 16, 1, bias=False) for _ in range(3))
    first, second, last = convolutions
    norms = [torch.nn.BatchNorm2d(16), torch.nn.BatchNorm2d(16)]
    relu = torch.nn.ReLU()
    return torch.nn.Sequential(first, norms[0], relu, second, norms[1], relu, last)


def backward_of(model: Any, x: Any) -> GraphReport:
    torch.compiler.reset()
    report = explain(model, x, options={"cpu": "torch"})
    (found,) = (g for g in report.graphs if g.name == "backward")
    return found


def test_what_a_norm_subtracts_from_an_image_is_subtracted_where_it_is_read() -> None:
    """The mean of each channel is a region's result, and few bytes. The image less its mean would
    be stored in float32 for the norm's backward, which can subtract by itself."""
    torch.manual_seed(0)
    model = two_norms().to(torch.bfloat16)
    x = torch.randn(4, 16, 47, 31, dtype=torch.bfloat16)
    regions = backward_of(model, x).regions
    assert len(regions) == 2
    for r in regions:
        types = [(n.meta["val"].ndim, n.meta["val"].dtype) for n in r.part.outputs]
        assert sorted(types, key=str) == [(n, torch.bfloat16) for n in (1, 1, 4)]


def test_a_large_operand_of_another_region_keeps_an_operator_where_it_is() -> None:
    """Two images that are computed early would both have to be stored for a sum of theirs."""

    def f(x: Any, y: Any, w: Any, v: Any) -> Any:
        both = torch.sin(torch.nn.functional.conv2d(x, w))
        more = torch.cos(torch.nn.functional.conv2d(y, w))
        return torch.exp(torch.nn.functional.conv2d(both, v)) * (both + more), more

    torch.manual_seed(0)
    x, y = (torch.randn(4, 16, 33, 31) for _ in range(2))
    w, v = (torch.randn(16, 16, 1, 1) for _ in range(2))
    torch.compiler.reset()
    report = explain(f, x, y, w, v, options={"cpu": "torch"})
    owned = [[str(n.target) for n in r.part.owned] for r in report.graphs[0].regions]
    assert ["aten.add.Tensor" in o for o in owned] == [True, False]
