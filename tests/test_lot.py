"""The lot without a GPU: what is drawn, what it should compute, and what a run says of it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bench.lot import __main__ as command
from bench.lot.dice import LONGEST
from bench.lot.draws import ITEM_NBYTES, Argument, held_nbytes, launches_of, needs_two_reads
from bench.lot.families import FAMILIES, draw
from bench.lot.forecast import Forecast, compiled, forecast, from_json
from bench.lot.report import Row, page, quantile, tables, text
from bench.outcome import Outcome

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.dtypes import dtype_of

SMALL = (2e3, 1e5)
TINY = (2e3, 2e4)
LARGE = (32e6, 1e9)
COUNT = len(FAMILIES)


# --- what is drawn ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [80019, 80142, 80145])
def test_results_lie_as_a_call_returns_them(seed: int) -> None:
    """Two permutations, and a softmax of what lies across."""
    d = draw(seed, *TINY)
    arrays = [
        np.lib.stride_tricks.as_strided(flat, a.shape, [s * flat.itemsize for s in a.steps])
        for a in d.program.arguments
        for flat in [np.zeros(a.span, dtype_of(a.dtype).numpy)]
    ]
    made = fw.fuse(lambda *x: d.program.fn(fw, *x), device="sim")(*arrays)
    assert isinstance(made, np.ndarray) and not made.flags.c_contiguous
    program, _ = compiled(d)
    (result,) = program.results
    assert [constant_value(s) for s in result.strides] == [s // made.itemsize for s in made.strides]


def test_a_seed_makes_one_draw_in_any_order() -> None:
    first = [draw(s, *LARGE) for s in range(COUNT)]
    again = [draw(s, *LARGE) for s in reversed(range(COUNT))][::-1]
    assert [d.name for d in first] == [d.name for d in again]
    assert [d.program.arguments for d in first] == [d.program.arguments for d in again]
    assert [d.family for d in first] == list(FAMILIES)


def test_draws_spread_over_ranks_sizes_dtypes_and_layouts() -> None:
    arguments = [a for s in range(20 * COUNT) for a in draw(s, *LARGE).program.arguments]
    assert {len(a.shape) for a in arguments} >= {1, 2, 3, 4, 5}
    assert {a.dtype for a in arguments} == set(ITEM_NBYTES) - {"bool"}
    assert all(n >= 1 for a in arguments for n in a.shape)
    lasts = [a.shape[-1] for a in arguments]
    assert sum(n % 2 for n in lasts) > len(lasts) / 8
    assert min(lasts) == 1 and max(lasts) == LONGEST
    assert any(a.strides for a in arguments) and any(a.start for a in arguments)


@pytest.mark.parametrize(("low", "high"), [LARGE, (1e6, 32e6)])
def test_draws_move_about_as_many_bytes_as_asked(low: float, high: float) -> None:
    moved = [d.least(d.trace()).nbytes for s in range(4 * COUNT) for d in [draw(s, low, high)]]
    inside = sum(low / 2 <= n <= 2 * high for n in moved)
    assert inside > 0.85 * len(moved)
    assert max(moved) < 3 * high


def test_what_lies_between_elements_does_not_count() -> None:
    a = Argument((4, 6), "float32", (8, 1), 3)
    assert (a.nbytes, a.span) == (96, 30)
    assert (a.spec.strides, a.spec.alignment) == ((8, 1), 4)
    assert Argument((4,), "float32", None, 2).spec.alignment == 8
    assert Argument((4,), "float32").spec.alignment == 16


@pytest.mark.parametrize(
    ("shape", "axes", "nbytes", "twice"),
    [
        ((4096, 8192), (1,), 8192 * 2, False),
        ((8192, 8192), (0,), 8192 * 32, False),  # a sector of each row
        ((200_000, 256), (0,), 200_000 * 32, True),
        ((64, 1 << 20), (0, 1), 1 << 27, True),
        ((1 << 20, 4), (0,), 1 << 23, True),  # rows of less than a sector
    ],
)
def test_what_is_held_until_a_reduction_is_known(
    shape: tuple[int, ...], axes: tuple[int, ...], nbytes: int, twice: bool
) -> None:
    a = Argument(shape, "bfloat16")
    assert held_nbytes(a, axes) == nbytes
    assert needs_two_reads(a, axes) is twice


@pytest.mark.parametrize(
    ("shape", "axes", "launches"),
    [
        ((4096, 8192), (1,), 1),
        ((8, 1 << 22), (1,), 2),
        ((8192, 8192), (0,), 2),  # 64 blocks of 128 columns
        ((16, 8192, 8192), (1,), 1),
        ((1 << 22,), (0,), 2),
        ((100, 8), (0,), 1),  # one block does it
    ],
)
def test_the_fewest_launches_of_a_reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], launches: int
) -> None:
    assert launches_of(Argument(shape, "float32"), axes) == launches


def test_the_least_counts_what_is_needed() -> None:
    seeds = [s for s in range(20 * COUNT) if draw(s, *LARGE).family in ("crop", "gather", "mask")]
    shares: list[float] = []
    for d in (draw(s, *LARGE) for s in seeds):
        own = [d.program.read.get(k, a.nbytes) for k, a in enumerate(d.program.arguments)]
        assert all(0 < n <= a.nbytes for n, a in zip(own, d.program.arguments, strict=True)), d.name
        shares.append(own[0] / d.program.arguments[0].nbytes)
    assert min(shares) < 0.5 < max(shares) == 1


# --- what a draw computes -----------------------------------------------------------------------

EIGHT_BITS = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def _numpy(a: Argument, x: Any) -> Any:
    """A torch tensor's memory as a numpy array."""
    import torch

    if a.dtype == "bfloat16":
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if a.dtype in EIGHT_BITS:
        return x.view(torch.uint8).numpy().view(EIGHT_BITS[a.dtype])
    return x.numpy()


@pytest.mark.parametrize("family", range(COUNT), ids=list(FAMILIES))
def test_both_spellings_compute_the_same(family: int) -> None:
    """The oracle's results, and torch's, are those of torch in float64."""
    torch = pytest.importorskip("torch")
    from bench.lot.measure import error_of, is_right, make_arrays, wanted
    from bench.lot.spaces import TorchSpace, kind_of

    for seed in range(family, 6 * COUNT, COUNT):
        d = draw(seed, *SMALL)
        fusion = d.trace()
        arrays = make_arrays(d, "cpu")
        flat = [_numpy(a, x) for a, x in zip(d.program.arguments, arrays, strict=True)]
        want = wanted(d, arrays, "cpu")
        theirs = d.program.fn(TorchSpace("cpu"), *arrays)
        theirs = list(theirs) if isinstance(theirs, tuple) else [theirs]
        names = [t.dtype.name for t in fusion.outputs]
        ours = [
            torch.from_numpy(np.array(x, np.float64, order="C")).to(kind_of(n))
            for x, n in zip(fw.evaluate(fusion, *flat), names, strict=True)
        ]
        assert [x.dtype for x in theirs] == [kind_of(n) for n in names], d.name
        for got in (ours, theirs):
            errors = [error_of(g, w) for g, w in zip(got, want, strict=True)]
            assert is_right(errors, names), f"{d.name}: {errors}"


@pytest.mark.parametrize("family", range(COUNT), ids=list(FAMILIES))
def test_the_machine_model_agrees(family: int) -> None:
    """Kernels compute what the oracle does, and no access races."""
    torch = pytest.importorskip("torch")
    from bench.lot.measure import error_of, is_right, make_arrays

    for seed in (family, family + COUNT):
        d = draw(seed, *TINY)
        fusion = d.trace()
        arrays = make_arrays(d, "cpu")
        flat = [_numpy(a, x) for a, x in zip(d.program.arguments, arrays, strict=True)]
        result = fw.compile(fusion).simulate(*flat)
        assert result.races == []
        names = [t.dtype.name for t in fusion.outputs]
        pairs = zip(result.outputs, fw.evaluate(fusion, *flat), strict=True)
        errors = [error_of(*(torch.from_numpy(np.array(x, np.float64)) for x in p)) for p in pairs]
        assert is_right(errors, names), f"{d.name}: {errors}"


def test_what_was_not_written_is_wrong() -> None:
    torch = pytest.importorskip("torch")
    from bench.lot.measure import error_of, poisoned

    d = draw(0, *SMALL)
    program = fw.compile(d.trace())
    (out,) = poisoned(program, "cpu")
    assert error_of(out, torch.zeros_like(out)) > 0.1
    want = torch.tensor([1.0, 2.0, math.inf], dtype=torch.float64)
    assert error_of(torch.tensor([1.0, 2.0, math.inf]), want) == 0
    assert error_of(torch.tensor([1.0, math.nan, math.inf]), want) == math.inf
    assert error_of(torch.tensor([1.0, 2.0, 3.0]), want) == math.inf


# --- what a run says ----------------------------------------------------------------------------


def _forecast(seed: int, family: str, **changes: Any) -> Forecast:
    fields: dict[str, Any] = {
        "seed": seed, "family": family, "what": f"<{family}>", "nbytes": 10**8, "launches": 1,
        "launches_least": 1, "bytes_ratio": 1.0, "reread": 1.0, "sectors": 1.0,
        "predicted_us": 40.0, "floor_us": 30.0, "limit": "memory", "seconds": 0.1,
        "kernels": ("pointwise 40.0 memory",), "reasons": (),
    }  # fmt: skip
    return Forecast(**{**fields, **changes})


def _rows() -> list[Row]:
    times = {"fusewright": 50.0, "compile": 100.0}
    return [
        Row(_forecast(1, "a"), Outcome("1", 10**8, 25.0, times, {}, [], {})),
        Row(_forecast(2, "a"), Outcome("2", 10**8, 45.0, {"fusewright": 50.0}, {}, [], {}), False),
        Row(_forecast(3, "b"), Outcome("3", 10**8, 25.0, {}, {}, [], {"fusewright": "none"})),
    ]


def test_the_tables_of_a_measured_run() -> None:
    found = {title.split(":")[0]: rows for title, _, rows in tables(_rows())}
    share, times = found["Distribution"]
    assert share[:4] == ["share of the copy", "2", f"{math.sqrt(0.5 * 0.9):.3f}", "0.50"]
    assert times[:4] == ["times compile", "1", "2.000", "2.00"]
    assert found["Families"][0][:5] == ["a", "2", share[2], "0.50", "2.000"]
    assert found["Families"][0][-1] == "1"  # wrong
    assert [r[5] for r in found["The worst"]] == ["1 a: <a>", "2 a: <a>"]
    assert len(found["Draws"]) == 3 and "none" in found["Draws"][2][-1]
    assert "Predictions: 0 of 2 within 15%" in text(_rows())


def test_the_tables_of_a_predicted_run() -> None:
    rows = [Row(_forecast(1, "a", launches=3, bytes_ratio=2.0)), Row(_forecast(2, "b", seconds=2))]
    (structure,) = [rows for title, _, rows in tables(rows) if title == "Structure of 2 draws"]
    assert [n for _, n in structure] == ["1", "1", "0", "0", "1", "1"]
    assert rows[0].share == 0.75


def test_the_page_is_whole_and_escaped() -> None:
    report = {"date": "2026-01-02", "environment": {"gpu": "none"}, "method": "a < b"}
    shown = page(report, _rows())
    assert "a &lt; b" in shown and "&lt;a&gt;" in shown and "http" not in shown
    assert shown.count("<table>") == shown.count("</table>") == 5


def test_quantiles() -> None:
    assert [quantile(range(10), q) for q in (0.0, 0.1, 0.55, 0.9, 1.0)] == [0, 1, 5, 9, 9]
    assert math.isnan(quantile([], 0.5))


def test_a_slower_memory_takes_longer() -> None:
    """Measured times are compared with what is predicted for the GPU that measured."""
    d = draw(0, *LARGE)
    program, seconds = compiled(d)
    slow = dataclasses.replace(program.kernels[0].target, memory_nbytes_per_us=1_000_000)
    here, there = (forecast(d, program, seconds, target=t) for t in (None, slow))
    assert here.limit == there.limit == "memory"
    assert there.predicted_us / here.predicted_us > 3
    assert there.floor_us / here.floor_us > 3


def test_a_forecast_is_read_back() -> None:
    f = _forecast(1, "a")
    assert from_json(json.loads(json.dumps(f.as_json()))) == f


def test_the_command_saves_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    folder, out = tmp_path / "lot", tmp_path / "run.json"

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["lot", "--mb", "1:2", "--predict", *words])
        command.main()
        return capsys.readouterr().out

    first = run("--seeds", "0,14:16", "--save", str(folder))
    assert sorted(p.name for p in folder.iterdir()) == ["0.fw", "14.fw", "15.fw", "index.json"]
    second = run("--seeds", "0,14:16", "--load", str(folder), "--out", str(out))
    assert first == second
    assert [d["forecast"]["seed"] for d in json.loads(out.read_text())["draws"]] == [0, 14, 15]
    assert "<h2>Families</h2>" in out.with_suffix(".html").read_text()
    assert re.search(r"^ +7 .*out of time: 2 of 3", run("--seeds", "7:10", "--seconds", "0"), re.S)
    monkeypatch.setattr(sys, "argv", ["lot", "--seeds", "0", "--load", str(folder)])
    with pytest.raises(SystemExit, match=r"holds draws of --mb 1:2, not 32:1000"):
        command.main()
