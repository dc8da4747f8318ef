"""Random op programs over an axis graph, with the meaning of every operand kept as a function."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from brute import size

from fusewright.axes.classes import AxisClass, AxisGraph
from fusewright.axes.lines import Lines
from fusewright.axes.words import Definition, Digit, LineAtom, Twist, Word
from fusewright.core.expr import constant_value

Point = tuple[int, ...]


@dataclass
class Use:
    """One operand: its producer, the index classes, the meaning, and which axes were tied."""

    producer: Tensor
    index: tuple[AxisClass | None, ...]
    meaning: Callable[[Point], Point]
    tied: list[bool] = field(default_factory=list[bool])


@dataclass
class Tensor:
    """An op's result: its axes (its domain too) and its operands."""

    axes: tuple[AxisClass, ...]
    uses: list[Use]

    @property
    def shape(self) -> Point:
        return tuple(size(c) for c in self.axes)


class Program:
    """Builds tensors one by one; every use is tied at once."""

    def __init__(self, rng: random.Random, *, skip: float = 0.0) -> None:
        self.rng = rng
        self.skip = skip
        self.graph = AxisGraph()
        self.tensors: list[Tensor] = []

    def source(self, shape: Point) -> Tensor:
        return self._tensor(tuple(self.graph.axis(n, f"s{len(self.tensors)}") for n in shape), [])

    def _tensor(self, axes: tuple[AxisClass, ...], uses: list[Use]) -> Tensor:
        t = Tensor(axes, uses)
        self.tensors.append(t)
        self.graph.register_domain(axes)
        for use in uses:
            for c, axis in zip(use.index, use.producer.axes, strict=True):
                wanted = c is not None and self.rng.random() >= self.skip
                use.tied.append(wanted and self.graph.tie(c, axis))
        return t

    def _fresh(self, shape: Point) -> tuple[AxisClass, ...]:
        return tuple(self.graph.axis(n, f"t{len(self.tensors)}") for n in shape)

    def pointwise(self, *operands: Tensor) -> Tensor:
        out = self._fresh(operands[0].shape)
        return self._tensor(out, [Use(p, out, lambda x: x) for p in operands])

    def permute(self, p: Tensor) -> Tensor:
        order = list(range(len(p.axes)))
        self.rng.shuffle(order)
        out = self._fresh(tuple(p.shape[a] for a in order))
        back = [order.index(a) for a in range(len(order))]
        index = tuple(out[b] for b in back)
        return self._tensor(out, [Use(p, index, lambda x: tuple(x[b] for b in back))])

    def reshape(self, p: Tensor) -> Tensor:
        total = 1
        for n in p.shape:
            total *= n
        shape = factorisation(self.rng, total)
        out = self._fresh(shape)
        flat = out[0]
        for c in out[1:]:
            flat = self.graph.merge(flat, c)
        index: list[AxisClass] = []
        for n in reversed(p.shape[1:]):
            flat, inner = self.graph.split(flat, n)
            index.insert(0, inner)
        index.insert(0, flat)
        old = p.shape
        return self._tensor(out, [Use(p, tuple(index), lambda x: unravel(ravel(x, shape), old))])

    def resize(self, p: Tensor) -> Tensor:
        pads = [self.rng.choice([(0, 0), (1, 0), (0, 2), (1, 1), (-1, 0), (0, -1)]) for _ in p.axes]
        pads = [
            (a, b) if a + b + n > 0 else (0, 0) for (a, b), n in zip(pads, p.shape, strict=True)
        ]
        out = self._fresh(tuple(a + n + b for (a, b), n in zip(pads, p.shape, strict=True)))
        index = tuple(self.graph.resize(c, -a, -b) for c, (a, b) in zip(out, pads, strict=True))
        low = [a for a, _ in pads]
        return self._tensor(
            out,
            [Use(p, index, lambda x: tuple(i - a for i, a in zip(x, low, strict=True)))],
        )

    def step(self) -> None:
        """Add one random tensor."""
        p = self.rng.choice(self.tensors[-3:])
        kind = self.rng.choice(["permute", "reshape", "reshape", "resize", "resize", "both"])
        if kind != "both":
            getattr(self, kind)(p)
            return
        others = [t for t in self.tensors if t.shape == p.shape]
        self.pointwise(p, self.rng.choice(others))


def ravel(x: Point, shape: Point) -> int:
    flat = 0
    for i, n in zip(x, shape, strict=True):
        flat = flat * n + i
    return flat


def unravel(flat: int, shape: Point) -> Point:
    out: list[int] = []
    for n in reversed(shape):
        out.insert(0, flat % n)
        flat //= n
    return tuple(out)


def factorisation(rng: random.Random, total: int) -> Point:
    """A random shape of rank 1 to 3 with the given number of elements."""
    shape: list[int] = []
    for _ in range(rng.randint(0, 2)):
        f = rng.choice([n for n in range(1, total + 1) if total % n == 0])
        shape.append(f)
        total //= f
    return (*shape, total)


def is_full(graph: AxisGraph, axes: tuple[AxisClass, ...], limit: int) -> bool | None:
    """Whether the ties leave every point of a domain possible, by enumeration of all positions on
    all lines that define it; None when there are more than `limit`."""
    lines = graph.lines
    words = [
        tuple(Digit(lines.canonical(d.atom), d.stride, d.extent) for d in c.word) for c in axes
    ]
    roots = list(lines.closure(lines.root(d.atom.line) for w in words for d in w))
    ranges = [_hull(lines, r) for r in roots]
    total = 1
    for r in ranges:
        total *= len(r)
    if total > limit:
        return None
    definitions = [(a, d) for a, d in lines.definition.items() if a.line in roots]
    seen: set[Point] = set()
    for values in itertools.product(*ranges):
        at = dict(zip(roots, values, strict=True))
        if all(_consistent(at, a, d) for a, d in definitions):
            point = [word_value(at, w) for w in words]
            if None not in point:
                seen.add(tuple(x for x in point if x is not None))
    wanted = 1
    for c in axes:
        wanted *= size(c)
    return len(seen) == wanted


def _hull(lines: Lines, root: int) -> range:
    """The positions of a line, with one that lies outside of every atom."""
    atoms = lines.atoms_on(root)
    lows = [constant_value(a.low) or 0 for a in atoms]
    ends = [(constant_value(a.low) or 0) + (constant_value(a.extent) or 0) for a in atoms]
    return range(min(lows), max(ends) + 1)


def word_value(at: dict[int, int], word: Word) -> int | None:
    """The number that a word spells at positions on lines; None out of range."""
    value = 0
    for d in word:
        low, extent = constant_value(d.atom.low), constant_value(d.atom.extent)
        stride, count = constant_value(d.stride), constant_value(d.extent)
        assert low is not None and extent is not None and stride is not None and count is not None
        x = at[d.atom.line] - low
        if not 0 <= x < extent:
            return None
        value = value * count + x // stride % count
    return value


def _consistent(at: dict[int, int], atom: LineAtom, definition: Definition) -> bool:
    """Whether positions agree with one definition. An atom in range has all of its digits in range
    when they are whole; a part of a larger atom may be in range where the larger one is not."""
    assert not isinstance(definition, Twist)
    low, extent = constant_value(atom.low), constant_value(atom.extent)
    assert low is not None and extent is not None
    x = at[atom.line] - low
    spelled = word_value(at, definition)
    if spelled is None and not all(d.is_whole for d in definition):
        return True
    return spelled == (x if 0 <= x < extent else None)
