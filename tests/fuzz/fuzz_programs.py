"""Random programs: drawn from a seed, kept as source, so that they print, shrink and replay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import fuzz_nn
import fuzz_ops
import fuzz_sorts
import fuzz_windows
import numpy as np
from fuzz_ops import MAX_ELEMENTS, count

import fusewright as fw
from fusewright.core.expr import Var, as_expr, constant_value
from fusewright.dtypes import dtype_of
from fusewright.errors import FusewrightError
from fusewright.fusion import ir
from fusewright.fusion.array import Array

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100, 128, 257)
BOUND = (2, 5, 16, 31, 64, 129)
CATEGORIES = {
    "any": ("bool", "int", "uint", "float"),
    "numeric": ("int", "uint", "float"),
    "float": ("float",),
    "integer": ("int", "uint"),
    "integer or bool": ("int", "uint", "bool"),
    "bool": ("bool",),
}


@dataclass(frozen=True)
class Leaf:
    """An argument: sizes (ints, or names of symbols), dtype, what numbers it gets, layout, and its
    name where it is not just numbered."""

    shape: tuple[int | str, ...]
    dtype: str
    numbers: str = "any"
    order: tuple[int, ...] | None = None
    name: str = ""

    def spec(self) -> fw.TensorSpec:
        if self.order is None:
            return fw.TensorSpec(self.shape, self.dtype)
        strides, step = [0] * len(self.shape), 1
        for a in reversed(self.order):
            strides[a] = step
            step *= int(self.shape[a]) or 1
        return fw.TensorSpec(self.shape, self.dtype, strides=tuple(strides), alignment=4)

    def source(self) -> str:
        spec = self.spec()
        extra = "" if self.order is None else f", strides={spec.strides}, alignment=4"
        return f"fw.TensorSpec({self.shape}, {self.dtype!r}{extra})"


@dataclass(frozen=True)
class Step:
    """One line of the program: `text` with `{k}` for the k-th operand, a value's number."""

    op: str
    text: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """A program. Values are numbered: arguments first, then one for each step."""

    seed: int
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    sizes: tuple[tuple[str, int], ...] = ()

    def source(self) -> str:
        """The function, as Python."""
        base = len(self.leaves)
        names = [leaf.name or f"v{i}" for i, leaf in enumerate(self.leaves)]
        lines = [f"def program({', '.join(names)}):"]
        names += [f"v{base + k}" for k in range(len(self.steps))]
        for k, s in enumerate(self.steps):
            operands = [names[i] for i in s.operands]
            lines.append(f"    {names[base + k]} = {s.text.format(*operands)}")
        lines.append(f"    return [{', '.join(names[i] for i in self.outputs)}]")
        return "\n".join(lines)

    def trace(self) -> ir.Fusion:
        scope: dict[str, object] = {"fw": fw}
        exec(self.source(), scope)
        return fw.trace(scope["program"], *[leaf.spec() for leaf in self.leaves])

    def arrays(self) -> list[np.ndarray]:
        """Numbers for the arguments, the same for the same seed."""
        rng = np.random.default_rng(self.seed)
        sizes = dict(self.sizes)
        return [numbers(rng, leaf, sizes) for leaf in self.leaves]

    def other_sizes(self) -> list[Recipe]:
        """The same program at two more sizes of its symbols, if it has any."""
        rng = random.Random(self.seed)
        picks = [[(n, rng.choice(BOUND)) for n, _ in self.sizes] for _ in range(2)]
        return [replace(self, sizes=tuple(p)) for p in picks] if self.sizes else []

    def reproducer(self) -> str:
        """A file that shows the failure again."""
        groups = [(text, len(list(g))) for text, g in groupby(x.source() for x in self.leaves)]
        specs = ",\n    ".join(text if n == 1 else f"*[{text}] * {n}" for text, n in groups)
        head = f"# seed {self.seed}, sizes {dict(self.sizes)}\n{self.source()}"
        return f"{head}\n\nspecs = [\n    {specs}\n]"

    def used(self) -> Recipe:
        """The program without steps and arguments that no output needs."""
        need = set(self.outputs)
        base = len(self.leaves)
        for k in reversed(range(len(self.steps))):
            if base + k in need:
                need.update(self.steps[k].operands)
        leaves = [i for i in range(base) if i in need] or [0]
        steps = [k for k in range(len(self.steps)) if base + k in need]
        number = {old: new for new, old in enumerate([*leaves, *(base + k for k in steps)])}
        return replace(
            self,
            leaves=tuple(self.leaves[i] for i in leaves),
            steps=tuple(
                replace(self.steps[k], operands=tuple(number[o] for o in self.steps[k].operands))
                for k in steps
            ),
            outputs=tuple(number[o] for o in self.outputs),
        )


# --- numbers ------------------------------------------------------------------------------------


def numbers(rng: np.random.Generator, leaf: Leaf, sizes: dict[str, int]) -> np.ndarray:
    """An array for an argument."""
    shape = tuple(sizes[n] if isinstance(n, str) else n for n in leaf.shape)
    dtype = dtype_of(leaf.dtype)
    kind, _, bound = leaf.numbers.partition(" ")
    if kind in ("index", "label"):
        low = -int(bound) if kind == "index" else 0
        return rng.integers(low, int(bound), shape).astype(dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < 0.6)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "uint" else -4, 8, shape).astype(dtype.numpy)
    values = np.asarray(rng.normal(size=shape))
    if kind == "positive":
        values = np.abs(values) + 0.25
    if kind == "unit":
        values = rng.random(shape) * 0.9 + 0.05
    if kind == "special" and values.size:
        picks = rng.random(shape) < 0.1
        values = np.where(picks, rng.choice([np.inf, -np.inf, np.nan, -0.0, 0.0], shape), values)
    return np.asarray(np.asarray(values).astype(np.float32)).astype(dtype.numpy)


# --- drawing ------------------------------------------------------------------------------------


class Builder:
    """Draws steps one by one on symbolic arrays, so that each is known to be legal."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.arrays: list[Array] = []
        self.leaves: list[Leaf] = []
        self.steps: list[Step] = []
        self.numbers: list[tuple[bool, int]] = []
        self.symbols: dict[str, fw.Sym] = {}
        self.only: str | None = None
        self.forced: int | None = None
        self.base = self._base_shape()
        self.home = self.rng.choice(fuzz_ops.DTYPES if self.rng.random() < 0.5 else fuzz_ops.FLOATS)

    def _base_shape(self) -> tuple[int | str, ...]:
        """The sizes that most arguments have."""
        style = self.rng.random()
        if style < 0.03:
            return (self.rng.choice([600, 700]), 512)
        limit = MAX_ELEMENTS if style < 0.2 else 3000
        shape: list[int | str] = []
        for _ in range(self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])):
            n = self.rng.choice(SIZES)
            if count((*shape, n)) <= limit:
                shape.append(n)
        if style < 0.2 and shape:
            shape[-1] = max(shape[-1], 8 * (limit // 8 // max(count(tuple(shape[:-1])), 1)))
        if style > 0.97 and shape:
            shape[self.rng.randrange(len(shape))] = 0
        if style > 0.85 and 0 not in shape:
            shape = [self.rng.choice("nm") if self.rng.random() < 0.5 else n for n in shape]
        return tuple(shape)

    # --- what makers ask for ----------------------------------------------------------------------

    def shape(self, i: int) -> tuple[object, ...]:
        sizes: list[object] = []
        for e in self.arrays[i].tensor.shape:
            n = constant_value(e)
            sizes.append(n if n is not None else (e.name if isinstance(e, Var) else e))
        return tuple(sizes)

    def dtype(self, i: int) -> str:
        return self.arrays[i].dtype.name

    def leaf(self, shape: tuple[object, ...], dtype: str, numbers: str = "any") -> int:
        if not all(isinstance(n, int | str) for n in shape):
            raise Impossible("a size that is an expression cannot be an argument's")
        if numbers == "any" and self.rng.random() < 0.05:
            numbers = "special"
        order: tuple[int, ...] | None = None
        if fuzz_ops.known(shape) and len(shape) > 1 and 0 not in shape and self.rng.random() < 0.1:
            order = tuple(self.rng.sample(range(len(shape)), len(shape)))
        leaf = Leaf(shape, dtype, numbers, order)  # type: ignore[arg-type]
        sizes = [
            self.symbols.setdefault(n, fw.Sym(n)) if isinstance(n, str) else n for n in leaf.shape
        ]
        extents = tuple(as_expr(n) for n in sizes)
        op = ir.Input((), len(self.leaves), ir.contiguous_strides(extents), 16)
        self.leaves.append(leaf)
        return self._number(Array(ir.Tensor("", extents, dtype_of(dtype), op)), True)

    def _number(self, a: Array, is_rematerialisable: bool) -> int:
        self.arrays.append(a)
        self.numbers.append(
            (
                is_rematerialisable,
                (len(self.leaves) if is_rematerialisable else len(self.steps)) - 1,
            )
        )
        return len(self.arrays) - 1

    def value(self, category: str = "any", rank: int = 0) -> int:
        kinds = CATEGORIES[category]
        if self.forced is not None:
            return self._forced(kinds, rank)
        fitting = [
            i
            for i, a in enumerate(self.arrays)
            if a.dtype.kind in kinds and len(a.tensor.shape) >= rank
        ]
        if fitting and self.rng.random() < 0.9:
            return self.rng.choice(fitting[-6:])
        shape = self.base
        while len(shape) < rank:
            shape = (self.rng.choice([1, 2, 3]), *shape)
        if self.only is not None:
            if dtype_of(self.only).kind not in kinds:
                raise Impossible(f"{self.only} is not {category}")
            return self.leaf(shape, self.only)
        names = [n for n in (self.home, *fuzz_ops.DTYPES) if dtype_of(n).kind in kinds]
        return self.leaf(shape, names[0] if self.rng.random() < 0.7 else self.rng.choice(names))

    def _forced(self, kinds: tuple[str, ...], rank: int) -> int:
        assert self.forced is not None
        a = self.arrays[self.forced]
        if a.dtype.kind not in kinds or len(a.tensor.shape) < rank:
            raise Impossible("the value does not suit")
        return self.forced

    def like(self, i: int, *, same: bool = False) -> int:
        shape, dtype = self.shape(i), self.dtype(i)
        fitting = [
            j for j in range(len(self.arrays)) if self.dtype(j) == dtype and self.shape(j) == shape
        ]
        if self.rng.random() < (0.9 if same else 0.5):
            return self.rng.choice(fitting[-5:])
        if same:
            return self.leaf(shape, dtype)
        narrow = [n if self.rng.random() < 0.7 else 1 for n in shape]
        return self.leaf(tuple(narrow[self.rng.randint(0, len(narrow)) :]), dtype)

    # --- steps ----------------------------------------------------------------------------------

    def step(self, op: str, maker: fuzz_ops.Maker) -> bool:
        """Adds a call of `op`; False when the values at hand do not suit it."""
        mark = (len(self.arrays), len(self.leaves))
        try:
            call = maker(self)
            if call is not None:
                self.call(op, *call)
                return True
        except (FusewrightError, Impossible):
            pass
        del self.arrays[mark[0] :], self.numbers[mark[0] :], self.leaves[mark[1] :]
        return False

    def call(self, op: str, text: str, operands: tuple[int, ...]) -> int:
        """Adds one line to the program; the number of its value. Raises Impossible where the value
        is too large, and what the call raises."""
        source = text.format(*[f"a[{i}]" for i in operands])
        made = eval(source, {"fw": fw, "a": self.arrays})
        elements = count(tuple(constant_value(e) or 37 for e in made.tensor.shape))
        if elements > max(MAX_ELEMENTS, *(count(x.shape) for x in self.leaves)):
            raise Impossible("the value is too large")
        self.steps.append(Step(op, text, operands))
        return self._number(made, False)

    def on_last(self, op: str) -> bool:
        """Adds a call of `op` on the value made last."""
        self.forced = len(self.arrays) - 1
        made = self.step(op, makers()[op])
        self.forced = None
        return made

    def recipe(self) -> Recipe:
        """The program: its leaves of nothing and one or two more values are its outputs."""
        place = [
            k if is_rematerialisable else len(self.leaves) + k
            for is_rematerialisable, k in self.numbers
        ]
        steps = tuple(Step(s.op, s.text, tuple(place[o] for o in s.operands)) for s in self.steps)
        used = {o for s in steps for o in s.operands}
        first = len(self.leaves)
        numbers = range(first, first + len(steps))
        outputs = [i for i in numbers if i not in used][-4:]
        extra = [i for i in numbers if i in used]
        if extra and self.rng.random() < 0.4:
            outputs.append(self.rng.choice(extra))
        if self.rng.random() < 0.03:
            outputs.append(0)
        sizes = tuple((n, self.rng.choice([2, 3, 8, 33, 100])) for n in sorted(self.symbols))
        return Recipe(self.seed, tuple(self.leaves), steps, tuple(outputs), sizes).used()


class Impossible(Exception):
    """A draw that cannot be made from the values at hand."""


def draw(seed: int) -> Recipe:
    """The random program of a seed."""
    b = Builder(seed)
    names = list(makers())
    style = b.rng.random()
    wanted = b.rng.randint(1, 8 if style < 0.9 else 20)
    favourites = [b.rng.choice(names) for _ in range(4)]
    b.value()
    tries = 0
    while len(b.steps) < wanted and tries < 200:
        tries += 1
        pool = (
            names
            if b.rng.random() < 0.6
            else (fuzz_ops.VIEWS if b.rng.random() < 0.5 else favourites)
        )
        name = b.rng.choice(pool)
        b.step(name, makers()[name])
    return b.recipe()


def single(op: str, seed: int) -> Recipe | None:
    """A program of one call, for the table of coverage."""
    b = Builder(seed)
    for attempt in range(30):
        if attempt == 15:
            b.base = (2, 4, 6)
        if b.step(op, makers()[op]):
            return b.recipe()
    return None


def makers() -> dict[str, fuzz_ops.Maker]:
    """Every operation, those of fw.nn with their prefix."""
    return _MAKERS


_MAKERS: dict[str, fuzz_ops.Maker] = {
    **fuzz_ops.MAKERS,
    **{f"nn.{n}": m for n, m in fuzz_nn.MAKERS.items()},
    **fuzz_sorts.MAKERS,
    **{f"nn.{n}": m for n, m in fuzz_windows.MAKERS.items()},
}


def programs(start: int, stop: int) -> Iterator[Recipe]:
    for seed in range(start, stop):
        yield draw(seed)
