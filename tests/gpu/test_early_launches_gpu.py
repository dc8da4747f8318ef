"""Launches that begin early on a device: the bits of a program without them, on a stream, as a
graph of ours and in a capture, call after call on fresh numbers."""

from __future__ import annotations

from typing import Any

import pytest
from test_early_launches import CASES

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime.config import config
from fusewright.runtime.device import architecture
from fusewright.target import Feature, target_of

torch = pytest.importorskip("torch")
CALLS = 50


def target() -> str:
    """The architecture of this device. Skips where launches do not overlap on it."""
    arch = architecture()
    try:
        has_it = target_of(arch).has(Feature.EARLY_LAUNCH)
    except UserError:
        has_it = False
    if not has_it:
        pytest.skip(f"launches do not overlap on {arch}")
    return arch


def tensors(name: str) -> list[Any]:
    out: list[Any] = []
    for s in CASES[name][1]:
        shape = tuple(n if isinstance(n, int) else 301 for n in s.shape)
        out.append(torch.randn(shape, device="cuda").to(getattr(torch, str(s.dtype))))
    return out


@pytest.mark.parametrize("execution", ["stream", "graph", "capture"])
@pytest.mark.parametrize("name", CASES)
def test_early_launches_change_no_bit(name: str, execution: str) -> None:
    arch, (fn, specs) = target(), CASES[name]
    fusion = fw.trace(fn, *specs)
    plain = fw.compile(fusion, target=arch)
    with config(early_launches=True):
        early = fw.compile(fusion, target=arch)
    assert any(k.ir.begins_early for k in early.kernels)
    xs = tensors(name)
    run: Any = early
    if execution == "capture":
        early(*xs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = early(*xs)

        def run(*_: Any) -> Any:
            graph.replay()
            return made

    with config(execution="stream" if execution == "stream" else "graph"):
        for _ in range(CALLS):
            for x, fresh in zip(xs, tensors(name), strict=True):
                x.copy_(fresh)
            found = [y.clone() for y in run(*xs)]
            for y, want in zip(found, plain(*xs), strict=True):
                assert torch.equal(y, want)
