"""A compiled program: launches over tensors, run by the oracle, the simulator or a GPU."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.arguments import COUNT, FLAG, PATH, check_device_choice, shown, takes
from fusewright.core.expr import Expr, Var
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import InternalError, UserError
from fusewright.fusion.constants import completed, constants_of
from fusewright.fusion.evaluate import evaluate, plain_array
from fusewright.fusion.ir import Fusion, Tensor, contiguous_strides
from fusewright.fusion.known import Known
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.text import parse_fusion
from fusewright.host.assemble import Call, HostProgram, assemble
from fusewright.host.groups import Reason
from fusewright.host.invariants import check_host
from fusewright.host.ir import Pieces
from fusewright.host.subspans import Subspan, natural
from fusewright.kernel import (
    Binder,
    Kernel,
    TensorInfo,
    flatten,
    shaped_view,
    shortened,
    size_of,
    without_races,
)
from fusewright.memories import Memories
from fusewright.records import (
    DAMAGE,
    check_launch,
    constant_record,
    kernel_record,
    number_of,
    number_record,
    restored_constant,
    restored_kernel,
    restored_site,
    site_record,
)
from fusewright.runtime.archive import pack, read_archive, unpack, write_archive
from fusewright.runtime.arrays import (
    CPU,
    ArrayInfo,
    c_strides,
    describe,
    describe_target,
    host_view,
)
from fusewright.runtime.bound import BoundCall
from fusewright.runtime.config import active
from fusewright.runtime.constants import Constants
from fusewright.runtime.device import has_gpu
from fusewright.runtime.executor import Executor, check_out
from fusewright.runtime.launch import LoadedKernel
from fusewright.runtime.libraries import Library, common, library_of
from fusewright.runtime.torch_calls import TorchCall, call_key, check_gradients
from fusewright.sim.machine import SimResult
from fusewright.sim.report import Race
from fusewright.target import Target, target_of

Array = npt.NDArray[Any]

_said = threading.Event()


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel over sites of the program's values, those it reads and those it writes in the
    kernel's order, and the values of its scalar parameters in this place."""

    kernel: Kernel
    reads: tuple[Subspan, ...]
    writes: tuple[Subspan, ...]
    values: tuple[bool | int | float, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The values that it reads."""
        return tuple(s.tensor for s in self.reads)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The values that it makes, each as often as it is stored."""
        return tuple(s.tensor for s in self.writes)


@dataclass(frozen=True, slots=True)
class Layout:
    """The element strides of a tensor: what the user required, what a pass would prefer, and what
    the program makes; None where nobody asked. `why` names who decided."""

    required: tuple[Expr, ...] | None
    preferred: tuple[Expr, ...] | None
    actual: tuple[Expr, ...]
    why: str


@dataclass(eq=False)
class Program:
    """Kernels in order, and the tensors between them. `held`: results that are made in the memory
    of an argument, which the caller gives away."""

    fusion: Fusion
    launches: tuple[Dispatch, ...]
    reasons: tuple[Reason, ...]
    target: Target
    pieces: Pieces = field(default_factory=Pieces)
    held: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    _calls: dict[Any, TorchCall] = field(default_factory=dict[Any, TorchCall], repr=False)

    def __repr__(self) -> str:
        ends = [", ".join(map(repr, x)) for x in (self.fusion.inputs, self.fusion.outputs)]
        return (
            f"<Program for {self.target.arch}: {len(self.launches)} launches of "
            f"{len(self.kernels)} kernels, ({ends[0]}) -> ({ends[1]})>"
        )

    def __str__(self) -> str:
        kernels = [f"  {repr(k)[1:-1]}" for k in self.kernels]
        return "\n".join([repr(self)[1:-1], *shortened(kernels)])

    @property
    def kernels(self) -> list[Kernel]:
        """The different kernels, in order of first launch."""
        return list(dict.fromkeys(x.kernel for x in self.launches))

    def __post_init__(self) -> None:
        kernels = tuple(self.kernels)
        for k in kernels:
            k.program_kernels = kernels
        if kernels and has_gpu():
            with contextlib.suppress(UserError):  # without a compiler: said when code is needed
                kernels[0].start_compiling(kernels)

    # --- the host program -----------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The arrays of a call."""
        return tuple(TensorInfo.of(t) for t in self.fusion.inputs)

    @cached_property
    def results(self) -> tuple[TensorInfo, ...]:
        """The different arrays that a call makes, in order of first output."""
        made = self._made
        return tuple(made.get(t) or TensorInfo.of(t) for t in dict.fromkeys(self.fusion.outputs))

    @cached_property
    def _made(self) -> dict[Tensor, TensorInfo]:
        return {
            s.tensor: info
            for x in self.launches
            for s, info in zip(x.writes, x.kernel.outputs, strict=True)
            if s.is_whole and s.root is s.tensor
        }

    @cached_property
    def host(self) -> HostProgram:
        """Launches with exact bindings, the packed arena, edges, and `stats`. Raises InternalError
        where an order that the edges allow could give other bytes, or read what nobody wrote."""
        check_host(self.assembled)
        return self.assembled

    @cached_property
    def assembled(self) -> HostProgram:
        """The host program, whose invariants nobody has checked."""
        calls = [Call(x.kernel.ir, x.values, x.reads, x.writes) for x in self.launches]
        return assemble(self.fusion, calls, self.pieces, self.held)

    @cached_property
    def _executor(self) -> Executor:
        return Executor(self.host, self.inputs, self.results, self.holders, self._load)

    @cached_property
    def holders(self) -> tuple[int | None, ...]:
        """For each different result the position of the argument in whose memory it is made."""
        inputs = self.fusion.inputs
        outputs = dict.fromkeys(self.fusion.outputs)
        return tuple(inputs.index(self.held[t]) if t in self.held else None for t in outputs)

    def _load(self) -> list[LoadedKernel]:
        loaded = {k: LoadedKernel(k.cubin(), k.ir) for k in self.kernels}
        return [loaded[x.kernel] for x in self.launches]

    @property
    def copies(self) -> int:
        """How many arguments had to be copied because they do not meet the specs, or because they
        are donated and share memory with another one."""
        return self._executor.copies

    def symbol_values(self, arrays: Sequence[Any]) -> dict[Var, int]:
        """The sizes that these arrays give the symbols. Raises UserError where they do not fit."""
        return self._bind([tuple(a.shape) for a in arrays])

    @cached_property
    def constants(self) -> Constants:
        """What the traced function captured: the last inputs, which calls leave out."""
        return Constants(constants_of(self.fusion.inputs))

    @cached_property
    def _bind(self) -> Binder:
        return Binder(self.inputs, "the program")

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The element strides of every tensor that has memory, by name."""
        out: dict[str, Layout] = {}
        for t, info in zip(self.fusion.inputs, self.inputs, strict=True):
            out[t.name] = Layout(info.strides, None, info.strides, "given by the caller's spec")
        for x in self.launches:
            for s in x.writes:
                for t in (s.root, s.tensor):
                    out.setdefault(t.name, self._layout(t, x.kernel.name, s))
        return out

    def _layout(self, t: Tensor, kernel: str, s: Subspan) -> Layout:
        dense = contiguous_strides(t.shape)
        required = dense if t in self.fusion.outputs else None
        if s.root is not s.tensor or not s.is_whole:
            inside = t is s.tensor and t is not s.root
            why = f"stored by {kernel} inside of {s.root.name}" if inside else "joined from parts"
            return Layout(required, None, s.strides if inside else dense, why)
        asked = s.strides != dense
        why = f"stored by {kernel}, in {'the order it was asked for' if asked else 'C order'}"
        return Layout(required, s.strides if asked else None, s.strides, why)

    # --- on disk --------------------------------------------------------------------------------

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Writes the program with its machine code as one file, which `load` reads without a
        compiler and without tracing. Raises UserError without NVRTC or a place to write."""
        write_archive(Path(path), *self._packed(with_code=True))
        return Path(path)

    def _packed(self, *, with_code: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The program as a record, and machine code; without it only what has been made."""
        kernels = self.kernels
        made = [k for k in kernels if with_code or k.is_compiled]
        codes = list(dict.fromkeys(k.cubin() for k in made))
        held = [t for t in self.fusion.inputs if isinstance(t, Known)]
        record = {
            "target": self.target.arch,
            "fusion": print_fusion(self.fusion),
            "constants": [constant_record(t) for t in held],
            "kernels": [
                kernel_record(k, codes.index(k.cubin()) if k in made else None) for k in kernels
            ],
            "launches": [
                {
                    "kernel": kernels.index(x.kernel),
                    "inputs": [site_record(s) for s in x.reads],
                    "outputs": [site_record(s) for s in x.writes],
                    "values": [number_record(v) for v in x.values],
                }
                for x in self.launches
            ],
            "reasons": [[r.tensor, r.rule] for r in self.reasons],
            "held": [[t.name, argument.name] for t, argument in self.held.items()],
            "placed": list(self.pieces.placed.items()),
            "not_placed": list(self.pieces.not_placed.items()),
        }
        members = {f"{i}.cubin": c for i, c in enumerate(codes)}
        return record, members | {f"{t.name}.constant": t.data.tobytes() for t in held}

    def __copy__(self) -> Program:
        """A program of the same kernels, which share their machine code, and calls of its own."""
        return Program(
            self.fusion, self.launches, self.reasons, self.target, self.pieces, self.held
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return copy(self)

    def __reduce__(self) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
        """A pickle holds text, and machine code where it has been made."""
        return _unpickled, (pack(*self._packed(with_code=False)),)

    # --- running --------------------------------------------------------------------------------

    @takes(check_races=FLAG, seed=COUNT)
    def simulate(self, *arrays: Array, check_races: bool = True, seed: int = 0) -> SimResult:
        """Runs every kernel in the simulator, on memory whose bytes are 0xFF until one of them is
        written; `races` also lists what launches read, and results hold, of such bytes."""
        races: list[Race] = []
        stats: dict[str, int | float] = {}
        memory = self._memories(arrays)
        for k, x in enumerate(self.launches):
            races += memory.unwritten(x.reads, f"#{k} {x.kernel.name} reads", seed)
            result = self._simulated(x, memory, check_races=check_races, seed=seed)
            races.extend(result.races)
            for k, v in result.stats.items():
                stats[k] = stats.get(k, 0) + v
        results = [natural(self.held.get(t, t)) for t in self.fusion.outputs]
        races += memory.unwritten(results, "the program returns", seed)
        return SimResult([memory.read(s) for s in results], races, stats)

    def witnesses(self, *arrays: Array) -> Iterator[tuple[Kernel, list[Array], Mapping[Var, int]]]:
        """Every kernel once, with the arrays it reads when the program runs on these, and sizes."""
        memory = self._memories(arrays)
        seen: set[Kernel] = set()
        for x in self.launches:
            if x.kernel not in seen:
                seen.add(x.kernel)
                yield x.kernel, [memory.read(s) for s in x.reads], memory.sizes
            self._simulated(x, memory, check_races=False, seed=0)

    def _memories(self, arrays: Sequence[Any]) -> Memories:
        """The memory of a run before its first launch."""
        arrays = completed(self.fusion.inputs, arrays, constants_of(self.fusion.inputs))
        arrays = tuple(plain_array(a, f"argument {k}") for k, a in enumerate(arrays))
        symbols = self.symbol_values(arrays)
        given = dict(zip(self.fusion.inputs, arrays, strict=True))
        given |= {t: np.array(given[t], order="C") for t in self.held.values()}
        return Memories(symbols, given)

    def _simulated(
        self, x: Dispatch, memory: Memories, *, check_races: bool, seed: int
    ) -> SimResult:
        """Runs one launch in the simulator; what it writes is in memory afterwards."""
        result = x.kernel.simulate(
            *(memory.read(s) for s in x.reads),
            check_races=check_races,
            seed=seed,
            symbols=memory.sizes,
            values=x.values,
        )
        for s, array, written in zip(x.writes, result.outputs, result.written, strict=True):
            memory.write(s, array, written)
        return result

    def run_cuda(self, *arrays: Any) -> list[Any]:
        """Runs on the GPU: device arrays without a copy on the caller's stream, host arrays
        through copies. Results are of the caller's library, in the order of the outputs."""
        return self(*arrays, device="cuda")

    def __call__(self, *arrays: Any, device: str = "auto", out: Sequence[Any] = ()) -> list[Any]:
        """Runs the program; results are arrays of the caller's library, in order of the outputs.

        `device`: "cuda", "sim" (the simulator), or "auto": where device arrays are, else a GPU if
        there is one, else the numpy oracle, which is said once. `out`: an array or None per
        output, written instead of a new one.
        """
        check_device_choice(device)
        if not isinstance(out, tuple | list):
            raise UserError(
                f"out={shown(out)} is {type(out).__name__}; it must be a list or tuple of an array "
                "or None for every output"
            )
        key = None if device == "sim" else call_key(arrays, {}, out or None)
        found = self._calls.get(key)
        if found is not None:
            made = found.run(arrays, out)
            return [made[p] for p in self.places]
        infos = [describe(a) for a in arrays]
        given = [None if o is None else describe_target(o) for o in out]
        call = None if key is None else self.bind_torch(infos, given)
        if call is None:
            return self.run(infos, device, given)
        self._calls[key] = call
        return self(*arrays, device=device, out=out)

    def bind_torch(
        self, infos: Sequence[ArrayInfo], out: Sequence[ArrayInfo | None] = ()
    ) -> TorchCall | None:
        """A call bound to torch tensors on a GPU of exactly these shapes, strides and alignment,
        and to arrays of `out=` likewise; None for other arrays, for tensors that must be copied
        first, and for `out=` where two outputs are one result."""
        if (
            len(self.constants)
            or not infos
            or infos[0].kind != "torch"
            or infos[0].device.kind == "cpu"
        ):
            return None
        kind, device = common(infos)
        sizes = self.check_arguments(infos)
        given = self._given(out, sizes, f"{kind} on {device}")
        executor = self._executor
        if (out and len(out) != len(given)) or not executor.fits(infos, sizes):
            return None
        return TorchCall(executor, sizes, active(), infos, given)

    def run(
        self, infos: Sequence[ArrayInfo], device: str, out: Sequence[ArrayInfo | None] = ()
    ) -> list[Any]:
        """Runs on described arrays, all of one library and on one device."""
        kind, where = common(infos) if infos else ("numpy", CPU)
        library = library_of(kind, where)
        if kind == "torch":
            check_gradients([x.owner for x in infos])
            check_gradients([o.owner for o in out if o is not None], "arrays of out=")
        infos = completed(self.fusion.inputs, infos, self.constants.on(where))
        sizes = self.check_arguments(infos)
        given = self._given(out, sizes, f"{kind} on {where}")
        if where.kind == "cuda":
            if device == "sim":
                raise UserError("device='sim' takes host arrays; copy these to the host first")
            made = self._executor.on_device(infos, library, sizes, where, given)
            return [made[p] for p in self.places]
        views = [host_view(x) for x in infos]
        results = self._on_host(views, device, sizes)
        made = [results[self.places.index(k)] for k in range(len(self.results))]
        shown = [_shown(a, o, library, kind) for a, o in zip(made, given, strict=True)]
        return [shown[p] for p in self.places]

    def bind_memory(self, infos: Sequence[ArrayInfo]) -> BoundCall:
        """A call on the legacy default stream with memory of its own for results, scratch, and
        arguments that are not on a device as its kernels want them. For measuring."""
        _, where = common(infos)
        infos = completed(self.fusion.inputs, infos, self.constants.on(where))
        sizes = self.check_arguments(infos)
        if where.kind == "cuda":
            fitted = self._executor.fitted(infos, library_of(infos[0].kind, where), sizes)
            return BoundCall(self._executor, fitted, sizes, where.index)
        views = [host_view(x) for x in infos]
        flat = [flatten(a, i, sizes) for a, i in zip(views, self.inputs, strict=True)]
        return BoundCall(self._executor, flat, sizes, 0)

    def _on_host(self, arrays: list[Array], device: str, sizes: dict[Var, int]) -> list[Array]:
        if device == "sim":
            return without_races(self.simulate(*arrays), "the program")
        if device == "auto" and not has_gpu():
            say_once()
            return evaluate(self.fusion, *arrays)
        flat = [flatten(a, i, sizes) for a, i in zip(arrays, self.inputs, strict=True)]
        results = self._executor.on_host(flat, sizes)
        shaped = [shaped_view(a, i, sizes) for a, i in zip(results, self.results, strict=True)]
        return [shaped[p] for p in self.places]

    @cached_property
    def places(self) -> list[int]:
        """For each output the position of its array among the different results."""
        position = {t: k for k, t in enumerate(dict.fromkeys(self.fusion.outputs))}
        return [position[t] for t in self.fusion.outputs]

    def check_arguments(self, infos: Sequence[ArrayInfo]) -> dict[Var, int]:
        """The sizes of the symbols. Raises UserError for wrong counts, shapes and dtypes."""
        sizes = self.symbol_values(infos)
        for x, i in zip(infos, self.inputs, strict=True):
            if x.dtype is not i.dtype:
                raise UserError(f"{i.name} must be {i.dtype}, got {x.dtype}; cast it first")
        return sizes

    def _given(
        self, out: Sequence[ArrayInfo | None], sizes: dict[Var, int], like: str
    ) -> list[ArrayInfo | None]:
        """The arrays of `out=`, one per different result. Raises UserError for unfit ones."""
        if not out:
            return [None] * len(self.results)
        if len(out) != len(self.places):
            raise UserError(
                f"out= has {len(out)} arrays, the program has {len(self.places)} outputs"
            )
        given = [out[self.places.index(k)] for k in range(len(self.results))]
        for k, (o, p) in enumerate(zip(out, self.places, strict=True)):
            if o is not None and o.owner is not getattr(given[p], "owner", None):
                raise UserError(
                    f"out= {k} and {self.places.index(p)} take one and the same result; pass one "
                    "array, or None, for both"
                )
        check_out(given, [shape_of(r, sizes) for r in self.results], like)
        return given


@takes(path=PATH)
def load(path: str | Path) -> Program:
    """The program that `Program.save` wrote. Needs no compiler.

    Raises UserError for a file that is damaged, of another version, or none of ours.
    """
    return _restored(*read_archive(Path(path)), str(path))


def _unpickled(content: bytes) -> Program:
    """The program of a pickle. Raises UserError as `load`."""
    what = "the pickle of a program"
    return _restored(*unpack(content, what), what)


def _restored(record: dict[str, Any], members: dict[str, bytes], path: str) -> Program:
    """The program of a record. Raises UserError for one that describes none, or one whose host
    program breaks an invariant."""
    try:
        held_data = {r["name"]: restored_constant(r, members) for r in record["constants"]}
        fusion = parse_fusion(record["fusion"], held_data)
        target = target_of(record["target"])
        values = {t.name: t for t in fusion.values}
        symbols = {s.name: s for s in fusion.symbols}
        kernels = [restored_kernel(r, members, target, symbols) for r in record["kernels"]]
        pieces = Pieces(dict(record["placed"]), dict(record["not_placed"]))
        launches = tuple(
            Dispatch(
                kernels[int(x["kernel"])],
                tuple(restored_site(r, values, symbols) for r in x["inputs"]),
                tuple(restored_site(r, values, symbols) for r in x["outputs"]),
                tuple(number_of(v) for v in x["values"]),
            )
            for x in record["launches"]
        )
        for x in launches:
            check_launch(x.kernel, x.reads, x.writes, x.values)
        reasons = tuple(Reason(t, rule) for t, rule in record["reasons"])
        held = {values[t]: values[argument] for t, argument in record["held"]}
        program = Program(fusion, launches, reasons, target, pieces, held)
        _ = program.host, program.results, program.holders
    except (*DAMAGE, InternalError) as e:
        raise UserError(f"{path} does not describe a program ({e!r}); save it again") from e
    return program


def shape_of(r: TensorInfo, sizes: dict[Var, int]) -> tuple[tuple[int, ...], DType]:
    """A result's shape and dtype."""
    return tuple(size_of(e, sizes) for e in r.shape), r.dtype


def _shown(result: Array, out: ArrayInfo | None, library: Library, kind: str) -> Any:
    """A host result as an array of the caller's library, or in the array of `out=`."""
    if out is None and kind in ("numpy", "dlpack"):
        return np.array(result, order="C")
    if out is None:
        strides = c_strides(result.shape)
        out = describe(library.empty(result.shape, strides, dtype_of(result.dtype), CPU))
    if result.size:
        host_view(out)[...] = result
    return out.owner


def say_once() -> None:
    """Says, once per process, that the oracle computes."""
    if not _said.is_set():
        _said.set()
        warnings.warn(
            "no GPU: fusewright computes with its numpy oracle; device='sim' simulates the kernels",
            stacklevel=3,
        )
