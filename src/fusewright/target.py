"""What a GPU architecture offers. The one home of such facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import cast

from fusewright.arguments import shown
from fusewright.calibration import H200, Calibration
from fusewright.errors import UserError

WARP_SIZE = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_THREADS_ALONG_Z = 64  # of a block (CUDA programming guide, "Compute Capabilities")
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
LOCAL_NBYTES = 512 << 10  # of a thread (CUDA programming guide, "Compute Capabilities")
MAX_VECTOR_NBYTES = 16
WORD_NBYTES = 4  # of a register
REGISTERS_PER_SM = 65536
PARTITIONS = 4  # of a multiprocessor, each with a scheduler and a part of the registers
REGISTER_NBYTES = 4
MAX_REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 8  # registers of a thread are a multiple
WARP_REGISTER_UNIT = 256  # registers of a warp are a multiple
SMALL_BLOCK = PARTITIONS * WARP_SIZE  # threads: a warp for each scheduler of a multiprocessor
BLOCK = 2 * SMALL_BLOCK  # one of a scheduler's two warps computes while the other one waits
SHARED_BASE_ALIGNMENT = 1024
SHARED_BANKS = 32
SHARED_BANK_NBYTES = 4
SECTOR_NBYTES = 32
LINE_NBYTES = 128  # of the caches; the first level looks up one a clock
NAMED_BARRIERS = 16
MAX_MBARRIER_COUNT = 2**20 - 1
MBARRIER_NBYTES = 8
MAX_CLUSTER = 8  # blocks of a cluster that every device with clusters can hold
CLUSTER_SIZES = tuple(1 << k for k in range(1, MAX_CLUSTER.bit_length()))  # of more than one block
MULTIPROCESSORS_PER_PART = 18  # at most, of those that blocks of a cluster share (H100 white paper)
CP_ASYNC_NBYTES = (4, 8, 16)
COUNTED_STORE_NBYTES = (4, 8)  # of an element of st.async
REMOTE_STORE_WIDTH = 4  # elements of st and st.async, .v4
BULK_ALIGNMENT = 16
BOX_ALIGNMENT = 128  # of what a box is copied to or from in shared memory
MAX_BOX_EXTENT = 256
TENSOR_MAP_NBYTES = 128
MAX_BOX_RANK = 5
WARPGROUP_SIZE = 128
MMA_ROWS = 64  # of a product that a warpgroup makes
MMA_DEPTH_NBYTES = 32  # of a row of an operand that one instruction takes
MMA_COLUMNS_UNIT = 8
MMA_PAIR = 2  # neighbouring columns of a product that a thread holds
MATRICES_COLUMNS = 2 * MMA_COLUMNS_UNIT  # that one load or store of four matrices spans
MATRICES_NBYTES = WARP_SIZE * MAX_VECTOR_NBYTES  # of these four, of 8 x 8 elements of 2 bytes
TRANSPOSED_NBYTES = 2  # of values that are read along either axis of a tile (imm-trans-a, -b)
MAX_MMA_COLUMNS = 256
MIN_SET_REGISTERS, MAX_SET_REGISTERS = 24, 256
INSTRUCTION_NBYTES = 16  # of machine code
ISSUE_PER_CLOCK = 4  # warp instructions that a multiprocessor's schedulers issue
SHARED_NBYTES_PER_CLOCK = 128  # of a multiprocessor


def equal_registers(nthreads: int) -> int:
    """Registers of each of so many threads that share those of a multiprocessor equally."""
    return REGISTERS_PER_SM // nthreads // REGISTER_UNIT * REGISTER_UNIT


def mma_per_clock(itemsize: int) -> int:
    """Pairs of values of so many bytes that the matrix units of a multiprocessor multiply in a
    clock: 2048 of 16 bits, half as many of 32, twice as many of 8 (data sheet of the H200: 989,
    494 and 1979 TFLOP/s without sparsity)."""
    return 4096 // itemsize


class Feature(Enum):
    """What some instructions need of an architecture, with the compute capability that first has
    it."""

    CP_ASYNC = ("copies by a thread to shared memory", "8.0")
    BULK = ("bulk copies and mbarriers", "9.0")
    CLUSTER = ("clusters of blocks", "9.0")
    WGMMA = ("matrix products by warpgroups", "9.0a")
    EARLY_LAUNCH = ("launches that begin before those before them have ended", "9.0")

    @property
    def since(self) -> str:
        """The compute capability that first has it."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture: `arch` as NVRTC spells it, sizes in bytes, counts per multiprocessor.

    Sources: CUDA C++ Programming Guide, "Compute Capabilities"; for clock, memory and cache, on
    which predicted times rest but no result does, the data sheet of one product of the
    architecture: A100 40 GB, A40, RTX 4090, H200, B200, RTX 5090. `warp_mma_per_clock` are the
    pairs of 16-bit values that instructions of single warps multiply in a clock, with sums of
    float32: of the same data sheets (312, 150, 165 and 210 TFLOP/s of the A100, the A40, the RTX
    4090 and the RTX 5090); on Hopper 0.63 of what instructions of warpgroups reach (Luo et al.,
    "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024, H800); for Blackwell's
    data-centre chips nobody publishes one, and that of the A100 is taken. `calibration` is what
    was measured.
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
    has_early_launch: bool
    warp_mma_per_clock: int
    clock_mhz: int
    memory_nbytes_per_us: int
    l2_nbytes: int
    calibration: Calibration
    max_registers_per_thread: int = MAX_REGISTERS_PER_THREAD

    def __str__(self) -> str:
        return self.arch

    def has(self, feature: Feature) -> bool:
        """Whether the architecture has a feature."""
        match feature:
            case Feature.CP_ASYNC:
                return self.has_cp_async
            case Feature.BULK:
                return self.has_bulk
            case Feature.CLUSTER:
                return self.has_cluster
            case Feature.WGMMA:
                return self.has_wgmma
            case Feature.EARLY_LAUNCH:
                return self.has_early_launch

    @property
    def shared_nbytes_of_several(self) -> int:
        """Bytes of shared memory that each of two blocks on a multiprocessor can hold, with room
        for workspaces."""
        return (self.shared_nbytes_per_sm - 8 * 1024) // 2

    @property
    def shared_nbytes_of_one(self) -> int:
        """The same of a block that has a multiprocessor to itself."""
        return self.shared_nbytes_per_block - 8 * 1024

    @property
    def cluster_shared_nbytes(self) -> int:
        """Bytes of shared memory that the blocks of a cluster can hold together, two blocks on a
        multiprocessor; 0 where there are no clusters."""
        return self.max_cluster * self.shared_nbytes_of_several if self.has_cluster else 0

    @property
    def max_cluster(self) -> int:
        """Blocks that a cluster may have, 1 where there are no clusters."""
        return MAX_CLUSTER if self.has_cluster else 1

    def blocks_at_once(self, nthreads: int, shared_nbytes: int) -> int:
        """The blocks of so many threads, with so much shared memory each, that a multiprocessor
        holds, registers aside. What it has more than a block may use, the system reserves for each
        block."""
        reserved = self.shared_nbytes_per_sm - self.shared_nbytes_per_block
        by_memory = self.shared_nbytes_per_sm // (shared_nbytes + reserved)
        by_threads = self.threads_per_sm // (-(-nthreads // WARP_SIZE) * WARP_SIZE)
        return min(by_memory, by_threads, self.blocks_per_sm)

    def clusters_at_once(self, size: int) -> int:
        """The clusters of so many blocks, each with a multiprocessor to itself, that surely run at
        once: blocks of a cluster share one of the chip's parts, of an even number of
        multiprocessors, which are not all of one size."""
        if size <= 2:
            return self.multiprocessors // size
        return self.multiprocessors // MULTIPROCESSORS_PER_PART * (MULTIPROCESSORS_PER_PART // size)


@dataclass(frozen=True, slots=True)
class _Chip:
    """What the architectures differ in: pairs a clock, kibibytes of shared memory, MHz, GB/s,
    mebibytes."""

    sms: int
    warp_mma: int
    shared_per_block: int
    shared_per_sm: int
    threads: int
    blocks: int
    clock: int
    bandwidth: int
    l2: int


_CHIPS = {
    "sm_80": _Chip(108, 1024, 163, 164, 2048, 32, 1410, 1555, 40),
    "sm_86": _Chip(84, 512, 99, 100, 1536, 16, 1740, 696, 6),
    "sm_89": _Chip(128, 256, 99, 100, 1536, 24, 2520, 1008, 72),
    "sm_90": _Chip(132, 1280, 227, 228, 2048, 32, 1830, 4800, 50),
    "sm_90a": _Chip(132, 1280, 227, 228, 2048, 32, 1830, 4800, 50),
    "sm_100": _Chip(148, 1024, 227, 228, 2048, 32, 1965, 8000, 126),
    "sm_100a": _Chip(148, 1024, 227, 228, 2048, 32, 1965, 8000, 126),
    "sm_120": _Chip(170, 256, 99, 100, 1536, 24, 2407, 1792, 96),
}


def _target(arch: str, chip: _Chip) -> Target:
    number = int("".join(c for c in arch if c.isdigit()))
    return Target(
        arch=arch,
        multiprocessors=chip.sms,
        shared_nbytes_per_block=chip.shared_per_block * 1024,
        shared_nbytes_per_sm=chip.shared_per_sm * 1024,
        registers_per_sm=REGISTERS_PER_SM,
        threads_per_sm=chip.threads,
        blocks_per_sm=chip.blocks,
        has_cp_async=number >= 80,
        has_bulk=number >= 90,
        has_cluster=number >= 90,
        has_wgmma=arch == "sm_90a",
        has_early_launch=number >= 90,
        warp_mma_per_clock=chip.warp_mma,
        clock_mhz=chip.clock,
        memory_nbytes_per_us=chip.bandwidth * 1000,
        l2_nbytes=chip.l2 * 1024 * 1024,
        calibration=H200,
    )


_TARGETS = {arch: _target(arch, chip) for arch, chip in _CHIPS.items()}


def target_of(arch: str | Target | None) -> Target:
    """The Target for an architecture name (default sm_90a). Raises UserError for others."""
    if isinstance(arch, Target):
        return arch
    name = cast("object", "sm_90a" if arch is None else arch)
    found = _TARGETS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UserError(f"target {shown(name)} is not known; use one of {', '.join(_TARGETS)}")
    return found
