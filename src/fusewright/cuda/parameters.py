"""What a launch must know of an emitted kernel: its parameters, and its shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from fusewright.core import expr as ex
from fusewright.core.expr import Var
from fusewright.cuda import exprs, scalars
from fusewright.errors import SpecError
from fusewright.kir import ir
from fusewright.kir.ir import Buffer, Kernel
from fusewright.kir.traverse import statements_of
from fusewright.kir.unread import UnreadKernel
from fusewright.memory import Memory
from fusewright.target import TENSOR_MAP_NBYTES


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the emitted kernel, in order. `symbol` is the Buffer, Argument, Var or
    TensorMap; `nbytes` its size in the argument block, which is also its alignment, but of a tensor
    map."""

    symbol: Buffer | ir.Argument | Var | ir.TensorMap
    ctype: str
    nbytes: int


def parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """The parameters in order: buffers, arguments, symbols, tensor maps."""
    buffers = (Parameter(b, f"{scalars.ctype(b.dtype)}*", 8) for b in kernel.params)
    arguments = (Parameter(a, scalars.ctype(a.dtype), a.dtype.nbytes) for a in kernel.arguments)
    symbols = (
        Parameter(s, "int", 4) if exprs.fits_int(s) else Parameter(s, "long long", 8)
        for s in kernel.symbols
    )
    maps = (Parameter(m, "fw_tensor_map", TENSOR_MAP_NBYTES) for m in kernel.maps)
    return (*buffers, *arguments, *symbols, *maps)


def shared_nbytes(kernel: Kernel) -> int:
    """Bytes of shared memory a block needs. Raises SpecError for a buffer without an offset."""
    if isinstance(kernel, UnreadKernel):
        return kernel.border.shared_nbytes
    ends = [
        shared_offset(a) + constant_size(a.buffer) * a.buffer.dtype.nbytes
        for a in statements_of(kernel, ir.Alloc)
        if a.buffer.memory is Memory.SHARED
    ]
    return max(ends, default=0)


def constant_size(buffer: Buffer) -> int:
    """The elements of a buffer. Raises SpecError where they are not constant."""
    size = ex.constant_value(buffer.size)
    if size is None:
        raise SpecError(
            f"buffer {buffer} in {buffer.memory.value} memory has size {buffer.size}; "
            "only global buffers may have a symbolic size"
        )
    return size


def shared_offset(alloc: ir.Alloc) -> int:
    """Where a buffer lies in shared memory. Raises SpecError where that is open."""
    if alloc.offset is None:
        raise SpecError(f"shared buffer {alloc.buffer} has no address; pack shared memory first")
    return alloc.offset
