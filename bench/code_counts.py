"""Counts the figures of `CODE` (core/instructions.py) in machine code. Needs NVRTC, but no GPU.

    python -m bench.code_counts [--target sm_90a]

Method: two kernels that differ in one thing are compiled, and their instructions are told apart up
to the exit; what a thread executes is what stands there, as their loops are unrolled. The table
shows what is counted beside what is in use: plans were measured with the latter, so that a count
replaces it when measured again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import fusewright as fw
from fusewright.core.instructions import CODE
from fusewright.cuda.listing import instructions
from fusewright.kernel import Kernel
from fusewright.target import WARP_SIZE

ROWS = 1 << 16
SIZE = 1 << 24
OPERANDS = 4
DTYPES = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def kernel_of(fn: Callable[..., object], *specs: fw.TensorSpec, target: str) -> Kernel:
    """The one kernel of a function."""
    (kernel,) = fw.compile(fw.trace(fn, *specs), target=target).kernels
    return kernel


def count(kernel: Kernel) -> int:
    """Instructions of a kernel up to its exit."""
    code = [i.operation for i in instructions(kernel.sass())]
    return len(code) - code[::-1].index("EXIT")


def elements(kernel: Kernel, size: int) -> float:
    """Elements that a thread computes of so many."""
    launch = kernel.launch
    threads = 1
    for n in (*launch.grid, *launch.block):
        threads *= int(str(n))
    return size / threads


def added(n: int) -> Callable[..., object]:
    """The sum of so many arrays."""

    def fn(*arrays: fw.Array) -> object:
        total = arrays[0]
        for x in arrays[1:n]:
            total = total + x
        return total

    return fn


def counted(target: str) -> dict[str, float]:
    """The figures that pairs of kernels show; `literal_division_4` is that of 4 bytes."""
    spec = fw.TensorSpec((SIZE,), "float32")
    few, more = (kernel_of(added(n), *[spec] * n, target=target) for n in (OPERANDS, 2 * OPERANDS))
    own = elements(few, SIZE)
    vectors = own / 4
    access = (count(more) - count(few)) / OPERANDS / vectors - 4
    found = {
        "start": count(few) - (OPERANDS + 1) * vectors * access - (OPERANDS - 1) * own,
        "access": access,
    }
    for nbytes, dtype in DTYPES.items():
        x = fw.TensorSpec((SIZE,), dtype)
        plain = kernel_of(lambda x: x ^ 7, x, target=target)
        divided = kernel_of(lambda x: x // 7, x, target=target)
        each = (count(divided) - count(plain)) / elements(plain, SIZE)
        found[f"literal_division_{nbytes}"] = each + 1
    return found | {"cut": cut(target)} | reductions(target)


def cut(target: str) -> float:
    """Instructions to cut a vector out of two words."""
    shape, dtype = (ROWS, 321), "float16"
    whole = kernel_of(lambda x: -x, fw.TensorSpec(shape, dtype), target=target)
    cut = kernel_of(lambda x: -x, fw.TensorSpec(shape, dtype, alignment=2), target=target)
    vectors = elements(cut, math.prod(shape)) / 8
    return (count(cut) - count(whole)) / vectors


def reductions(target: str) -> dict[str, float]:
    """Instructions of an exchange between the lanes of a warp, beside its steps, and of one across
    the warps of a block."""
    found: dict[str, float] = {}
    for name, columns in (("lanes_exchange", 64), ("block_exchange", 4096)):
        spec = fw.TensorSpec((ROWS, columns), "float32")
        once = kernel_of(lambda x: x - fw.max(x, axis=-1, keepdims=True), spec, target=target)
        twice = kernel_of(_twice, spec, target=target)
        own = elements(once, ROWS * columns)
        assert elements(twice, ROWS * columns) == own
        lanes = columns / own
        steps = 2 * math.log2(lanes) if lanes <= WARP_SIZE else 0.0
        found[name] = count(twice) - count(once) - 2 * own - steps
    return found


def _twice(x: fw.Array) -> object:
    y = x - fw.max(x, axis=-1, keepdims=True)
    return y - fw.min(y, axis=-1, keepdims=True)


def table(found: dict[str, float]) -> str:
    """What was counted beside what is in use."""
    lines = [f"{'figure':22}{'counted':>10}{'in use':>10}"]
    for name, value in found.items():
        nbytes = name.rpartition("_")[2]
        known = CODE.literal_division[int(nbytes)] if nbytes in "1248" else getattr(CODE, name)
        lines.append(f"{name:22}{value:>10.1f}{known:>10.1f}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="sm_90a", help="the architecture to compile for")
    print(table(counted(parser.parse_args(arguments).target)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
