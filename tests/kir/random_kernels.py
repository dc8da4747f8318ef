"""Random kernels of registers, loops, branches and shared memory, as text."""

from __future__ import annotations

import random

import numpy as np

from fusewright.kir.ir import Kernel
from fusewright.kir.text import parse_kernel
from fusewright.sim.machine import simulate

NREGS = 4


class _Writer:
    """Writes statements that stay in range: every index is taken modulo the size."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loops: list[tuple[str, bool]] = []
        self.count = 0

    def body(self, depth: int, n: int) -> list[str]:
        return [line for _ in range(n) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        rng = self.rng
        pick = rng.random()
        if depth and pick < 0.2:
            return self.loop(depth)
        if depth and pick < 0.35:
            other = self.body(depth - 1, rng.randint(0, 2))
            tail = ["} else {", *other, "}"] if other else ["}"]
            return [f"if ({self.condition()}) {{", *self.body(depth - 1, rng.randint(0, 3)), *tail]
        if pick < 0.45:
            fill = f" else {rng.randint(0, 5)}.0:float32"
            where = f" if ({self.condition()}){fill}" if rng.random() < 0.4 else ""
            return [f"{self.reg()} = load x[({self.index()}) % 64]{where}"]
        if pick < 0.52:
            return [f"store s[tx] = {self.reg()}", f"{self.reg()} = load s[(tx + 3) % 16]"]
        if pick < 0.6:
            return [f"store y[16*({self.index()} + bx)%64 + tx] = {self.reg()}"]
        where = f" if ({self.condition()})" if rng.random() < 0.3 else ""
        if pick < 0.8:
            return [f"{self.reg()} = copy({self.operand()}){where}"]
        fn = rng.choice(["add", "mul", "max"])
        return [f"{self.reg()} = {fn}({self.operand()}, {self.operand()}){where}"]

    def loop(self, depth: int) -> list[str]:
        rng = self.rng
        name = f"i{self.count}"
        self.count += 1
        unroll = rng.random() < 0.6
        outer = [v for v, is_unrolled in self.loops if is_unrolled]
        extent = (
            f"{rng.choice(outer)} + 1" if outer and rng.random() < 0.3 else f"{rng.randint(0, 3)}"
        )
        if unroll and rng.random() < 0.2:
            extent = "1"
        self.loops.append((name, unroll))
        temporary = f"t{self.count}"
        inner = [f"local {temporary}: float32[1]", f"{temporary}[0] = copy({self.reg()})"]
        inner += self.body(depth - 1, rng.randint(1, 4))
        inner.append(f"{self.reg()} = add({temporary}[0], {self.operand()})")
        self.loops.pop()
        return [f"for ({name} < {extent}){' unroll' if unroll else ''} {{", *inner, "}"]

    def reg(self) -> str:
        indices = [str(self.rng.randrange(NREGS))]
        indices += [
            f"({v} + {self.rng.randrange(3)}) % {NREGS}" for v, unroll in self.loops if unroll
        ]
        return f"r[{self.rng.choice(indices)}]"

    def operand(self) -> str:
        return self.rng.choice(
            [self.reg(), self.reg(), "a", "0.5:float32", f"index({self.index()}):float32"]
        )

    def index(self) -> str:
        names = ["tx", "bx", *(v for v, _ in self.loops)]
        return f"{self.rng.choice(names)}*{self.rng.randint(1, 3)} + {self.rng.randint(0, 9)}"

    def condition(self) -> str:
        sign = self.rng.choice(["<", "==", ">=", "!="])
        one = f"({self.index()}) % 7 {sign} {self.rng.randint(0, 7)}"
        return one if self.rng.random() < 0.6 else f"{one} && tx < {self.rng.choice([8, 16, 20])}"


def random_kernel(seed: int) -> Kernel:
    """A kernel with parameters x[64] and y[64], 2 blocks of 16 threads, argument a."""
    body = "\n".join(_Writer(seed).body(3, 8))
    initial = "\n".join(f"r[{i}] = copy({i}.0:float32)" for i in range(NREGS))
    final = "\n".join(f"store y[32*bx + (tx + {i}) % 32] = r[{i}]" for i in range(NREGS))
    return parse_kernel(
        f"""kernel random_{seed} {{
        param x: float32[64] align 16
        param y: float32[64] align 16
        argument a: float32
        grid (bx < 2)
        block (tx < 16)
        local r: float32[{NREGS}]
        shared s: float32[16] align 16
        {initial}
        {body}
        {final}
        }}"""
    )


def run(kernel: Kernel) -> np.ndarray:
    """What the kernel leaves in y."""
    x = np.random.default_rng(1).integers(-3, 4, 64).astype(np.float32)
    y = np.full(64, 77, np.float32)
    arrays = dict(zip(kernel.params, (x, y), strict=True))
    arguments = dict.fromkeys(kernel.arguments, 2.0)
    simulate(kernel, arrays, arguments=arguments, outputs=(kernel.params[1],), check_races=False)
    return y
