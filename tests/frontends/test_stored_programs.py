"""Programs on disk: another process finds them, by all that shapes them, and runs them as made."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.frontends import fuse, stored_programs
from fusewright.frontends.fuse import Fused
from fusewright.kir import text
from fusewright.program import Program
from fusewright.programs import calls, model
from fusewright.runtime.config import config

pytestmark = pytest.mark.stores
X = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)


def normed(x: Any, y: Any) -> Any:
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True) + y * 0.25, fw.sum(e, axis=0)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Program]:
    """The programs that were made, not found, in a folder of the test's own."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "1")
    programs: list[Program] = []
    real = fuse.compile_in_place

    def compile_in_place(*args: Any, **options: Any) -> Program:
        programs.append(real(*args, **options))
        return programs[-1]

    monkeypatch.setattr(fuse, "compile_in_place", compile_in_place)
    return programs


def stored(fn: Callable[..., Any], **options: Any) -> Fused:
    """A function of a process of its own."""
    return Fused(fn, device="sim", stored=True, **options)


def test_another_process_finds_the_program(made: list[Program]) -> None:
    first = stored(normed)(X, X)
    second = stored(normed)
    for a, b in zip(first, second(X, X), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(made) == 1
    found = second.program(X, X)
    assert [str(k.ir) for k in found.kernels] == [str(k.ir) for k in made[0].kernels]
    assert found.host.stats == made[0].host.stats
    assert [str(r) for r in found.reasons] == [str(r) for r in made[0].reasons]


def test_statements_of_a_program_that_is_found_are_not_read(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(normed).program(X, X)
    with monkeypatch.context() as m:
        m.setattr(text._Parser, "_statements", None)
        found = stored(normed).program(X, X)
        assert found.host.stats == made[0].host.stats
    assert len(made) == 1
    assert [str(k.ir) for k in found.kernels] == [str(k.ir) for k in made[0].kernels]


def test_the_host_program_of_one_that_is_found_is_assembled_once(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    count: list[Any] = []
    real = model.assemble
    stored(normed).program(X, X)
    monkeypatch.setattr(model, "assemble", lambda *a: count.append(a) or real(*a))
    found = stored(normed).program(X, X)
    assert found.host is found.host and len(count) == 1
    assert copy.copy(found).host is found.host and copy.copy(found).calls is not found.calls


def test_a_program_that_writes_over_an_argument_is_found_too(made: list[Program]) -> None:
    def append(cache: Any, x: Any) -> Any:
        return fw.insert(cache, fw.exp(x), (2, 0))

    expected = X.copy()
    expected[2:4] = np.exp(X[:2])
    for _ in range(2):
        cache = X.copy()
        np.testing.assert_allclose(stored(append)(cache, X[:2], out=cache), expected, rtol=1e-6)
    assert len(made) == 1


def test_symbolic_sizes_are_found_for_other_sizes(made: list[Program]) -> None:
    def total(x: Any) -> Any:
        return fw.sum(fw.exp(x), axis=-1)

    for n in (40, 24):
        found = stored(total, dynamic={"x": [1]})(X[:, :n].copy())
        np.testing.assert_allclose(found, np.exp(X[:, :n]).sum(-1), rtol=1e-5)
    assert len(made) == 1


def test_functions_are_made_anew_unless_told(made: list[Program]) -> None:
    for _ in range(2):
        Fused(normed, device="sim")(X, X)
    assert len(made) == 2


def other(x: Any, y: Any) -> Any:
    return normed(x, y * 0.5)


DIFFERENCES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "function": (other, {}, X),
    "size": (normed, {}, X[:5]),
    "dtype": (normed, {}, X.astype(np.float16)),
    "strides": (normed, {}, np.asfortranarray(X)),
    "target": (normed, {"target": "sm_80"}, X),
    "layout": (normed, {"out_layouts": ((1, 0), None)}, X),
}


@pytest.mark.parametrize("what", list(DIFFERENCES))
def test_what_differs_is_made(what: str, made: list[Program]) -> None:
    stored(normed)(X, X)
    fn, options, x = DIFFERENCES[what]
    stored(fn, **options).program(x, x)
    assert len(made) == 2


def test_choices_of_the_caller_and_of_the_package_count(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(a: Any, b: Any) -> Any:
        return fw.matmul(a, b)

    a = np.ones((64, 64), np.float32)
    stored(product).program(a, a)
    with config(float32_matmul="tf32"):
        stored(product).program(a, a)
    monkeypatch.setenv("FUSEWRIGHT_WITHOUT", "pruning")
    stored(product).program(a, a)
    monkeypatch.delenv("FUSEWRIGHT_WITHOUT")
    monkeypatch.setattr(stored_programs, "package_digest", lambda: "another version")
    stored(product).program(a, a)
    assert len(made) == 4


def test_data_of_the_caller_counts(made: list[Program]) -> None:
    for data in (X, X + 1, X):
        found = stored(lambda x, d=data: x * fw.asarray(d))(X)  # type: ignore[misc]
        np.testing.assert_allclose(found, X * data, rtol=1e-6)
    assert len(made) == 2


def test_a_damaged_program_is_made_again(
    made: list[Program], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(normed)(X, X)
    cache = stored_programs.KernelCache(tmp_path / stored_programs.FOLDER)
    (record,) = (tmp_path / stored_programs.FOLDER).glob("??/*.json")
    cache.put(record.stem, b"no program", {})  # what some other fault wrote, with a good checksum
    with caplog.at_level(logging.WARNING, "fusewright.cache"):
        stored(normed)(X, X)
    assert len(made) == 2 and "it is made again" in caplog.text
    stored(normed)(X, X)
    assert len(made) == 2


@pytest.mark.parametrize("why", ["no cache", "tuned schedules"])
def test_what_may_not_be_kept_is_made(
    why: str, made: list[Program], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if why == "no cache":
        monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    else:
        monkeypatch.setattr(stored_programs, "has_gpu", lambda: True)
        (tmp_path / "tuned").mkdir()
    for _ in range(2):
        stored(normed).program(X, X)
    assert len(made) == 2


def test_a_program_with_a_kernel_of_the_callers_own_is_made(made: list[Program]) -> None:
    def in_rows(s: Any) -> None:
        t = s.tensors[-1]
        t.parallelize(0, fw.BIDx)
        t.parallelize(1, fw.TIDx)

    own = fw.kernel(lambda x: x * 2.0, schedule=in_rows)
    for _ in range(2):
        stored(lambda x: own(x) + 1.0).program(X)
    assert len(made) == 2


def test_machine_code_is_kept_once_it_is_loaded(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with a GPU: what is only looked at is found without code, and gets it in the
    process that loads it; the next one compiles nothing."""

    class Loaded:
        def __init__(self, code: bytes, ir: Any) -> None:
            assert code[:4] == b"\x7fELF"

    monkeypatch.setattr(stored_programs, "has_gpu", lambda: True)
    monkeypatch.setattr(calls, "LoadedKernel", Loaded)
    monkeypatch.setattr(stored_programs, "started", lambda program: program)
    stored(normed).program(X, X)
    second = stored(normed).program(X, X)
    assert not any(k.is_compiled for k in second.kernels)
    second.calls._load()
    third = stored(normed).program(X, X)
    assert all(k.is_compiled for k in third.kernels)
    assert [k.cubin() for k in third.kernels] == [k.cubin() for k in second.kernels]
    assert third.calls.when_loaded is None
    assert len(made) == 1


def test_the_choices_that_kernels_are_made_under_are_part_of_the_key(made: list[Program]) -> None:
    def scans(x: Any) -> Any:
        return fw.cumulative_sum(fw.cumulative_sum(x * 2.0, axis=0), axis=1)

    plain = stored(scans)
    plain(X)
    with config(early_launches=True):
        early = stored(scans)
        early(X)
        assert early.program(X).launches[-1].kernel.ir.begins_early
    assert len(made) == 2
    assert not stored(scans).program(X).launches[-1].kernel.ir.begins_early
    assert len(made) == 2
