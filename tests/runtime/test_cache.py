"""The kernel cache survives crashes, corruption, other processes and other users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewright.runtime import cache as cache_module
from fusewright.runtime.cache import CacheEntry, KernelCache, _checksum, cache_key

KEY = cache_key("text", "sm_90a")
OTHER = cache_key("text", "sm_80")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def record_of(folder: Path, key: str = KEY) -> Path:
    return folder / key[:2] / f"{key}.json"


def signed(entry: str, cubin: bytes = b"code") -> bytes:
    """A record with the right checksum over the wrong text."""
    return json.dumps({"entry": entry, "sha256": _checksum(entry, cubin)}).encode()


def test_what_was_put_is_found_by_another_cache_of_the_folder(folder: Path) -> None:
    assert KernelCache(folder).put(KEY, b"code", {"registers": 32})
    assert KernelCache(folder).get(KEY) == CacheEntry(b"code", {"registers": 32})
    assert KernelCache(folder).get(OTHER) is None


def test_everything_is_private(folder: Path) -> None:
    KernelCache(folder).put(KEY, b"code", {})
    modes = {p.name: p.stat().st_mode & 0o777 for p in (folder, *folder.rglob("*"))}
    assert {m for name, m in modes.items() if "." in name} == {0o600}
    assert {m for name, m in modes.items() if "." not in name} == {0o700}


def test_keys_depend_on_order_and_borders_of_their_parts() -> None:
    keys = {cache_key("ab", "c"), cache_key("a", "bc"), cache_key("c", "ab"), cache_key("abc")}
    assert len(keys) == 4
    assert cache_key("ab", "c") == cache_key("ab", "c")


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.write_bytes(b""),
        lambda record: record.write_bytes(record.read_bytes()[:20]),
        lambda record: record.write_bytes(b"\xff\xfe garbage"),
        lambda record: record.write_text("[1, 2]"),
        lambda record: record.write_text(json.dumps({"schema": 0})),
        lambda record: record.write_text(record.read_text().replace(KEY, OTHER)),
        lambda record: record.write_text(
            record.read_text().replace(r"\"meta\": {}", r"\"meta\": {\"a\": 1}")
        ),
        lambda record: record.write_bytes(b"[" * 200_000),
        lambda record: record.write_bytes(signed("[" * 200_000)),
        lambda record: record.write_bytes(signed("[1, 2]")),
        lambda record: record.write_bytes(signed(r'"\ud800"')),
        lambda record: record.with_suffix(".cubin").write_bytes(b"cod"),
        lambda record: record.with_suffix(".cubin").write_bytes(b"evil"),
    ],
    ids=[
        "empty",
        "cut",
        "bytes",
        "list",
        "schema",
        "key",
        "meta",
        "deep",
        "deep inside",
        "list inside",
        "surrogate",
        "short cubin",
        "other cubin",
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(folder: Path, damage) -> None:
    cache = KernelCache(folder)
    cache.put(KEY, b"code", {})
    damage(record_of(folder))
    assert cache.get(KEY) is None
    assert not record_of(folder).exists()
    assert cache.put(KEY, b"code", {}) and cache.get(KEY) == CacheEntry(b"code", {})


META = {"ptx": ".version 8.7", "log": "", "seconds": 0.5, "nested": {"a": [1, None, True]}}


def damages(content: bytes) -> Iterator[bytes]:
    """Every bit flipped, and every shorter file."""
    for k in range(len(content)):
        for bit in range(8):
            yield content[:k] + bytes([content[k] ^ 1 << bit]) + content[k + 1 :]
    for length in range(len(content)):
        yield content[:length]


@pytest.mark.parametrize("suffix", [".json", ".cubin"])
def test_no_flipped_bit_and_no_shorter_file_is_believed(
    folder: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = KernelCache(folder)
    cache.put(KEY, b"\x7fELF code", META)
    path = record_of(folder).with_suffix(suffix)
    for damaged in damages(path.read_bytes()):
        path.write_bytes(damaged)
        caplog.clear()
        assert cache.get(KEY) is None, damaged
        assert cache.get(KEY) is None
        (line,) = caplog.messages
        assert "is damaged and was removed" in line
        cache.put(KEY, b"\x7fELF code", META)
    assert cache.get(KEY) == CacheEntry(b"\x7fELF code", META)


def test_a_missing_cubin_is_a_miss(folder: Path) -> None:
    cache = KernelCache(folder)
    cache.put(KEY, b"code", {})
    record_of(folder).with_suffix(".cubin").unlink()
    assert cache.get(KEY) is None


def test_a_crash_while_writing_leaves_no_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(folder)

    def crash(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        cache.put(KEY, b"code", {})
    monkeypatch.undo()
    assert cache.get(KEY) is None
    assert list(folder.rglob("*.*")) == []


def test_a_crash_between_cubin_and_record_is_a_miss(folder: Path) -> None:
    cache = KernelCache(folder)
    cache.put(KEY, b"code", {})
    record_of(folder).unlink()
    assert cache.get(KEY) is None


def test_the_least_recently_used_entries_go_first(folder: Path) -> None:
    cache = KernelCache(folder, cap_nbytes=5000)
    keys = [cache_key(str(n)) for n in range(4)]
    for age, key in zip((400, 300, 200, 100), keys, strict=True):
        cache.put(key, bytes(1000), {})
        for path in folder.rglob(f"{key}.*"):
            os.utime(path, (time.time() - age,) * 2)
    assert cache.get(keys[0]) is not None  # makes it the youngest
    cache.put(cache_key("last"), bytes(1000), {})
    assert [cache.get(k) is not None for k in keys] == [True, False, False, True]
    assert sum(p.stat().st_size for p in folder.rglob("*.*")) <= 4000


def test_temporary_files_of_dead_processes_are_removed(folder: Path) -> None:
    cache = KernelCache(folder, cap_nbytes=10)
    cache.put(KEY, b"code", {})
    old, fresh = (folder / KEY[:2] / name for name in ("old.tmp", "fresh.tmp"))
    old.write_bytes(b"x")
    fresh.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.put(OTHER, b"code", {})
    assert not old.exists() and fresh.exists()


def test_processes_may_write_and_read_side_by_side(folder: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from fusewright.runtime.cache import KernelCache, cache_key
cache = KernelCache(Path({str(folder)!r}), cap_nbytes=60_000)
for step in range(100):
    k = (step * 7 + int(sys.argv[1])) % 20
    key, code = cache_key(str(k)), bytes([k]) * 4000
    entry = cache.get(key)
    assert entry is None or entry.cubin == code, "torn entry"
    assert cache.put(key, code, {{"k": k}})
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    errors = [w.communicate(timeout=60)[1] for w in workers]
    assert [w.returncode for w in workers] == [0, 0, 0], errors
    assert list(folder.rglob("*.tmp")) == []


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    KernelCache(folder).put(KEY, b"code", {})
    folder.chmod(mode)
    cache = KernelCache(folder)
    assert cache.problem is not None
    assert "can be written by other users" in cache.problem
    assert f"chmod go-w {folder}" in cache.problem
    assert cache.get(KEY) is None
    assert not cache.put(OTHER, b"code", {})


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache(folder)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "belongs to another user" in (KernelCache(folder).problem or "")


def test_a_file_in_the_way_switches_the_cache_off(folder: Path) -> None:
    folder.write_text("not a folder")
    cache = KernelCache(folder)
    assert cache.problem is not None and "cannot be used" in cache.problem
    assert cache.get(KEY) is None and not cache.put(KEY, b"code", {})


def test_a_disk_that_takes_nothing_costs_only_the_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(folder)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert not cache.put(KEY, b"code", {})
    assert cache.get(KEY) is None


def test_who_claims_an_entry_waits_for_who_makes_it(folder: Path) -> None:
    """Both look again once they hold the claim: one makes the entry, the other one finds it."""
    made: list[str] = []

    def make(name: str) -> None:
        cache = KernelCache(folder)
        with cache.claim(KEY):
            if cache.get(KEY) is None:
                time.sleep(0.05)
                made.append(name)
                cache.put(KEY, b"code", {})

    threads = [threading.Thread(target=make, args=(name,)) for name in "abc"]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 1
    assert list(folder.rglob("*.claim")) == []


def test_a_claim_of_a_dead_process_is_free(folder: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from fusewright.runtime.cache import KernelCache\n"
        "with KernelCache(Path(sys.argv[1])).claim(sys.argv[2]): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), KEY], check=True)
    assert len(list(folder.rglob("*.claim"))) == 1
    began = time.monotonic()
    with KernelCache(folder).claim(KEY):
        assert time.monotonic() - began < 5.0


def test_nobody_waits_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_CLAIM_SECONDS", 0.05)
    with KernelCache(folder).claim(KEY), KernelCache(folder).claim(KEY):
        assert KernelCache(folder).get(KEY) is None


def test_a_cache_that_is_switched_off_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with KernelCache(tmp_path / "file").claim(KEY):
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == ""
