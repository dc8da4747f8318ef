"""What may go wrong around the caches: processes that die, disks that lie or are full, homes that
cannot be written. A cache may cost a compile, never an error or a wrong kernel."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import UserError
from fusewright.runtime import archive
from fusewright.runtime.archive import read_archive, write_archive
from fusewright.runtime.cache import KernelCache, cache_key

WRITER = """
import random, sys
from pathlib import Path
from fusewright.runtime.cache import KernelCache, cache_key
folder, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
print("ready", flush=True)
cache = KernelCache(folder, cap_nbytes=60_000)
for _ in range(rounds):
    name = str(rng.randrange(12))
    content = (name * 2000).encode()
    found = cache.get(cache_key(name))
    assert found is None or found.cubin == content, "another entry's bytes"
    cache.put(cache_key(name), content, {"name": name})
"""


def content(name: str) -> bytes:
    return (name * 2000).encode()


def start(folder: Path, seed: int, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(seed), str(rounds)]
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def entries_are_whole(folder: Path) -> int:
    """How many entries there are; none of them is another's, or half of one."""
    again = KernelCache(folder)
    found = {n: again.get(cache_key(n)) for n in map(str, range(12))}
    assert all(e is None or e.cubin == content(n) for n, e in found.items())
    return sum(e is not None for e in found.values())


def test_sixteen_processes_share_a_folder(tmp_path: Path) -> None:
    running = [start(tmp_path / "c", seed, 30) for seed in range(16)]
    assert [p.wait(120) for p in running] == [0] * 16
    assert entries_are_whole(tmp_path / "c") > 0


def test_processes_killed_in_the_middle_leave_no_half(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    running = [start(folder, seed, 10_000_000) for seed in range(3)]
    for p in running:
        assert p.stdout is not None and p.stdout.readline() == "ready\n"
    time.sleep(0.3)
    for p in running:
        p.send_signal(signal.SIGKILL)
        assert p.wait(60) == -signal.SIGKILL
    assert entries_are_whole(folder) > 0
    assert KernelCache(folder).put(cache_key("x"), b"code", {})


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_byte_anywhere_is_a_miss(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = KernelCache(tmp_path / "c")
    made.put(cache_key("1"), content("1"), {"log": "text"})
    path = rng.choice(sorted((tmp_path / "c").glob("??/*")))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
    path.write_bytes(bytes(data))
    found = made.get(cache_key("1"))
    assert found is None


def test_a_full_disk_costs_only_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = KernelCache(tmp_path / "c")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert not made.put(cache_key("1"), content("1"), {})
    assert list((tmp_path / "c").glob("??/*")) == [], "no temporary file is left to fill it more"


def test_a_home_that_cannot_be_written_costs_only_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the cache directory would be: as root, too, nothing can be made there."""
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path / "home" / "cache"))
    program = fw.compile(fw.trace(lambda x: x * 3, fw.TensorSpec((8,), "float32")))
    assert program.kernels[0].cubin()[:4] == b"\x7fELF"


# --- saved programs -----------------------------------------------------------------------------


def joined(x, y):
    a = fw.nn.softmax(x, axis=-1)
    return fw.concat([a, fw.nn.softmax(y, axis=-1)], axis=0), fw.sum(a, axis=0)


def test_symbolic_programs_of_several_kernels_round_trip(tmp_path: Path) -> None:
    specs = [fw.TensorSpec(("n", 6), "float32"), fw.TensorSpec(("m", 6), "float32")]
    program = fw.compile(fw.trace(joined, *specs))
    back = fw.load(program.save(tmp_path / "p.fw"))
    assert str(back.host) == str(program.host)
    assert str(back.host.stats) == str(program.host.stats) and back.host.stats["placed"]
    rng = np.random.default_rng(0)
    for n, m in ((3, 5), (17, 2)):
        arrays = [rng.standard_normal((k, 6)).astype(np.float32) for k in (n, m)]
        for got, want in zip(
            back.simulate(*arrays).outputs, program.simulate(*arrays).outputs, strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_a_save_that_is_interrupted_leaves_the_program_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.fw"
    write_archive(path, {"fusion": "old"}, {})

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_archive(path, {"fusion": "new"}, {})
    assert read_archive(path)[0] == {"fusion": "old"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_rejects_truncated_files(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "p.fw"
    write_archive(path, {"fusion": "x"}, {"0.cubin": os.urandom(4000)})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(UserError, match="is not a saved program or is damaged"):
        fw.load(path)


@pytest.mark.parametrize("seed", range(10))
def test_rejects_flipped_bytes(tmp_path: Path, seed: int) -> None:
    """Whatever byte of a member or of the directory is changed, nothing else than a UserError, or
    the very same contents, comes out."""
    path = tmp_path / "p.fw"
    write_archive(path, {"fusion": "x"}, {"0.cubin": b"code" * 999})
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    try:
        record, members = read_archive(path)
    except UserError:
        return
    assert (record, members) == ({"fusion": "x"}, {"0.cubin": b"code" * 999})


def test_rejects_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "VERSION", 99)
    write_archive(tmp_path / "p.fw", {}, {})
    monkeypatch.undo()
    with pytest.raises(UserError, match="has format version 99, this fusewright reads"):
        fw.load(tmp_path / "p.fw")


def test_members_named_like_paths_touch_no_path(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_archive(tmp_path / "p.fw", {"fusion": 1}, {"../outside": b"x", "/etc/planted": b"x"})
    with pytest.raises(UserError, match="does not describe a program"):
        fw.load(tmp_path / "p.fw")
    assert not outside.exists() and not Path("/etc/planted").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["launches"][0].update(kernel=-7),
        lambda r: r["launches"][0].update(values=[["int", "x"]]),
        lambda r: r["launches"][0]["outputs"][0].update(offset="__import__('os')"),
        lambda r: r["launches"][0]["outputs"][0].update(root="missing"),
        lambda r: r["kernels"][0].update(code="9.cubin"),
        lambda r: r["kernels"][0].update(text="kernel"),
        lambda r: r.update(fusion="f(x) ="),
        lambda r: r.update(target="sm_00"),
        lambda r: r.pop("launches"),
        lambda r: r.update(placed=3),
    ],
)
def test_rejects_records_that_say_nonsense(tmp_path: Path, change) -> None:
    program = fw.compile(fw.trace(joined, *[fw.TensorSpec((4, 6), "float32")] * 2))
    record, members = read_archive(program.save(tmp_path / "p.fw"))
    change(record)
    write_archive(tmp_path / "q.fw", record, members)
    with pytest.raises(UserError, match=r"does not describe a program|target"):
        fw.load(tmp_path / "q.fw")
