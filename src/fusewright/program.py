"""A compiled program: what `fw.compile` returns, over the rooms that run, simulate and keep it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fusewright.arguments import COUNT, FLAG, PATH, check_device_choice, shown, takes
from fusewright.errors import UserError
from fusewright.fusion.call_numbers import without_numbers
from fusewright.kernel import shortened
from fusewright.programs.archive import packed, restored
from fusewright.programs.calls import Calls
from fusewright.programs.model import HOST, ProgramModel
from fusewright.programs.simulation import simulate_program
from fusewright.runtime.archive import pack, read_archive, unpack, write_archive
from fusewright.runtime.device import has_gpu
from fusewright.sim.machine import SimResult

Array = npt.NDArray[Any]

_compiled = logging.getLogger("fusewright.compile")


class Program(ProgramModel):
    """The model of a program, and what users do with it: call, simulate, save."""

    def __repr__(self) -> str:
        ends = [", ".join(map(repr, x)) for x in (self.fusion.inputs, self.fusion.outputs)]
        return (
            f"<Program for {self.target.arch}: {len(self.launches)} launches of "
            f"{len(self.kernels)} kernels, ({ends[0]}) -> ({ends[1]})>"
        )

    def __str__(self) -> str:
        kernels = [f"  {repr(k)[1:-1]}" for k in self.kernels]
        return "\n".join([repr(self)[1:-1], *shortened(kernels)])

    # --- running --------------------------------------------------------------------------------

    @cached_property
    def calls(self) -> Calls:
        """How arrays of a caller become a run."""
        return Calls(self)

    @property
    def copies(self) -> int:
        """How many arguments had to be copied because they do not meet the specs, or because they
        are donated and share memory with another one."""
        return self.calls.executor.copies

    def __call__(
        self,
        *arrays: Any,
        device: str = "auto",
        out: Sequence[Any] = (),
        workspace: Any = None,
    ) -> list[Any]:
        """Runs the program; results are arrays of the caller's library, in order of the outputs.

        `device`: "cuda", "sim" (the simulator), or "auto": where device arrays are, else a GPU if
        there is one, else the numpy oracle, which is said once. `out`: an array or None per
        output, written instead of a new one. `workspace`: an array of `workspace_nbytes` bytes
        (uint8, one axis) beside the arguments, used instead of memory that the call allocates;
        what it holds afterwards means nothing.

        Raises UserError for arrays that do not fit, and for a workspace that is too small or
        shares memory with an argument or a result.
        """
        check_device_choice(device)
        if not isinstance(out, tuple | list):
            raise UserError(
                f"out={shown(out)} is {type(out).__name__}; it must be a list or tuple of an array "
                "or None for every output"
            )
        return self.calls.call(arrays, device, out, workspace)

    def run_cuda(self, *arrays: Any) -> list[Any]:
        """Runs on the GPU: device arrays without a copy on the caller's stream, host arrays
        through copies. Results are of the caller's library, in the order of the outputs."""
        return self(*arrays, device="cuda")

    @takes(check_races=FLAG, seed=COUNT)
    def simulate(self, *arrays: Array, check_races: bool = True, seed: int = 0) -> SimResult:
        """Runs every kernel in the simulator, on memory whose bytes are 0xFF until one of them is
        written; `races` also lists what launches read, and results hold, of such bytes."""
        result = simulate_program(self, arrays, check_races=check_races, seed=seed)
        if self.shared is None:
            return result
        given, numbers = without_numbers(self.fusion, arrays)
        outputs = self.calls.with_views(given, result.outputs, tuple(numbers.values()))
        return SimResult(outputs, result.races, result.stats)

    # --- on disk --------------------------------------------------------------------------------

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Writes the program with its machine code as one file, which `load` reads without a
        compiler and without tracing. Raises UserError without NVRTC or a place to write."""
        write_archive(Path(path), *packed(self, with_code=True))
        return Path(path)

    def __copy__(self) -> Program:
        """A program of the same kernels, which share their machine code, and calls of its own."""
        return program_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return copy(self)

    def __reduce__(self) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
        """A pickle holds text, and machine code where it has been made."""
        return _unpickled, (pack(*packed(self, with_code=False)),)


@takes(path=PATH)
def load(path: str | Path) -> Program:
    """The program that `Program.save` wrote. Needs no compiler.

    Raises UserError for a file that is damaged, of another version, or none of ours.
    """
    return program_of(restored(*read_archive(Path(path)), str(path)))


def _unpickled(content: bytes) -> Program:
    """The program of a pickle. Raises UserError as `load`."""
    what = "the pickle of a program"
    return program_of(restored(*unpack(content, what), what))


def started(program: Program, *, with_code: bool = True) -> Program:
    """The program, with its host program assembled and, on a machine with a GPU, its kernels on
    their way through the compiler. Raises InternalError where the host breaks an invariant."""
    _ = program.host
    kernels = program.kernels
    if with_code and kernels and has_gpu():
        with contextlib.suppress(UserError):  # without a compiler: said when code is needed
            kernels[0].start_compiling(kernels)
    return program


def tell_compiled(program: Program, seconds: float) -> None:
    """Logs what was compiled: the program as information, each reason and kernel for debugging."""
    if not _compiled.isEnabledFor(logging.INFO):
        return
    names = ", ".join(k.name for k in program.kernels)
    _compiled.info(
        "compiled in %.0f ms: ops %d, launches %d, kernels %d: %s",
        1000 * seconds,
        len(program.fusion.ops) - len(program.fusion.inputs),
        len(program.launches),
        len(program.kernels),
        names,
    )
    for reason in program.reasons:
        _compiled.info("%s", reason)


def program_of(model: ProgramModel) -> Program:
    """The program of a model, whose host program it takes where that is assembled already."""
    made = Program(*(getattr(model, f.name) for f in fields(ProgramModel)))
    known = {name: vars(model)[name] for name in HOST if name in vars(model)}
    vars(made).update(known)
    return made
