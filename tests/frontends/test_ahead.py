"""Programs that other processes make: they are those that this one would have made."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fusewright as fw
from fusewright import knobs
from fusewright.driver import compile_in_place
from fusewright.frontends import ahead, ahead_worker
from fusewright.frontends.stored_programs import Wanted, programs_on_disk, stored_or_made
from fusewright.program import Program
from fusewright.runtime.config import config
from fusewright.target import target_of

pytestmark = pytest.mark.stores
TARGET = target_of("sm_90a")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "1")
    monkeypatch.setenv("FUSEWRIGHT_THREADS", "2")
    monkeypatch.setattr(ahead, "LEAST_OPS", 0)
    return tmp_path


def softmax(x: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def fits(x: Any, y: Any) -> Any:
    return fw.insert(x, fw.exp(y) * 0.3, (2, 0)), fw.sum(y, axis=0)


F32 = "float32"
CASES: dict[str, tuple[Callable[..., Any], list[fw.TensorSpec], dict[str, Any]]] = {
    "softmax": (softmax, [fw.TensorSpec((6, 40), F32)], {}),
    "order": (softmax, [fw.TensorSpec((6, 40), F32)], {"orders": [(1, 0)]}),
    "symbolic": (softmax, [fw.TensorSpec((fw.Sym("n", multiple_of=4), 64), F32)], {}),
    "in place": (fits, [fw.TensorSpec((n, 40), F32) for n in (6, 2)], {"donated": {0: 0}}),
    "product": (lambda a, b: a @ b, [fw.TensorSpec((64, 64), F32)] * 2, {"precision": "tf32"}),
}


def wanted(case: str) -> Wanted:
    fn, specs, more = CASES[case]
    fusion = fw.trace(fn, *specs)
    orders = more.get("orders", [None] * len(fusion.outputs))
    return Wanted(fusion, TARGET, more.get("donated", {}), orders, more.get("precision", "ieee"))


def made_here(w: Wanted) -> Program:
    with config(float32_matmul=w.precision):
        return compile_in_place(w.fusion, w.target, w.donated, out_layouts=w.orders)


def starts(monkeypatch: pytest.MonkeyPatch, all_wanted: list[Wanted]) -> int:
    """How often a process is to be started, none of which starts: the first that fails ends it."""
    started: list[object] = []

    def start(*args: object, **_: object) -> None:
        started.append(args)
        raise OSError("no process is started here")

    with monkeypatch.context() as m:
        m.setattr(subprocess, "Popen", start)
        ahead.make_ahead(all_wanted, "")
    return len(started)


def found(w: Wanted) -> Program:
    def make() -> Program:
        raise AssertionError("it is not on disk")

    return stored_or_made(w, make)


def test_processes_make_what_this_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    all_wanted = [wanted(c) for c in CASES]
    ahead.make_ahead(all_wanted, "")
    for w in all_wanted:
        here, there = made_here(w), found(w)
        assert [str(k.ir) for k in there.kernels] == [str(k.ir) for k in here.kernels]
        assert str(there.host.stats) == str(here.host.stats)
        assert there.holders == here.holders and there.places == here.places
    assert starts(monkeypatch, all_wanted) == 0  # nothing is missing


@pytest.mark.parametrize("why", ["one program", "one thread", "little work", "no cache"])
def test_no_process_is_started_in_vain(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_wanted = [wanted(c) for c in ("softmax", "order")]
    match why:
        case "one program":
            all_wanted = [all_wanted[0], wanted("softmax")]
        case "one thread":
            monkeypatch.setenv("FUSEWRIGHT_THREADS", "1")
        case "little work":
            monkeypatch.setattr(ahead, "LEAST_OPS", 20)
        case _:
            monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    assert starts(monkeypatch, all_wanted) == 0


def test_a_process_is_started_for_two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starts(monkeypatch, [wanted(c) for c in ("softmax", "order")]) == 1


START = "import sys\nfrom fusewright.frontends import ahead_worker\n"
FAULTS = {
    "it does not start": "raise SystemExit(3)",
    "it ends in the middle": "sys.stdin.readline()",
    "it cannot make one": "ahead_worker.make = lambda r: 1 / 0\nahead_worker.main()",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_process_makes_is_left(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = "import json\nimport sys\nsys.path[:] = json.loads(sys.argv[1])\n"
    monkeypatch.setattr(ahead, "_START", f"{start}{START}{FAULTS[fault]}\n")
    all_wanted = [wanted(c) for c in ("softmax", "order")]
    with caplog.at_level(logging.INFO, "fusewright.compile"):
        ahead.make_ahead(all_wanted, "")
    for w in all_wanted:
        program = stored_or_made(w, lambda w=w: made_here(w))  # type: ignore[misc]
        assert len(program.kernels) == 1
    assert ("ZeroDivisionError" in caplog.text) == (fault == "it cannot make one")


def test_a_worker_makes_a_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (request,) = [ahead._record(wanted("softmax"), "ab12")]
    assert ahead_worker.make(request) == "ab12" and programs_on_disk().has("ab12")
    monkeypatch.setattr(ahead_worker, "compile_in_place", None)
    assert ahead_worker.make(request) == "ab12"


def test_ranks_of_a_host_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEWRIGHT_THREADS")
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    for told, threads in (("", 16), ("4", 4), ("32", 1), ("none", 16)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
        assert knobs.THREADS.get() == threads
    monkeypatch.setenv("FUSEWRIGHT_THREADS", "3")
    assert knobs.THREADS.get() == 3
