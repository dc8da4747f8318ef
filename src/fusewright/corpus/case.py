"""A fusion with the sizes of its arguments, and numbers for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import fusewright as fw
from fusewright.dtypes import DType, dtype_of
from fusewright.errors import UserError
from fusewright.fusion.array import Array

Numbers = npt.NDArray[Any]
Sizes = Mapping[str, int]
Program = (
    Callable[[Array], Any]
    | Callable[[Array, Array], Any]
    | Callable[[Array, Array, Array], Any]
    | Callable[[Array, Array, Array, Array], Any]
    | Callable[[Array, Array, Array, Array, Array], Any]
)  # spelled by arity, so that the parameters of a lambda have a type

_ARGUMENT = re.compile(r"(\w+)\[([\w, ]*)\](?: ([<>]) (\w+))?")


@dataclass(frozen=True, slots=True)
class CaseArgument:
    """One argument of a fusion: `dtype[dims]`, a dim being a size's name or an integer.

    `dtype[dims] < bound` draws from [0, bound), for floats also `dtype[dims] > bound` above it;
    else floats are normal, bools true three times in four, integers within [-100, 100], and
    unsigned ones within [0, 255].
    """

    dtype: DType
    dims: tuple[str, ...]
    relation: str | None
    bound: str | None

    @staticmethod
    def parse(text: str) -> CaseArgument:
        """The argument that a text describes; UserError when it describes none."""
        found = _ARGUMENT.fullmatch(text)
        if found is None:
            raise UserError(f"argument {text!r}: write dtype[dims], dtype[dims] < bound or > bound")
        name, dims, relation, bound = found.groups()
        dtype = dtype_of(name)
        if (dtype.kind == "bool" and relation) or (relation == ">" and not dtype.is_float):
            raise UserError(f"argument {text!r}: {dtype} takes no bound {relation}; leave it out")
        listed = tuple(d.strip() for d in dims.split(",") if d.strip())
        return CaseArgument(dtype, listed, relation, bound)

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes it depends on."""
        bound = () if self.bound is None else (self.bound,)
        return tuple(n for n in (*self.dims, *bound) if not n.isdigit())

    def spec(self, sizes: Sizes) -> fw.TensorSpec:
        """The argument's spec at the given sizes."""
        return fw.TensorSpec(self._shape(sizes), self.dtype)

    def draw(self, sizes: Sizes, rng: np.random.Generator) -> Numbers:
        """Numbers for the argument at the given sizes."""
        return np.asarray(self._draw(self._shape(sizes), sizes, rng)).astype(self.dtype.numpy)

    def _shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(_size(d, sizes) for d in self.dims)

    def _draw(self, shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> Any:
        if self.dtype.kind == "bool":
            return rng.random(shape) < 0.75
        if self.dtype.is_float:
            return self._draw_floats(shape, sizes, rng)
        if self.bound is not None:
            return rng.integers(0, _size(self.bound, sizes), shape)
        low, high = (0, 255) if self.dtype.kind == "uint" else (-100, 100)
        return rng.integers(low, high, shape, endpoint=True)

    def _draw_floats(self, shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> Any:
        if self.bound is None:
            return rng.standard_normal(shape)
        bound = _size(self.bound, sizes)
        if self.relation == "<":
            return rng.random(shape) * bound
        return bound + 0.5 + np.abs(rng.standard_normal(shape))


def _size(text: str, sizes: Sizes) -> int:
    return int(text) if text.isdigit() else sizes[text]


@dataclass(frozen=True, slots=True)
class CorpusCase:
    """A fusion: its function, its arguments, and their sizes in the full and the small variant."""

    name: str
    fn: Callable[..., Any]
    arguments: tuple[CaseArgument, ...]
    full_sizes: Sizes
    small_sizes: Sizes

    @property
    def specs(self) -> tuple[fw.TensorSpec, ...]:
        """Specs of realistic sizes."""
        return tuple(a.spec(self.full_sizes) for a in self.arguments)

    @property
    def small(self) -> tuple[fw.TensorSpec, ...]:
        """Specs for the simulator: fewer than 20,000 elements in all."""
        return tuple(a.spec(self.small_sizes) for a in self.arguments)

    def arrays(self, *, small: bool = True, seed: int = 0) -> list[Numbers]:
        """Arguments that fit `small` or `specs`, the same for the same seed."""
        rng = np.random.default_rng(seed)
        sizes = self.small_sizes if small else self.full_sizes
        return [a.draw(sizes, rng) for a in self.arguments]


def case(name: str, fn: Program, *arguments: str, full: str, small: str) -> CorpusCase:
    """A case from texts; sizes are given as "rows=4 columns=5".

    Raises UserError unless both variants give a value to exactly the sizes in use.
    """
    parsed = tuple(CaseArgument.parse(a) for a in arguments)
    used = sorted({n for a in parsed for n in a.names})
    variants = [_sizes(full), _sizes(small)]
    for sizes in variants:
        if sorted(sizes) != used:
            raise UserError(
                f"case {name!r}: sizes {', '.join(sorted(sizes))} are given, but the arguments use "
                f"{', '.join(used)}; give each of them once"
            )
    return CorpusCase(name, fn, parsed, *variants)


def _sizes(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (item.split("=") for item in text.split())}
