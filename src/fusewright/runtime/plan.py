"""A host program for given sizes: prepacked arguments, ready to enqueue on any stream.

Every distinct address of the program has one slot in one buffer, which all launches' tables of
parameters point into; a call writes the slots with one `struct` operation and launches. What does
not depend on the sizes is found once, in the template, so that a new size costs microseconds.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fusewright.core.compiled import compiled
from fusewright.core.expr import ZERO, Var
from fusewright.errors import InternalError
from fusewright.host.assemble import HostProgram
from fusewright.host.branches import Branches
from fusewright.host.graph import by_consumer
from fusewright.host.ir import HostLaunch, RootKind
from fusewright.kir.symbols import TensorMap
from fusewright.runtime.control import Loaded, LoadedRegion, RegionRun
from fusewright.runtime.device import capturing, check, driver
from fusewright.runtime.forks import launch_on_branches
from fusewright.runtime.graphs import GraphCache, LaunchNode
from fusewright.runtime.launch import (
    PackedLaunch,
    argument_bits,
    check_grid,
    slot_format,
)
from fusewright.runtime.locks import fork_safe_lock
from fusewright.runtime.nvtx import ranges
from fusewright.runtime.prepared import Prepared, prepared
from fusewright.runtime.region_graphs import MAX_NODES, Recorder, RegionGraphs
from fusewright.runtime.specialised_call import address_writer
from fusewright.runtime.state import States
from fusewright.runtime.tensor_maps import encoded, shape_of
from fusewright.target import TENSOR_MAP_NBYTES

_SLOT_NBYTES = 8
_ADDRESS = struct.Struct("=Q")
_MAP = struct.Struct(f"{TENSOR_MAP_NBYTES}s")
"""Packed in one piece: a slice of a ctypes array takes its bytes one by one, 5 us a map."""
GRAPH_LAUNCHES = 3
"""Launches from which a graph costs less than launching one by one (3.1 us each). Two that run side
by side are a graph too."""
NOWHERE = -1
"""The number of no stream."""


@dataclass(frozen=True, slots=True)
class _PreparedRegion:
    """A region: its number in the host program, and the slots of its addresses in the plan's
    buffer."""

    number: int
    run: RegionRun
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlainLaunches:
    """Launches that are all there is to a plan, one after the other."""

    plan: CallPlan


@dataclass(frozen=True, slots=True, eq=False)
class SpelledLaunches:
    """So many launches for `specialised_call.launch_lines`: the root that each slot of an address
    lies in, the bytes behind its begin, and what the lines name."""

    count: int
    slots: tuple[tuple[int, int], ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _LaunchPart:
    """One launch in the buffer: the positions of its parameters' slots, that of its table, its
    block and shared memory."""

    slots: tuple[int, ...]
    table: int
    block: tuple[int, int, int]
    shared_nbytes: int


@dataclass(frozen=True, slots=True)
class _MapSlot:
    """One tensor map in the buffer: the position of its slots, that of its array's address, and the
    positions of the sizes it depends on."""

    at: int
    address: int
    map: TensorMap
    position: Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Bytes of the arena and of semaphores, offsets of the slots in their roots, blocks along x, y
    and z of launches."""

    arena_nbytes: int
    state_nbytes: int
    offsets: tuple[int, ...]
    grids: tuple[int, ...]


class PlanTemplate:
    """What the plans of a host program share, whatever the sizes: a buffer of slots (addresses,
    then scalar parameters) and tables that point at them, and one function for all numbers that
    depend on the sizes."""

    def __init__(
        self,
        host: HostProgram,
        kernels: Sequence[Loaded],
        symbols: Sequence[Var],
        *,
        shares_graphs: bool = False,
    ) -> None:
        """`kernels` stand in the order of the host program's launches; `symbols` are those that
        sizes are given for. `shares_graphs`: values change from call to call, as numbers do, so
        that one graph is updated for all, where sizes that come again have graphs of their
        own."""
        self.shares_graphs = shares_graphs
        self._graphs: dict[tuple[int, tuple[int, ...]], GraphCache] = {}
        self.host = host
        self.kernels = tuple(kernels)
        self.symbols = tuple(symbols)
        self.regions = {
            i: [PlanTemplate(h, loaded, _known_in(k, symbols)) for h, loaded in k.bodies]
            for i, k in enumerate(self.kernels)
            if isinstance(k, LoadedRegion)
        }
        self.lock = fork_safe_lock()
        self.ranges = ranges()
        root = {r: k for k, r in enumerate(host.roots)}
        places = [[(root[b.root], b.offset) for b in x.bindings] for x in host.launches]
        slots = {place: k for k, place in enumerate(dict.fromkeys(p for x in places for p in x))}
        self.roots = tuple(r for r, _ in slots)
        address_format = struct.Struct(f"={len(slots)}Q")
        self.pack, self._writer = address_format.pack_into, address_writer(self.roots)
        position = {v: k for k, v in enumerate(symbols)}
        formats: list[str] = []
        values: list[bool | int | float] = []
        self.sized: list[tuple[int, int]] = []
        parts: list[_LaunchPart] = []
        end = len(slots)
        for x, kernel, own in zip(host.launches, self.kernels, places, strict=True):
            taken = [slots[p] for p in own]
            for form, value in _scalars(x, position):
                if isinstance(value, _SizeOf):
                    self.sized.append((len(values), value.position))
                values.append(0 if isinstance(value, _SizeOf) else value)
                formats.append(_padded(form))
                taken.append(end)
                end += 1
            shape = kernel.constant_shape
            parts.append(_LaunchPart(tuple(taken), 0, shape.block, shape.shared_nbytes))
        parts, self.maps, end = _map_slots(host.launches, parts, position, end)
        self.scalars = values
        self.scalar_format = struct.Struct("=" + "".join(formats))
        self.scalars_at = len(slots) * _SLOT_NBYTES
        self.parts, self.table, self.table_at = _tables(parts, end)
        self.nbytes = self.table_at + max(1, len(self.table)) * _SLOT_NBYTES
        self.table_format = struct.Struct(f"={len(self.table)}Q")
        arena = host.arena.nbytes if host.arena.offsets else ZERO
        state = next((r.nbytes for r in host.roots if r.kind is RootKind.STATE), ZERO)
        self.states = States() if state != ZERO else None
        grids = [e for k in self.kernels for e in k.grid]
        self._numbers = compiled([arena, state, *(offset for _, offset in slots), *grids], symbols)

    def graphs(self, device: int, launched: tuple[int, ...]) -> GraphCache:
        """The graphs that plans share which launch these kernels."""
        return self._graphs.setdefault((device, launched), GraphCache())

    def numbers(self, sizes: Sequence[int]) -> _Numbers:
        """What depends on the sizes."""
        arena, state, *rest = self._numbers(*sizes)
        n = len(self.roots)
        return _Numbers(arena, state, tuple(rest[:n]), tuple(rest[n:]))

    def writer(self, buffer: Any, offsets: Sequence[int]) -> Callable[[Sequence[int]], None]:
        """Writes the slots of addresses in a buffer, given those of the roots."""
        return self._writer(self.pack, buffer, *offsets)


def _map_slots(
    launches: Sequence[HostLaunch],
    parts: Sequence[_LaunchPart],
    position: Mapping[Var, int],
    end: int,
) -> tuple[list[_LaunchPart], list[_MapSlot], int]:
    """The launches with slots for their tensor maps, these, and the end of all slots."""
    out: list[_LaunchPart] = []
    maps: list[_MapSlot] = []
    for x, part in zip(launches, parts, strict=True):
        own: list[int] = []
        for m in x.kernel.maps:
            address = part.slots[x.kernel.params.index(m.buffer)]
            maps.append(_MapSlot(end, address, m, position))
            own.append(end)
            end += TENSOR_MAP_NBYTES // _SLOT_NBYTES
        out.append(replace(part, slots=(*part.slots, *own)) if own else part)
    return out, maps, end


def _known_in(region: LoadedRegion, symbols: Sequence[Var]) -> tuple[Var, ...]:
    """The symbols that a region's bodies are given values for."""
    lap = region.host.index
    return tuple(symbols) if lap is None else (*symbols, lap)


def _body_plan(bodies: Sequence[PlanTemplate], number: int, sizes: Mapping[Var, int]) -> CallPlan:
    """What enqueues a body for sizes."""
    body = bodies[number]
    return CallPlan(body, [sizes[v] for v in body.symbols])


@dataclass(frozen=True, slots=True)
class _SizeOf:
    """A scalar parameter that is the size at a position."""

    position: int


def _padded(form: str) -> str:
    """The format of a scalar that fills its slot."""
    rest = _SLOT_NBYTES - struct.calcsize(f"={form}")
    return f"{form}{rest}x" if rest else form


def _tables(parts: Sequence[_LaunchPart], end: int) -> tuple[list[_LaunchPart], list[int], int]:
    """The launches with the places of their tables, the slots that all tables list, and the byte
    at which the first table stands."""
    listed: list[int] = []
    out: list[_LaunchPart] = []
    for x in parts:
        out.append(replace(x, table=len(listed)))
        listed += x.slots
    return out, listed, max(1, end) * _SLOT_NBYTES


class CallPlan:
    """What a call of these sizes needs: bytes of arena, and packed launches."""

    def __init__(self, template: PlanTemplate, sizes: Sequence[int]) -> None:
        """`sizes` are the values of the template's symbols."""
        t = template
        numbers = t.numbers(sizes)
        offsets, grids = numbers.offsets, numbers.grids
        self.arena_nbytes = numbers.arena_nbytes
        self._states, self._state_nbytes = t.states, numbers.state_nbytes
        self._host = t.host
        self._api = driver()
        self._ranges = t.ranges
        self._lock = t.lock
        self.stream = 0
        """The stream that all launches are configured for."""
        self._offsets = offsets
        self._template, self._values = t, tuple(sizes)
        self._graphs: dict[int, tuple[GraphCache, list[LaunchNode]]] = {}
        self._region_graphs: dict[int, RegionGraphs] = {}
        self._prepared_for: set[int] = set()
        self._buffer = ctypes.create_string_buffer(t.nbytes)
        self._write_addresses = t.writer(self._buffer, offsets)
        self._maps = [
            (m, shape_of(m.map, {v: sizes[k] for v, k in m.position.items()})) for m in t.maps
        ]
        self._written: tuple[int, ...] = ()
        self._write = self._write_with_maps if self._maps else self._write_addresses
        base = ctypes.addressof(self._buffer)
        scalars = list(t.scalars)
        for at, position in t.sized:
            scalars[at] = sizes[position]
        t.scalar_format.pack_into(self._buffer, t.scalars_at, *scalars)
        listed = [base + k * _SLOT_NBYTES for k in t.table]
        t.table_format.pack_into(self._buffer, t.table_at, *listed)
        made: list[Prepared] = []
        order: list[Prepared | _PreparedRegion] = []
        for i, (kernel, part) in enumerate(zip(t.kernels, t.parts, strict=True)):
            grid = grids[3 * i], grids[3 * i + 1], grids[3 * i + 2]
            if isinstance(kernel, LoadedRegion):
                plan_of = partial(_body_plan, t.regions[i])
                known = dict(zip(t.symbols, sizes, strict=True))
                order.append(_PreparedRegion(i, RegionRun(kernel, plan_of, known), part.slots))
                continue
            check_grid(kernel.kernel, grid)
            if 0 in grid:
                continue
            shape = PackedLaunch(grid, part.block, part.shared_nbytes)
            address = base + t.table_at + part.table * _SLOT_NBYTES
            is_first = not (order and isinstance(order[-1], Prepared))
            made.append(prepared(i, kernel, shape, address, is_first=is_first))
            order.append(made[-1])
        self.launches = tuple(made)
        self._order = tuple(order) if t.regions else ()
        self._mark: Callable[[int], None] | None = None
        own = t.host.branches
        is_forked = own.count > 1 and len(made) == len(t.host.launches)
        self._branches = own if is_forked else None

    @property
    def nodes(self) -> int | None:
        """How many nodes it is as a part of a recorded graph; None where semaphores forbid that,
        which belong to a stream."""
        inside = [x.run.nodes for x in self._order if isinstance(x, _PreparedRegion)]
        known = [n for n in inside if n is not None]
        if len(known) < len(inside) or self._states is not None:
            return None
        return len(self.launches) + sum(known)

    def replays(self, execution: str) -> bool:
        """Whether calls replay a graph. Programs with regions do, up to a number of nodes."""
        if not self._order:
            return uses_graph(len(self.launches), execution, self.branches)
        nodes = None if execution == "stream" else self.nodes
        return nodes is not None and nodes <= MAX_NODES

    @property
    def branches(self) -> int:
        """How many launches may run side by side."""
        return 1 if self._branches is None else self._branches.count

    @property
    def _label(self) -> str:
        """What profilers show: the kernels' names."""
        return ", ".join(x.kernel.kernel.name for x in self.launches)

    # --- running --------------------------------------------------------------------------------

    def enqueue(self, roots: Sequence[int], stream: int, device: int, *, graph: bool) -> None:
        """Launches everything on a stream, as a graph or one by one. `roots` are the addresses of
        the host program's roots, without that of an arena of no bytes, and without that of
        semaphores, which the runtime keeps. The caller has made the device's context current."""
        if graph and self._order:
            if self._replay_regions(tuple(roots), stream, device):
                return
            graph = False
        if self._states is None:
            self._enqueue(roots, stream, device, graph=graph)
        else:
            try:
                state = self._states.address(self._state_nbytes, stream)
                no_arena = (0,) * (len(self._host.roots) - 1 - len(roots))
                self._enqueue((*roots, *no_arena, state), stream, device, graph=graph)
            except InternalError:
                self._states.forget(stream)
                raise

    def enqueue_marked(
        self, roots: Sequence[int], stream: int, device: int, mark: Callable[[int], None]
    ) -> None:
        """`enqueue` one by one, with a call of `mark` behind each launch, of its number in the host
        program. For measuring."""
        self._mark = mark
        try:
            self.enqueue(roots, stream, device, graph=False)
        finally:
            self._mark = None

    def _enqueue(self, roots: Sequence[int], stream: int, device: int, *, graph: bool) -> None:
        with self._lock:
            if device not in self._prepared_for:
                self._allow_shared(device)
            if self._ranges is not None:
                self._ranges.push(self._label)
            if graph:
                self._replay(*self._graphs_on(device), tuple(roots), stream)
            elif self._branches is not None and capturing(stream):
                self._write(roots)
                self._fork(self._branches, stream)
            else:
                self._write(roots)
                if stream != self.stream:
                    self.move_to(stream)
                if self._order or self._mark is not None:
                    self._launch_in_order(stream, device)
                else:
                    self._launch(self.launches)
            if self._ranges is not None:
                self._ranges.pop()

    def steady(self, device: int, *, graph: bool) -> PlainLaunches | Callable[..., None]:
        """What `enqueue` does on a device that calls were made on before: launches, where these are
        all there is to it, or a function of the addresses of all roots and a stream. `graph`: as
        long as nobody captures."""
        t = self._template
        plain = self._states is None and self._ranges is None and not self._order
        plain = plain and device in self._prepared_for
        if plain and graph and not t.shares_graphs:
            return self._replayed(device)
        if graph or not plain or self._branches is not None or self._maps:

            def enqueue(*given: int) -> None:
                *addresses, stream = given
                replayed = graph and not capturing(stream)
                self.enqueue(addresses, stream, device, graph=replayed)

            return enqueue
        return PlainLaunches(self)

    def spelled(self) -> SpelledLaunches:
        """The launches as a function may spell them, with a buffer and configurations of their
        own, on a device that calls were made on before."""
        t = self._template
        own = CallPlan(t, self._values)
        named: dict[str, Any] = {"plan": own, "buffer": own._buffer, "pack": t.pack}
        named |= {"launch": self._api.cuLaunchKernelEx}
        for k, x in enumerate(own.launches):
            named |= {f"config{k}": x.config, f"kernel{k}": x.kernel.handle, f"table{k}": x.address}
        return SpelledLaunches(
            len(own.launches), tuple(zip(t.roots, own._offsets, strict=True)), named
        )

    def _replayed(self, device: int) -> Callable[..., None]:
        """`steady` by graphs of its own. Calls in one place mostly have addresses that were there
        before, but the places that share a plan, such as the layers of a model, have more of them
        together than a plan keeps graphs for: each would update what another one comes back to."""
        graphs, nodes = GraphCache(), self._nodes()

        def enqueue(*given: int) -> None:
            roots, stream = given[:-1], given[-1]
            if capturing(stream):
                self.enqueue(roots, stream, device, graph=False)
                return
            with self._lock:
                self._replay(graphs, nodes, roots, stream)

        return enqueue

    def check_launch(self, k: int, status: tuple[Any, ...]) -> None:
        """Raises InternalError for a launch that failed, with the driver's words."""
        x = self.launches[k]
        check(status, f"launch of {x.kernel.kernel.name} with {x.shape}")

    def _launch(self, launches: Iterable[Prepared]) -> None:
        launch = self._api.cuLaunchKernelEx
        for x in launches:
            status = launch(x.config, x.kernel.handle, x.address, 0)
            if status[0]:
                check(status, f"launch of {x.kernel.kernel.name} with {x.shape}")

    def _launch_in_order(self, stream: int, device: int) -> None:
        """The launches in order, those of regions step by step."""
        for x in self._order or self.launches:
            if isinstance(x, Prepared):
                self._launch((x,))
            else:
                x.run.enqueue(self._addresses(x), stream, device)
            if self._mark is not None:
                self._mark(x.number)

    def _fork(self, branches: Branches, stream: int) -> None:
        """Launches everything into the caller's capture, each branch on a stream of its own."""

        def launched(x: Prepared, on: int) -> None:
            x.on(on, overlaps=False)  # what is before it on its branch may be an event
            self._launch((x,))

        self.stream = NOWHERE
        launch_on_branches([partial(launched, x) for x in self.launches], branches, stream)

    def _write_with_maps(self, roots: Sequence[int]) -> None:
        """Writes addresses, and the tensor maps of those that are new."""
        if self._written == tuple(roots):
            return
        self._write_addresses(roots)
        for m, shape in self._maps:
            (address,) = _ADDRESS.unpack_from(self._buffer, m.address * _SLOT_NBYTES)
            _MAP.pack_into(self._buffer, m.at * _SLOT_NBYTES, encoded(address, shape))
        self._written = tuple(roots)

    def move_to(self, stream: int) -> None:
        """Makes a stream the one of all launches."""
        for x in self.launches:
            x.on(stream)
        self.stream = stream

    def record(self, roots: Sequence[int], recorder: Recorder, device: int) -> None:
        """Adds the launches to a CUDA graph, one behind the other."""
        with self._lock:
            if device not in self._prepared_for:
                self._allow_shared(device)
            self._write(roots)
            for x in self._order or self.launches:
                if isinstance(x, Prepared):
                    recorder.kernel(x.node_params)
                else:
                    x.run.record(self._addresses(x), recorder, device)

    def _addresses(self, x: _PreparedRegion) -> list[int]:
        """Where the operands, results and scratch of a region lie."""
        return [_ADDRESS.unpack_from(self._buffer, s * _SLOT_NBYTES)[0] for s in x.slots]

    def _replay_regions(self, roots: tuple[int, ...], stream: int, device: int) -> bool:
        """Launches the recorded graph for these addresses; False where there is none yet."""
        graphs = self._region_graphs.get(device)
        if graphs is None:
            target = next(k.target for k in self._template.kernels if isinstance(k, LoadedRegion))
            graphs = self._region_graphs[device] = RegionGraphs(target)
        return graphs.launch(roots, lambda recorder: self.record(roots, recorder, device), stream)

    def _replay(
        self, graphs: GraphCache, nodes: Sequence[LaunchNode], roots: tuple[int, ...], stream: int
    ) -> None:
        key = (roots, self._values)
        handle = graphs.find(key)
        if handle is None:
            self._write(roots)
            handle = graphs.prepare(key, nodes)
        status = self._api.cuGraphLaunch(handle, stream)
        if status[0]:
            check(status, "cuGraphLaunch")

    def _graphs_on(self, device: int) -> tuple[GraphCache, list[LaunchNode]]:
        """The graphs of all calls that nobody has written out, and the launches as their nodes."""
        found = self._graphs.get(device)
        if found is None:
            shared, launched = self._template.shares_graphs, tuple(x.number for x in self.launches)
            graphs = self._template.graphs(device, launched) if shared else GraphCache()
            found = self._graphs[device] = graphs, self._nodes()
        return found

    def _nodes(self) -> list[LaunchNode]:
        """The launches as nodes of a graph. A launch without blocks computes nothing and makes
        nobody wait, but what waits for it waits for what it waits for."""
        place = {x.number: k for k, x in enumerate(self.launches)}
        after: list[tuple[int, ...]] = []
        for edges in by_consumer(self._host.edges, len(self._host.launches)):
            waits: dict[int, None] = {}
            for e in edges:
                p = e.producer
                waits |= dict.fromkeys((place[p],) if p in place else after[p])
            after.append(tuple(waits))
        return [
            LaunchNode(x.kernel, x.node_params, after[x.number], x.is_early) for x in self.launches
        ]

    def _allow_shared(self, device: int) -> None:
        for x in self.launches:
            x.kernel.allow_shared(x.shape.shared_nbytes, device)
        self._prepared_for.add(device)


def uses_graph(launches: int, execution: str, branches: int = 1) -> bool:
    """Whether a program of so many launches, on so many branches, replays as a graph."""
    match execution:
        case "stream":
            return False
        case "graph":
            return launches > 1
        case _:
            return launches >= GRAPH_LAUNCHES or branches > 1


def _scalars(
    x: HostLaunch, position: Mapping[Var, int]
) -> list[tuple[str, bool | int | float | _SizeOf]]:
    """The formats and values of a launch's scalar parameters: arguments, then sizes."""
    values: list[bool | int | float | _SizeOf] = [
        argument_bits(v, a) for v, a in zip(x.values, x.kernel.arguments, strict=True)
    ]
    values += [_SizeOf(position[s]) for s in x.kernel.symbols]
    return list(zip(slot_format(x.kernel), values, strict=True))
