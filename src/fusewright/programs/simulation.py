"""A program in the simulator: its launches one after the other, over memory of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.core.expr import Var
from fusewright.fusion.call_numbers import without_numbers
from fusewright.fusion.constants import completed, constants_of
from fusewright.fusion.evaluate import plain_array
from fusewright.fusion.ir import Tensor
from fusewright.host.control import Ask, BodyRun, Copy, RegionMemory
from fusewright.host.subspans import natural
from fusewright.kernel import Kernel, size_of
from fusewright.programs.memories import Memories
from fusewright.programs.model import Dispatch, ProgramModel, RegionBodies, as_shown
from fusewright.programs.overlap import Overlap
from fusewright.sim.launches import TouchedMemory
from fusewright.sim.machine import SimResult
from fusewright.sim.report import Race

Array = npt.NDArray[Any]


def simulate_program(
    program: ProgramModel, arrays: Sequence[Array], *, check_races: bool, seed: int
) -> SimResult:
    """Runs every kernel on memory whose bytes are 0xFF until one of them is written; `races` also
    lists what launches read, and results hold, of such bytes."""
    given, sizes = _given(program, arrays)
    run = Simulation(check_races=check_races, seed=seed)
    outputs = run.program(program, given, sizes)
    return SimResult(as_shown(program, outputs), run.races, run.stats)


def witnesses(
    program: ProgramModel, arrays: Sequence[Array]
) -> Iterator[tuple[Kernel, list[Array], Mapping[Var, int]]]:
    """Every kernel that runs once, with the arrays it reads when the program runs on these, and
    the values of symbols. A launch runs where another one reads what it writes, or has bodies."""
    given, sizes = _given(program, arrays)
    run = Simulation(check_races=False, seed=0)
    run.meet(program, given, sizes)
    for kernel, (read, known) in run.seen.items():
        yield kernel, read, known


def _memory_of(
    program: ProgramModel, arrays: Sequence[Array], sizes: Mapping[Var, int]
) -> Memories:
    """The memory of a run before its first launch."""
    given = dict(zip(program.fusion.inputs, arrays, strict=True))
    given |= {t: np.array(given[t], order="C") for t in program.held.values()}
    return Memories(sizes, given)


def _given(program: ProgramModel, arrays: Sequence[Any]) -> tuple[list[Array], Mapping[Var, int]]:
    """The arguments of a run, and the sizes of the symbols."""
    inputs = program.fusion.inputs
    arrays, numbers = without_numbers(program.fusion, arrays)
    arrays = completed(inputs, arrays, constants_of(inputs))
    given = [plain_array(a, f"argument {k}") for k, a in enumerate(arrays)]
    return given, program.symbol_values(given, numbers)


class Simulation:
    """One run: what was found, what was counted, and what each kernel read at its first launch,
    with the sizes there."""

    def __init__(self, *, check_races: bool, seed: int) -> None:
        self._check_races, self._seed = check_races, seed
        self.races: list[Race] = []
        self.stats: dict[str, int | float] = {}
        self.seen: dict[Kernel, tuple[list[Array], Mapping[Var, int]]] = {}

    def program(
        self, program: ProgramModel, arrays: Sequence[Array], sizes: Mapping[Var, int]
    ) -> list[Array]:
        """Runs a program, or a body of a region; its outputs."""
        memory, overlap = _memory_of(program, arrays, sizes), Overlap(sizes, self._seed)
        for k, x in enumerate(program.launches):
            self.races += memory.unwritten(x.reads, f"#{k} {x.kernel.name} reads", self._seed)
            touched = None
            if x.region is None:
                touched = self._launch(x, memory)
            else:
                self.region(x, x.region, memory)
            if touched is None:
                overlap.alone()
            else:
                self.races += overlap.launched(program.host.launches[k], touched)
        results = [natural(program.held.get(t, t)) for t in program.fusion.outputs]
        self.races += memory.unwritten(results, "the program returns", self._seed)
        return [memory.read(s) for s in results]

    def meet(
        self, program: ProgramModel, arrays: Sequence[Array], sizes: Mapping[Var, int]
    ) -> None:
        """Notes what the kernels of a program read, and runs only what comes before that."""
        memory = _memory_of(program, arrays, sizes)
        for k, x in enumerate(program.launches):
            later = {s.root for y in program.launches[k + 1 :] for s in y.reads}
            if x.region is not None:
                self.region(x, x.region, memory)
            elif any(s.root in later for s in x.writes):
                self._launch(x, memory)
            else:
                self._read(x, memory)

    def _read(self, x: Dispatch, memory: Memories) -> list[Array]:
        """What a launch reads, which is noted when it is the first of its kernel."""
        read = [memory.read(s) for s in x.reads]
        if x.kernel not in self.seen:
            self.seen[x.kernel] = [np.array(a) for a in read], memory.sizes
        return read

    def _launch(self, x: Dispatch, memory: Memories) -> TouchedMemory | None:
        """Runs one launch; what it writes is in memory afterwards. What it touches, where it may
        overlap with others."""
        read = self._read(x, memory)
        result = x.kernel.simulate(
            *read,
            check_races=self._check_races,
            seed=self._seed,
            symbols=memory.sizes,
            values=x.values,
        )
        for s, array, written in zip(x.writes, result.outputs, result.written, strict=True):
            memory.write(s, array, written)
        self.races += result.races
        for name, v in result.stats.items():
            self.stats[name] = self.stats.get(name, 0) + v
        return result.touched

    def region(self, x: Dispatch, region: RegionBodies, memory: Memories) -> None:
        """Runs the steps of a region over arrays in the places that the host program gives it."""
        host = region.host
        arrays: dict[tuple[str, int], Array] = {}
        for k, s in enumerate(x.reads):
            arrays["operand", k] = np.array(memory.read(s), order="C")
        for kind, types in (
            ("result", [(s.shape, s.tensor.dtype) for s in x.writes]),
            ("scratch", list(host.scratch)),
        ):
            for k, (shape, dtype) in enumerate(types):
                extents = [size_of(e, memory.sizes) for e in shape]
                empty = np.empty(extents, dtype.numpy)
                empty.reshape(-1).view(np.uint8)[...] = 0xFF
                arrays[kind, k] = empty
        for k in host.aliased:
            place = host.results[k]
            arrays[place.kind, place.position] = arrays["operand", k]
        self._steps(region, arrays, memory.sizes)
        for k, s in enumerate(x.writes):
            memory.write(s, arrays["result", k], np.ones(arrays["result", k].shape, bool))

    def _steps(
        self,
        region: RegionBodies,
        arrays: Mapping[tuple[str, int], Array],
        sizes: Mapping[Var, int],
    ) -> None:
        def at(p: RegionMemory) -> Array:
            whole = arrays[p.kind, p.position]
            if p.slice is None:
                return whole
            return whole[p.slice : p.slice + 1].reshape(whole.shape[1:])

        steps = region.host.steps(sizes)
        answer: bool | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            match step:
                case Copy(source=source, target=target):
                    at(target)[...] = at(source)
                case Ask(place=place):
                    answer = bool(at(place))
                case BodyRun(body=number, roots=roots, lap=lap):
                    known = region.host.sizes_in(sizes, lap)
                    self._body(region.bodies[number], [at(p) for p in roots], known)

    def _body(self, body: ProgramModel, roots: Sequence[Array], sizes: Mapping[Var, int]) -> None:
        """Runs a body over its arguments and the places of its results."""
        n = len(body.fusion.inputs)
        made = self.program(body, roots[:n], sizes)
        fresh = iter(roots[n:])
        results = dict.fromkeys(body.fusion.outputs)
        targets = [next(fresh) if h is None else roots[h] for h in body.holders]
        at: dict[Tensor, Array] = dict(zip(results, targets, strict=True))
        found = dict(zip(body.fusion.outputs, made, strict=True))
        for t, array in found.items():
            at[t][...] = array
