"""What a GPU architecture offers. The one home of such facts."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.errors import UserError

WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
MAX_VECTOR_NBYTES = 16
REGISTERS_PER_SM = 65536
REGISTER_UNIT = 8  # registers of a thread are a multiple
WARP_REGISTER_UNIT = 256  # registers of a warp are a multiple
SHARED_BASE_ALIGNMENT = 1024
SHARED_BANKS = 32
SHARED_BANK_NBYTES = 4
SECTOR_NBYTES = 32
NAMED_BARRIERS = 16
MAX_MBARRIER_COUNT = 2**20 - 1
MBARRIER_NBYTES = 8
MAX_CLUSTER = 8  # blocks of a cluster that every device with clusters can hold
CP_ASYNC_NBYTES = (4, 8, 16)
BULK_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture: `arch` as NVRTC spells it, sizes in bytes, counts per multiprocessor.

    Source: CUDA C++ Programming Guide, "Compute Capabilities".
    """

    arch: str
    multiprocessors: int
    shared_nbytes_per_block: int
    shared_nbytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    has_cp_async: bool
    has_bulk: bool
    has_cluster: bool
    has_wgmma: bool
    max_registers_per_thread: int = 255

    def __str__(self) -> str:
        return self.arch

    @property
    def shared_nbytes_of_several(self) -> int:
        """Bytes of shared memory that each of two blocks on a multiprocessor can hold, with room
        for workspaces."""
        return (self.shared_nbytes_per_sm - 8 * 1024) // 2

    @property
    def cluster_shared_nbytes(self) -> int:
        """Bytes of shared memory that the blocks of a cluster can hold together, two blocks on a
        multiprocessor; 0 where there are no clusters."""
        return self.max_cluster * self.shared_nbytes_of_several if self.has_cluster else 0

    @property
    def max_cluster(self) -> int:
        """Blocks that a cluster may have, 1 where there are no clusters."""
        return MAX_CLUSTER if self.has_cluster else 1


def _target(arch: str, sms: int, per_block: int, per_sm: int, threads: int, blocks: int) -> Target:
    number = int("".join(c for c in arch if c.isdigit()))
    return Target(
        arch=arch,
        multiprocessors=sms,
        shared_nbytes_per_block=per_block * 1024,
        shared_nbytes_per_sm=per_sm * 1024,
        registers_per_sm=REGISTERS_PER_SM,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        has_cp_async=number >= 80,
        has_bulk=number >= 90,
        has_cluster=number >= 90,
        has_wgmma=arch == "sm_90a",
    )


_TARGETS = {
    t.arch: t
    for t in (
        _target("sm_80", 108, 163, 164, 2048, 32),
        _target("sm_86", 84, 99, 100, 1536, 16),
        _target("sm_89", 128, 99, 100, 1536, 24),
        _target("sm_90", 132, 227, 228, 2048, 32),
        _target("sm_90a", 132, 227, 228, 2048, 32),
        _target("sm_100", 148, 227, 228, 2048, 32),
        _target("sm_100a", 148, 227, 228, 2048, 32),
        _target("sm_120", 170, 99, 100, 1536, 24),
    )
}


def target_of(arch: str | Target | None) -> Target:
    """The Target for an architecture name (default sm_90a). Raises UserError for others."""
    if isinstance(arch, Target):
        return arch
    found = _TARGETS.get(arch or "sm_90a")
    if found is None:
        raise UserError(f"target {arch!r} is not known; use one of {', '.join(_TARGETS)}")
    return found
