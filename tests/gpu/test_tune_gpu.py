"""Tuning on a device: what is measured is plausible, what is kept is used and right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.runtime.device import architecture, device_name
from fusewright.target import target_of

torch = pytest.importorskip("torch")


def softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))


def test_what_is_measured_is_kept_used_and_right() -> None:
    x = torch.randn(8192, 4096, device="cuda")
    f = fw.fuse(softmax)
    tuning = fw.tune(f, x)
    least = 2 * x.numel() * 4 / target_of(architecture()).memory_nbytes_per_us
    assert tuning.device == device_name()
    assert len(tuning.timed) >= 3
    assert all(0.8 * least < t.us < 50 * least for t in tuning.timed), str(tuning)
    kept = next(t for t in tuning.timed if t.is_winner)
    assert kept.us <= next(t.us for t in tuning.timed if t.is_default)
    (kernel,) = fw.fuse(softmax).program(x).kernels
    assert kernel.measured and (kernel.heuristic, kept.us) in kernel.measured
    assert "tuned: " in f.explain(x).show("candidates")
    first, again = f(x), f(x)
    assert torch.equal(first, again)
    torch.testing.assert_close(first, torch.softmax(x, -1), rtol=1e-5, atol=1e-7)


def test_host_arrays_are_tuned_on_copies() -> None:
    x = np.random.default_rng(0).normal(size=(4096, 2048)).astype(np.float32)
    tuning = fw.tune(softmax, x)
    assert all(1 < t.us < 1000 for t in tuning.timed), str(tuning)
    (y,) = fw.compile(fw.trace(softmax, fw.TensorSpec(x.shape, "float32")))(x, device="cuda")
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=1e-5)


def test_every_candidate_of_a_kernel_is_right() -> None:
    """Candidates that the clock prefers one after the other give the same results."""
    x = torch.randn(257, 8192, device="cuda")
    want = torch.softmax(x, -1)
    seen: set[str] = set()
    for wanted in ("inner_persistent", "inner_shared", "inner_multi_pass"):

        class Prefers:
            device = device_name()

            def __call__(self, runs: Any, wanted: str = wanted) -> list[float]:
                return [1.0 if r.params.scheduler == wanted else 2.0 for r in runs]

        f = fw.fuse(softmax)
        fw.tune(f, x, clock=Prefers())
        seen.add(f.program(x).kernels[0].heuristic.scheduler)
        torch.testing.assert_close(f(x), want, rtol=1e-5, atol=1e-7)
    assert len(seen) == 3
