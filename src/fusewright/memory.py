"""Where a value lives, and how global memory is accessed."""

from __future__ import annotations

from fusewright.choice import Choice


class Memory(Choice):
    """Global memory of the device, shared memory of a block, registers of a thread."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"


class Cache(Choice):
    """Cache policy of a global access: default, streaming (evict first), last use, read-only
    path (non-coherent), read-only path without allocation in L1, keep (evict last)."""

    DEFAULT = "default"
    STREAMING = "streaming"
    LAST_USE = "last_use"
    NON_COHERENT = "non_coherent"
    NO_ALLOCATE = "no_allocate"
    KEEP = "keep"


READ_ONLY = (Cache.NON_COHERENT, Cache.NO_ALLOCATE)
"""Policies of loads from memory that nobody writes while the kernel runs: no sync holds such a load
back (PTX ISA, "ld.global.nc")."""
