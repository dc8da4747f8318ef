"""Whole models through the backend on host tensors, forward and backward, beside eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch_checks as checks  # noqa: E402
from bench.models import models  # noqa: E402

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

MODELS = {m.name: m for m in models("small")}


SLOW = pytest.mark.slow
SHORT = pytest.param(torch.bfloat16, marks=SLOW)
SEVERAL = [pytest.param(n, marks=() if n == "llama" else SLOW) for n in MODELS]


@pytest.mark.parametrize("dtype", [torch.float32, SHORT], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_agrees_with_eager(name: str, dtype: Any) -> None:
    reports = checks.assert_model_as_eager(MODELS[name], dtype, "cpu", Options())
    assert [g.name for g in reports] == ["forward", "backward"]


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_a_step_agrees_with_eager_in_the_simulator(name: str) -> None:
    checks.assert_model_as_eager(MODELS[name], torch.float32, "cpu", Options(cpu="sim"))


@pytest.mark.parametrize("name", SEVERAL)
def test_lengths_change_without_compiling_again(name: str) -> None:
    torch.manual_seed(0)
    torch.compiler.reset()
    model = MODELS[name].build().eval()
    reports: list[GraphReport] = []
    run = torch.compile(model, backend=compiler(Options(), reports.append), dynamic=True)
    with torch.no_grad():
        for inputs in lengths(MODELS[name]):
            got, want = run(**inputs).logits, model(**inputs).logits
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert len(reports) == 1
    assert [r.failures for g in reports for r in g.regions if r.failures] == []


def lengths(model: Any) -> Iterator[dict[str, Any]]:
    for batch, length in ((2, 16), (3, 24), (5, 9)):
        yield model.inputs(batch, length, "cpu")
