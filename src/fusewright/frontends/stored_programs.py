"""Programs in the disk cache, so that another process neither schedules nor compiles them again.

A program is found by all that shapes it: the text of its fusion, what may be written over, the
target, the caller's choices, and the source of this package. It is stored when it has been made,
and, where its kernels are loaded, with their machine code then: some are made to be looked at, such
as those that show which results a region can write to its arguments. Reading checks it like any
saved program; one that is damaged is made again. Nothing is kept where `fw.tune` has chosen
schedules on this machine, which may change, nor of programs with kernels of the caller's own.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fusewright import knobs
from fusewright.cuda.compile import compiler_version
from fusewright.errors import UserError
from fusewright.fusion.ir import Fusion, OwnKernel
from fusewright.fusion.known import Known
from fusewright.fusion.orders import Order
from fusewright.fusion.printing import print_fusion
from fusewright.program import Program, program_of, started
from fusewright.programs.archive import packed, restored
from fusewright.runtime.archive import pack, unpack
from fusewright.runtime.cache import KernelCache, cache_key
from fusewright.runtime.config import Float32Matmul, active
from fusewright.runtime.device import has_gpu
from fusewright.runtime.tuning_cache import FOLDER as TUNED_FOLDER
from fusewright.target import Target

FOLDER = "programs"
"""Below the folder of compiled kernels, with a cap of its own."""

_log = logging.getLogger("fusewright.cache")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A fusion, what its program is made for, which of its inputs may be written over by which
    output, the orders in which its results lie in memory, and how products of float32 round."""

    fusion: Fusion
    target: Target
    donated: Mapping[int, int | None]
    orders: Sequence[Order | None]
    precision: Float32Matmul


def stored_or_made(wanted: Wanted, make: Callable[[], Program]) -> Program:
    """The program that is wanted: from the disk, or made, and stored. Where there is no cache it
    is made."""
    if not is_kept(wanted.fusion):
        return make()
    key = key_of(wanted)
    found = _found(key)
    has_code = found is not None and all(k.is_compiled for k in found.kernels)
    if found is not None:
        program = started(found)
    else:
        program = make()
        store(key, program, with_code=False)
    if has_gpu() and not has_code:
        program.calls.when_loaded = lambda: store(key, program, with_code=True)
    return program


def _found(key: str) -> Program | None:
    """The program of a key on disk, if it is there and whole."""
    entry = programs_on_disk().get(key)
    if entry is None:
        return None
    try:
        what = f"the program {key} in {knobs.CACHE_DIR.get()}"
        return program_of(restored(*unpack(entry.cubin, what), what, later=True))
    except UserError as e:
        _log.warning("%s; it is made again", e)
        return None


def is_kept(fusion: Fusion) -> bool:
    """Whether the program of a fusion follows from text that can be kept."""
    if not knobs.CACHE.get() or _has_own_kernels(fusion):
        return False
    tuned = knobs.CACHE_DIR.get() / TUNED_FOLDER
    return not (knobs.TUNED.get() and has_gpu() and tuned.is_dir())


def _has_own_kernels(fusion: Fusion) -> bool:
    """Whether a kernel of the caller's own is in a program or in a body of a region; its text is
    not in the fusion's."""
    bodies = (body for t in fusion.values for body in getattr(t.op, "bodies", ()))
    own = any(isinstance(t.op, OwnKernel) for t in fusion.values)
    return own or any(map(_has_own_kernels, bodies))


def store(key: str, program: Program, *, with_code: bool) -> None:
    """Puts a program on disk. Raises UserError where code is wanted and there is no compiler."""
    programs_on_disk().put(key, pack(*packed(program, with_code=with_code)), {})


def programs_on_disk() -> KernelCache:
    """The programs that are kept, by their keys."""
    return KernelCache(knobs.CACHE_DIR.get() / FOLDER)


def key_of(w: Wanted) -> str:
    """By what a program is found, under the choices that hold here."""
    chosen = active().of_kernels
    choices = (knobs.WITHOUT.get(), knobs.BOUND_WAITS.get(), w.precision, chosen)
    compiler = compiler_version() if has_gpu() else ""
    data = [_digest(t.data.tobytes()) for t in w.fusion.inputs if isinstance(t, Known)]
    parts = (w.target.arch, sorted(w.donated.items()), list(w.orders), choices, compiler, data)
    return cache_key("program", package_digest(), print_fusion(w.fusion), repr(parts))


@cache
def package_digest() -> str:
    """The digest of this package's sources: another version may schedule in another way."""
    folder = Path(__file__).parent.parent
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".cuh", ".json"))
    texts = (f"{p.relative_to(folder)}\n".encode() + p.read_bytes() for p in files)
    return _digest(b"\0".join(texts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
