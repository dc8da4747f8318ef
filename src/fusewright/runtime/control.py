"""Regions with control flow on a device: launches of their bodies, iteration by iteration.

The host says which launches run. A condition that the device computes is read by the host, which
waits for it: a `while_loop` waits once an iteration, a `cond` once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from fusewright.core.expr import ONE, ZERO, Expr, Var
from fusewright.core.substitution import evaluate
from fusewright.dtypes import DType
from fusewright.errors import UserError
from fusewright.fusion.build import element_count
from fusewright.fusion.evaluate import trip_count
from fusewright.fusion.ir import Shape
from fusewright.host.assemble import HostProgram
from fusewright.host.control import Ask, BodyRun, Copy, HostRegion, RegionCall, RegionMemory, Step
from fusewright.runtime.device import capturing, check, driver
from fusewright.runtime.launch import LoadedKernel, PackedLaunch
from fusewright.runtime.region_graphs import MAX_NODES, Recorder
from fusewright.target import Target


class BodyPlan(Protocol):
    """What enqueues a body over addresses of its roots, or records it."""

    def enqueue(self, roots: Sequence[int], stream: int, device: int, *, graph: bool) -> None: ...
    def record(self, roots: Sequence[int], recorder: Recorder, device: int) -> None: ...
    @property
    def nodes(self) -> int | None: ...


Loaded: TypeAlias = "LoadedKernel | LoadedRegion"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRegion:
    """A region with the loaded kernels of its bodies."""

    host: HostRegion
    call: RegionCall
    target: Target
    bodies: tuple[tuple[HostProgram, Sequence[Loaded]], ...]

    @property
    def grid(self) -> tuple[Expr, Expr, Expr]:
        """No blocks: the bodies have some."""
        return ZERO, ONE, ONE

    @property
    def constant_shape(self) -> PackedLaunch:
        """No threads."""
        return PackedLaunch((0, 1, 1), (1, 1, 1), 0)


PlanOf: TypeAlias = Callable[[int, Mapping[Var, int]], BodyPlan]
"""What enqueues a body, by its number, for sizes."""


class RegionRun:
    """A region for given sizes."""

    def __init__(self, region: LoadedRegion, plan_of: PlanOf, sizes: Mapping[Var, int]) -> None:
        host, call = region.host, region.call
        self._host, self._plan_of = host, plan_of
        self._plans: dict[tuple[int, int | None], BodyPlan] = {}
        self._sizes, self._call = sizes, call
        self._api = driver()
        operands = [_Bytes.of(t, sizes) for t in call.operands]
        results = [_Bytes.of(call.results[k], sizes) for k in call.used]
        self._slice = {"operand": [x.slice for x in operands], "result": [x.slice for x in results]}
        stacked = [_Bytes.of(call.results[k], sizes).slice for k in call.stacked]
        if call.fn == "cond":
            self._copied = [_Bytes.of(t, sizes).whole for t in call.results]
        else:
            self._copied = [*(x.whole for x in operands[: call.carried]), *stacked]
        self._first = {"operand": 0, "result": len(operands), "scratch": len(operands + results)}
        self._flag = ctypes.c_uint8()

    def enqueue(self, addresses: Sequence[int], stream: int, device: int) -> None:
        """Enqueues the steps. `addresses`: of operands, results, scratch. Raises UserError for a
        condition while the stream's work is captured."""
        steps = self._host.steps(self._sizes)
        answer: bool | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            match step:
                case BodyRun(body=number, roots=roots, lap=lap):
                    where = [self._at(p, addresses) for p in roots]
                    self._plan(number, lap).enqueue(where, stream, device, graph=False)
                case Copy(source=source, target=target, output=k):
                    self._copy(addresses, source, target, k, stream)
                case Ask(place=place):
                    answer = self._ask(self._at(place, addresses), stream)

    @property
    def nodes(self) -> int | None:
        """How many nodes it is in a CUDA graph; None where a body cannot be recorded."""
        trips = self._call.trips
        laps = 1 if trips is None else trip_count(self._call.fn, trips, self._sizes)
        first = None if self._host.index is None else 0
        each = [self._plan(k, first).nodes for k in range(len(self._host.bodies)) if laps]
        known = [n for n in each if n is not None]
        if len(known) < len(each):
            return None
        return laps * (sum(known) + len(self._copied)) + 3

    def record(self, addresses: Sequence[int], recorder: Recorder, device: int) -> None:
        """Adds the steps to a CUDA graph, in which conditions stay on the device."""

        def add(steps: Iterable[Step], to: Recorder) -> None:
            for step in steps:
                match step:
                    case BodyRun(body=number, roots=roots, lap=lap):
                        where = [self._at(p, addresses) for p in roots]
                        self._plan(number, lap).record(where, to, device)
                    case Copy(source=source, target=target, output=k):
                        places = self._at(target, addresses), self._at(source, addresses)
                        if self._copied[k] and places[0] != places[1]:
                            to.copy(*places, self._copied[k])
                    case Ask():
                        raise AssertionError("conditions are nodes of the graph")

        host = self._host
        if host.fn == "cond":
            branches = [partial(add, host.branch(k)) for k in range(2)]
            recorder.choose(addresses[0], branches)
        elif host.trips is None:
            assert host.flag is not None
            first, condition, body = host.lap()
            add([*first, *condition], recorder)
            flag = self._at(host.flag, addresses)
            recorder.repeat(flag, partial(add, [*body, *condition]))
        else:
            add(host.steps(self._sizes), recorder)

    def _plan(self, number: int, lap: int | None) -> BodyPlan:
        """The plan of a body; those of the first iterations of a loop that tells them apart are
        kept."""
        key = number, lap
        found = self._plans.get(key)
        if found is None:
            found = self._plan_of(number, self._host.sizes_in(self._sizes, lap))
            if len(self._plans) < MAX_NODES:
                self._plans[key] = found
        return found

    def _at(self, p: RegionMemory, addresses: Sequence[int]) -> int:
        base = addresses[self._first[p.kind] + p.position]
        return base if p.slice is None else base + p.slice * self._slice[p.kind][p.position]

    def _copy(
        self,
        addresses: Sequence[int],
        source: RegionMemory,
        target: RegionMemory,
        k: int,
        stream: int,
    ) -> None:
        nbytes = self._copied[k]
        places = self._at(target, addresses), self._at(source, addresses)
        if nbytes and places[0] != places[1]:
            status = self._api.cuMemcpyDtoDAsync(*places, nbytes, stream)
            check(status, f"copy of a value of {self._call.fn}")

    def _ask(self, address: int, stream: int) -> bool:
        """Waits for a condition."""
        fn = self._call.fn
        if capturing(stream):
            raise UserError(
                f"{fn}: the host reads its condition and waits for it, which a CUDA graph that is "
                "captured does not allow; call the program outside of the capture, or use a "
                "fori_loop or scan of known length, or fw.where"
            )
        source = ctypes.addressof(self._flag)
        check(self._api.cuMemcpyDtoHAsync(source, address, 1, stream), f"condition of {fn}")
        check(self._api.cuStreamSynchronize(stream), f"condition of {fn}")
        return bool(self._flag.value)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes of an array, and of a slice along its first axis."""

    whole: int
    slice: int

    @staticmethod
    def of(t: tuple[Shape, DType], sizes: Mapping[Var, int]) -> _Bytes:
        shape, dtype = t
        counts = (evaluate(element_count(s), sizes) for s in (shape, shape[1:]))
        whole, part = (n * dtype.nbytes for n in counts)
        return _Bytes(whole, part)
