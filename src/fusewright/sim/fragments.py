"""Fragments: how the registers of a warpgroup, or of a warp, hold a matrix.

Register `4 j + 2 h + e` of lane l of warp w is row `16 w + 8 h + l // 4`, column
`8 j + 2 (l % 4) + e` (PTX ISA, "Register Fragments for wgmma.mma_async", also of `mma.sync`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusewright.kir import ir
from fusewright.sim.compute import Array, Mask
from fusewright.sim.memory import Registers

_WARP_ROWS, _LANE_ROWS, _LANE_COLUMNS = 16, 8, 4


def matrix_of(planes: Array) -> Array:
    """Registers (n, B, T) of whole warps as matrices (B, T // 32, 16, 2 n)."""
    n, rows, threads = planes.shape
    parts = planes.reshape(n // 4, 2, 2, rows, threads // 32, _LANE_ROWS, _LANE_COLUMNS)
    found = parts.transpose(3, 4, 1, 5, 0, 6, 2)  # row, warp, h, l // 4, j, l % 4, e
    return found.reshape(rows, threads // 32, _WARP_ROWS, 2 * n)


def planes_of(matrix: Array) -> Array:
    """The registers (n, B, T) that hold matrices (B, T // 32, 16, 2 n)."""
    rows, warps, _, columns = matrix.shape
    shape = (rows, warps, 2, _LANE_ROWS, columns // 8, _LANE_COLUMNS, 2)
    found = matrix.reshape(shape).transpose(4, 2, 6, 0, 1, 3, 5)
    return found.reshape(columns // 2, rows, warps * 32)


def gathered(
    registers: Registers, buffer: ir.Buffer, first: int, count: int, shape: tuple[int, int]
) -> tuple[Array, Mask]:
    """`count` registers from `first` on, as (count, B, T), and where one of them is undefined."""
    found: list[Array] = []
    unknown: Mask = None
    for k in range(first, first + count):
        value, undefined = registers.read(buffer, k)
        found.append(np.broadcast_to(value, shape))
        if undefined is not None:
            unknown = undefined if unknown is None else unknown | undefined
    return np.stack(found), unknown


def scatter(
    registers: Registers,
    buffer: ir.Buffer,
    first: int,
    planes: Sequence[Array],
    unknown: Mask,
    mask: Mask,
) -> None:
    """Writes registers from `first` on in the threads of a mask."""
    for k, plane in enumerate(planes):
        registers.write(buffer, first + k, plane, unknown, mask)
