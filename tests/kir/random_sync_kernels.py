"""Random kernels without syncs: buffers, nested loops and branches, every read initialised."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fusewright.kir.ir import Kernel
from fusewright.kir.text import parse_kernel


@dataclass
class Shape:
    """How large a kernel may get; with `asks` half of the buffers ask for a sync that frees them,
    and loads from global memory stand between accesses."""

    buffers: int = 4
    statements: int = 10
    depth: int = 2
    nthreads: int = 64
    has_branches: bool = True
    asks: bool = False


@dataclass
class _Writer:
    rng: random.Random
    shape: Shape
    lines: list[str] = field(default_factory=list)
    loops: list[tuple[str, int]] = field(default_factory=list)
    counter: int = 0
    branches: int = 0

    def emit(self, text: str) -> None:
        self.lines.append(text)

    def index(self, parts: int) -> str:
        """An index into a buffer of `parts` times the threads, in reach of every pattern."""
        n, rng = self.shape.nthreads, self.rng
        base = rng.choice(
            ["tx"] * 4
            + [f"(tx + 1) % {n}", f"tx ^ {rng.choice((1, 2, 31, 32))}", f"{n - 1} - tx"]
            + [f"(tx + {rng.choice((16, 32))}) % {n}", f"tx // {rng.choice((2, 32))}", "0"]
        )
        return f"{base} + {n}*({self.part(parts)})"

    def part(self, parts: int) -> str:
        choices = ["0", str(parts - 1)]
        for name, extent in self.loops:
            choices += [f"{name} % {parts}"] if extent > parts else [name]
        return self.rng.choice(choices) if parts > 1 else "0"


def random_kernel(seed: int, shape: Shape | None = None) -> Kernel:
    """The kernel of a seed. It writes what each thread gathered to `y[tx]`."""
    rng = random.Random(seed)
    shape = shape or Shape()
    w = _Writer(rng, shape)
    parts = {f"s{i}": rng.choice((1, 1, 2, 3)) for i in range(shape.buffers)}
    n = shape.nthreads
    for name, p in parts.items():
        dtype_align = rng.choice((4, 16, 128))
        asked = " promote" if shape.asks and rng.random() < 0.5 else ""
        w.emit(f"shared {name}: float32[{n * p}] align {dtype_align}{asked}")
    w.emit("local r: float32[1]")
    w.emit("local t: float32[1]")
    w.emit("r[0] = load x[tx]")
    _body(w, parts, set(), shape.statements, shape.depth)
    w.emit("store y[tx] = r[0]")
    body = "\n".join(w.lines)
    return parse_kernel(
        f"""kernel random {{
          param x: float32[{n}]
          param y: float32[{n}]
          grid (bx < 1)
          block (tx < {n})
          {body}
        }}"""
    )


def _body(w: _Writer, parts: dict[str, int], ready: set[str], budget: int, depth: int) -> None:
    """Statements; `ready` are the buffers that are wholly written, and grows."""
    while budget > 0:
        kind = w.rng.random()
        if depth and budget >= 2 and kind < 0.2:
            size = w.rng.randint(2, budget)
            _loop(w, parts, ready, size, depth - 1)
            budget -= size
        elif w.shape.has_branches and depth and budget >= 2 and kind < 0.3:
            size = w.rng.randint(1, budget)
            _branch(w, parts, ready, size, depth - 1)
            budget -= size
        else:
            _access(w, parts, ready)
            budget -= 1


def _loop(w: _Writer, parts: dict[str, int], ready: set[str], size: int, depth: int) -> None:
    name = f"i{w.counter}"
    w.counter += 1
    extent = w.rng.choice((2, 3, 4))
    w.emit(f"for ({name} < {extent}) {{")
    w.loops.append((name, extent))
    _body(w, parts, ready, size, depth)
    w.loops.pop()
    w.emit("}")


def _branch(w: _Writer, parts: dict[str, int], ready: set[str], size: int, depth: int) -> None:
    n = w.shape.nthreads
    conditions = [
        f"tx < {w.rng.choice((1, 16, 32, 40))}",
        f"tx // 32 == {w.rng.randrange(n // 32)}",
    ]
    conditions += [f"{name} == {w.rng.randrange(extent)}" for name, extent in w.loops]
    w.emit(f"if ({w.rng.choice(conditions)}) {{")
    w.branches += 1
    _body(w, parts, ready, size, depth)
    w.branches -= 1
    w.emit("}")


def _access(w: _Writer, parts: dict[str, int], ready: set[str]) -> None:
    if w.shape.asks and w.rng.random() < 0.3:
        w.emit("t[0] = load x[tx]")
        w.emit("r[0] = add(r[0], t[0])")
    name = w.rng.choice(sorted(parts))
    p, n = parts[name], w.shape.nthreads
    fresh = name not in ready
    if fresh or w.rng.random() < 0.25:
        base = w.rng.choice(("tx", "tx", "tx", f"(tx + 1) % {n}", "tx ^ 32"))
        j = f"j{w.counter}"
        w.counter += 1
        if p == 1:
            w.emit(f"store {name}[{base}] = r[0]")
        else:
            w.emit(f"for ({j} < {p}) {{")
            w.emit(f"store {name}[{base} + {n}*{j}] = r[0]")
            w.emit("}")
        if not w.branches:
            ready.add(name)
    elif w.rng.random() < 0.3:
        base = w.rng.choice(("tx", f"(tx + 1) % {n}", "tx ^ 1"))
        guard = w.rng.choice(("", f" if (tx < {w.rng.choice((1, 20, 32))})"))
        w.emit(f"store {name}[{base} + {n}*({w.part(p)})] = r[0]{guard}")
    else:
        w.emit(f"t[0] = load {name}[{w.index(p)}]")
        w.emit("r[0] = add(r[0], t[0])")
