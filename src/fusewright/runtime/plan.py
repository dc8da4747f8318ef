"""A host program for given sizes: prepacked arguments, ready to enqueue on any stream.

Every distinct address of the program has one slot in one buffer, which all launches' tables of
parameters point into; a call writes the slots with one `struct` operation and launches.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.core.expr import Var, evaluate
from fusewright.host.assemble import HostProgram
from fusewright.host.ir import HostLaunch
from fusewright.runtime.device import check, driver
from fusewright.runtime.launch import Launch, LoadedKernel, argument_bits, launch_of, slot_format

_SLOT_NBYTES = 8


@dataclass(eq=False, slots=True)
class Prepared:
    """One launch: the kernel, its launch shape, the driver's configuration, the address of its
    table of parameters, and the slots of that table that hold addresses."""

    kernel: LoadedKernel
    launch: Launch
    config: Any
    table: int
    slots: tuple[int, ...]


class Plan:
    """What a call of these sizes needs: result sizes, bytes of arena, and packed launches."""

    def __init__(
        self, host: HostProgram, kernels: Sequence[LoadedKernel], sizes: Mapping[Var, int]
    ) -> None:
        """`kernels` stand in the order of the host program's launches."""
        self.host = host
        self.lock = threading.Lock()
        self.arena_nbytes = evaluate(host.arena.nbytes, sizes) if host.arena.offsets else 0
        self._stream = -1
        self._prepared_for: set[int] = set()
        self._keep: list[Any] = []
        position = {r: k for k, r in enumerate(host.roots)}
        used = dict.fromkeys(
            (position[b.root], evaluate(b.offset, sizes)) for x in host.launches for b in x.bindings
        )
        slots = {place: k for k, place in enumerate(used)}
        self._places = tuple(used)
        scalars = [_scalars(x, sizes) for x in host.launches]
        count = len(slots) + sum(map(len, scalars))
        self._buffer = ctypes.create_string_buffer(max(1, count) * _SLOT_NBYTES)
        self._pack = struct.Struct(f"{len(slots)}Q").pack_into
        self.launches: list[Prepared] = []
        self.edges_of: list[int] = []
        following = len(slots)
        for i, (x, k, values) in enumerate(zip(host.launches, kernels, scalars, strict=True)):
            own = tuple(slots[position[b.root], evaluate(b.offset, sizes)] for b in x.bindings)
            ends = range(following, following + len(values))
            following += len(values)
            for at, (form, value) in zip(ends, values, strict=True):
                struct.pack_into(form, self._buffer, at * _SLOT_NBYTES, value)
            shape = launch_of(x.kernel, sizes)
            if 0 not in shape.grid:
                self.launches.append(self._prepare(k, shape, (*own, *ends), own))
                self.edges_of.append(i)

    def _prepare(
        self, kernel: LoadedKernel, shape: Launch, all_slots: tuple[int, ...], own: tuple[int, ...]
    ) -> Prepared:
        base = ctypes.addressof(self._buffer)
        table = (ctypes.c_void_p * max(1, len(all_slots)))(
            *(base + k * _SLOT_NBYTES for k in all_slots)
        )
        self._keep.append(table)
        config = driver().CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared_nbytes
        return Prepared(kernel, shape, config, ctypes.addressof(table), own)

    def fill(self, roots: Sequence[int]) -> None:
        """Writes the addresses of the roots (inputs, outputs, arena) into the slots."""
        self._pack(self._buffer, 0, *[roots[r] + offset for r, offset in self._places])

    def enqueue(self, roots: Sequence[int], stream: int, device: int) -> None:
        """Launches everything on one stream. The caller has made the device's context current."""
        launch = driver().cuLaunchKernelEx
        with self.lock:
            if device not in self._prepared_for:
                self.allow_shared(device)
            self.fill(roots)
            if stream != self._stream:
                self._set_stream(stream)
            for x in self.launches:
                status = launch(x.config, x.kernel.handle, x.table, 0)
                if status[0]:
                    check(status, f"launch of {x.kernel.kernel.name} with {x.launch}")

    def allow_shared(self, device: int) -> None:
        """Asks for the shared memory that the launches need on a device."""
        for x in self.launches:
            x.kernel.allow_shared(x.launch.shared_nbytes, device)
        self._prepared_for.add(device)

    def _set_stream(self, stream: int) -> None:
        for x in self.launches:
            x.config.hStream = stream
        self._stream = stream


def _scalars(x: HostLaunch, sizes: Mapping[Var, int]) -> list[tuple[str, bool | int | float]]:
    """The formats and values of a launch's scalar parameters: arguments, then sizes."""
    values: list[bool | int | float] = [
        argument_bits(v, a) for v, a in zip(x.values, x.kernel.arguments, strict=True)
    ]
    values += [sizes[s] for s in x.kernel.symbols]
    return list(zip(slot_format(x.kernel), values, strict=True))
