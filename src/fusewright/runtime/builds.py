"""Kernels become machine code: in modules of small kernels, on a pool of threads, through caches.

A module is found in memory, then on disk, then compiled. Both caches are keyed by all that shapes
the code: the text, the target and its options, and the compiler's version.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fusewright import knobs
from fusewright.cuda.compile import (
    Compiled,
    ModuleSource,
    bundle,
    compile_cubin,
    compile_options,
    compiler_version,
)
from fusewright.kir.ir import Kernel
from fusewright.runtime.cache import CacheEntry, KernelCache, cache_key
from fusewright.runtime.locks import after_fork, fork_safe_lock
from fusewright.target import Target

_log = logging.getLogger("fusewright.machine_code")
MAX_MODULES = 512
"""Modules kept in memory; about 50 kB each."""


class Builder:
    """Compiles modules once per process while they are remembered. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._modules: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, kernels: Sequence[Kernel], target: Target) -> list[Future[Compiled]]:
        """Starts to compile kernels, small ones together; a future per kernel.

        Raises UserError when there is no compiler and the code is needed.
        """
        version = compiler_version()
        futures: dict[Kernel, Future[Compiled]] = {}
        for source, members in bundle(kernels, target):
            future = self._module(source, target, version)
            futures |= dict.fromkeys(members, future)
        return [futures[k] for k in kernels]

    def _module(self, source: ModuleSource, target: Target, version: str) -> Future[Compiled]:
        options = compile_options(target, contract=source.contract)
        key = cache_key(source.text, target.arch, *options, version)
        with self._lock:
            found = self._modules.get(key)
            if found is None or is_failed(found):
                if self._pool is None:
                    threads = knobs.THREADS.get()
                    self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fusewright-nvrtc")
                found = self._pool.submit(_make, key, source, target)
                self._modules[key] = found
                if len(self._modules) > MAX_MODULES:
                    self._modules.popitem(last=False)
            self._modules.move_to_end(key)
            return found

    def cancel(self) -> None:
        """Drops what no thread has begun with: whoever wants it asks again. Else a process that is
        interrupted would compile all of it before it ends."""
        with self._lock:
            for key in [k for k, f in self._modules.items() if f.cancel()]:
                del self._modules[key]

    def forget(self) -> None:
        """Drops what is remembered, and the threads."""
        self._modules.clear()
        self._pool = None


def is_failed(build: Future[Compiled]) -> bool:
    """Whether it ended without machine code."""
    return build.done() and (build.cancelled() or build.exception() is not None)


def _make(key: str, source: ModuleSource, target: Target) -> Compiled:
    """The module from disk, or compiled and stored there, by one process at a time."""
    if not knobs.CACHE.get():
        return _compiled(source, target)
    cache = KernelCache(knobs.CACHE_DIR.get())
    found = _stored(cache, key, source)
    if found is not None:
        return found
    with cache.claim(key):
        found = _stored(cache, key, source)
        if found is not None:
            return found
        made = _compiled(source, target)
        cache.put(key, made.cubin, {"ptx": made.ptx, "log": made.log, "seconds": made.seconds})
        return made


def _stored(cache: KernelCache, key: str, source: ModuleSource) -> Compiled | None:
    """The module from disk."""
    entry = cache.get(key)
    found = None if entry is None else _restored(entry)
    if found is not None:
        _log.debug("%s: machine code from %s", source.name, knobs.CACHE_DIR.get())
    return found


def _compiled(source: ModuleSource, target: Target) -> Compiled:
    made = compile_cubin(source.text, target, name=source.name, contract=source.contract)
    _log.debug("%s: machine code in %.0f ms", source.name, 1000 * made.seconds)
    return made


def _restored(entry: CacheEntry) -> Compiled | None:
    match entry.meta:
        case {"ptx": str(ptx), "log": str(log), "seconds": float(seconds)}:
            return Compiled(entry.cubin, ptx, log, seconds)
        case _:
            return None


BUILDER = Builder()
after_fork(BUILDER.forget)
