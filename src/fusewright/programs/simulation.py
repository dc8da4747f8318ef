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
from fusewright.host.subspans import natural
from fusewright.kernel import Kernel
from fusewright.programs.memories import Memories
from fusewright.programs.model import Dispatch, ProgramModel
from fusewright.sim.machine import SimResult
from fusewright.sim.report import Race

Array = npt.NDArray[Any]


def simulate_program(
    program: ProgramModel, arrays: Sequence[Array], *, check_races: bool, seed: int
) -> SimResult:
    """Runs every kernel on memory whose bytes are 0xFF until one of them is written; `races` also
    lists what launches read, and results hold, of such bytes."""
    races: list[Race] = []
    stats: dict[str, int | float] = {}
    memory = _memories(program, arrays)
    for k, x in enumerate(program.launches):
        races += memory.unwritten(x.reads, f"#{k} {x.kernel.name} reads", seed)
        result = _run(x, memory, check_races=check_races, seed=seed)
        races.extend(result.races)
        for name, v in result.stats.items():
            stats[name] = stats.get(name, 0) + v
    results = [natural(program.held.get(t, t)) for t in program.fusion.outputs]
    races += memory.unwritten(results, "the program returns", seed)
    return SimResult([memory.read(s) for s in results], races, stats)


def witnesses(
    program: ProgramModel, arrays: Sequence[Array]
) -> Iterator[tuple[Kernel, list[Array], Mapping[Var, int]]]:
    """Every kernel once, with the arrays it reads when the program runs on these, and sizes."""
    memory = _memories(program, arrays)
    seen: set[Kernel] = set()
    for x in program.launches:
        if x.kernel not in seen:
            seen.add(x.kernel)
            yield x.kernel, [memory.read(s) for s in x.reads], memory.sizes
        _run(x, memory, check_races=False, seed=0)


def _memories(program: ProgramModel, arrays: Sequence[Any]) -> Memories:
    """The memory of a run before its first launch."""
    inputs = program.fusion.inputs
    arrays, numbers = without_numbers(program.fusion, arrays)
    arrays = completed(inputs, arrays, constants_of(inputs))
    arrays = tuple(plain_array(a, f"argument {k}") for k, a in enumerate(arrays))
    symbols = program.symbol_values(arrays, numbers)
    given = dict(zip(inputs, arrays, strict=True))
    given |= {t: np.array(given[t], order="C") for t in program.held.values()}
    return Memories(symbols, given)


def _run(x: Dispatch, memory: Memories, *, check_races: bool, seed: int) -> SimResult:
    """Runs one launch; what it writes is in memory afterwards."""
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
