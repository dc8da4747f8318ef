"""What emitted code costs: instructions of one value, and what a thread needs beside values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Instructions of one value of 32 bits: exact, and where only 16 bits of it are needed; on the way
# that arguments of a usual size take. Source: counted in cubins for sm_90a (notes/measured.md).
INSTRUCTIONS: Mapping[str, tuple[float, float]] = {
    "exp": (8, 2), "exp_added": (4, 4), "exp2": (4, 1), "expm1": (28, 8), "log": (25, 12),
    "log2": (27, 13), "log10": (26, 13), "log1p": (30, 8), "sin": (20, 20), "cos": (20, 20),
    "tan": (30, 30), "tanh": (15, 10), "erf": (23, 12), "sqrt": (11, 1), "rsqrt": (4, 1),
    "reciprocal": (10, 1), "div": (12, 3), "pow": (60, 60), "floordiv": (35, 35), "rem": (35, 35),
    "where": (2, 2), "philox": (14, 14), "copy": (0, 0), "cast": (1, 0.5), "bitcast": (0, 0),
    "bitwise_not": (0, 0),
}  # fmt: skip
"""Functions that are not one instruction. A bitcast is another name for a register, and what
combines bits inverts its operands for nothing."""

WIDE_INSTRUCTIONS: Mapping[str, float] = {
    "exp": 46, "exp2": 48, "expm1": 72, "log": 84, "log2": 86, "log10": 86, "log1p": 137,
    "tanh": 98, "erf": 84, "sqrt": 26, "rsqrt": 17, "reciprocal": 16,
}  # fmt: skip
"""The same of one value of 64 bits, a third of them for the constants of polynomials, which no
instruction on 64 bits has in itself; others take two for each of 32 bits. Counted on 2026-11-26 in
cubins for sm_90a."""


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """Instructions and registers of a thread beside those of the functions that it computes.

    Counted in machine code by `bench.code_counts`, which needs no GPU:
        start                 for the thread's place in the grid and its first addresses
        access                of an access to memory and its address
        literal_division      of integers of so many bytes by a literal: a product of which the high
                              half counts, and for a remainder another product; of long ones shifts
                              and a sign, too
        cut                   of a vector cut out of two words, at a place that is not known:
                              where it begins, the second word, and what shifts both
        block_exchange        of a reduction across the warps of a block: five shuffles and
                              operations, partial results through memory
        lanes_exchange        of one between lanes of a warp beside its steps, each a shuffle and an
                              operation: what it starts from, and who keeps the result

    Read in machine code by hand:
        registers             beside what the thread loads
        moved                 of an element that is chosen by its place: a pad, a concatenation
        picked                of an index that data says: those below zero count from the end, what
                              is read for one outside, and the address
        index_division        of an index, which is not negative, by a literal that is no power of
                              two: a product of which the high half counts, a shift, and for a
                              remainder another product
        run_time_division     of an index by a size that is known at run time
        single_access         of one element in a tile: its address, its condition, and the access
        scan_step             of a step of a scan between the lanes of a warp, a shuffle, an
                              operation and who takes part; and as many for the total of each warp:
                              a load, and what goes to the result and to the carry
        scan_block            of a scan across warps beside that: the total of a warp through
                              memory, between two barriers
        copied                of a copy to shared memory: its address, its condition, and itself
        product_trip          of a warp for a tile of the depth of a product beside copies, loads
                              and products: the places in the ring, a wait, a barrier and the loop
        product_registers     beside sums and fragments of a product, for addresses and counters

    The figures in use are the older ones of both: times of plans were predicted with them and
    measured, so that a count takes their place when the lot is measured again with it.
    """

    compiler: str
    arch: str
    date: str
    source: str
    start: float
    access: float
    literal_division: Mapping[int, float]
    cut: float
    block_exchange: float
    lanes_exchange: float
    registers: int
    moved: float
    picked: float
    index_division: float
    run_time_division: float
    single_access: float
    scan_step: float
    scan_block: float
    copied: float
    product_trip: float
    product_registers: int


CODE = CodeCounts(
    compiler="NVRTC 13.0",
    arch="sm_90a",
    date="2026-11-24",
    source="kernels of the bench; scans: 114 instructions a trip of 512 threads with 2 floats "
    "each, 60 of 32 threads; products: kernels of 2026-11-23 for sm_80",
    start=24,
    access=4,
    literal_division={1: 4.0, 2: 4.0, 4: 6.0, 8: 12.0},
    cut=24.0,
    block_exchange=24,
    lanes_exchange=4,
    registers=22,
    moved=2.0,
    picked=10.0,
    index_division=4.0,
    run_time_division=20.0,
    single_access=8.0,
    scan_step=3,
    scan_block=8,
    copied=3,
    product_trip=30,
    product_registers=40,
)
"""One table for all targets: their instructions differ less than kernels do."""
