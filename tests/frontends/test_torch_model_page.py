"""Where the time of a model would go, as rows and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.errors import UserError  # noqa: E402
from fusewright.frontends.torch import explain  # noqa: E402
from fusewright.frontends.torch.model_times import PartTime  # noqa: E402
from fusewright.frontends.torch.report import TorchReport  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.nn.functional.gelu(self.norm(layer(x)))
        return x


def report(rows: int, width: int, layers: int = 3) -> TorchReport:
    torch.compiler.reset()
    torch.manual_seed(0)
    return explain(Model(width, layers), torch.randn(rows, width), options={"cpu": "torch"})


def own(times: list[PartTime]) -> list[PartTime]:
    return [t for t in times if t.launches is not None]


def test_equal_regions_and_equal_calls_are_one_row() -> None:
    (forward, times), (backward, _) = report(64, 32).times("sm_90a")
    assert (forward, backward) == ("forward", "backward")
    (region,) = own(times)
    assert (region.count, region.launches) == (3, 3)
    assert "native_layer_norm" in region.operators and "gelu" in region.operators
    assert [(t.name, t.count) for t in times if t not in own(times)] == [("aten.addmm.default", 3)]
    assert [t.us for t in times] == sorted((t.us or 0.0 for t in times), reverse=True)


def test_products_take_as_long_as_their_multiplications() -> None:
    """Of 2048 rows of 2048 three times as long as memory takes for the operands and the result."""

    def addmm(n: int) -> float:
        with torch.no_grad():  # eager torch runs what is explained
            ((_, times),) = report(n, 2048, layers=1).times("sm_90a")
        return next(t.us or 0.0 for t in times if "addmm" in t.name)

    few, many = addmm(1024), addmm(2048)
    flops = 2 * 2048 * 2048 * 2048
    assert 1.8 < many / few < 2.1
    assert flops / 494e6 <= many <= 1.2 * flops / 494e6  # TF32 of an H100's data sheet


def test_regions_take_as_long_as_their_bytes() -> None:
    small, large = (own(report(n, 256).times("sm_90a")[0][1])[0].us or 0.0 for n in (64, 16384))
    nbytes = 3 * 2 * 16384 * 256 * 4
    assert large > 3 * small and nbytes / 5e6 < large < nbytes / 2e6


def test_results_lie_as_torch_lays_them() -> None:
    """Images whose channels stand last are read and written so: no tile is turned on the way."""
    times: list[float] = []
    for order in (torch.contiguous_format, torch.channels_last):
        torch.compiler.reset()
        x = torch.randn(8, 64, 64, 64).to(memory_format=order)
        found = explain(lambda x: torch.exp(x) + torch.sin(x), x, options={"cpu": "torch"})
        (row,) = found.times("sm_90a")[0][1]
        assert row.launches == 1
        times.append(row.us or 0.0)
    assert times[0] == times[1]


def test_a_page_names_every_row(tmp_path: Path) -> None:
    found = report(64, 32)
    page = found.to_html(tmp_path / "model.html").read_text()
    for name, times in found.times("sm_90a"):
        assert f"<h2>{name}</h2>" in page
        for t in times:
            assert f"<td>{t.name}</td>" in page and f"{t.us:.1f}" in page
    assert "a product on the host is torch&#x27;s" in page and "src=" not in page
    assert page.count("at least") == sum(
        t.launches is None for _, times in found.times("sm_90a") for t in times
    )


def test_a_target_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sm_12"):
        report(4, 8).to_html(tmp_path / "model.html", target="sm_12")


def test_what_a_function_closes_over_has_a_backward_pass_too() -> None:
    """The model is no module: its parameters are found where gradients end."""
    torch.compiler.reset()
    model, x = Model(32, 2), torch.randn(64, 32)
    said = explain(lambda x: model(x).sum(), x, options={"cpu": "torch"})
    assert [name for name, _ in said.times("sm_90a")] == ["forward", "backward"]
    assert all(p.grad is None for p in model.parameters())
