"""Updates of arguments on a device: running statistics, a cache, the step of an optimiser."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

pytestmark = pytest.mark.gpu


def compiled(fn: Any) -> tuple[Any, list[GraphReport]]:
    torch.compiler.reset()
    torch.manual_seed(0)
    reports: list[GraphReport] = []
    return torch.compile(fn, backend=compiler(Options(), reports.append)), reports


def failures(reports: list[GraphReport]) -> list[str]:
    return [f for g in reports for r in g.regions for f in r.failures]


def test_running_statistics() -> None:
    norms = [torch.nn.BatchNorm2d(8) for _ in range(6)]
    ours = torch.nn.Sequential(*norms).to("cuda")
    eager = copy.deepcopy(ours)
    run, reports = compiled(ours)
    for _ in range(3):
        x = torch.randn(4, 8, 10, 12, device="cuda")
        torch.testing.assert_close(run(x), eager(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    assert failures(reports) == []


def test_a_cache() -> None:
    def append(cache: Any, x: Any, at: Any) -> Any:
        cache.index_copy_(1, at, x * 2 + 1)
        return (cache.exp() + 1).sum(-1)

    run, reports = compiled(append)
    ours = torch.randn(2, 64, 32, device="cuda")
    eager = ours.clone()
    for k in range(4):
        x, at = torch.randn(2, 1, 32, device="cuda"), torch.tensor([k], device="cuda")
        torch.testing.assert_close(run(ours, x, at), append(eager, x, at), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, eager)
    assert failures(reports) == []


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_the_step_of_an_optimiser(name: str) -> None:
    how = {"capturable": True} if name == "AdamW" else {"momentum": 0.9}
    shapes = ((640, 33), (64,), (7, 5), (1024, 1024))
    start = [torch.randn(*s, device="cuda") for s in shapes]
    ours, eagers = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    own, other = (getattr(torch.optim, name)(p, lr=1e-2, **how) for p in (ours, eagers))
    run, reports = compiled(own.step)
    for _ in range(3):
        for p, q in zip(ours, eagers, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        run()
        other.step()
    torch.testing.assert_close([*ours], [*eagers], rtol=1e-4, atol=1e-5)
    assert failures(reports) == []
    assert all(len(g.regions) == 1 for g in reports)
