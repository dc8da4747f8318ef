"""A compiled kernel: its IR, its launch, its memory and syncs, its CUDA text and machine code."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.arguments import COUNT, FLAG, check_device_choice, takes
from fusewright.core.compiled import compiled
from fusewright.core.expr import Expr, Int, Var, constant_value, variables
from fusewright.core.node import walk
from fusewright.core.substitution import estimate, substitute
from fusewright.cuda.compile import Compiled
from fusewright.cuda.emit import emit, shared_nbytes
from fusewright.cuda.names import identifier
from fusewright.cuda.resources import Resources, Spilled, resources
from fusewright.cuda.sass import sass
from fusewright.dtypes import DType
from fusewright.errors import InternalError, UserError
from fusewright.fusion.call_numbers import check_size_number
from fusewright.fusion.evaluate import plain_array
from fusewright.fusion.ir import Input, Tensor, contiguous_strides
from fusewright.fusion.source import lines_of
from fusewright.host.segment import Segment
from fusewright.kir import ir
from fusewright.kir.analysis.hazards import sync_orders
from fusewright.kir.analysis.occupancy import blocks_by_memory
from fusewright.kir.analysis.uses import global_writes, reads_before
from fusewright.memory import Memory
from fusewright.runtime.arrays import overlaps_itself
from fusewright.runtime.builds import BUILDER, is_failed
from fusewright.runtime.device import has_gpu
from fusewright.runtime.launch import LoadedKernel, run
from fusewright.runtime.locks import fork_safe_lock
from fusewright.schedule.edits import EditCall, calls_of
from fusewright.schedule.graph import Stage, strides_of
from fusewright.schedule.heuristics import schedule_group
from fusewright.schedule.heuristics.common import Params
from fusewright.schedule.heuristics.cost import Cost
from fusewright.schedule.heuristics.rating import Rating, cost_of, rate
from fusewright.sim.machine import SimResult, simulate
from fusewright.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Param:
    """One array parameter: `access` is "R", "W" or "RW"."""

    name: str
    dtype: DType
    rank: int
    access: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid (blocks) and block (threads) along x, y, z, blocks in a cluster, bytes of shared
    memory; expressions in the shape symbols."""

    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    cluster: int
    shared_nbytes: int


@dataclass(frozen=True, slots=True)
class SmemBuffer:
    """One buffer in shared memory: byte offset, size and alignment; `alias_of` names an earlier
    buffer whose bytes it takes over."""

    name: str
    offset: int
    nbytes: int
    alignment: int
    alias_of: str | None


@dataclass(frozen=True, slots=True)
class Sync:
    """One sync: its path in the IR, and the pairs of accesses that it orders."""

    id: int
    kind: str
    why: str
    at: tuple[int, ...]
    orders: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An array at the kernel's border: name, sizes, dtype and element strides."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    strides: tuple[Expr, ...]

    @staticmethod
    def of(s: Stage | Tensor) -> TensorInfo:
        if isinstance(s, Stage):
            return TensorInfo(s.name, s.shape, s.dtype, strides_of(s))
        strides = s.op.strides if isinstance(s.op, Input) else contiguous_strides(s.shape)
        return TensorInfo(s.name, s.shape, s.dtype, strides)


@dataclass(eq=False)
class Kernel:
    """One kernel. `inputs` and `outputs` describe its arrays in the order of a call."""

    ir: ir.Kernel
    target: Target
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    argument_values: tuple[bool | int | float, ...]
    schedule: str
    heuristic: Params | None = None
    segment: Segment | None = field(default=None, repr=False)
    """What a heuristic scheduled; None for schedules by hand, moves, and kernels from a file."""
    measured: tuple[tuple[Params, float], ...] = ()
    """Microseconds of its candidates where they were measured (`fw.tune`)."""
    companions: list[Kernel] = field(default_factory=lambda: list[Kernel](), repr=False)
    """The kernels that were made in one call of `compile`, this one among them, but for parts of
    others: the compiler puts the small ones of them into one module."""
    hand_edits: tuple[EditCall, ...] = ()
    """The calls of the schedule by hand that it was made of."""
    parts: tuple[Kernel, ...] = field(default=(), repr=False)
    """The kernels whose blocks stand side by side in this one; none for most."""
    lowered: ir.Kernel | None = field(default=None, repr=False)
    """What the passes were given; None for kernels from a file."""
    cost: Cost | None = field(default=None, repr=False)
    """What `predicted` tells, where it was predicted already; of a loop, for all iterations."""
    spilled: tuple[Spilled, ...] = ()
    """The ways to make it in which the compiler spills registers, as far as it was asked."""
    _build: Future[Compiled] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=fork_safe_lock, repr=False)

    def __post_init__(self) -> None:
        self.companions.append(self)

    @property
    def name(self) -> str:
        """The name of its function in the CUDA text."""
        return self.ir.name

    @property
    def params(self) -> tuple[Param, ...]:
        """The array parameters of a call, in the order of the CUDA signature."""
        read, written = reads_before(self.ir), global_writes(self.ir)
        return tuple(
            Param(
                b.name,
                b.dtype,
                len(t.shape),
                ("R" if b in read else "") + ("W" if b in written else "") or "R",
            )
            for b, t in zip(self.ir.arrays, (*self.inputs, *self.outputs), strict=True)
        )

    @property
    def launch(self) -> Launch:
        """Blocks, threads, blocks of a cluster and bytes of shared memory; the number of blocks
        may depend on symbolic sizes."""
        first, *rest = (d.extent for d in self.ir.grid)
        block = tuple(d.extent for d in self.ir.block)
        size = self.ir.cluster_size
        grid = (first * size, *rest)
        return Launch(grid, block, size, shared_nbytes(self.ir))  # type: ignore[arg-type]

    @property
    def idle_multiprocessors(self) -> int:
        """As many multiprocessors as a launch leaves room on, registers aside, where that is at
        least half of them, so that another launch like it runs beside it; 0 for others. Sizes that
        are symbols count as typical ones."""
        blocks = self.ir.cluster_size * math.prod(estimate(d.extent) for d in self.ir.grid)
        held = blocks_by_memory(self.target, self.ir.nthreads, self.launch.shared_nbytes)
        idle = self.target.multiprocessors - -(-blocks // max(1, held))
        return idle if 2 * idle >= self.target.multiprocessors else 0

    @property
    def smem(self) -> list[SmemBuffer]:
        """The buffers in shared memory, in order of allocation."""
        out: list[SmemBuffer] = []
        for a in walk(self.ir):
            if isinstance(a, ir.Alloc) and a.buffer.memory is Memory.SHARED:
                size = constant_value(a.buffer.size) or 0
                offset = a.offset or 0
                nbytes = size * a.buffer.dtype.nbytes
                end = offset + nbytes
                alias = next(
                    (b.name for b in out if b.offset < end and offset < b.offset + b.nbytes), None
                )
                out.append(SmemBuffer(a.buffer.name, offset, nbytes, a.buffer.alignment, alias))
        return out

    @property
    def syncs(self) -> list[Sync]:
        """The syncs in program order."""
        orders = sync_orders(self.ir)
        out: list[Sync] = []
        _collect_syncs(self.ir.body, (), orders, out)
        return out

    @property
    def candidates(self) -> list[Rating]:
        """The ways in which its group could be scheduled, with predicted times, in the order of the
        rules; the one with the parameters `heuristic` was taken. Empty where none was listed."""
        return [] if self.segment is None else rate(self.segment.dataflow(), self.target)

    @property
    def edits(self) -> tuple[EditCall, ...]:
        """The calls on a schedule by hand of its group that make the same loops; none for moves and
        kernels from a file."""
        if self.segment is None or self.heuristic is None:
            return self.hand_edits
        flow = self.segment.dataflow()
        schedule_group(flow, self.target, self.heuristic)
        return calls_of(flow)

    @property
    def predicted(self) -> Cost | None:
        """The predicted time of a launch, and what limits it; None for schedules by hand and
        kernels from a file."""
        if self.cost is None:
            groups = [(k.segment, k.heuristic) for k in self.parts or (self,)]
            known = [(s.dataflow, h) for s, h in groups if s is not None and h is not None]
            self.cost = cost_of(known, self.target) if len(known) == len(groups) else None
        return self.cost

    def __repr__(self) -> str:
        launch, syncs = self.launch, len(self.syncs)
        sizes = [", ".join(map(str, n)) for n in (launch.grid, launch.block)]
        return (
            f"<Kernel {self.name} for {self.target.arch}: grid ({sizes[0]}), block ({sizes[1]}), "
            f"{launch.shared_nbytes} B shared, {syncs} syncs>"
        )

    def __str__(self) -> str:
        listed = [
            f"  {'reads ' if k < len(self.inputs) else 'writes'}  {_typed(t)}"
            for k, t in enumerate((*self.inputs, *self.outputs))
        ]
        return "\n".join([repr(self)[1:-1], *shortened(listed)])

    @property
    def cuda(self) -> str:
        """The CUDA C++ text; comments, which are not compiled, name the lines of the program that
        the kernel was first made of."""
        made_of = [k.segment.fusion for k in self.parts or (self,) if k.segment is not None]
        return emit(self.ir, self.target, [c for f in made_of for c in lines_of(f)])

    def start_compiling(self, together: Sequence[Kernel] = ()) -> None:
        """Starts to compile in the background, with other kernels of the same target in one
        module where they are small. Raises UserError without NVRTC."""
        waiting = [k for k in (together or (self,)) if k._build is None or k._build.cancelled()]
        if not waiting:
            return
        futures = BUILDER.submit([k.ir for k in waiting], self.target)
        for k, f in zip(waiting, futures, strict=True):
            k._build = f

    def adopt(self, compiled: Compiled) -> None:
        """Takes machine code that was made for this kernel before."""
        self._build = Future()
        self._build.set_result(compiled)

    def compiled(self) -> Compiled:
        """Machine code and the compiler's log of the module that holds this kernel; compiled
        once, together with the other kernels of its program. Raises UserError without NVRTC."""
        while True:
            with self._lock:
                if self._build is None or self._build.cancelled():
                    self.start_compiling(list(dict.fromkeys((*self.companions, self))))
                build = self._build
            assert build is not None
            try:
                return build.result()
            except CancelledError:
                continue  # another thread was interrupted
            except KeyboardInterrupt:
                BUILDER.cancel()
                raise

    @property
    def is_compiled(self) -> bool:
        """Whether there is machine code already."""
        build = self._build
        return build is not None and build.done() and not is_failed(build)

    def __copy__(self) -> Kernel:
        """The kernel itself: copies share its machine code."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        return self

    def cubin(self) -> bytes:
        """The machine code."""
        return self.compiled().cubin

    def ptx(self) -> str:
        """The PTX on the way to the machine code."""
        return entry_of(self.compiled().ptx, identifier(self.name))

    def sass(self) -> str:
        """The disassembly. Raises UserError when the `sass` extra is not installed."""
        return section_of(sass(self.cubin()), identifier(self.name))

    def resources(self) -> Resources:
        """Registers, spills, stack, shared memory and warnings as ptxas reports them."""
        return resources(self.compiled().log)[identifier(self.name)]

    # --- running --------------------------------------------------------------------------------

    def symbol_values(
        self, arrays: Sequence[Array], known: Mapping[Var, int] | None = None
    ) -> dict[Var, int]:
        """The sizes that these arrays, and what the caller knows already, give the shape symbols.
        Raises UserError on a mismatch."""
        return bind_symbols(self.inputs, [a.shape for a in arrays], self.name, known)

    @takes(check_races=FLAG, seed=COUNT)
    def simulate(
        self,
        *arrays: Array,
        blocks: object = None,
        check_races: bool = True,
        seed: int = 0,
        symbols: Mapping[Var, int] | None = None,
        values: tuple[bool | int | float, ...] | None = None,
    ) -> SimResult:
        """Runs the kernel in the simulator. `outputs` of the result are shaped arrays. `symbols`
        gives sizes that are no axis of an input, `values` other scalar arguments than the kernel
        was first made for."""
        arrays = tuple(plain_array(a, f"argument {k}") for k, a in enumerate(arrays))
        symbols = self.symbol_values(arrays, symbols)
        flat = self.flat_arrays(arrays, symbols)
        outputs = self.ir.arrays[len(self.inputs) :]
        result = simulate(
            self.ir,
            dict(zip(self.ir.arrays, flat, strict=True)) | self.own_arrays(symbols),
            arguments=self.arguments(values),
            symbols={s: symbols[s] for s in self.ir.symbols},
            outputs=outputs,
            blocks=blocks,  # type: ignore[arg-type]
            check_races=check_races,
            seed=seed,
        )
        shaped = [
            shaped_view(array, info, symbols)
            for array, info in zip(result.outputs, self.outputs, strict=True)
        ]
        written = [
            shaped_view(array, info, symbols)
            for array, info in zip(result.written, self.outputs, strict=True)
        ]
        return replace(result, outputs=shaped, written=written)

    def arguments(
        self, values: tuple[bool | int | float, ...] | None = None
    ) -> Mapping[ir.Argument, object]:
        """The values of the scalar parameters (default: those it was first made for)."""
        given = self.argument_values if values is None else values
        return dict(zip(self.ir.arguments, given, strict=True))

    def own_arrays(self, symbols: Mapping[Var, int]) -> dict[ir.Buffer, Array]:
        """Fresh memory for what no caller names: what begins at zero, scratch."""
        own = (*self.ir.state, *self.ir.scratch)
        return {b: np.zeros(size_of(b.size, symbols), b.dtype.numpy) for b in own}

    def flat_arrays(self, arrays: Sequence[Array], symbols: Mapping[Var, int]) -> list[Array]:
        """The arrays of a call, flat: the inputs in the layout of their specs, fresh outputs."""
        flat = [flatten(a, info, symbols) for a, info in zip(arrays, self.inputs, strict=True)]
        for info in self.outputs:
            flat.append(np.empty(span(info, symbols), info.dtype.numpy))
        return flat

    def __call__(self, *arrays: Array, device: str = "auto") -> list[Array]:
        """Runs on numpy arrays: device "cuda", "sim", or "auto" (a GPU if there is one)."""
        check_device_choice(device)
        if device == "sim" or (device == "auto" and not has_gpu()):
            return without_races(self.simulate(*arrays), self.name)
        arrays = tuple(plain_array(a, f"argument {k}") for k, a in enumerate(arrays))
        symbols = self.symbol_values(arrays)
        loaded = LoadedKernel(self.cubin(), self.ir)
        flat = self.flat_arrays(arrays, symbols)
        sizes = {s: symbols[s] for s in self.ir.symbols}
        results = run(loaded, flat, arguments=self.argument_values, sizes=sizes)
        outputs = results[-len(self.outputs) :]
        return [shaped_view(a, i, symbols) for a, i in zip(outputs, self.outputs, strict=True)]


def _typed(t: TensorInfo) -> str:
    return f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]"


def shortened(lines: Sequence[str], most: int = 8) -> list[str]:
    """The first lines of many, and how many there are more."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"  and {len(lines) - most + 1} more"]


def without_races(result: SimResult, name: str) -> list[Array]:
    """The outputs of a simulated run. Raises InternalError where the simulator found something."""
    if result.races:
        raise InternalError(
            f"{name}: the simulator found {len(result.races)} races, the first: "
            f"{result.races[0]}; what these kernels compute depends on their order"
        )
    return result.outputs


def entry_of(ptx: str, name: str) -> str:
    """The PTX of one kernel of a module: the module's head and the kernel's entry."""
    head, *entries = re.split(r"(?m)^(?=(?:\t// \.globl.*\n)?\.visible \.entry )", ptx)
    wanted = [e for e in entries if re.search(rf"\.entry {name}\(", e)]
    return head + "".join(wanted)


def section_of(listing: str, name: str) -> str:
    """The disassembly of one kernel of a module."""
    sections = re.split(r"(?m)^(?=//-+ \.)", listing)
    wanted = [s for s in sections if re.match(rf"//-+ \.text\.{name}\s", s)]
    return "".join(wanted) or listing


def _collect_syncs(
    body: ir.Body, path: tuple[int, ...], orders: Mapping[int, tuple[object, ...]], out: list[Sync]
) -> None:
    for i, s in enumerate(body):
        at = (*path, i)
        match s:
            case ir.SyncStatement():
                out.append(Sync(s.id, type(s).__name__, s.why, at, orders.get(s.id, ())))
            case ir.For():
                _collect_syncs(s.body, at, orders, out)
            case ir.If():
                _collect_syncs(s.then, (*at, 0), orders, out)
                _collect_syncs(s.otherwise, (*at, 1), orders, out)
            case ir.Roles():
                for number, role in enumerate(s.body):
                    assert isinstance(role, ir.Role)
                    _collect_syncs(role.body, (*at, number), orders, out)
            case _:
                pass


def bind_symbols(
    infos: Sequence[TensorInfo],
    shapes: Sequence[Sequence[int]],
    name: str,
    known: Mapping[Var, int] | None = None,
) -> dict[Var, int]:
    """The sizes that concrete shapes give to the symbols of declared ones, after those `known`.

    Raises UserError for a wrong count, rank or size, or a symbol outside its range.
    """
    if len(infos) != len(shapes):
        raise UserError(f"{name} takes {len(infos)} arrays, got {len(shapes)}")
    values: dict[Var, int] = dict(known or {})
    for info, shape in zip(infos, shapes, strict=True):
        if len(shape) != len(info.shape):
            raise UserError(
                f"{name}: {info.name} has rank {len(info.shape)}, got an array of shape "
                f"{tuple(shape)}"
            )
        for axis, (e, n) in enumerate(zip(info.shape, shape, strict=True)):
            if isinstance(e, Var) and e not in values:
                _check_symbol(e, n, info.name, axis)
                values[e] = n
    for info, shape in zip(infos, shapes, strict=True):
        expected = tuple(size_of(e, values) for e in info.shape)
        if expected != tuple(shape):
            raise UserError(
                f"{name}: {info.name} must have shape {expected}, got {tuple(shape)}; "
                "compile for these shapes, or give the differing axis a symbolic size"
            )
    return values


class Binder:
    """`bind_symbols` for declared shapes, in a microsecond or two where concrete shapes fit."""

    def __init__(self, infos: Sequence[TensorInfo], name: str, numbers: Sequence[Var] = ()) -> None:
        """`numbers`: symbols that a call gives values for, beside the shapes."""
        self._infos = tuple(infos)
        self._name = name
        self._ranks = tuple(len(i.shape) for i in infos)
        sizes = [e for i in infos for e in i.shape]
        first: dict[Var, int] = {}
        for at, e in enumerate(sizes):
            if isinstance(e, Var):
                first.setdefault(e, at)
        self._first = tuple((v, at, *v.interval, v.multiple_of) for v, at in first.items())
        known = all(v in first for e in sizes for v in variables(e))
        self._expected = compiled(sizes, tuple(first)) if known else None
        self.symbols = tuple(dict.fromkeys((*first, *numbers)))

    def __call__(
        self, shapes: Sequence[Sequence[int]], numbers: Mapping[Var, int] | None = None
    ) -> dict[Var, int]:
        """The values of the symbols: the sizes in order of appearance, then the numbers. Raises
        UserError as `bind_symbols`, and for a number that is not the size it stands for."""
        found = self._found(shapes)
        if found is None:
            found = bind_symbols(self._infos, shapes, self._name)
        if not numbers:
            return found
        for v, n in numbers.items():
            check_size_number(self._name, v, n, found.get(v, n))
        every = found | dict(numbers)
        return {v: every[v] for v in self.symbols}

    def _found(self, shapes: Sequence[Sequence[int]]) -> dict[Var, int] | None:
        """The sizes where there are some and shapes fit; None leaves it to `bind_symbols`."""
        if self._expected is None or tuple(map(len, shapes)) != self._ranks:
            return None
        flat = tuple(chain.from_iterable(shapes))
        found: dict[Var, int] = {}
        for v, at, low, high, multiple in self._first:
            n = found[v] = flat[at]
            if n < (low or 0) or (high is not None and n > high) or n % multiple:
                return None
        return found if flat == self._expected(*found.values()) else None


def _is_allowed(e: Var, n: int) -> bool:
    low, high = e.interval
    return n >= (low or 0) and (high is None or n <= high) and n % e.multiple_of == 0


def _check_symbol(e: Var, n: int, tensor: str, axis: int) -> None:
    low, high = e.interval
    if not _is_allowed(e, n):
        raise UserError(
            f"{tensor}: axis {axis} is the symbolic size {e.name} (at least {low}"
            f"{'' if high is None else f', at most {high}'}, a multiple of {e.multiple_of}), "
            f"got {n}"
        )


def size_of(e: Expr, symbols: Mapping[Var, int]) -> int:
    """The value of a size under the symbols' values."""
    value = constant_value(e if isinstance(e, Int) else substitute(e, symbols))
    if value is None:
        raise UserError(
            f"the size {e} is not determined by the shapes of the inputs; name an axis of one so"
        )
    return value


def span(info: TensorInfo, symbols: Mapping[Var, int]) -> int:
    """Elements from the first to the last of a tensor in its layout."""
    sizes = [size_of(e, symbols) for e in info.shape]
    if 0 in sizes:
        return 0
    return 1 + sum(
        (n - 1) * size_of(stride, symbols) for n, stride in zip(sizes, info.strides, strict=True)
    )


def shaped_view(flat: Array, info: TensorInfo, symbols: Mapping[Var, int]) -> Array:
    """A flat array as the tensor in its layout."""
    shape = [size_of(e, symbols) for e in info.shape]
    strides = [size_of(e, symbols) * flat.itemsize for e in info.strides]
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    raw = flat.view(f"u{flat.itemsize}")  # as_strided does not know every dtype
    return np.lib.stride_tricks.as_strided(raw, shape, strides).view(flat.dtype)


def flatten(a: Array, info: TensorInfo, symbols: Mapping[Var, int]) -> Array:
    """The array as a flat one in the layout of the spec (a copy), every byte 0xFF between its
    elements. Raises UserError for another dtype, and for values that a layout whose elements share
    memory cannot hold."""
    if a.dtype != info.dtype.numpy:
        raise UserError(f"{info.name} must be {info.dtype}, got {a.dtype}; cast it first")
    flat = np.empty(span(info, symbols), a.dtype)
    if flat.size != a.size:
        flat.view(np.uint8)[...] = 0xFF
    if flat.size:
        view = shaped_view(flat, info, symbols)
        view[...] = a
        if overlaps_itself(view.shape, view.strides) and view.tobytes() != a.tobytes():
            raise UserError(
                f"{info.name}: with strides ({', '.join(map(str, info.strides))}) elements share "
                "memory, and the array has other values there; compile for a spec without them"
            )
    return flat
