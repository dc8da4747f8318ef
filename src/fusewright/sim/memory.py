"""Registers, shared memory of a batch of blocks, and global memory, all as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from fusewright.core import expr as ex, substitution
from fusewright.core.expr import Var
from fusewright.dtypes import DType
from fusewright.errors import SpecError, UserError
from fusewright.kir import ir
from fusewright.kir.traverse import (
    all_statements,
    own_buffers,
    statements_of,
    walk_statements,
)
from fusewright.memory import Memory
from fusewright.sim.compute import Array, Mask
from fusewright.target import SHARED_BASE_ALIGNMENT

EVERYWHERE: Array = np.ones((1, 1), bool)


@cache
def poison(dtype: DType) -> Array:
    """What memory holds before it is written: NaN, -1, the largest unsigned value, or True."""
    fill = np.full(1, 0xFF, np.uint8).repeat(dtype.nbytes)
    return np.ones((1, 1), bool) if dtype.kind == "bool" else fill.view(dtype.numpy).reshape(1, 1)


def elements(buffer: ir.Buffer, symbols: Mapping[Var, int]) -> int:
    """The size of a buffer in elements. Raises SpecError when it is not constant."""
    size = ex.constant_value(substitution.substitute(buffer.size, symbols))
    if size is None:
        raise SpecError(f"the size {buffer.size} of {buffer} is not constant; bind its symbols")
    return size


class Held(Protocol):
    """Registers from `first` on whose values are kept as something else; undefined where
    `unknown` says."""

    @property
    def first(self) -> int: ...
    @property
    def unknown(self) -> Mask: ...
    def planes(self) -> Array:
        """The registers as (count, B, T)."""
        ...


class Registers:
    """A thread's registers: one (1 or B, 1 or T) array per element, replaced and never modified.

    `undefined` follows values that come from registers, or memory, nobody wrote, as masks; None
    says that the whole value is defined.
    """

    def __init__(self, buffers: Mapping[ir.Buffer, int]) -> None:
        self.held: dict[ir.Buffer, Held] = {}
        self.planes: dict[ir.Buffer, list[Array]] = {}
        self.undefined: dict[ir.Buffer, list[Mask]] = {}
        for buffer, size in buffers.items():
            self.reset(buffer, size)

    def reset(self, buffer: ir.Buffer, size: int) -> None:
        """Make the buffer's contents undefined."""
        self.held.pop(buffer, None)
        self.planes[buffer] = [poison(buffer.dtype)] * size
        self.undefined[buffer] = [EVERYWHERE] * size

    def read(self, buffer: ir.Buffer, index: int | Array) -> tuple[Array, Mask]:
        """The element and where it is undefined; the index may differ between threads."""
        self.settle(buffer)
        planes, undefined = self.planes[buffer], self.undefined[buffer]
        if isinstance(index, int):
            return planes[index], undefined[index]
        value, unknown = planes[0], _mask(undefined[0])
        for k in range(1, len(planes)):
            here = index == k
            value = np.where(here, planes[k], value)
            unknown = np.where(here, _mask(undefined[k]), unknown)
        return value, unknown if unknown.any() else None

    def write(
        self, buffer: ir.Buffer, index: int | Array, value: Array, unknown: Mask, where: Mask
    ) -> None:
        """Store a value in the threads of `where`; the index may differ between threads."""
        self.settle(buffer)
        if isinstance(index, int):
            self._write_one(buffer, index, value, unknown, where)
            return
        for k in range(len(self.planes[buffer])):
            here = (index == k) if where is None else (index == k) & where
            self._write_one(buffer, k, value, unknown, here)

    def settle(self, buffer: ir.Buffer) -> None:
        """Write what is held in another form to the registers."""
        held = self.held.pop(buffer, None) if self.held else None
        if held is not None:
            for k, plane in enumerate(held.planes()):
                self.planes[buffer][held.first + k] = plane
                self.undefined[buffer][held.first + k] = held.unknown

    def _write_one(
        self, buffer: ir.Buffer, k: int, value: Array, unknown: Mask, where: Mask
    ) -> None:
        planes, undefined = self.planes[buffer], self.undefined[buffer]
        if where is None:
            planes[k] = value
            undefined[k] = unknown
            return
        planes[k] = np.where(where, value, planes[k])
        if unknown is not None or undefined[k] is not None:
            merged = np.where(where, _mask(unknown), _mask(undefined[k]))
            undefined[k] = merged if merged.any() else None


def _mask(undefined: Mask) -> Array:
    return ~EVERYWHERE if undefined is None else undefined


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a buffer lies: the space (0 is shared memory) and the byte offset in it."""

    space: int
    offset: int


class SharedMemory:
    """The shared memory of B rows: one pool of bytes, viewed as each buffer's dtype. `nbytes` is
    that of one block, `row_nbytes` that of all blocks of a row.

    A buffer whose `Alloc` has no offset gets a place of its own behind those that have one.
    """

    def __init__(self, kernel: ir.Kernel, symbols: Mapping[Var, int], row_blocks: int) -> None:
        self.sizes: dict[ir.Buffer, int] = {}
        self.places: dict[ir.Buffer, BufferPlace] = {}
        listed = statements_of(kernel, ir.Alloc)
        allocs = [a for a in listed if a.buffer.memory is Memory.SHARED]
        end = 0
        for a in allocs:
            self.sizes[a.buffer] = elements(a.buffer, symbols)
            if a.offset is not None:
                self.places[a.buffer] = BufferPlace(0, a.offset)
                end = max(end, a.offset + self.nbytes_of(a.buffer))
        for a in allocs:
            if a.buffer not in self.places:
                align = max(a.buffer.alignment, 16)
                start = -(-end // align) * align
                self.places[a.buffer] = BufferPlace(0, start)
                end = start + self.nbytes_of(a.buffer)
        self.nbytes = -(-end // SHARED_BASE_ALIGNMENT) * SHARED_BASE_ALIGNMENT
        self.row_nbytes = self.nbytes * row_blocks

    def nbytes_of(self, buffer: ir.Buffer) -> int:
        return self.sizes[buffer] * buffer.dtype.nbytes

    def pool(self, nblocks: int) -> Pool:
        """Fresh, poisoned memory for a batch of rows."""
        return Pool(np.full(nblocks * self.row_nbytes, 0xFF, np.uint8))


@dataclass(slots=True)
class Pool:
    """The shared memory of a batch, block after block; `unknown` marks bytes with values that come
    from undefined registers, None when there are none."""

    flat: Array
    unknown: Array | None = None

    def view(self, dtype: DType) -> Array:
        """All of it as elements of a dtype."""
        return self.flat.view(np.bool_ if dtype.kind == "bool" else dtype.numpy)

    def mark(self, places: Array, nbytes: int, unknown: Array | bool) -> None:
        """Elements of `nbytes` bytes at these places now hold, or no longer hold, such values."""
        if self.unknown is None:
            if not np.any(unknown):
                return
            self.unknown = np.zeros(len(self.flat), bool)
        for byte in range(nbytes):
            self.unknown[places * nbytes + byte] = unknown


class GlobalMemory:
    """The kernel's parameters: flat arrays, and which of them share memory."""

    def __init__(
        self,
        kernel: ir.Kernel,
        arrays: Mapping[ir.Buffer, Array],
        symbols: Mapping[Var, int],
        outputs: Collection[ir.Buffer],
    ) -> None:
        self.arrays: dict[ir.Buffer, Array] = {}
        for buffer in kernel.params:
            self.arrays[buffer] = _checked(buffer, arrays, symbols)
        self.places = _places(kernel.params, self.arrays)
        self.writers: dict[int, list[ir.Statement]] = {}
        self.readers: dict[int, list[ir.Statement]] = {}
        for s in walk_statements(kernel):
            for use in s.memory_uses():
                table = self.writers if use.writes else self.readers
                if use.buffer in self.places:
                    table.setdefault(self.places[use.buffer].space, []).append(s)
        self.nbytes = _extents(self.places, self.arrays)
        self.cell = _cells(kernel, self.places)
        self.initialised: dict[ir.Buffer, Array] = {}
        for buffer in kernel.params:
            if buffer in outputs or buffer in kernel.scratch:
                self.arrays[buffer][...] = poison(buffer.dtype).reshape(1)[0]
                self.initialised[buffer] = np.zeros(len(self.arrays[buffer]), bool)


def _checked(
    buffer: ir.Buffer, arrays: Mapping[ir.Buffer, Array], symbols: Mapping[Var, int]
) -> Array:
    if buffer not in arrays:
        raise UserError(f"no array for the kernel parameter {buffer}; pass arrays[{buffer}]")
    array = arrays[buffer]
    size = elements(buffer, symbols)
    if array.ndim != 1 or array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
        raise UserError(
            f"parameter {buffer} needs a flat, contiguous array of {buffer.dtype}, got shape "
            f"{array.shape} of {array.dtype}; pass array.reshape(-1)"
        )
    if 0 < len(array) < size:  # without elements there is no block that would look at them
        raise UserError(f"parameter {buffer} has {size} elements, its array only {len(array)}")
    return array[:size]


def _places(
    params: Iterable[ir.Buffer], arrays: Mapping[ir.Buffer, Array]
) -> dict[ir.Buffer, BufferPlace]:
    """Parameters whose arrays overlap in memory get one space, and their offsets in it."""

    def start_of(buffer: ir.Buffer) -> int:
        return arrays[buffer].__array_interface__["data"][0]

    places: dict[ir.Buffer, BufferPlace] = {}
    space, base, end = 0, 0, -1
    for buffer in sorted(params, key=start_of):
        start = start_of(buffer)
        if start >= end or not arrays[buffer].nbytes:
            space, base = space + 1, start
        end = max(end, start + arrays[buffer].nbytes)
        places[buffer] = BufferPlace(space, start - base)
    return places


def _extents(
    places: Mapping[ir.Buffer, BufferPlace], arrays: Mapping[ir.Buffer, Array]
) -> dict[int, int]:
    nbytes: dict[int, int] = {}
    for buffer, place in places.items():
        nbytes[place.space] = max(nbytes.get(place.space, 0), place.offset + arrays[buffer].nbytes)
    return nbytes


def _cells(kernel: ir.Kernel, places: Mapping[ir.Buffer, BufferPlace]) -> dict[int, int]:
    """Bytes per cell of each space: what divides the size and the place of every access."""
    cell: dict[int, int] = {}

    for s in walk_statements(kernel):
        for use in s.memory_uses():
            if use.buffer in places:
                step = use.width if use.step is None else use.step
                nbytes = math.gcd(step, use.begins, use.width) * use.buffer.dtype.nbytes
                place = places[use.buffer]
                known = cell.get(place.space, 0)
                cell[place.space] = int(np.gcd.reduce([known, nbytes, place.offset]))
    return cell


def locals_of(kernel: ir.Kernel, symbols: Mapping[Var, int]) -> dict[ir.Buffer, int]:
    """Every LOCAL buffer a statement names, with its size, in order of first occurrence."""
    found: dict[ir.Buffer, int] = {}
    for buffer in dict.fromkeys(b for s in all_statements(kernel) for b in own_buffers(s)):
        if buffer.memory is Memory.LOCAL:
            found[buffer] = elements(buffer, symbols)
    return found


def as_scalar(value: Any, dtype: DType) -> Array:
    """A value as a (1, 1) array of a dtype; integers wrap."""
    if dtype.is_integer and isinstance(value, int) and not isinstance(value, bool):
        bits = 8 * dtype.nbytes
        value &= (1 << bits) - 1
        if dtype.kind == "int" and value >> (bits - 1):
            value -= 1 << bits
    return np.full((1, 1), value, dtype.numpy)
