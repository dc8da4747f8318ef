"""`python -m bench.joined`: what NVRTC takes for many steps of an optimiser in one kernel.

The limit of statements in `programs/join_launches.py` comes from here; no GPU is needed. Times
are those of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit
from fusewright.kir.side_by_side import side_by_side
from fusewright.kir.traverse import walk_statements
from fusewright.target import target_of

COUNTS = (4, 8, 16, 24, 60)


def sgd(p: Any, g: Any) -> list[Any]:
    """One step."""
    return [p - g * 0.01]


def adamw(p: Any, g: Any, m: Any, v: Any) -> list[Any]:
    """One step."""
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return [p * 0.999 - m / (fw.sqrt(v) + 1e-3) * 0.01, m, v]


def shape(k: int, *, only_vectors: bool) -> tuple[int, int]:
    """The k-th of a list; every second one allows no vectors unless `only_vectors`."""
    return (1024 * (k + 1), 64) if only_vectors or k % 2 == 0 else (1001 + 64 * k, 63)


def main() -> None:
    """Prints tensors, statements and seconds."""
    target = target_of("sm_90a")
    steps: tuple[tuple[Callable[..., list[Any]], int], ...] = ((sgd, 2), (adamw, 4))
    for step, arity in steps:
        for only_vectors in (True, False):
            parts: list[fw.Kernel] = []
            for k in range(max(COUNTS)):
                spec = fw.TensorSpec(shape(k, only_vectors=only_vectors), "float32")
                parts += fw.compile(fw.trace(step, *[spec] * arity)).kernels
            for n in COUNTS:
                made = side_by_side([k.ir for k in parts[:n]], "step", [arity] * n)
                text = emit(made, target)
                begun = time.thread_time()
                compile_cubin(text, target, name="step")
                seconds = time.thread_time() - begun
                statements = sum(1 for _ in walk_statements(made))
                kind = "vectors" if only_vectors else "vectors and elements"
                print(f"{step.__name__}, {kind}: {n} tensors, {statements}, {seconds:.2f} s")


if __name__ == "__main__":
    main()
