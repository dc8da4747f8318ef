"""Progress on a terminal after five seconds, and interrupted compilations that leave nothing."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright import driver, finish
from fusewright.cuda.compile import Compiled
from fusewright.fusion import array as array_module
from fusewright.kir import pipeline
from fusewright.progress import AFTER, told
from fusewright.runtime import builds
from fusewright.schedule.heuristics import rating

X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run(stream: io.StringIO, seconds: float) -> list[int]:
    now = iter(seconds * k for k in range(100))
    found = told(range(4), 4, "compiling kernels", stream=lambda: stream, clock=lambda: next(now))
    return list(found)


def test_a_long_wait_is_told_and_wiped() -> None:
    stream = Terminal()
    assert _run(stream, AFTER - 2) == [0, 1, 2, 3]
    text = stream.getvalue()
    assert "fusewright: compiling kernels, 1 of 4 done in 6 s" in text
    assert "3 of 4 done in 12 s" in text and "0 of 4" not in text
    last = text.rsplit("\r", 2)
    assert last[1].strip() == "" and last[2] == ""


@pytest.mark.parametrize(("stream", "seconds"), [(io.StringIO(), 60.0), (Terminal(), 0.1)])
def test_no_line_without_a_terminal_or_before_its_time(stream: io.StringIO, seconds: float) -> None:
    assert _run(stream, seconds) == [0, 1, 2, 3]
    assert stream.getvalue() == ""


def test_an_exception_wipes_the_line() -> None:
    stream = Terminal()
    now = iter(range(0, 1000, 10))

    def fail() -> None:
        for k in told(range(4), 4, "x", stream=lambda: stream, clock=lambda: float(next(now))):
            if k == 2:
                raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert "2 of 4" in stream.getvalue() and stream.getvalue().endswith(" \r")


def test_compilations_tell_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []

    def recorded(items: Any, total: int, what: str) -> Any:
        seen.append((total, what))
        return items

    monkeypatch.setattr(driver, "told", recorded)
    program = fw.compile(fw.trace(lambda x: (fw.sum(x, axis=0), fw.sum(x, axis=1)), "f32[64,64]"))
    assert seen and seen[-1][0] >= len(program.launches) and "compiling" in seen[-1][1]


# --- Ctrl-C -------------------------------------------------------------------------------------


def _chain(x: Any) -> Any:
    h = fw.nn.softmax(x, axis=-1)
    return fw.sum(h * 2.0, axis=0), fw.cumulative_sum(h, axis=1)


def _interrupting(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int) -> list[int]:
    """Has the `at`-th call of a function raise KeyboardInterrupt, once."""
    calls = [0]
    usual = getattr(module, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise KeyboardInterrupt
        return usual(*args, **kwargs)

    monkeypatch.setattr(module, name, called)
    return calls


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [
        (array_module, "calling_line", 3),
        (driver, "chosen_form", 1),
        (driver, "place", 1),
        (rating, "work_of", 1),
        (rating, "work_of", 2),
        (finish, "lower", 1),
        (pipeline, "run_pass", 7),
        (pipeline, "run_pass", 40),
    ],
)
def test_a_call_after_an_interrupted_one_is_like_the_first(
    module: Any, name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = fw.fuse(_chain, device="sim")
    calls = _interrupting(monkeypatch, module, name, at)
    with pytest.raises(KeyboardInterrupt):
        fused(X)
    assert calls[0] == at
    got = fused(X)
    want = fw.evaluate(fw.trace(_chain, fw.TensorSpec(X.shape, "float32")), X)
    assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, want, strict=True))


class _Slow:
    """A compiler whose modules wait until they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()

    def __call__(self, key: str, source: Any, target: Any) -> Compiled:
        self.begun.append(key)
        assert self.go.wait(60)
        return Compiled(b"code", "", "", 0.0)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> _Slow:
    made = _Slow()
    monkeypatch.setattr(builds, "_make", made)
    monkeypatch.setattr(builds, "compiler_version", lambda: "none")
    builder = builds.Builder()
    builder._pool = ThreadPoolExecutor(1)
    monkeypatch.setattr(sys.modules["fusewright.kernel"], "BUILDER", builder)
    return made


def _apart(count: int) -> list[fw.Kernel]:
    """Kernels of programs of their own."""
    fns: list[Callable[[Any], Any]] = [lambda x, k=k: fw.sum(x + k, axis=k % 2) for k in range(3)]
    fns[1] = lambda x: fw.exp(x)
    fns[2] = lambda x: fw.cumulative_sum(x, axis=0)
    return [fw.compile(fw.trace(f, "f32[8,64]")).kernels[0] for f in fns[:count]]


def test_an_interrupted_wait_leaves_nothing_in_the_queue(
    slow: _Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = _apart(3)
    for k in (first, second, third):
        k.start_compiling()
    usual = Future.result

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        monkeypatch.setattr(Future, "result", usual)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.compiled()
    slow.go.set()
    assert first.compiled().cubin == b"code"  # the module that had begun goes on
    assert not second.is_compiled and not third.is_compiled
    assert second.compiled().cubin == third.compiled().cubin == b"code"  # asked for again
    assert len(slow.begun) == 3 and third.is_compiled
