"""The layout of a tile in shared memory; allocation, tensor map, descriptor and addresses follow.

A tile of `rows` x `columns` elements, columns contiguous, lies in panels of `swizzle` bytes of each
row; a panel is its rows, one behind the other. The hardware then exchanges chunks of 16 bytes by
their address, so that a column of chunks meets every bank once:

    64 columns of 2 bytes, swizzle 128:    row r, chunk c    lies at    128 r + 16 (c ^ r % 8)

Sources: PTX ISA, "Shared Memory Matrix Layout" and "Matrix Descriptor Format"; CUDA driver API,
`cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.atoms import xor
from fusewright.core.expr import Expr, IntLike, as_expr, floordiv, mod
from fusewright.target import BOX_ALIGNMENT, MMA_DEPTH_NBYTES

Array = npt.NDArray[Any]

SWIZZLES = (0, 32, 64, 128)
CHUNK_NBYTES = 16
GROUP_ROWS = 8
"""Rows behind which the exchange of chunks repeats, counted in rows of the swizzle's span."""
_BANKS_NBYTES = 128
_CODES = {128: 1, 64: 2, 32: 3}


class Major(Enum):
    """Along which axis an operand of a matrix product is contiguous: the one that is summed over,
    or the other one."""

    K = "k_major"
    MN = "mn_major"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How a matrix instruction steps through an operand, in bytes before the exchange of chunks.

    K-major: rows of m or n lie `swizzle` bytes apart, groups of 8 of them `stride`. MN-major: rows
    of k lie `swizzle` bytes apart, groups of 8 of them `stride`, and panels of m or n `leading`.
    """

    major: Major
    leading: int
    stride: int
    swizzle: int
    itemsize: int

    @property
    def high(self) -> int:
        """The upper half of the 64 bits: stride and swizzle."""
        return self.stride >> 4 | _CODES[self.swizzle] << 30

    @property
    def low(self) -> int:
        """The lower half without the address: the leading offset, of which K-major makes no use."""
        return (self.leading >> 4 if self.major is Major.MN else 1) << 16

    def offsets(self, extent: int) -> Array:
        """The byte of each element (m or n, k) from the first, for `extent` rows and one step."""
        depth = MMA_DEPTH_NBYTES // self.itemsize
        mn, k = np.arange(extent)[:, None], np.arange(depth)[None, :]
        if self.major is Major.K:
            group, row, column = mn // GROUP_ROWS, mn % GROUP_ROWS, k
            return group * self.stride + row * self.swizzle + column * self.itemsize
        panel = self.swizzle // self.itemsize
        across = mn // panel * self.leading + mn % panel * self.itemsize
        return across + k // GROUP_ROWS * self.stride + k % GROUP_ROWS * self.swizzle


def exchanged(address: Array, swizzle: int) -> Array:
    """The byte at which the hardware finds what lies at `address` before the exchange."""
    if not swizzle:
        return address
    by = address // _BANKS_NBYTES % (swizzle // CHUNK_NBYTES)
    return address ^ by * CHUNK_NBYTES


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of elements of `itemsize` bytes; `swizzle` is 0 (rows as they are), 32, 64 or 128."""

    rows: int
    columns: int
    itemsize: int
    swizzle: int = 0

    @property
    def panel(self) -> int:
        """Columns of a panel."""
        return self.swizzle // self.itemsize if self.swizzle else self.columns

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns

    @property
    def alignment(self) -> int:
        """Bytes: the exchange of chunks begins anew there."""
        return max(GROUP_ROWS * self.swizzle, BOX_ALIGNMENT)

    @property
    def box(self) -> tuple[int, int]:
        """Columns and rows of what one copy through a tensor map fills: a panel."""
        return self.panel, self.rows

    def problems(self) -> Iterator[str]:
        """What is wrong with the layout."""
        if self.swizzle not in SWIZZLES:
            yield f"swizzle {self.swizzle} is not one of {', '.join(map(str, SWIZZLES))}"
            return
        if self.rows < 1 or self.columns < 1:
            yield f"a tile of {self.rows} x {self.columns} elements is empty"
            return
        if self.columns % self.panel:
            yield f"{self.columns} columns are not whole panels of {self.panel}"
        if self.swizzle and self.rows % GROUP_ROWS:
            yield f"{self.rows} rows of a swizzled tile are not a multiple of {GROUP_ROWS}"

    def index(self, row: IntLike, column: IntLike) -> Expr:
        """The element at a row and column, counted before the exchange: where a copy of a box, or
        an operand of a matrix product, begins."""
        r, c = as_expr(row), as_expr(column)
        return floordiv(c, self.panel) * (self.rows * self.panel) + r * self.panel + c % self.panel

    def place(self, index: IntLike) -> Expr:
        """Where an element, counted before the exchange, lies: what loads and stores name."""
        i = as_expr(index)
        if not self.swizzle:
            return i
        row = floordiv(i, _BANKS_NBYTES // self.itemsize)
        by = mod(row, self.swizzle // CHUNK_NBYTES)
        return xor(i, by * (CHUNK_NBYTES // self.itemsize))

    def descriptor(self, major: Major) -> Descriptor:
        """How a matrix instruction steps through it. The rows of a K-major operand are m or n,
        those of an MN-major one are k."""
        leading = self.rows * self.swizzle if major is Major.MN else 0
        return Descriptor(major, leading, GROUP_ROWS * self.swizzle, self.swizzle, self.itemsize)
