"""The CUDA driver: is there a GPU, its binding, contexts. The one module that imports it.

Nothing of `cuda.bindings.driver` is touched before a probe through ctypes has found
a driver and a device: without a driver those packages fail late, and can hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Generator
from functools import cache
from typing import Any

from fusewright.errors import DeviceError, InternalError, UserError
from fusewright.runtime.locks import after_fork

STOPPED = 719
"""CUDA_ERROR_LAUNCH_FAILED: what a trap of a kernel makes of the calls behind it (CUDA driver API,
`CUresult`)."""
LEGACY_STREAMS = (0, 1)
"""The legacy default stream, by its two numbers."""


@cache
def has_gpu() -> bool:
    """Whether a CUDA driver and at least one device are there. Probed once per process."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return False
    return count.value > 0


@cache
def driver() -> Any:
    """The driver binding, initialised. Raises UserError without a GPU or without the extra."""
    if not has_gpu():
        raise UserError(
            "no CUDA device was found; run with device='sim', or compile only: program.kernels "
            "and kernel.cubin() need no GPU"
        )
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as e:
        raise UserError(
            f"launching kernels needs the CUDA driver binding ({e}); install it with: "
            "pip install 'fusewright[cuda]'"
        ) from e
    check(module.cuInit(0), "cuInit")
    return module


def check(result: tuple[Any, ...], call: str) -> Any:
    """The values a driver call returned. Raises DeviceError where a kernel that was launched
    earlier has stopped, and InternalError with CUDA's message otherwise."""
    status, *rest = result
    if int(status) == STOPPED:
        raise DeviceError(
            f"a kernel stopped on the device, as {call} found ({STOPPED}, launch failed). A kernel "
            "that looks at its indices (fw.config(check_indices=True)) has printed a line before: "
            "the look-up of the program, the index that is outside, its axis and its size; call "
            "the function with device='sim' to have that as an IndexError. Without such a line "
            "run under compute-sanitizer. CUDA answers no further call: begin a new process"
        )
    if int(status):
        module = importlib.import_module("cuda.bindings.driver")
        _, text = module.cuGetErrorString(status)
        message = text.decode() if text else "unknown error"
        raise InternalError(f"{call} failed: {message} ({int(status)})")
    return rest[0] if len(rest) == 1 else tuple(rest)


@cache
def _primary_context(index: int) -> Any:
    api = driver()
    device = check(api.cuDeviceGet(index), f"cuDeviceGet({index})")
    return check(api.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")


@contextlib.contextmanager
def current(index: int) -> Generator[None]:
    """Runs the body with the primary context of device `index`, which frameworks use too."""
    api = driver()
    wanted = _primary_context(index)
    if int(check(api.cuCtxGetCurrent(), "cuCtxGetCurrent")) == int(wanted):
        yield
        return
    check(api.cuCtxPushCurrent(wanted), "cuCtxPushCurrent")
    try:
        yield
    finally:
        check(api.cuCtxPopCurrent(), "cuCtxPopCurrent")


def adopt(index: int) -> None:
    """Gives a thread without a context that of device `index`, as a first call of the CUDA
    runtime would do."""
    api = driver()
    if not int(check(api.cuCtxGetCurrent(), "cuCtxGetCurrent")):
        check(api.cuCtxSetCurrent(_primary_context(index)), "cuCtxSetCurrent")


def architecture(index: int = 0) -> str:
    """The architecture code for device `index` is compiled for, such as "sm_90a"."""
    api = driver()
    attribute = api.CUdevice_attribute
    device = check(api.cuDeviceGet(index), f"cuDeviceGet({index})")
    major, minor = (
        check(api.cuDeviceGetAttribute(a, device), "cuDeviceGetAttribute")
        for a in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    number = 10 * major + minor
    return f"sm_{number}{'a' if number in (90, 100) else ''}"


@cache
def device_name(index: int = 0) -> str:
    """The product name of device `index`, such as "NVIDIA H200"."""
    api = driver()
    device = check(api.cuDeviceGet(index), f"cuDeviceGet({index})")
    name = check(api.cuDeviceGetName(128, device), "cuDeviceGetName")
    return bytes(name).split(b"\0")[0].decode()


@after_fork
def _forget() -> None:
    """CUDA does not survive a fork: the child may look again, and fails with CUDA's own message."""
    for f in (has_gpu, driver, _primary_context, device_name):
        f.cache_clear()


def device_of(pointer: int) -> int:
    """The index of the device whose memory `pointer` points to."""
    api = driver()
    attribute = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(api.cuPointerGetAttribute(attribute, pointer), "cuPointerGetAttribute"))


def wait_for(stream: int | None, ours: int) -> None:
    """Makes our stream wait for what another one has been given so far."""
    if stream is None or stream == ours or (stream in LEGACY_STREAMS and ours in LEGACY_STREAMS):
        return
    api = driver()
    event = check(api.cuEventCreate(api.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
    try:
        check(api.cuEventRecord(event, stream), "cuEventRecord")
        check(api.cuStreamWaitEvent(ours, event, 0), "cuStreamWaitEvent")
    finally:
        check(api.cuEventDestroy(event), "cuEventDestroy")


def capturing(stream: int) -> bool:
    """Whether work given to the stream is recorded into the caller's CUDA graph."""
    if stream in LEGACY_STREAMS:
        return False  # the legacy default stream cannot be captured
    api = driver()
    status = check(api.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
    return int(status) != 0
