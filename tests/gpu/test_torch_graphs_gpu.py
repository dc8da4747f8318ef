"""torch.compile with CUDA graphs: replays have eager's results, forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from fusewright.runtime.plan import CallPlan

torch = pytest.importorskip("torch")
backend = pytest.importorskip("fusewright.frontends.torch").backend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(fn, backend=backend, **(options or {"mode": "reduce-overhead"}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every program that is enqueued."""
    seen: list[int] = []
    real = CallPlan.enqueue

    def enqueue(self: CallPlan, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(CallPlan, "enqueue", enqueue)
    return seen


def mlp(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)]
    layers += [torch.nn.Dropout(dropout), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)]
    return torch.nn.Sequential(*layers).cuda()


def test_inference_is_recorded_and_replayed_on_moving_arguments(launches: list[int]) -> None:
    model = mlp()
    run = compiled(model)
    with torch.no_grad():
        for k in range(6):
            x = torch.randn(32, 64, device="cuda")
            got = run(x)
            torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
            if k == 2:
                del launches[:]
    assert not launches  # replays call nothing of ours


@pytest.mark.parametrize("options", [{}, {"options": {"cudagraphs": True}}])
def test_training_is_recorded_forward_and_backward(
    launches: list[int], options: dict[str, Any]
) -> None:
    model, eager = mlp(), mlp()
    run = compiled(model, **options)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager))
    for k in range(8):
        x = torch.randn(32, 64, device="cuda")
        for m, call, step in ((model, run, ours), (eager, eager, theirs)):
            m.zero_grad()
            loss = (call(x) * x).square().mean()
            loss.backward()
            step.step()
        for a, b in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        if k == 3:
            del launches[:]
    assert not launches


def test_replays_have_the_same_bits() -> None:
    model = mlp()
    run = compiled(model)
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        results = [run(x).clone() for _ in range(50)]
    assert all(torch.equal(results[3], r) for r in results[3:])


def test_every_shape_has_a_recording(launches: list[int]) -> None:
    run = compiled(lambda x: torch.softmax(x * 2, -1).cumsum(-1) + 1)
    shapes = [(8, 33), (16, 65), (8, 33), (5, 129), (16, 65)]
    for k in range(4):
        for shape in shapes:
            x = torch.randn(shape, device="cuda")
            want = torch.softmax(x * 2, -1).cumsum(-1) + 1
            torch.testing.assert_close(run(x), want, rtol=1e-5, atol=1e-5)
        if k == 2:
            del launches[:]
    assert not launches


def test_running_statistics_are_written_once_a_call() -> None:
    def made() -> Any:
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm2d(8)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), norm, torch.nn.ReLU()).cuda()

    model, eager = made(), made()
    run = compiled(model)
    for _ in range(6):
        x = torch.randn(4, 3, 16, 16, device="cuda")
        for m, call in ((model, run), (eager, eager)):
            m.zero_grad()  # torch's trees reuse the memory of a run's gradients
            call(x).sum().backward()
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_dropout_draws_new_masks_in_every_replay() -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x * 2 + 1, 0.5).square() * 3)
    x = torch.ones(1024, device="cuda")
    masks = [run(x).clone() == 0 for _ in range(6)]
    assert all(0.3 < m.float().mean() < 0.7 for m in masks)
    assert all(not torch.equal(a, b) for a, b in pairwise(masks))


def test_what_is_not_recorded_says_why(caplog: pytest.LogCaptureFixture) -> None:
    scale = torch.tensor(3.0)
    run = compiled(lambda x, s: (x * s).sin() * 2 + 1)
    x = torch.randn(64, device="cuda")
    with caplog.at_level(logging.WARNING, "fusewright.torch"):
        for s in (scale, scale * 2):
            torch.testing.assert_close(run(x, s), (x * s).sin() * 2 + 1, rtol=1e-4, atol=1e-4)
    assert "not recorded as a CUDA graph" in caplog.text and "on the host" in caplog.text


def test_an_argument_that_is_written_and_moves_is_right() -> None:
    def step(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        return x.sin() + 1

    run = compiled(step)
    for _ in range(5):
        x, y = (torch.randn(100, device="cuda") for _ in range(2))
        other = x.clone()
        got, want = run(x, y), step(other, y)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(x, other)


def test_tuning_measures_each_region_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from fusewright.frontends.torch import region

    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    tunings: list[Any] = []
    real = region.tune_rest

    def seen(*args: Any) -> Any:
        tunings.append(real(*args))
        return tunings[-1]

    monkeypatch.setattr(region, "tune_rest", seen)
    x = torch.randn(4096, 4096, device="cuda")
    want = torch.softmax(x * 2, -1)
    for _ in range(2):
        torch.compiler.reset()
        run = compiled(lambda x: torch.softmax(x * 2, -1), mode="max-autotune")
        for _ in range(4):
            torch.testing.assert_close(run(x), want, rtol=1e-5, atol=1e-6)
    first, second = tunings
    assert len(first.timed) > 1 and second.timed == ()
