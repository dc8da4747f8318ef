"""The measured figures: one home, and a script that prints them anew beside those in use."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bench import calibrate

from fusewright.calibration import FITTED, H200, Calibration
from fusewright.cuda.emit import emit
from fusewright.kir.text import parse_kernel
from fusewright.target import target_of

FIGURES = [f.name for f in dataclasses.fields(Calibration) if f.type == "float"]


def test_every_target_says_on_which_chip_its_figures_were_measured() -> None:
    for arch in ("sm_80", "sm_90a", "sm_120"):
        assert target_of(arch).calibration.chip == "NVIDIA H200"
    assert H200.date and H200.source


def test_every_figure_is_measured_or_fitted() -> None:
    found = {n: 1.0 for n in FIGURES if n not in FITTED}
    made = calibrate.report(found, H200, "a chip")
    assert list(made["figures"]) == FIGURES
    with pytest.raises(AssertionError):
        calibrate.report({}, H200, "a chip")


def test_the_report_has_measured_figures_beside_those_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "architecture", lambda: "sm_90a")
    monkeypatch.setattr(calibrate.torch.cuda, "get_device_name", lambda: "a chip")
    out = tmp_path / "c.json"
    found = {n: 1.25 for n in FIGURES if n not in FITTED}
    assert calibrate.main(["--out", str(out)], lambda target: found) == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures["launch_us"] == {"measured": 1.25, "in use": 2.0}
    assert figures["overlap"] == {"measured": None, "in use": 6.0}
    assert "launch_us" in capsys.readouterr().out


def test_probes_are_kernels_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every probe's text is one that the emitter spells; on the device they take what they take."""
    names: list[str] = []

    class Spelled:
        def __init__(self, text: str, target: object, *tensors: object) -> None:
            kernel = parse_kernel(text)
            assert len(kernel.params) == len(tensors)
            assert f"{kernel.name}(" in emit(kernel, target_of("sm_90a"))
            names.append(kernel.name)

        def us(self, repetitions: int = 1) -> float:
            return 1.0 + len(names)

    monkeypatch.setattr(calibrate, "Probe", Spelled)
    monkeypatch.setattr(calibrate, "LARGE", 1 << 20)
    for maker in ("zeros", "ones", "empty", "randperm"):
        real = getattr(calibrate.torch, maker)
        monkeypatch.setattr(
            calibrate.torch,
            maker,
            lambda *size, _real=real, device="", **options: _real(*size, **options),
        )
    assert set(calibrate.measured(target_of("sm_90a"))) == set(FIGURES) - set(FITTED)
    assert set(names) == {
        "empty",
        "streaming",
        "chase",
        "exchanges",
        "lane_exchanges",
        "reads_1_apart",
        "reads_32_apart",
    }
