"""Results whose memory has gaps, as torch's have where an operand's memory has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.gaps import has_gaps  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

Function = Callable[[Any, Any], Any]


def _scattered(x: Any, y: Any) -> Any:
    return torch.select_scatter(x, y.neg(), 0, 1)


def _called(fn: Function) -> tuple[Any, Any, list[GraphReport]]:
    """What a compiled function and eager give of every second column, and the reports."""
    torch.manual_seed(0)
    torch.compiler.reset()
    wide, y = torch.randn(5, 5, 10), torch.randn(5, 5)
    reports: list[GraphReport] = []
    run = torch.compile(fn, backend=compiler(Options(min_ops=1), reports.append))
    got = run(wide.clone()[..., ::2], y)
    assert all(not r.failures for g in reports for r in g.regions)
    return got, fn(wide.clone()[..., ::2], y), reports


@pytest.mark.parametrize(
    "fn",
    [
        _scattered,
        lambda x, y: _scattered(x, y)[1:],
        lambda x, y: _scattered(x, y).transpose(0, 1),
        lambda x, y: torch.slice_scatter(x, x[1:3].neg(), 0, 1, 3),
        lambda x, y: x.mul_(2)[0].copy_(y),
    ],
    ids=["result", "part", "transposed", "slice", "argument"],
)
def test_a_result_has_the_gaps_that_torch_gives_it(fn: Function) -> None:
    got, want, reports = _called(fn)
    assert has_gaps(want) and got.stride() == want.stride()
    assert torch.equal(got, want)
    assert sum(len(g.regions) for g in reports) > 0


def test_elements_are_found_by_their_places_among_gaps() -> None:
    got, want, reports = _called(lambda x, y: _scattered(x, y).as_strided((5,), (50,), 2).neg())
    assert torch.equal(got, want)
    assert sum(len(g.regions) for g in reports) > 0


def test_nothing_is_copied_for_who_reads_coordinates() -> None:
    got, want, reports = _called(lambda x, y: torch.mm(_scattered(x, y)[2], y))
    torch.testing.assert_close(got, want)
    (graph,) = reports
    assert [op for op, _ in graph.left] == ["aten.mm.default"] and len(graph.regions) == 1
    targets = {n.target for n in graph.call._module.graph.nodes}
    assert torch.ops.aten.copy_.default not in targets


def test_gaps_are_places_between_elements() -> None:
    x = torch.zeros(4, 6)
    assert has_gaps(x[:, ::2]) and has_gaps(x[:, :5]) and has_gaps(x.t()[::3])
    assert not any(map(has_gaps, (x, x.t(), x[1:3], x[:1, ::6], x[:0, ::2], x[:, :1].expand(4, 3))))
