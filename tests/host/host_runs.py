"""Runs a host program on bytes: roots are byte arrays, launches see their bindings and no more."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import fusewright as fw
from fusewright.core.expr import Var
from fusewright.core.substitution import evaluate
from fusewright.fusion.call_numbers import without_numbers
from fusewright.fusion.constants import completed, constants_of
from fusewright.host.ir import HostLaunch, Root, RootKind
from fusewright.kernel import flatten, shaped_view
from fusewright.programs.simulation import Simulation
from fusewright.sim.machine import simulate

POISON = 0xFF


def agreed(
    fn: Callable[..., Any],
    *specs: Any,
    donate: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    numbers: Sequence[int] = (),
    orders: int = 3,
) -> fw.Program:
    """The program of a function; oracle, simulator and the host program on bytes, in random orders
    that its edges allow, agree on random arrays, and no argument is written by the simulator.
    `sizes` are those of symbols, `numbers` the values of the integers among the specs."""
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion, donate=donate)
    given = [*drawn_arrays(specs, sizes or {}), *numbers]
    before = [np.array(a) for a in given]
    wanted = fw.evaluate(fusion, *given)
    result = program.simulate(*given)
    assert result.races == []
    runs = [result.outputs, *(run_on_bytes(program, *given, seed=k) for k in range(orders))]
    for outputs in runs:
        for got, want in zip(outputs, wanted, strict=True):
            scale = 1e-2 if got.dtype.itemsize < 4 else 1e-4
            a, b = got.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=scale, atol=scale)
    for a, b in zip(given, before, strict=True):
        np.testing.assert_array_equal(a, b, "simulating changes no argument")
    return program


def drawn_arrays(specs: Sequence[Any], sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Normal numbers of the shapes and types of specs, without those that are no arrays."""
    rng = np.random.default_rng(0)
    arrays = [s for s in specs if isinstance(s, fw.TensorSpec)]
    named = [[getattr(e, "name", e) for e in s.shape] for s in arrays]
    shapes = [[sizes.get(e, e) for e in shape] for shape in named]
    return [
        (3 * rng.standard_normal(n)).astype(s.dtype.numpy)
        for s, n in zip(arrays, shapes, strict=True)
    ]


def run_on_bytes(program: fw.Program, *arguments: Any, seed: int = 0) -> list[np.ndarray]:
    """The outputs after the launches have run in a random order that the edges allow."""
    arrays, numbers = without_numbers(program.fusion, arguments)
    arrays = completed(program.fusion.inputs, arrays, constants_of(program.fusion.inputs))
    sizes = program.symbol_values(arrays, numbers)
    host = program.host
    memory = memory_of(program, arrays, sizes)
    for i in random_order(host, random.Random(seed)):
        if host.launches[i].region is None:
            run_launch(host.launches[i], memory, sizes)
        else:
            _region(program.launches[i], host.launches[i], memory, sizes)
    outputs: list[np.ndarray] = []
    for at, place in zip(host.outputs, program.places, strict=True):
        info = program.results[place]
        flat = memory[host.roots[at]].view(info.dtype.numpy)
        outputs.append(shaped_view(flat, info, sizes))
    return outputs


def memory_of(
    program: fw.Program, arrays: Sequence[Any], sizes: Mapping[Var, int]
) -> dict[Root, np.ndarray]:
    """The bytes of every root: arguments, and poison."""
    roots = program.host.roots
    memory = {r: np.full(evaluate(r.nbytes, sizes), POISON, np.uint8) for r in roots}
    inputs = [r for r in roots if r.kind is RootKind.INPUT]
    for r, a, info in zip(inputs, arrays, program.inputs, strict=True):
        memory[r][:] = flatten(np.asarray(a), info, sizes).view(np.uint8)
    return memory


def random_order(host: fw.HostProgram, rng: random.Random) -> list[int]:
    """The launches in an order in which every edge goes forward."""
    waits = dict.fromkeys(range(len(host.launches)), 0)
    for e in host.edges:
        waits[e.consumer] += 1
    order: list[int] = []
    while waits:
        ready = [i for i, n in waits.items() if n == 0]
        chosen = rng.choice(ready)
        order.append(chosen)
        del waits[chosen]
        for e in host.edges:
            if e.producer == chosen:
                waits[e.consumer] -= 1
    return order


def run_launch(x: HostLaunch, memory: dict[Root, np.ndarray], sizes: dict[Var, int]) -> None:
    """Runs one kernel on the bytes that it binds."""
    kernel = x.kernel
    views: dict[Any, np.ndarray] = {}
    for buffer, b in zip(kernel.params, x.bindings, strict=True):
        start, nbytes = evaluate(b.offset, sizes), evaluate(b.nbytes, sizes)
        assert start % buffer.alignment == 0, (b, "is not aligned as its kernel believes")
        assert start + nbytes <= memory[b.root].size, (b, "does not end inside its root")
        views[buffer] = memory[b.root][start : start + nbytes].view(buffer.dtype.numpy)
    simulate(
        kernel,
        views,
        arguments=dict(zip(kernel.arguments, x.values, strict=True)),
        symbols={s: sizes[s] for s in kernel.symbols},
        check_races=False,
    )


def _region(x: Any, launch: HostLaunch, memory: dict[Root, np.ndarray], sizes: Any) -> None:
    """Runs the bodies of a region on arrays; its results go where the launch binds them."""
    bound = dict(zip((*x.reads, *x.writes), launch.bindings, strict=True))

    class Bound:
        """The sites of the region, in the memory of the host program."""

        def __init__(self) -> None:
            self.sizes = sizes

        def view(self, s: Any) -> np.ndarray:
            b = bound[s]
            start = evaluate(b.offset, sizes)
            flat = memory[b.root][start : start + evaluate(b.nbytes, sizes)]
            steps = [evaluate(step, sizes) for _, step in b.axes]
            shape = [evaluate(n, sizes) for n, _ in b.axes]
            elements = flat.view(s.tensor.dtype.numpy)
            return np.lib.stride_tricks.as_strided(elements, shape, steps)

        def read(self, s: Any) -> np.ndarray:
            return self.view(s)

        def write(self, s: Any, array: np.ndarray, written: np.ndarray) -> None:
            np.copyto(self.view(s), array, where=written)

    Simulation(check_races=False, seed=0).region(x, x.region, Bound())
