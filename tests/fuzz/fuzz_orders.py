"""Programs of several launches, drawn from a seed, and their runs in any order of the edges."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.fuzz.fuzz_edges import high_peak, needless_edge
from tests.host.host_runs import random_order

import fusewright as fw
from fusewright.core.substitution import evaluate
from fusewright.host.ir import Binding, HostLaunch, Root, RootKind
from fusewright.kernel import flatten
from fusewright.sim.machine import simulate

# --- drawing ------------------------------------------------------------------------------------


class Drawn:
    """A program of kernels that cannot be one: rows, scans and columns, joins of them, parts and
    views of joins. Every value has two axes, or three for a moment."""

    donate: tuple[str, ...] = ()
    layouts: list[tuple[int, ...] | None] | None = None

    @property
    def kinds(self) -> Sequence[Step]:
        """What it is made of."""
        return STEPS

    def program(self) -> fw.Program:
        """The program of it."""
        fusion = fw.trace(self, *self.specs)
        return fw.compile(fusion, donate=self.donate, out_layouts=self.layouts)

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rows = [rng.choice([1, 3, 4, 5, 6]) for _ in range(rng.randint(1, 2))]
        self.columns = [rng.choice([8, 31, 64, 96]) for _ in range(rng.randint(1, 2))]
        named = rng.choice(self.columns)
        self.sizes = {"n": named} if rng.random() < 0.05 else {}
        shapes = [
            (rng.choice(self.rows), rng.choice(self.columns)) for _ in range(rng.randint(1, 4))
        ]
        self.shapes = shapes
        self.specs = [self.spec(shape) for shape in shapes]
        self.seed = rng.randrange(1 << 30)
        self.steps = rng.randint(3, 12)

    def spec(self, shape: tuple[int, int]) -> fw.TensorSpec:
        """The type of an argument of a shape."""
        names = {n: name for name, n in self.sizes.items()}
        return fw.TensorSpec((shape[0], names.get(shape[1], shape[1])), "float32")

    def __call__(self, *arguments: Any) -> list[Any]:
        rng = random.Random(self.seed)
        values = list(arguments)
        for _ in range(self.steps):
            values += rng.choice(self.kinds)(rng, values)
        made = values[len(arguments) :]
        return [made[-1], *rng.sample(made[:-1], min(len(made) - 1, rng.randint(1, 4)))]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]


Step = Callable[[random.Random, list[Any]], list[Any]]


def _soft(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def _unary(rng: random.Random, values: list[Any]) -> list[Any]:
    x = rng.choice(values[-5:])
    return [rng.choice(UNARY)(x)]


UNARY: list[Callable[[Any], Any]] = [
    _soft,
    lambda x: fw.cumulative_sum(x, axis=1),
    lambda x: fw.cumulative_sum(x, axis=0),
    lambda x: x - fw.max(x, axis=1, keepdims=True),
    lambda x: fw.sum(x, axis=0, keepdims=True),
    lambda x: fw.sum(x, axis=1, keepdims=True),
    lambda x: x * fw.sum(fw.cumulative_sum(x, axis=1), axis=1, keepdims=True),
    fw.flip,
    lambda x: fw.tanh(x) * 2.0,
]


def _join(rng: random.Random, values: list[Any]) -> list[Any]:
    """A concatenation or stack of values that fit, some of them made by kernels of their own."""
    x = rng.choice(values[-6:])
    axis = rng.randrange(2)
    fits = [v for v in values if v.shape[1 - axis] == x.shape[1 - axis]]
    parts = [x, *(rng.choice(fits) for _ in range(rng.randint(1, 3)))]
    parts = [_soft(p) if rng.random() < 0.4 else p for p in parts]
    if rng.random() < 0.2:
        whole = fw.stack([parts[0], _soft(parts[0])], axis=rng.randrange(3))
        return [fw.max(whole, axis=rng.randrange(3))]
    return [fw.concat(parts, axis=axis)]


def _pad(rng: random.Random, values: list[Any]) -> list[Any]:
    x = rng.choice(values[-4:])
    widths = [(rng.randrange(3), rng.randrange(3)) for _ in range(2)]
    return [fw.pad(_soft(x) if rng.random() < 0.5 else x, widths)]


def _insert(rng: random.Random, values: list[Any]) -> list[Any]:
    x = rng.choice(values[-4:])
    part = fw.sum(x, axis=rng.randrange(2), keepdims=True)
    return [fw.insert(_soft(x), part, (0, 0))]


def _parts(rng: random.Random, values: list[Any]) -> list[Any]:
    """A value cut in two, each part read by a kernel of its own."""
    x = rng.choice(values[-3:])
    axis = rng.randrange(2)
    n = x.shape[axis]
    if not isinstance(n, int) or n < 2:
        return _unary(rng, values)
    at = rng.choice([n // 2, rng.randrange(1, n)])
    cut = [slice(None)] * 2
    halves = []
    for piece in (slice(0, at), slice(at, n)):
        cut[axis] = piece
        halves.append(x[tuple(cut)])
    reader = rng.choice(UNARY)
    return [reader(h) for h in halves]


def _add(rng: random.Random, values: list[Any]) -> list[Any]:
    x = rng.choice(values[-4:])
    fits = [v for v in values if v.shape == x.shape or v.shape[0] == 1 == v.shape[1]]
    return [x + rng.choice(fits)]


STEPS = [_unary, _unary, _unary, _join, _join, _parts, _parts, _pad, _insert, _add]

# --- more of it: moves, insertions into arguments that are given away, orders of results ----------


class DrawnCall(Drawn):
    """A program that also moves values, inserts blocks into arguments, some of which are given
    away, and may have to store its results in other orders of their axes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = random.Random(seed)
        names = ["a", "b", "c", "d"][: len(self.specs)]
        self.donate = tuple(n for n in names if rng.random() < 0.6)
        fusion = fw.trace(self, *self.specs)
        if rng.random() < 0.3:
            self.layouts = [
                rng.choice([None, tuple(rng.sample(range(t.ndim), t.ndim))]) for t in fusion.outputs
            ]

    @property
    def kinds(self) -> Sequence[Step]:
        return [*STEPS, _move, _move, _put, _put, _put]

    def __call__(self, a: Any, b: Any = None, c: Any = None, d: Any = None) -> list[Any]:
        return super().__call__(*(x for x in (a, b, c, d) if x is not None))


def _move(rng: random.Random, values: list[Any]) -> list[Any]:
    x = rng.choice(values[-5:])
    n, m = x.shape
    moves: list[Callable[[], Any]] = [
        lambda: fw.roll(x, rng.randint(1, 5), axis=rng.randrange(2)),
        lambda: fw.permute_dims(x, (1, 0)),
        lambda: x[:, ::-1],
        lambda: fw.concat([x[:, k:] for k in (0, 1)], axis=1),
        lambda: fw.pad(x, ((1, 0), (0, 2)), mode="edge"),
    ]
    if isinstance(n, int) and isinstance(m, int):
        moves += [lambda: x[:: rng.randint(1, 3)], lambda: fw.reshape(x, (m, n))]
    return [rng.choice(moves)()]


def _put(rng: random.Random, values: list[Any]) -> list[Any]:
    """A block of one value in another one, often in an argument or in what was put there."""
    x, v = rng.choice(values[-4:]), rng.choice(values)
    at = []
    part = [slice(None)] * 2
    for axis, (n, m) in enumerate(zip(x.shape, v.shape, strict=True)):
        known = isinstance(n, int) and isinstance(m, int)
        if not known and n != m:
            return _unary(rng, values)
        size = rng.randint(1, min(n, m)) if known else None
        part[axis] = slice(0, size)
        at.append(rng.randint(0, n - size) if size is not None else 0)
    block = v[tuple(part)]
    block = rng.choice([lambda: _soft(block), lambda: block * 2, lambda: block])()
    return [fw.insert(x, block, tuple(at))]


class DrawnLayouts(DrawnCall):
    """A call whose numbers of rows and of columns are mostly symbols, and whose other arguments may
    lie column by column in memory."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(~seed)
        self.named, self.across = rng.choice([0.0, 0.6]), rng.choice([0.0, 0.5])
        super().__init__(seed)

    def spec(self, shape: tuple[int, int]) -> fw.TensorSpec:
        rng = random.Random(f"{self.named} {shape}")
        for n in shape:
            if n > 1 and n not in self.sizes.values() and rng.random() < self.named:
                self.sizes["nmkl"[len(self.sizes)]] = n
        names = {n: name for name, n in self.sizes.items()}
        rows, columns = (names.get(n, n) for n in shape)
        is_known = isinstance(rows, int) and isinstance(columns, int)
        strides = (1, rows) if is_known and rng.random() < self.across else None
        return fw.TensorSpec((rows, columns), "float32", strides=strides)

    def arrays(self) -> list[np.ndarray]:
        return [
            np.asfortranarray(a) if x.strides is not None else a
            for a, x in zip(super().arrays(), self.specs, strict=True)
        ]


# --- running ------------------------------------------------------------------------------------


class Orders:
    """A program on given arrays, run in any order of its launches. A launch whose inputs have been
    seen is not run again: what it wrote then is put into memory."""

    def __init__(self, program: fw.Program, arrays: Sequence[Any]) -> None:
        self.program, self.host = program, program.host
        self.sizes = program.symbol_values(arrays)
        inputs = [r for r in self.host.roots if r.kind is RootKind.INPUT]
        self.given = {
            r: flatten(np.asarray(a), info, self.sizes).view(np.uint8)
            for r, a, info in zip(inputs, arrays, program.inputs, strict=True)
        }
        self.seen: dict[object, list[tuple[np.ndarray, np.ndarray]]] = {}

    def run(self, order: Sequence[int], poison: int) -> list[bytes]:
        """The bytes of the results; memory that nobody has written holds the byte `poison`."""
        memory = {
            r: np.full(evaluate(r.nbytes, self.sizes), _first_byte(r, poison), np.uint8)
            for r in self.host.roots
        }
        for r, given in self.given.items():
            memory[r][:] = given
        for number in order:
            self._launch(self.host.launches[number], memory)
        return [memory[self.host.roots[at]].tobytes() for at in self.host.outputs]

    def _launch(self, x: HostLaunch, memory: dict[Root, np.ndarray]) -> None:
        views = [self._view(b, memory) for b in x.bindings]
        pairs = list(zip(x.kernel.params, x.bindings, views, strict=True))
        reads = {p: v.copy() for p, b, v in pairs if b.access.reads}
        key = (x.kernel, x.values, *(v.tobytes() for v in reads.values()))
        if key not in self.seen:
            fresh = {p: np.zeros_like(v) for p, b, v in pairs if not b.access.reads}
            result = simulate(
                x.kernel,
                {p: a.view(p.dtype.numpy) for p, a in (reads | fresh).items()},
                arguments=dict(zip(x.kernel.arguments, x.values, strict=True)),
                symbols={s: self.sizes[s] for s in x.kernel.symbols},
                outputs=[p for p, b, _ in pairs if not b.access.reads],
                check_races=False,
            )
            self.seen[key] = list(zip(result.outputs, result.written, strict=True))
        targets = [(p, v) for p, b, v in pairs if not b.access.reads]
        for (p, v), (made, written) in zip(targets, self.seen[key], strict=True):
            v.view(p.dtype.numpy)[written] = made[written]

    def _view(self, b: Binding, memory: dict[Root, np.ndarray]) -> np.ndarray:
        start, nbytes = evaluate(b.offset, self.sizes), evaluate(b.nbytes, self.sizes)
        return memory[b.root][start : start + nbytes]


def _first_byte(r: Root, poison: int) -> int:
    """What a root holds before a call: semaphores are zero between launches."""
    return 0 if r.kind is RootKind.STATE else poison


def order_problem(program: fw.Program, arrays: Sequence[Any], seed: int, count: int) -> str | None:
    """What differs between the results in program order and in other orders that the edges allow,
    each over memory that held something else before."""
    orders, rng = Orders(program, arrays), random.Random(seed)
    first = list(range(len(program.host.launches)))
    wanted = orders.run(first, 0xFF)
    for k in range(count):
        order = random_order(program.host, rng)
        found = orders.run(order, 17 * k % 256)
        for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
            if got != want:
                return f"order: result {number} has other bytes in the order {order}"
    return None


def problem_of_seed(seed: int, count: int, wrong: Callable[..., str | None]) -> str | None:
    """What is wrong with the program of a seed: its compilation, its values by `wrong`, reads of
    what nobody wrote, its values in some of `count` orders, an edge that no byte asks for, a peak
    above the bound."""
    return problem_of(Drawn(seed), seed, count, wrong)


def problem_of(drawn: Drawn, seed: int, count: int, wrong: Callable[..., str | None]) -> str | None:
    """The same of a program that was drawn."""
    program, arrays = drawn.program(), drawn.arrays()
    result = program.simulate(*arrays)
    if result.races:
        return f"race: {result.races[0]}"
    outputs = [
        a if order is None else np.transpose(a, order)
        for a, order in zip(
            result.outputs, drawn.layouts or [None] * len(result.outputs), strict=True
        )
    ]
    return (
        wrong(program, arrays, outputs)
        or order_problem(program, arrays, seed, count)
        or needless_edge(program.host, program.symbol_values(arrays))
        or high_peak(program.host, program.symbol_values(arrays))
    )
