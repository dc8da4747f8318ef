"""The ablation without a GPU: which switches change a fusion, and what a row says."""

from __future__ import annotations

import os

import pytest
from bench.switches import (
    DEMONSTRATIONS,
    Fusion,
    Row,
    memory_of,
    show,
    switched_off,
    switches_of,
)
from tools.analysis_share import ANALYSES, CHECK, Share, measure, report

import fusewright as fw
from fusewright.errors import UserError
from fusewright.kir import pipeline, spec


@pytest.mark.parametrize("demo", DEMONSTRATIONS, ids=lambda d: d.name)
def test_a_switch_that_is_found_changes_the_code_and_no_other_does(demo: Fusion) -> None:
    found = switches_of(demo.program)
    assert "promotion" in found and ("split" in found) == demo.name.startswith("product")
    texts = {}
    for name in ("", *pipeline.SWITCHES):
        with switched_off(name):
            made = demo.program()
            texts[name] = str(made if isinstance(made, pipeline.Kernel) else made.kernels[0].ir)
    assert tuple(n for n in pipeline.SWITCHES if texts[n] != texts[""]) == found


@pytest.mark.parametrize("demo", DEMONSTRATIONS[:3], ids=lambda d: d.name)
def test_promotion_doubles_the_blocks_of_a_multiprocessor(demo: Fusion) -> None:
    with switched_off("promotion"):
        without = memory_of(demo.program())
    nbytes, blocks = memory_of(demo.program())
    assert without == (2 * nbytes, blocks // 2)


def test_a_fusion_without_shared_memory_is_changed_by_none() -> None:
    run = pipeline.run_pass
    assert switches_of(lambda: fw.compile(fw.trace(fw.exp, fw.TensorSpec((64,), "float32")))) == ()
    assert pipeline.run_pass is run


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_WITHOUT", "scopes")
    with pytest.raises(UserError, match="use scopes, in_place"), switched_off("everything"):
        fw.compile(fw.trace(fw.exp, fw.TensorSpec((64,), "float32")))
    assert os.environ["FUSEWRIGHT_WITHOUT"] == "scopes"


def test_a_row_says_what_the_part_buys() -> None:
    row = Row("columns", "promotion", 10.0, 15.0, 1024, 2048, 4, 2)
    assert row.as_json()["gain"] == 1.5 and "1.500" in show([row]) and "4 / 2" in show([row])


def test_the_share_of_the_analyses_counts_passes_and_checks() -> None:
    before = pipeline.run_pass, spec.CHECKS
    share = measure("sum", lambda x: fw.sum(x, axis=-1), [fw.TensorSpec((64, 4096), "float32")])
    assert (pipeline.run_pass, spec.CHECKS) == before
    assert set(share.analyses) == {*ANALYSES, CHECK}
    assert share.analyses["place_syncs"] > 0 and 0 < share.analyses[CHECK] < share.python
    assert 0 < share.share < 1
    made = Share("made", dict.fromkeys((*ANALYSES, CHECK), 0.1), 4.0, 1.0)
    assert "14.0 %" in report([made]) and "1 of 1 above 10 %" in report([made])
