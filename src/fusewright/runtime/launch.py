"""Load cubins and launch kernels, on device pointers or on numpy arrays."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import ONE, Expr, Var
from fusewright.core.substitution import evaluate
from fusewright.cuda.emit import Parameter, parameters, shared_nbytes
from fusewright.cuda.names import identifier
from fusewright.errors import InternalError, UserError
from fusewright.kir.analysis.uses import reads_before, written_buffers
from fusewright.kir.ir import Argument, Buffer, Kernel, TensorMap
from fusewright.runtime.device import check, current, driver
from fusewright.runtime.locks import after_fork
from fusewright.runtime.tensor_maps import encoded, shape_of
from fusewright.target import MAX_GRID_X, MAX_GRID_YZ

_SLOT_NBYTES = 8
_FORMATS = {
    "bool": "?",
    "signed char": "b",
    "short": "h",
    "int": "i",
    "long long": "q",
    "unsigned char": "B",
    "unsigned short": "H",
    "unsigned": "I",
    "unsigned long long": "Q",
    "float": "f",
    "double": "d",
    "fw_f16": "H",
    "fw_bf16": "H",
    "fw_e4m3": "B",
    "fw_e5m2": "B",
}
_STATIC_SHARED_LIMIT = 48 * 1024  # more needs an attribute (CUDA C++ Programming Guide, 16.x)
_GUARD_NBYTES = 256
_GUARD = 0xA5
_POISON = 0xFF  # NaN as a float, -1 as an integer

Array = npt.NDArray[Any]
Grid = tuple[int, int, int]


class ArgumentBlock:
    """The packed arguments of one kernel: a slot per parameter and the table of their addresses
    that the driver reads. Patched in place, so that a launch allocates nothing."""

    __slots__ = ("_buffer", "_formats", "_places", "_pointers", "address")

    def __init__(self, params: Sequence[Parameter]) -> None:
        self._formats = [struct.Struct(_format(p)) for p in params]
        sizes = [max(p.nbytes, _SLOT_NBYTES) for p in params]
        self._places = [sum(sizes[:k]) for k in range(len(params))]
        self._buffer = ctypes.create_string_buffer(max(_SLOT_NBYTES, sum(sizes)))
        base = ctypes.addressof(self._buffer)
        slots = [base + place for place in self._places]
        self._pointers = (ctypes.c_void_p * max(1, len(params)))(*slots)
        self.address = ctypes.addressof(self._pointers)

    def fill(self, values: Sequence[bool | int | float | bytes]) -> None:
        """Write every argument: addresses of buffers, scalars (short floats as bits), sizes, tensor
        maps."""
        for layout, place, value in zip(self._formats, self._places, values, strict=True):
            layout.pack_into(self._buffer, place, value)

    def contents(self, k: int) -> bool | int | float | bytes:
        """The value of parameter `k` as it will reach the kernel."""
        return self._formats[k].unpack_from(self._buffer, self._places[k])[0]


def _format(p: Parameter) -> str:
    match p.symbol:
        case Buffer():
            return "Q"
        case TensorMap():
            return f"{p.nbytes}s"
        case _:
            return _FORMATS[p.ctype]


def slot_format(kernel: Kernel) -> list[str]:
    """The struct formats of a kernel's scalar parameters: arguments, then sizes."""
    scalars = (p for p in parameters(kernel) if not isinstance(p.symbol, Buffer | TensorMap))
    return [_FORMATS[p.ctype] for p in scalars]


def argument_bits(value: bool | int | float, argument: Argument) -> bool | int | float:
    """A scalar as its slot takes it: rounded to the dtype, short floats as their bits."""
    dtype = argument.dtype
    rounded = np.asarray(value).astype(dtype.numpy)
    if dtype.is_float and dtype.nbytes < 4:
        return rounded.view(f"u{dtype.nbytes}").item()
    return rounded.item()


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """Blocks in x, y, z; threads in x, y, z; bytes of dynamic shared memory."""

    grid: Grid
    block: Grid
    shared_nbytes: int


def launch_of(kernel: Kernel, sizes: Mapping[Var, int], nbytes: int | None = None) -> PackedLaunch:
    """The launch of a kernel for given values of its shape symbols; `nbytes` of shared memory
    where they are known already.

    Raises InternalError for a grid that the hardware does not take.
    """
    grid = _extents(tuple(d.extent for d in kernel.grid), sizes)
    grid = (grid[0] * kernel.cluster_size, *grid[1:])
    block = _extents(tuple(d.extent for d in kernel.block), sizes)
    check_grid(kernel, grid)
    return PackedLaunch(grid, block, shared_nbytes(kernel) if nbytes is None else nbytes)


def check_grid(kernel: Kernel, grid: Grid) -> None:
    """Raises InternalError for a grid that the hardware does not take."""
    if grid[0] > MAX_GRID_X or grid[1] > MAX_GRID_YZ or grid[2] > MAX_GRID_YZ:
        raise InternalError(
            f"kernel {kernel.name}: grid {grid} exceeds {(MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)}"
        )


def _extents(extents: tuple[Expr, ...], sizes: Mapping[Var, int]) -> Grid:
    x, y, z = (*(evaluate(e, sizes) for e in extents), 1, 1, 1)[:3]
    return x, y, z


@cache
def _library(cubin: bytes) -> Any:
    """A module on the device, loaded once per process. Never unloaded: a CUDA graph that the
    caller captured may launch its kernels long after our last reference is gone."""
    return check(driver().cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "cuLibraryLoadData")


after_fork(_library.cache_clear)


class LoadedKernel:
    """A kernel on the device, ready to launch from any thread, on any device and stream."""

    def __init__(self, cubin: bytes, kernel: Kernel) -> None:
        """Load `kernel` from a module that holds it. Needs a GPU."""
        api = driver()
        self.kernel = kernel
        self.parameters = parameters(kernel)
        self._shared_nbytes = shared_nbytes(kernel)
        name = identifier(kernel.name).encode()
        found = api.cuLibraryGetKernel(_library(cubin), name)
        self.library_kernel = check(found, "cuLibraryGetKernel")
        self.handle = int(self.library_kernel)  # what a launch takes with the fewest conversions
        self._arguments = ArgumentBlock(self.parameters)
        self._config = api.CUlaunchConfig()
        self._lock = threading.Lock()
        self._allowed: dict[int, int] = {}

    @property
    def grid(self) -> tuple[Expr, Expr, Expr]:
        """Blocks along x, y and z."""
        x, y, z = (*(d.extent for d in self.kernel.grid), ONE, ONE)[:3]
        x = x * self.kernel.cluster_size
        return x, y, z

    @property
    def constant_shape(self) -> PackedLaunch:
        """What of a launch does not depend on sizes; one block."""
        block = _extents(tuple(d.extent for d in self.kernel.block), {})
        return PackedLaunch((1, 1, 1), block, self._shared_nbytes)

    def launch(
        self,
        values: Sequence[bool | int | float | bytes],
        launch: PackedLaunch,
        *,
        stream: int = 0,
        device: int = 0,
    ) -> None:
        """Enqueue one launch. `values` in parameter order; `stream` is a CUstream as an integer.
        A grid without blocks launches nothing."""
        if 0 in launch.grid:
            return
        api = driver()
        with self._lock, current(device):
            self.allow_shared(launch.shared_nbytes, device)
            self._arguments.fill(values)
            c = self._config
            c.gridDimX, c.gridDimY, c.gridDimZ = launch.grid
            c.blockDimX, c.blockDimY, c.blockDimZ = launch.block
            c.sharedMemBytes = launch.shared_nbytes
            c.hStream = stream
            status = api.cuLaunchKernelEx(c, self.handle, self._arguments.address, 0)
            check(status, f"launch of {self.kernel.name} with {launch}")

    def allow_shared(self, nbytes: int, device: int) -> None:
        """Let launches on a device ask for this much shared memory."""
        if nbytes <= max(_STATIC_SHARED_LIMIT, self._allowed.get(device, 0)):
            return
        api = driver()
        attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = check(api.cuDeviceGet(device), "cuDeviceGet")
        status = api.cuKernelSetAttribute(attribute, nbytes, self.library_kernel, handle)
        check(status, f"{nbytes} bytes of shared memory for {self.kernel.name}")
        self._allowed[device] = nbytes


# --- numpy arrays -------------------------------------------------------------------------------


def run(
    loaded: LoadedKernel,
    buffers: Sequence[Array],
    *,
    arguments: Sequence[bool | int | float] = (),
    sizes: Mapping[Var, int] | None = None,
    device: int = 0,
) -> list[Array]:
    """Run a kernel once on numpy arrays: copy in, launch, wait, copy out.

    `buffers` hold the elements of each array in memory order; the result is the arrays that the
    kernel writes, in order, as new arrays. What it writes and never reads starts as
    poison (bytes 0xFF), so that an element it forgot shows. Raises UserError for arrays that do
    not match the parameters, InternalError when the kernel wrote outside of a buffer.
    """
    kernel, symbols = loaded.kernel, dict(sizes or {})
    _check_buffers(kernel, buffers, symbols)
    written = written_buffers(kernel)
    read = reads_before(kernel)
    own = {
        b: np.zeros(evaluate(b.size, symbols), b.dtype.numpy)
        for b in (*kernel.state, *kernel.scratch)
    }
    everything = (*kernel.arrays, *own)
    with current(device):
        memory = [
            _Guarded(a, poison=b in written and b not in read)
            for b, a in zip(kernel.arrays, buffers, strict=True)
        ]
        memory += [_Guarded(a, poison=b in kernel.scratch) for b, a in own.items()]
        try:
            address = {b: m.address for b, m in zip(everything, memory, strict=True)}
            values: list[bool | int | float | bytes] = [
                *(address[b] for b in kernel.params),
                *(argument_bits(v, a) for v, a in zip(arguments, kernel.arguments, strict=True)),
                *(symbols[s] for s in kernel.symbols),
                *(encoded(address[m.buffer], shape_of(m, symbols)) for m in kernel.maps),
            ]
            loaded.launch(values, launch_of(kernel, symbols), device=device)
            check(driver().cuCtxSynchronize(), f"kernel {kernel.name}")
            results = {b: m.fetch(b.name) for b, m in zip(everything, memory, strict=True)}
        finally:
            for m in memory:
                m.free()
    for b in kernel.state:
        if results[b].any():
            raise InternalError(f"kernel {kernel.name} left {b} at {results[b].max()}, not at zero")
    return [results[b] for b in kernel.arrays if b in written]


def _check_buffers(kernel: Kernel, buffers: Sequence[Array], sizes: Mapping[Var, int]) -> None:
    if len(buffers) != len(kernel.arrays):
        raise UserError(
            f"kernel {kernel.name} takes {len(kernel.arrays)} buffers, got {len(buffers)}"
        )
    for b, a in zip(kernel.arrays, buffers, strict=True):
        size = evaluate(b.size, sizes)
        if a.dtype != b.dtype.numpy or a.size != size:
            raise UserError(
                f"kernel {kernel.name}, buffer {b.name}: needs {size} elements of {b.dtype}, got "
                f"{a.size} of {a.dtype}"
            )


class _Guarded:
    """Device memory for one array between two guards that nothing may touch."""

    def __init__(self, array: Array, *, poison: bool) -> None:
        self._array = np.ascontiguousarray(array)
        guard = np.full(_GUARD_NBYTES, _GUARD, np.uint8)
        content = self._array.reshape(-1).view(np.uint8)
        if poison:
            content = np.full(content.size, _POISON, np.uint8)
        image = np.concatenate([guard, content, guard])
        self._nbytes = image.size
        self._base = int(check(driver().cuMemAlloc(self._nbytes), "cuMemAlloc"))
        check(driver().cuMemcpyHtoD(self._base, image.ctypes.data, self._nbytes), "cuMemcpyHtoD")
        self.address = self._base + _GUARD_NBYTES

    def fetch(self, name: str) -> Array:
        image = np.empty(self._nbytes, np.uint8)
        check(driver().cuMemcpyDtoH(image.ctypes.data, self._base, self._nbytes), "cuMemcpyDtoH")
        edges = np.concatenate([image[:_GUARD_NBYTES], image[-_GUARD_NBYTES:]])
        if (edges != _GUARD).any():
            raise InternalError(f"the kernel wrote outside of buffer {name}")
        content = image[_GUARD_NBYTES : self._nbytes - _GUARD_NBYTES].copy()
        return content.view(self._array.dtype).reshape(self._array.shape)

    def free(self) -> None:
        check(driver().cuMemFree(self._base), "cuMemFree")
