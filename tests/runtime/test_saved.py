"""Programs on disk, machine code in caches, and what a process keeps."""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import threading
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.cuda import compile as cuda_compile
from fusewright.errors import UnsupportedError, UserError
from fusewright.runtime import builds
from fusewright.runtime.archive import read_archive, write_archive
from fusewright.runtime.builds import Builder
from fusewright.runtime.cache import KernelCache
from fusewright.runtime.locks import fork_safe_lock

kernel_module = sys.modules["fusewright.kernel"]  # fw.kernel is a function


def scaled(x):
    y = x * 1.5 - fw.sum(x, axis=0, keepdims=True)
    return fw.exp(y - fw.max(y, axis=1, keepdims=True)), y * float("inf")


def program(*shape: int | str) -> fw.Program:
    return fw.compile(fw.trace(scaled, fw.TensorSpec(shape, "float32")))


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    """A builder that remembers nothing, with a disk cache of its own."""
    made = Builder()
    monkeypatch.setattr(kernel_module, "BUILDER", made)
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "1")
    return made


@pytest.mark.parametrize("shape", [(12, 40), ("n", "m"), ("n", "n")])
def test_a_saved_program_runs_without_a_compiler(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape
) -> None:
    p = program(*shape)
    path = p.save(tmp_path / "p.fw")

    def missing() -> None:
        raise UserError("compiling kernels needs NVRTC")

    monkeypatch.setattr(cuda_compile, "nvrtc", missing)
    monkeypatch.setattr(builds, "compiler_version", missing)
    q = fw.load(path)
    x = np.random.default_rng(0).normal(size=(12, 12 if shape == ("n", "n") else 40))
    x = x.astype(np.float32)
    for a, b in zip(p.simulate(x).outputs, q.simulate(x).outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert str(q.host) == str(p.host)
    assert [str(k.ir) for k in q.kernels] == [str(k.ir) for k in p.kernels]
    assert [k.cubin() for k in q.kernels] == [k.cubin() for k in p.kernels]
    q.save(tmp_path / "q.fw")
    assert (tmp_path / "q.fw").read_bytes() == path.read_bytes()


def _damaged(path: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as z:
        members = {n: z.read(n) for n in z.namelist()}
    members[member] = content
    with zipfile.ZipFile(path, "w") as z:
        for name, data in members.items():
            z.writestr(name, data)


def test_rejects_files_that_are_not_saved_programs(builder: Builder, tmp_path: Path) -> None:
    path = program(4, 8).save(tmp_path / "p.fw")
    with zipfile.ZipFile(path) as z:
        record = json.loads(z.read("program.json"))
    _damaged(path, "0.cubin", b"other")
    with pytest.raises(UserError, match="is damaged: its contents do not match their checksums"):
        fw.load(path)
    _damaged(path, "program.json", json.dumps({**record, "version": 99}).encode())
    with pytest.raises(UserError, match="format version 99, this fusewright reads 7"):
        fw.load(path)
    _damaged(path, "program.json", b"{}")
    with pytest.raises(UserError, match="is not a saved program"):
        fw.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is not a saved program or is damaged"):
        fw.load(path)
    with pytest.raises(UserError, match="cannot read"):
        fw.load(tmp_path / "nothing.fw")
    with pytest.raises(UserError, match="cannot save a program as"):
        program(4, 8).save(tmp_path / "no" / "p.fw")


def test_rejects_a_record_that_names_what_it_lacks(builder: Builder, tmp_path: Path) -> None:
    path = program(4, 8).save(tmp_path / "p.fw")
    with zipfile.ZipFile(path) as z:
        record = json.loads(z.read("program.json"))
    record["program"]["launches"][0]["outputs"] = ["missing"]
    _damaged(path, "program.json", json.dumps(record).encode())
    with pytest.raises(UserError, match="does not describe a program"):
        fw.load(path)


Place = tuple[str | int, ...]


def test_rejects_a_file_whose_record_holds_no_program(builder: Builder, tmp_path: Path) -> None:
    path = tmp_path / "p.fw"
    for rest in ({}, {"program": None}, {"program": []}):
        with zipfile.ZipFile(path, "w") as z:
            head = {"format": "fusewright program", "version": 7, "sha256": {}, **rest}
            z.writestr("program.json", json.dumps(head))
        with pytest.raises(UserError, match="is damaged: its record holds no program"):
            fw.load(path)


def raised(x: Any) -> Any:
    return fw.exp(x)


def chosen(x: Any) -> Any:
    return fw.cond(x[0, 0] > 0, lambda y: y + 1, lambda y: y * 2, x)


@pytest.mark.parametrize(
    ("fn", "at", "value", "problem"),
    [
        (raised, ("kernels", 0, "arrays", 1, "strides", 0), "-8", "-8 is no size, and no stride"),
        (raised, ("kernels", 0, "arrays", 0, "strides", 0), "9", "the elements of x: 35 where 32"),
        (raised, ("launches", 0, "outputs", 0, "box", 1, 0), "9" * 30, "than 64 bits of"),
        (raised, ("launches", 0, "inputs", 0, "strides", 1), "9" * 30, "than 64 bits of"),
        (raised, ("kernels", 0, "text"), ("ty < 1", "ty < -4"), "-4"),
        (raised, ("kernels", 0, "text"), ("grid (bx < 1", "grid (bx < 99999999999"), "the grid"),
        (raised, ("kernels", 0, "text"), ("= load", "= lord"), "SpecError"),
        (chosen, ("launches", 1, "region", "aliased"), "x", "invalid literal for int"),
        (chosen, ("launches", 1, "bodies", 0, "launches"), [], "write all but 128 bytes"),
        (chosen, ("launches", 1, "bodies", 1, "launches"), [], "write all but 128 bytes"),
    ],
)
def test_a_record_that_would_be_run_wrongly_is_refused(
    builder: Builder, tmp_path: Path, fn: Any, at: Place, value: Any, problem: str
) -> None:
    """Each stands at the border of what runs without more checks: memory, texts, launches."""
    saved = fw.compile(fw.trace(fn, "f32[4,8]")).save(tmp_path / "p.fw")
    record, members = read_archive(saved)
    node: Any = record
    for k in at[:-1]:
        node = node[k]
    if isinstance(value, tuple):
        assert value[0] in node[at[-1]]
        value = node[at[-1]].replace(*value)
    node[at[-1]] = value
    write_archive(tmp_path / "q.fw", record, members)
    with pytest.raises(UserError, match=f"does not describe a program.*{problem}"):
        fw.load(tmp_path / "q.fw")


def test_a_record_without_launches_is_refused_whatever_the_sizes(
    builder: Builder, tmp_path: Path
) -> None:
    record, members = read_archive(program("n", 8).save(tmp_path / "p.fw"))
    write_archive(tmp_path / "q.fw", {**record, "launches": []}, members)
    with pytest.raises(UserError, match="no launch writes t"):
        fw.load(tmp_path / "q.fw")


def _places(node: object, at: Place = ()) -> Iterator[Place]:
    """Where numbers, texts and lists stand in a record, but for the text of kernels."""
    if isinstance(node, dict):
        for k, v in node.items():
            yield from () if k in ("text", "schedule", "fusion") else _places(v, (*at, k))
    elif isinstance(node, list):
        yield at
        for k, v in enumerate(node):
            yield from _places(v, (*at, k))
    elif not isinstance(node, float):
        yield at


def _changed(record: Any, at: Place) -> Any:
    out = copy.deepcopy(record)
    node = out
    for k in at[:-1]:
        node = node[k]
    match node[at[-1]]:
        case list() as old:
            node[at[-1]] = old[1:]
        case str() as old if old.isdecimal():
            node[at[-1]] = str(int(old) + 1)
        case str() as old:
            node[at[-1]] = f"{old}0"
        case old:
            node[at[-1]] = old + 1 if isinstance(old, int) else 0
    return out


def test_rejects_a_record_whose_launches_are_in_another_order(
    builder: Builder, tmp_path: Path
) -> None:
    record, members = read_archive(program(48, 70).save(tmp_path / "p.fw"))
    write_archive(tmp_path / "q.fw", {**record, "launches": record["launches"][::-1]}, members)
    with pytest.raises(
        UserError, match=r"q\.fw does not describe a program .*host program is wrong"
    ):
        fw.load(tmp_path / "q.fw")


def test_a_changed_record_is_refused_or_runs(builder: Builder, tmp_path: Path) -> None:
    """Records of the right checksums in which one thing is another: errors of the caller's kind."""
    record, members = read_archive(program("n", 8).save(tmp_path / "p.fw"))
    x = np.zeros((4, 8), np.float32)
    refused = 0
    places = [p for p in _places(record) if p]
    for at in places:
        write_archive(tmp_path / "q.fw", _changed(record, at), members)
        try:
            loaded = fw.load(tmp_path / "q.fw")
            loaded.simulate(x)
        except (UserError, UnsupportedError):
            refused += 1
    assert refused > len(places) // 2


def test_kernels_of_a_program_share_modules(builder: Builder) -> None:
    p = program(48, 70)
    assert len(p.kernels) > 1
    assert len({k.cubin() for k in p.kernels}) == 1
    for k in p.kernels:
        assert k.ptx().count(".entry") == 1 and f".entry {k.name}(" in k.ptx()
        assert k.resources().registers > 0


def test_code_is_found_in_memory_then_on_disk(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    real = builds.compile_cubin

    def counting(text, target, *, name, contract):
        compiled.append(name)
        return real(text, target, name=name, contract=contract)

    monkeypatch.setattr(builds, "compile_cubin", counting)
    first = program(12, 40).kernels[0].compiled()
    assert len(compiled) == 1
    again = program(12, 40).kernels[0].compiled()
    assert again is first and len(compiled) == 1
    builder.forget()
    from_disk = program(12, 40).kernels[0].compiled()
    assert len(compiled) == 1
    assert (from_disk.cubin, from_disk.ptx, from_disk.log) == (first.cubin, first.ptx, first.log)
    builder.forget()
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    program(12, 40).kernels[0].compiled()
    assert len(compiled) == 2


def test_a_damaged_record_costs_a_compile_and_a_line(
    builder: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = program(12, 40).kernels[0].compiled()
    for _ in range(2):
        for path in (tmp_path / "cache").glob("??/*.json"):
            path.write_text(path.read_text().replace(".version", ".versiom"))
        builder.forget()
        caplog.clear()
        again = program(12, 40).kernels[0].compiled()
        assert (again.cubin, again.ptx) == (first.cubin, first.ptx)
        assert [m.count("is damaged and was removed") for m in caplog.messages] == [1]


def test_an_entry_that_holds_something_else_costs_a_compile(
    builder: Builder, tmp_path: Path
) -> None:
    first = program(12, 40).kernels[0].compiled()
    kept = KernelCache(tmp_path / "cache")
    for path in (tmp_path / "cache").glob("??/*.json"):
        kept.put(path.stem, first.cubin, {"ptx": 3})
    builder.forget()
    assert program(12, 40).kernels[0].compiled().ptx == first.ptx


def test_many_threads_compile_once(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = builds.compile_cubin

    def counting(text, target, *, name, contract):
        compiled.append(name)
        return real(text, target, name=name, contract=contract)

    monkeypatch.setattr(builds, "compile_cubin", counting)
    p = program(12, 40)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda k=k: found.append(k.cubin()))
        for k in p.kernels
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(compiled) == 1 and len(set(found)) == 1 and len(found) == len(threads)


def test_a_failed_compile_is_tried_again(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(text, target, *, name, contract):
        raise fw.InternalError("NVRTC refused")

    real = builds.compile_cubin
    monkeypatch.setattr(builds, "compile_cubin", failing)
    with pytest.raises(fw.InternalError, match="NVRTC refused"):
        program(12, 40).kernels[0].cubin()
    monkeypatch.setattr(builds, "compile_cubin", real)
    assert program(12, 40).kernels[0].cubin()


def test_compiling_a_program_needs_no_compiler(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    p = program(12, 40)
    assert p.kernels[0].cuda
    with pytest.raises(UserError, match=r"needs NVRTC.*pip install"):
        p.kernels[0].cubin()


def test_a_forked_child_compiles_too(builder: Builder) -> None:
    p = program(12, 40)
    want = p.kernels[0].cubin()
    held = fork_safe_lock()
    held.acquire()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            free = held.acquire(blocking=False)
            code = 0 if free and program(12, 40).kernels[0].cubin() == want else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_dropped_program_is_freed(builder: Builder) -> None:
    p = program(12, 40)
    p.kernels[0].cubin()
    assert p.host.stats["launches"] == len(p.launches)
    gone = [weakref.ref(p), weakref.ref(p.kernels[0])]
    del p
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_clusters_survive_a_file(tmp_path: Path) -> None:
    spec = fw.TensorSpec((160, 57344), "bfloat16")
    made = fw.compile(fw.trace(lambda x: fw.nn.softmax(x, axis=-1), spec))
    loaded = fw.load(made.save(tmp_path / "p.fw"))
    assert [k.launch.cluster for k in made.kernels] == [8]
    assert [k.launch for k in loaded.kernels] == [k.launch for k in made.kernels]
    assert [k.cubin() for k in loaded.kernels] == [k.cubin() for k in made.kernels]
