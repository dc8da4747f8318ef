"""Runs a host program on arrays: binds sizes, allocates results, enqueues on their stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fusewright.core.compiled import Evaluator, compiled
from fusewright.core.expr import Expr, Var
from fusewright.dtypes import DType, uint8
from fusewright.errors import UserError
from fusewright.host.assemble import HostProgram
from fusewright.host.regions import ByteRegion, meet, region
from fusewright.runtime.arrays import ArrayInfo, Device, describe, overlaps_itself
from fusewright.runtime.config import active
from fusewright.runtime.control import Loaded
from fusewright.runtime.device import capturing, check, current, driver, wait_for
from fusewright.runtime.libraries import Library
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.memory import allocate, free
from fusewright.runtime.plan import CallPlan, PlanTemplate

HostArray: TypeAlias = npt.NDArray[Any]
ResultType: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], DType]
"""Shape, element strides and dtype of one result."""
MAX_PLANS = 1024


class ArraySpec(Protocol):
    """The type of an array that a program takes or returns; strides in elements."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[Expr, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def strides(self) -> tuple[Expr, ...]: ...


class Executor:
    """One host program, runnable on any device from any thread. Kernels are loaded on first use.

    `copies` counts arguments that had to be copied because their strides, address or overlap with
    `out=` do not fit the kernels.
    """

    def __init__(
        self,
        host: HostProgram,
        inputs: Sequence[ArraySpec],
        results: Sequence[ArraySpec],
        holders: Sequence[int | None],
        load: Callable[[], Sequence[Loaded]],
        numbers: Sequence[Var] = (),
    ) -> None:
        """`results` that are not made in the memory of an input, which `holders` gives by
        position, stand in the order of the host program's output roots; `load` gives the loaded
        kernel of each launch; `numbers` are symbols that calls give values for."""
        self.host = host
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self.holders = tuple(holders)
        self.lent = frozenset(root.position for root in host.lent.values())
        """The arguments that kernels write over and that hold no result, by position."""
        self.copies = 0
        self._load = load
        self._numbers = tuple(numbers)
        self._template: PlanTemplate | None = None
        self._plans: dict[tuple[int, ...], CallPlan] = {}
        self._threads: dict[int, threading.local] = {}
        self._lock = fork_safe_lock()

    @property
    def writes_arguments(self) -> bool:
        """Whether kernels write over an argument."""
        return bool(self.lent) or any(h is not None for h in self.holders)

    def plan(self, sizes: Mapping[Var, int]) -> CallPlan:
        """The plan for these sizes; the last thousand or so are kept."""
        key = tuple(sizes.values())
        found = self._plans.get(key)
        if found is not None:
            return found
        with self._lock:
            if self._template is None:
                shared = bool(self._numbers)
                self._template = PlanTemplate(
                    self.host, self._load(), tuple(sizes), shares_graphs=shared
                )
            if key not in self._plans:
                if len(self._plans) >= MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = CallPlan(self._template, key)
            return self._plans[key]

    def threads(self, device: int) -> threading.local:
        """What calls on a device share, by thread."""
        found = self._threads.get(device)
        return found or self._threads.setdefault(device, threading.local())

    def result_types(self, sizes: Mapping[Var, int]) -> list[ResultType]:
        """The types of the results."""
        found = self._result_numbers(*sizes.values())
        out: list[ResultType] = []
        at = 0
        for r in self.results:
            n = len(r.shape)
            out.append((found[at : at + n], found[at + n : at + 2 * n], r.dtype))
            at += 2 * n
        return out

    @cached_property
    def _result_numbers(self) -> Evaluator:
        sizes = (e for r in self.results for e in (*r.shape, *r.strides))
        return compiled(tuple(sizes), self._symbols)

    @cached_property
    def _input_strides(self) -> list[Evaluator]:
        return [compiled(s.strides, self._symbols) for s in self.inputs]

    @cached_property
    def _symbols(self) -> tuple[Var, ...]:
        """The symbols in the order in which arguments determine them, then other numbers."""
        sizes = (e for s in self.inputs for e in s.shape)
        found = (e for e in sizes if isinstance(e, Var))
        return tuple(dict.fromkeys((*found, *self._numbers)))

    # --- arguments ------------------------------------------------------------------------------

    def fits(self, infos: Sequence[ArrayInfo], sizes: Mapping[Var, int]) -> bool:
        """Whether the kernels can use every argument where it is."""
        numbers = tuple(sizes.values())
        for k, (x, strides) in enumerate(zip(infos, self._input_strides, strict=True)):
            if not self._fits(x, k, strides(*numbers)) or self._is_shared(k, infos):
                return False
        return True

    def _is_shared(self, k: int, infos: Sequence[ArrayInfo]) -> bool:
        """Whether an argument that kernels write over shares memory with another one."""
        if k not in self.holders and k not in self.lent:
            return False
        return any(j != k and infos[k].overlaps(x) for j, x in enumerate(infos))

    def _fits(self, x: ArrayInfo, k: int, expected: tuple[int, ...]) -> bool:
        aligned = x.alignment >= max(self.host.roots[k].alignment, x.dtype.nbytes)
        return 0 in x.shape or (aligned and _lies(x, expected))

    def fitted(
        self, infos: Sequence[ArrayInfo], library: Library, sizes: Mapping[Var, int]
    ) -> list[ArrayInfo]:
        """The arguments, those that do not fit copied into arrays that do. Raises UserError where a
        layout whose elements share memory cannot hold the values."""
        out: list[ArrayInfo] = []
        for k, (x, evaluator) in enumerate(zip(infos, self._input_strides, strict=True)):
            strides = evaluator(*sizes.values())
            if not self._fits(x, k, strides) or self._is_shared(k, infos):
                if not _lies(x, strides) and overlaps_itself(x.shape, strides):
                    raise UserError(
                        f"argument {k}: with strides {strides} elements share memory, and the "
                        f"array has strides {x.strides}; compile for a spec without these strides"
                    )
                copy = library.empty(x.shape, strides, x.dtype, x.device)
                library.copy(copy, x.owner)
                self.copies += 1
                x = describe(copy)
            out.append(x)
        return out

    # --- running --------------------------------------------------------------------------------

    def on_device(
        self,
        infos: Sequence[ArrayInfo],
        library: Library,
        sizes: Mapping[Var, int],
        device: Device,
        out: Sequence[ArrayInfo | None] = (),
        workspace: ArrayInfo | None = None,
    ) -> list[Any]:
        """Runs on device arrays; results are new arrays of their library, or those of `out`; what
        kernels store for each other lies in the workspace, or in new memory."""
        plan = self.plan(sizes)
        with current(device.index):
            stream = library.stream(device)
            beside = [o for o in (*out, workspace) if o is not None]
            for s in dict.fromkeys(x.ready_on for x in (*infos, *beside)):
                wait_for(s, stream)
            infos = self.fitted(infos, library, sizes)
            types = self.result_types(sizes)
            given = [
                self._direct(o, infos, out, t, h)
                for (o, t), h in zip(_paired(out, types), self.holders, strict=True)
            ]
            results: list[Any] = []
            roots = [x.pointer for x in infos]
            for o, t, h in zip(given, types, self.holders, strict=True):
                if h is not None:
                    results.append(infos[h].owner if o is None else o.owner)
                    continue
                results.append(library.empty(*t, device) if o is None else o.owner)
                roots.append(library.address(results[-1]))
            scratch = None
            if plan.arena_nbytes and workspace is not None:
                roots.append(workspace.pointer)
            elif plan.arena_nbytes:
                scratch = library.empty((plan.arena_nbytes,), (1,), uint8, device)
                roots.append(library.address(scratch))
            graph = plan.replays(active().execution)
            graph = graph and not capturing(stream)
            plan.enqueue(roots, stream, device.index, graph=graph)
            for k, (o, h) in enumerate(zip(out or [None] * len(types), self.holders, strict=True)):
                if o is not None and given[k] is None:
                    library.copy(o.owner, results[k])
                    results[k] = o.owner
                elif o is not None or h is not None:
                    library.changed(results[k])
            for k in self.lent:
                library.changed(infos[k].owner)
        return results

    def _direct(
        self,
        o: ArrayInfo | None,
        infos: Sequence[ArrayInfo],
        out: Sequence[ArrayInfo | None],
        wanted: ResultType,
        holder: int | None,
    ) -> ArrayInfo | None:
        """The array of `out` if kernels may write it directly, else None (copied afterwards).
        `holder`: the argument in whose memory the result is made."""
        if o is None:
            return None
        if holder is not None and o.is_same_memory(infos[holder]):
            return o
        others = [*infos, *(x for x in out if x is not None and x is not o)]
        if holder is None and can_hold(o, wanted) and not any(o.overlaps(x) for x in others):
            return o
        self.copies += 1
        return None

    def on_host(
        self, arrays: Sequence[HostArray], sizes: Mapping[Var, int], device: int = 0
    ) -> list[HostArray]:
        """Copies flat host arrays in, runs, copies the results out (flat, in their layouts)."""
        plan = self.plan(sizes)
        outputs = [
            np.empty(span(shape, strides), dtype.numpy)
            for shape, strides, dtype in self.result_types(sizes)
        ]
        own = [a for a, h in zip(outputs, self.holders, strict=True) if h is None]
        nbytes = [a.nbytes for a in (*arrays, *own)]
        nbytes += [plan.arena_nbytes] if plan.arena_nbytes else []
        api = driver()
        memory: list[int] = []
        with current(device):
            try:
                memory += [allocate(n, device) if n else 0 for n in nbytes]
                for a, p in zip(arrays, memory, strict=False):
                    if a.nbytes:
                        check(api.cuMemcpyHtoD(p, a.ctypes.data, a.nbytes), "copy to the device")
                plan.enqueue(memory, 0, device, graph=False)
                fresh = iter(memory[len(arrays) :])
                for a, h in zip(outputs, self.holders, strict=True):
                    p = next(fresh) if h is None else memory[h]
                    if a.nbytes:
                        check(api.cuMemcpyDtoH(a.ctypes.data, p, a.nbytes), "copy from the device")
            finally:
                for p in memory:
                    free(p, device)
        return outputs


def _lies(x: ArrayInfo, strides: Sequence[int]) -> bool:
    """Whether the array has these strides, where it has steps."""
    return x.strides == strides or all(
        n <= 1 or a == b for n, a, b in zip(x.shape, x.strides, strides, strict=True)
    )


def can_hold(o: ArrayInfo, wanted: ResultType) -> bool:
    """Whether kernels may write a result to an array of its shape, if nothing else lies there."""
    return o.alignment >= 16 and _lies(o, wanted[1])


def _paired(
    out: Sequence[ArrayInfo | None], types: Sequence[ResultType]
) -> list[tuple[ArrayInfo | None, ResultType]]:
    return list(zip(out or [None] * len(types), types, strict=True))


def check_out(
    out: Sequence[ArrayInfo | None],
    types: Sequence[tuple[tuple[int, ...], DType]],
    like: str,
) -> None:
    """Raises UserError when an array of `out=` is not what the program returns there."""
    for k, (o, (shape, dtype)) in enumerate(zip(out, types, strict=True)):
        if o is None:
            continue
        if o.shape != shape or o.dtype is not dtype:
            raise UserError(
                f"out= {k} is {o.dtype}{list(o.shape)}, the result is {dtype}{list(shape)}; pass "
                "an array of this shape and dtype"
            )
        if f"{o.kind} on {o.device}" != like:
            raise UserError(f"out= {k} is {o.kind} on {o.device}, the arguments are {like}")
        if o.is_read_only:
            raise UserError(f"out= {k} is read-only; pass an array that can be written")
        if 0 not in shape and overlaps_itself(shape, o.strides):
            raise UserError(f"out= {k} is an expanded array: several elements share memory")
    check_outs_apart({k: bytes_of(o) for k, o in enumerate(out) if o is not None})


def bytes_of(o: ArrayInfo) -> ByteRegion:
    """The bytes of the elements of an array."""
    size = o.dtype.nbytes
    steps = [(n, abs(s) * size) for n, s in zip(o.shape, o.strides, strict=True)]
    return region(o.bytes_range[0], steps, size)


def check_outs_apart(places: Mapping[int, ByteRegion]) -> None:
    """Raises UserError where two arrays of `out=`, by position, have an element in common."""
    before: list[tuple[int, ByteRegion]] = []
    for k, place in sorted(places.items(), key=lambda x: x[1].start):
        before = [x for x in before if x[1].end > place.start]
        for j, other in before:
            if meet(other, place):
                first, end = place.start - other.start, min(other.end, place.end) - other.start
                raise UserError(
                    f"out= {j} and {k} share memory, bytes {first} to {end} of the first; results "
                    "are written in no order: pass arrays without a common element"
                )
        before.append((k, place))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
