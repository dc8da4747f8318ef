"""Kernels whose blocks begin late, each by a time of its own. Needs no device but to run."""

from __future__ import annotations

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit

DELAY = """
  { unsigned long long now, end; unsigned id = blockIdx.x * 7919u + blockIdx.y * 104729u + SEED;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); id += RUN;
    id ^= id >> 13; id *= 2654435761u; id ^= id >> 16; end = now + id % 20000u;
    while (now < end) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); }
"""
"""A block spins for up to 20 us, another time for each seed, and in each run where RUN says when it
is."""


def delayed(text: str, seed: int | None) -> str:
    """The CUDA text with a delay at the beginning of the kernel: the same in all runs for a seed,
    another one in each run for None."""
    known = {"SEED": f"{seed or 0}u", "RUN": "(unsigned)(now >> 5)" if seed is None else "0u"}
    delay = DELAY
    for name, value in known.items():
        delay = delay.replace(name, value)
    prelude, kernel = text.split('extern "C"', 1)
    head, body = kernel.split("{\n", 1)
    return f'{prelude}extern "C"{head}{{\n{delay}{body}'


def with_late_blocks(program: fw.Program) -> fw.Program:
    """The program, in all of whose kernels blocks begin late, otherwise in each run."""
    for k in program.kernels:
        text = delayed(emit(k.ir, k.target), None)
        k.adopt(compile_cubin(text, k.target, name=k.name, contract=True))
    return program
