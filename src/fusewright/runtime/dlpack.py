"""DLPack out: device memory of ours as a capsule that any library takes over without a copy.

Source: dlpack.h, version 1.0 (the legacy, unversioned capsule "dltensor", which all consumers of
the array API standard accept).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from fusewright.dtypes import DType

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
KINDS = {0: "int", 1: "uint", 2: "float"}
NAMES = {(4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3", (12, 8): "float8_e5m2"}
_NAME = b"dltensor"


class DLTensor(ctypes.Structure):
    """The array that a capsule holds; strides in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """A tensor, its owner's mark, and how the consumer gives it back."""

    _fields_ = (
        ("tensor", DLTensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_lent: dict[int, tuple[object, ...]] = {}
"""What capsules point at, by the address of their managed tensor, until it is given back."""


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _give_back(address: int) -> None:
    _lent.pop(address, None)


def _dropping(
    is_valid: Callable[..., int], pointer: Callable[..., int], lent: dict[int, tuple[object, ...]]
) -> Callable[[int], None]:
    """What runs when a capsule dies: one that nobody took over (its name is still the first) is
    given back. It holds all that it needs, as capsules may outlive this module's names when the
    interpreter ends."""
    name = _NAME

    def drop(capsule: int) -> None:
        if is_valid(capsule, name):
            lent.pop(pointer(capsule, name), None)

    return drop


_drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_dropping(_is_valid, _pointer, _lent))
for _kept in (_drop, _give_back):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # capsules call them to the very end


def capsule_of(
    owner: object,
    pointer: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: DType,
    device: int,
) -> object:
    """A capsule for CUDA memory that keeps `owner` alive until its consumer gives it back."""
    code, bits = dl_type(dtype)
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (ctypes.c_int64 * max(1, len(shape)))(*strides)
    tensor = DLTensor(pointer, CUDA, device, len(shape), code, bits, 1, sizes, steps, 0)
    managed = _DLManagedTensor(tensor, None, _give_back)
    address = ctypes.addressof(managed)
    _lent[address] = (owner, managed, sizes, steps)
    return _new(address, _NAME, ctypes.cast(_drop, ctypes.c_void_p))


def dl_type(dtype: DType) -> tuple[int, int]:
    """The type code and the bits of an element."""
    for pair, name in NAMES.items():
        if name == dtype.name:
            return pair
    code = next(c for c, kind in KINDS.items() if dtype.name == f"{kind}{8 * dtype.nbytes}")
    return code, 8 * dtype.nbytes
