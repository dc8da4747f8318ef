"""What a draw is: a program written once for fusewright and torch, and its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fusewright as fw
from fusewright.core.expr import constant_value
from fusewright.frontends.natural_layouts import natural_layouts, pattern_of
from fusewright.fusion.ir import Fusion
from fusewright.fusion.orders import Order
from fusewright.target import MAX_VECTOR_NBYTES, SECTOR_NBYTES, Target, target_of

ARCHITECTURE = "sm_90a"
READ_MOSTLY = 8
"""A draw that reads so many times what it writes is compared with a read, not with a copy."""

ITEM_NBYTES: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3": 1, "float8_e5m2": 1,
    "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """An array of a draw. `strides` in elements, None for C order; `start`: elements from an
    aligned address to its first one; `values` says what it holds ("normal", "positive", "near one",
    or "index" below `high`)."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    start: int = 0
    values: str = "normal"
    high: int = 8

    @property
    def nbytes(self) -> int:
        """The bytes of its elements, without gaps between them."""
        return math.prod(self.shape) * ITEM_NBYTES[self.dtype]

    @property
    def span(self) -> int:
        """Elements from the first to behind the last one."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """Its strides, also where they are those of C order."""
        dense = tuple(math.prod(self.shape[k + 1 :]) for k in range(len(self.shape)))
        return dense if self.strides is None else self.strides

    @property
    def spec(self) -> fw.TensorSpec:
        """What a program is told of it."""
        offset = self.start * ITEM_NBYTES[self.dtype]
        alignment = math.gcd(offset, MAX_VECTOR_NBYTES) or MAX_VECTOR_NBYTES
        return fw.TensorSpec(self.shape, self.dtype, strides=self.strides, alignment=alignment)

    def __str__(self) -> str:
        layout = "" if self.strides is None else f" strides {self.strides}"
        start = f" from element {self.start}" if self.start else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{layout}{start}"


@dataclass(frozen=True, slots=True)
class Program:
    """What a family makes: `fn(xp, *arrays)`, xp being fusewright or a torch of the same names.

    `read`: bytes that are needed of the arguments at these positions, where not all are. `twice`:
    positions of arguments that no chip can hold between the two times that it needs them.
    `launches`: the fewest kernels, without an order among the blocks of one."""

    what: str
    fn: Callable[..., Any]
    arguments: tuple[Argument, ...]
    read: Mapping[int, int] = field(default_factory=dict[int, int])
    twice: tuple[int, ...] = ()
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Draw:
    """A program of a family, made from a seed alone."""

    seed: int
    family: str
    program: Program

    @property
    def name(self) -> str:
        """Which draw, and what it computes."""
        return f"{self.seed} {self.family}: {self.program.what}"

    def trace(self) -> Fusion:
        """The program as fusewright's fusion."""
        specs = [a.spec for a in self.program.arguments]
        return fw.trace(lambda *arrays: self.program.fn(fw, *arrays), *specs)

    def layouts(self, fusion: Fusion) -> list[Order | None]:
        """The orders of axes in which a call of the fused function on such arrays returns the
        program's results, as torch would."""
        given = self.program.arguments
        patterns = [pattern_of(a.steps) for a in given]
        return natural_layouts(fusion, patterns, [a.shape for a in given])

    def least(self, fusion: Fusion) -> Least:
        """The bytes that any implementation moves."""
        p = self.program
        reads = [p.read.get(k, a.nbytes) for k, a in enumerate(p.arguments)]
        again = sum(reads[k] for k in p.twice)
        written = sum(
            math.prod(constant_value(n) or 0 for n in t.shape) * t.dtype.nbytes
            for t in dict.fromkeys(fusion.outputs)
            if t not in fusion.inputs
        )
        return Least(sum(reads) + again, written, p.launches)


@dataclass(frozen=True, slots=True)
class Least:
    """The bytes that any implementation of a draw reads and writes, and its fewest kernels."""

    read: int
    written: int
    launches: int

    @property
    def nbytes(self) -> int:
        """Bytes in both directions."""
        return self.read + self.written

    @property
    def is_read_mostly(self) -> bool:
        """Whether its floor is a read."""
        return self.read > READ_MOSTLY * self.written


def seeds_of(text: str) -> list[int]:
    """The seeds of a list of numbers and ranges, such as 3,17,40:60."""
    bounds = ([int(x) for x in part.split(":")] for part in text.split(","))
    return [s for first, *rest in bounds for s in range(first, rest[0] if rest else first + 1)]


def held_nbytes(a: Argument, axes: tuple[int, ...]) -> int:
    """The bytes of an argument that have to stay on the chip together until a reduction over axes
    is known: one result's elements, in whole sectors."""
    reduced = math.prod(a.shape[k] for k in axes)
    item = ITEM_NBYTES[a.dtype]
    kept = a.shape[-1] * item if a.shape and len(a.shape) - 1 not in axes else item
    return reduced * min(max(kept, item), SECTOR_NBYTES)


def needs_two_reads(a: Argument, axes: tuple[int, ...], target: Target | None = None) -> bool:
    """Whether what a reduction over axes is applied to has to be read a second time: the blocks of
    a cluster cannot hold it together."""
    t = target or target_of(ARCHITECTURE)
    return held_nbytes(a, axes) > t.shared_nbytes_per_block * t.max_cluster


LANES = 128
"""Neighbouring results that one block takes at least, where neighbours are reduced apart."""


def launches_of(a: Argument, axes: tuple[int, ...], target: Target | None = None) -> int:
    """The kernels that a reduction over axes takes: two where blocks of whole results are too few
    to fill half of the chip, as then they share them out and someone combines."""
    t = target or target_of(ARCHITECTURE)
    kept = [n for k, n in enumerate(a.shape) if k not in axes]
    is_inner = not a.shape or len(a.shape) - 1 in axes or a.shape[-1] == 1
    blocks = math.prod(kept) if is_inner else math.prod(kept[:-1]) * -(-kept[-1] // LANES)
    small = a.nbytes < t.shared_nbytes_per_block
    return 1 if small or 2 * blocks >= t.multiprocessors else 2
