"""Runs a host program on bytes: roots are byte arrays, launches see their bindings and no more."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import fusewright as fw
from fusewright.core.expr import Var
from fusewright.core.substitution import evaluate
from fusewright.fusion.call_numbers import without_numbers
from fusewright.host.ir import HostLaunch, Root, RootKind
from fusewright.kernel import flatten, shaped_view
from fusewright.sim.machine import simulate

POISON = 0xFF


def run_on_bytes(program: fw.Program, *arguments: Any, seed: int = 0) -> list[np.ndarray]:
    """The outputs after the launches have run in a random order that the edges allow."""
    arrays, numbers = without_numbers(program.fusion, arguments)
    sizes = program.symbol_values(arrays, numbers)
    host = program.host
    memory = {r: np.full(evaluate(r.nbytes, sizes), POISON, np.uint8) for r in host.roots}
    inputs = [r for r in host.roots if r.kind is RootKind.INPUT]
    for r, a, info in zip(inputs, arrays, program.inputs, strict=True):
        memory[r][:] = flatten(np.asarray(a), info, sizes).view(np.uint8)
    for i in random_order(host, random.Random(seed)):
        _launch(host.launches[i], memory, sizes)
    outputs: list[np.ndarray] = []
    for at, place in zip(host.outputs, program.places, strict=True):
        info = program.results[place]
        flat = memory[host.roots[at]].view(info.dtype.numpy)
        outputs.append(shaped_view(flat, info, sizes))
    return outputs


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


def _launch(x: HostLaunch, memory: dict[Root, np.ndarray], sizes: dict[Var, int]) -> None:
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
