"""A disk cache of compiled kernels: one JSON file and one cubin per key, LRU under a size cap.

A cubin is native code, so a folder that other users can write is refused, and one sha256 covers all
of an entry: key, version, what is kept beside the code, and the code. Nothing of an entry is used
before it is checked; one that does not match is removed with a line in the log. Files appear by
rename only: a crash leaves at most a temporary file. Writers are idempotent, so processes need no
lock to be right; `claim` only keeps them from doing the same work at the same time, as the ranks of
a distributed job would. Nothing is ever unpickled. Whatever goes wrong with the disk costs a
compile, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fusewright.runtime.files import TEMPORARY, write_whole

_log = logging.getLogger("fusewright.cache")

SCHEMA = 2
DEFAULT_CAP_NBYTES = 1 << 30
_KEEP_FRACTION = 0.8  # of the cap, after an eviction
_STALE_SECONDS = 3600.0  # a temporary file this old belongs to a process that died
_CLAIM = ".claim"
_CLAIM_SECONDS = 30.0
"""How long a process waits for another one's work: a hundred times what a kernel takes (NVRTC
needs 0.02 to 0.3 s, design.md section 3). Then it does the work itself."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What was stored: the cubin, and what the caller kept beside it (JSON values)."""

    cubin: bytes
    meta: dict[str, Any]


def cache_key(*parts: str) -> str:
    """The key for all that shapes the output: text, target, options, versions. Order counts, and
    parts do not run together."""
    digest = hashlib.sha256(f"fusewright {SCHEMA}".encode())
    for p in parts:
        text = p.encode()
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()


class KernelCache:
    """A cache in one folder. `problem` says why it is switched off, None when it works."""

    def __init__(self, folder: Path, *, cap_nbytes: int = DEFAULT_CAP_NBYTES) -> None:
        """Open or make the folder (mode 0700). `cap_nbytes` bounds the sum of its files."""
        self._folder = folder
        self._cap = cap_nbytes
        self._nbytes: int | None = None
        self.problem = _prepare(folder)

    def get(self, key: str) -> CacheEntry | None:
        """The entry of a key, None when there is none. A damaged entry is removed."""
        if self.problem is not None:
            return None
        record, cubin = self._paths(key)
        try:
            entry = _read(record, cubin, key)
        except OSError:
            return None
        except ValueError as e:
            _log.warning("%s is damaged and was removed: %s", record, e)
            _remove(record, cubin)
            return None
        with contextlib.suppress(OSError):
            os.utime(record)
        return entry

    def has(self, key: str) -> bool:
        """Whether there is an entry of a key, which may turn out to be damaged."""
        return self.problem is None and all(path.exists() for path in self._paths(key))

    def put(self, key: str, cubin: bytes, meta: Mapping[str, Any]) -> bool:
        """Store an entry; False when the disk does not take it."""
        if self.problem is not None:
            return False
        record_path, cubin_path = self._paths(key)
        entry = json.dumps({"schema": SCHEMA, "key": key, "meta": dict(meta)}, sort_keys=True)
        record = {"entry": entry, "sha256": _checksum(entry, cubin)}
        text = json.dumps(record, sort_keys=True).encode()
        try:
            record_path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(cubin_path, cubin)
            write_whole(record_path, text)
        except OSError:
            return False
        self._account(len(cubin) + len(text))
        return True

    @contextlib.contextmanager
    def claim(self, key: str) -> Generator[None]:
        """Holds the making of an entry: another thread or process that claims it waits until this
        one is done, or has died, and finds the entry. One that waits for too long goes on without;
        where the disk or the system has no locks nobody waits."""
        lock = self._paths(key)[0].with_suffix(_CLAIM)
        handle = None if self.problem is not None else _locked(lock)
        try:
            yield
        finally:
            if handle is not None:
                _remove(lock)
                os.close(handle)

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self._folder / key[:2]
        return folder / f"{key}.json", folder / f"{key}.cubin"

    def _account(self, added: int) -> None:
        self._nbytes = self._measure() if self._nbytes is None else self._nbytes + added
        if self._nbytes > self._cap:
            self._nbytes = self._evict()

    def _measure(self) -> int:
        return sum(s.st_size for _, s in self._files())

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        for path in sorted(self._folder.glob("??/*")):
            with contextlib.suppress(OSError):
                found.append((path, path.stat()))
        return found

    def _evict(self) -> int:
        """Remove entries, the least recently used first, until the rest is well under the cap;
        and what processes left behind that died while writing."""
        entries: dict[Path, list[tuple[Path, os.stat_result]]] = {}
        for path, s in self._files():
            if path.suffix in (TEMPORARY, _CLAIM):  # another process works on it, or died so
                if time.time() - s.st_mtime > _STALE_SECONDS:
                    _remove(path)
            else:
                entries.setdefault(path.with_suffix(""), []).append((path, s))
        used = {stem: max(s.st_mtime for _, s in files) for stem, files in entries.items()}
        total = sum(s.st_size for files in entries.values() for _, s in files)
        for stem in sorted(entries, key=lambda e: (used[e], e)):
            if total <= self._cap * _KEEP_FRACTION:
                break
            _remove(*(path for path, _ in entries[stem]))
            total -= sum(s.st_size for _, s in entries[stem])
        return total


def _prepare(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as e:
        return f"cache folder {folder} cannot be used: {e.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"cache folder {folder} is not a folder"
    if status.st_uid != os.getuid():
        return f"cache folder {folder} belongs to another user; choose one of your own"
    if status.st_mode & 0o022:
        return (
            f"cache folder {folder} can be written by other users, who could plant code in it; "
            f"run: chmod go-w {folder}"
        )
    return None


def _locked(path: Path) -> int | None:
    """An open file that this process alone has locked; None where that cannot be had in time."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = None
    until = time.monotonic() + _CLAIM_SECONDS
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        while time.monotonic() < until and os.fstat(handle).st_nlink:  # 0: its holder is done
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
    if handle is not None:
        os.close(handle)
    return None


def _read(record_path: Path, cubin_path: Path, key: str) -> CacheEntry:
    """Raises OSError when a file is not there, ValueError when they are not what `put` wrote."""
    record, cubin = _object(record_path.read_bytes()), cubin_path.read_bytes()
    text = record.get("entry")
    if not isinstance(text, str) or _checksum(text, cubin) != record.get("sha256"):
        raise ValueError("its contents do not match its checksum")
    entry = _object(text)
    meta = entry.get("meta")
    if entry.get("schema") != SCHEMA or entry.get("key") != key or not isinstance(meta, dict):
        raise ValueError("it belongs to another key or version")
    return CacheEntry(cubin, cast("dict[str, Any]", meta))


def _object(text: bytes | str) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else."""
    try:
        loaded: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested deeper than any entry") from None
    if not isinstance(loaded, dict):
        raise ValueError("it is no JSON object")
    return cast("dict[str, Any]", loaded)


def _checksum(entry: str, cubin: bytes) -> str:
    """The sha256 of a whole entry; text and code do not run together."""
    text = entry.encode("utf-8", "surrogatepass")
    return hashlib.sha256(len(text).to_bytes(8, "little") + text + cubin).hexdigest()


def _remove(*paths: Path) -> None:
    for p in paths:
        with contextlib.suppress(OSError):
            p.unlink()
