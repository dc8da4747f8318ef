"""Regions of one structure are compiled once: in a graph, forward and backward, and in graphs of
functions that torch compiles one by one."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends import fuse  # noqa: E402
from fusewright.frontends.stored_programs import key_of  # noqa: E402
from fusewright.frontends.torch import backend, dynamo  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that are compiled."""
    torch.compiler.reset()
    programs: list[Any] = []
    real = fuse.compile_in_place

    def compile_in_place(*args: Any, **options: Any) -> Any:
        programs.append(real(*args, **options))
        return programs[-1]

    monkeypatch.setattr(fuse, "compile_in_place", compile_in_place)
    return programs


def first(x: Any, y: Any) -> Any:
    return torch.softmax(x * 2 + y, dim=-1)


def second(x: Any, y: Any) -> Any:
    twice = x * 2
    return torch.softmax(twice + y, dim=-1)


def viewed(x: Any, y: Any) -> Any:
    return torch.softmax(x * 2 + y, dim=-1).view(2, 3, 40)


def by_name(fn: Any) -> Any:
    return torch.compile(fn, backend=backend, options={"cpu": "sim"})


def arguments(*shape: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(shape), torch.randn(shape[-1])


def test_functions_that_are_compiled_one_by_one_share(made: list[Any]) -> None:
    x, y = arguments(6, 40)
    for fn in (first, second, viewed):
        torch.testing.assert_close(by_name(fn)(x, y), fn(x, y))
    assert len(made) == 1
    by_name(first)(*arguments(6, 48))
    assert len(made) == 2


def test_other_options_and_precision_are_compiled_by_themselves(made: list[Any]) -> None:
    x, y = arguments(6, 40)
    by_name(first)(x, y)
    torch.compile(second, backend=backend, options={"cpu": "sim", "target": "sm_80"})(x, y)
    assert len(made) == 2


def test_a_reset_forgets(made: list[Any]) -> None:
    x, y = arguments(6, 40)
    by_name(first)(x, y)
    torch.compiler.reset()
    assert dynamo._shared == {}
    by_name(first)(x, y)
    assert len(made) == 2


def test_what_no_region_needs_is_forgotten(made: list[Any]) -> None:
    shared = dynamo.Shared()
    compiled = torch.compile(first, backend=compiler(Options(cpu="sim"), shared=shared))
    compiled(*arguments(6, 40))
    assert len(shared._ways) == 1
    del compiled
    torch.compiler.reset()
    gc.collect()
    assert len(shared._ways) == 0


def test_forward_and_backward_share(made: list[Any]) -> None:
    """The second derivative of a product of sines: both graphs have a sine and a product."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sin() * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.sin() * 2

    x = torch.randn(5, 16, requires_grad=True)
    reports: list[GraphReport] = []
    run = torch.compile(Twice.apply, backend=compiler(Options(cpu="sim"), reports.append))
    run(x).backward(torch.ones(5, 16))
    torch.testing.assert_close(x.grad, torch.ones(5, 16).sin() * 2)
    assert [g.name for g in reports] == ["forward", "backward"]
    assert len(made) == 1
    assert reports[0].regions[0].fused is reports[1].regions[0].fused


def test_symbols_are_those_of_one_graph(made: list[Any]) -> None:
    for fn in (first, second):
        run = torch.compile(fn, backend=backend, options={"cpu": "sim"}, dynamic=True)
        torch.testing.assert_close(run(*arguments(6, 40)), fn(*arguments(6, 40)))
    assert len(made) == 2


def test_regions_tell_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, str]] = []

    def tell(items: Any, total: int, what: str) -> Any:
        told.append((total, what))
        return items

    monkeypatch.setattr(dynamo, "told", tell)
    torch.compiler.reset()
    torch.compile(first, backend=compiler(Options()))(*arguments(6, 40))
    assert told == [(1, "compiling regions of the inference graph")]


@pytest.mark.stores
def test_processes_are_asked_for_what_is_looked_for_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forward and backward, regions that write to arguments among them."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "1")
    asked: list[str] = []
    looked_for: list[str] = []
    real = fuse.stored_or_made

    def make_ahead(wanted: Any, what: str) -> None:
        asked.extend(map(key_of, wanted))

    def stored_or_made(wanted: Any, make: Any) -> Any:
        looked_for.append(key_of(wanted))
        return real(wanted, make)

    monkeypatch.setattr(dynamo, "make_ahead", make_ahead)
    monkeypatch.setattr(fuse, "stored_or_made", stored_or_made)

    def step(x: Any, y: Any, w: Any) -> Any:
        x.copy_(x * 0.5 + y)
        return (torch.softmax(y * 2, -1) @ w).sigmoid() * 3

    torch.compiler.reset()
    x, (y, w) = (
        torch.randn(6, 40),
        (torch.randn(*s, requires_grad=True) for s in ((6, 40), (40, 8))),
    )
    torch.compile(step, backend=compiler(Options(cpu="sim")))(x, y, w).sum().backward()
    assert len(set(asked)) >= 3 and set(asked) == set(looked_for)
