"""CUDA C++ to machine code by NVRTC. Needs no GPU and no driver.

Code is always compiled to a cubin for one architecture. Products and sums are not contracted into
fused multiply-adds unless asked for (`contract`): a kernel then computes what the simulator
computes, and code that wants the fused form says `fma`. Memory-bound kernels do not feel it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusewright.cuda.emit import emit_module
from fusewright.cuda.names import identifier
from fusewright.errors import InternalError, UserError
from fusewright.kir.ir import Kernel
from fusewright.target import Target

KERNELS_PER_MODULE = 16
_MODULE_NCHARS = 24_000  # a module larger than this compiles longer than a second thread gains


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of one module: the cubin, the PTX on the way to it, the compiler's log, and
    the seconds it took."""

    cubin: bytes
    ptx: str
    log: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """One module to compile; `name` is what messages call it."""

    text: str
    name: str
    contract: bool = False


def nvrtc() -> Any:
    """The NVRTC binding. Raises UserError when the extra is not installed."""
    try:
        module = importlib.import_module("cuda.bindings.nvrtc")
        _check(module, module.nvrtcVersion(), "nvrtcVersion")
    except (ImportError, RuntimeError) as e:
        raise UserError(
            f"compiling kernels needs NVRTC ({e}); install it with: pip install 'fusewright[cuda]'"
        ) from e
    return module


def compiler_version() -> str:
    """The compiler's version, for cache keys: major.minor."""
    module = nvrtc()
    major, minor = _check(module, module.nvrtcVersion(), "nvrtcVersion")
    return f"{major}.{minor}"


def compile_cubin(source: str, target: Target, *, name: str, contract: bool = False) -> Compiled:
    """Compile one CUDA C++ text to a cubin for `target`. Releases the GIL while it compiles.

    Raises UserError without the `cuda` extra, InternalError with the compiler's log when the text
    does not compile.
    """
    module = nvrtc()
    start = time.perf_counter()
    program = _check(
        module,
        module.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []),
        "nvrtcCreateProgram",
    )
    try:
        return _compiled(module, program, source, target, name, contract, start)
    finally:
        module.nvrtcDestroyProgram(program)


def _compiled(
    module: Any,
    program: Any,
    source: str,
    target: Target,
    name: str,
    contract: bool,
    start: float,
) -> Compiled:
    options = [o.encode() for o in compile_options(target, contract=contract)]
    (status,) = module.nvrtcCompileProgram(program, len(options), options)
    log = _bytes(module, program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
    if int(status):
        raise InternalError(
            f"NVRTC refused kernel module {name} for {target}:\n{log}\n--- source ---\n"
            + "\n".join(f"{n:5} {line}" for n, line in enumerate(source.splitlines(), 1))
        )
    cubin = _bytes(module, program, "CUBIN")
    ptx = _bytes(module, program, "PTX").decode().rstrip("\0")
    return Compiled(cubin, ptx, log, time.perf_counter() - start)


def compile_options(target: Target, *, contract: bool = False) -> tuple[str, ...]:
    """The options that shape the code; part of every cache key."""
    return (
        f"--gpu-architecture={target.arch}",
        "--std=c++17",
        f"--fmad={'true' if contract else 'false'}",
        "--ptxas-options=-v",
        # variables not used or only set, unsigned numbers compared with 0: generated code may
        "--diag-suppress=177,186,550",
    )


def _bytes(module: Any, program: Any, what: str) -> bytes:
    size = _check(module, getattr(module, f"nvrtcGet{what}Size")(program), what)
    # NVRTC writes into the object. One of a single byte would be the interpreter's own.
    out = bytes(max(size, 2))
    _check(module, getattr(module, f"nvrtcGet{what}")(program, out), what)
    return out[:size]


def _check(module: Any, result: tuple[Any, ...], call: str) -> Any:
    status, *rest = result
    if int(status):
        raise InternalError(f"{call}: {module.nvrtcGetErrorString(status)[1].decode()}")
    return rest[0] if len(rest) == 1 else tuple(rest)


def contracts(kernel: Kernel) -> bool:
    """Whether the kernel allows `a * b + c` to become a fused multiply-add."""
    return dict(kernel.attributes).get("contract") == "true"


def bundle(
    kernels: Sequence[Kernel], target: Target
) -> list[tuple[ModuleSource, tuple[Kernel, ...]]]:
    """Kernels put together into modules: up to sixteen small ones of different names that share
    their options, in order. Each module compiles once and holds its kernels under their emitted
    names."""
    groups: list[list[Kernel]] = []
    alone: dict[Kernel, str] = {}
    room = 0
    for k in sorted(kernels, key=contracts):
        alone[k] = emit_module((k,), target)
        size = len(alone[k])
        group = groups[-1] if groups else []
        fits = group and len(group) < KERNELS_PER_MODULE and size <= room
        named_apart = all(identifier(k.name) != identifier(other.name) for other in group)
        if fits and named_apart and contracts(group[0]) == contracts(k):
            group.append(k)
            room -= size
        else:
            groups.append([k])
            room = _MODULE_NCHARS - size
    texts = [alone[g[0]] if len(g) == 1 else emit_module(g, target) for g in groups]
    return [
        (ModuleSource(text, g[0].name, contracts(g[0])), tuple(g))
        for g, text in zip(groups, texts, strict=True)
    ]
