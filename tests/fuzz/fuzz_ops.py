"""How a random program calls each operation: a line of source over values drawn for it.

A maker takes a `Draw` and returns `(text, operands)`: the call with `{0}`, `{1}`, ... for its
operands, which are numbers of values. It returns None when the values at hand do not suit it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeAlias

import fusewright as fw

FLOATS = ("float32", "float32", "float16", "bfloat16", "float64", "float8_e4m3", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*dict.fromkeys(FLOATS), *INTEGERS, "bool")
MAX_ELEMENTS = 20_000

Call: TypeAlias = "tuple[str, tuple[int, ...]]"
Maker: TypeAlias = "Callable[[Draw], Call | None]"


class Draw(Protocol):
    """Values to build on; every method may add an argument to the program."""

    rng: random.Random

    def value(self, category: str = "any", rank: int = 0) -> int:
        """A value whose dtype is of the category, with at least `rank` axes."""
        ...

    def like(self, i: int, *, same: bool = False) -> int:
        """A value of the dtype of value `i` that broadcasts with it (`same`: of its shape)."""
        ...

    def leaf(self, shape: tuple[object, ...], dtype: str, numbers: str = "any") -> int:
        """A new argument."""
        ...

    def shape(self, i: int) -> tuple[object, ...]:
        """Sizes: ints, or symbols."""
        ...

    def dtype(self, i: int) -> str: ...


def known(shape: tuple[object, ...]) -> bool:
    return all(isinstance(n, int) for n in shape)


def count(shape: tuple[object, ...]) -> int:
    n = 1
    for s in shape:
        n *= s if isinstance(s, int) else 37
    return n


def axis(d: Draw, i: int) -> int:
    rank = len(d.shape(i))
    return d.rng.randrange(-rank, rank)


def axes(d: Draw, i: int) -> str:
    """An `axis` argument: None, one axis, or several."""
    rank = len(d.shape(i))
    kind = d.rng.random()
    if kind < 0.25 or not rank:
        return "None"
    if kind < 0.7:
        return str(axis(d, i))
    return str(tuple(sorted(d.rng.sample(range(rank), d.rng.randint(1, rank)))))


# --- elementwise --------------------------------------------------------------------------------


def unary(name: str, category: str) -> Maker:
    return lambda d: (f"fw.{name}({{0}})", (d.value(category),))


def binary(name: str, category: str) -> Maker:
    def make(d: Draw) -> Call:
        a = d.value(category)
        if d.rng.random() < 0.2:
            return f"fw.{name}({{0}}, {_scalar(d, d.dtype(a))})", (a,)
        pair = (a, d.like(a))
        return f"fw.{name}({{0}}, {{1}})", pair if d.rng.random() < 0.5 else pair[::-1]

    return make


def _scalar(d: Draw, dtype: str) -> str:
    if dtype == "bool":
        return d.rng.choice(["True", "False"])
    if dtype.startswith("float") or dtype == "bfloat16":
        return d.rng.choice(["0.5", "2.0", "-1.0", "1.0", "0.0", "3"])
    return d.rng.choice(["0", "1", "2", "3"])


def _where(d: Draw) -> Call:
    a = d.value()
    shape = d.shape(a)
    return "fw.where({0}, {1}, {2})", (d.leaf(shape, "bool"), a, d.like(a))


def _fma(d: Draw) -> Call:
    a = d.value("float")
    return "fw.fma({0}, {1}, {2})", (a, d.like(a), d.like(a))


def _clip(d: Draw) -> Call:
    return f"fw.clip({{0}}, {d.rng.choice(['0, 2', 'max=1', 'min=1'])})", (d.value("numeric"),)


def _astype(d: Draw) -> Call:
    return f"fw.astype({{0}}, {d.rng.choice(DTYPES)!r})", (d.value(),)


def _shift(name: str) -> Maker:
    def make(d: Draw) -> Call:
        return f"fw.{name}({{0}}, {d.rng.choice(['1', '3', '7'])})", (d.value("integer"),)

    return make


# --- views --------------------------------------------------------------------------------------


def factors(rng: random.Random, total: int) -> tuple[int, ...]:
    """A shape of rank 1 to 4 with that many elements."""
    shape: list[int] = []
    for _ in range(rng.randint(0, 3)):
        if total:
            f = rng.choice([n for n in range(1, min(total, 64) + 1) if total % n == 0])
            shape.append(f)
            total //= f
    shape.append(total)
    rng.shuffle(shape)
    return tuple(shape)


def _reshape(d: Draw) -> Call:
    i = d.value()
    shape = d.shape(i)
    if known(shape):
        return f"fw.reshape({{0}}, {factors(d.rng, count(shape))})", (i,)
    return d.rng.choice(["fw.reshape({0}, (-1,))", "fw.reshape({0}, (1, -1, 1))"]), (i,)


def _expand_dims(d: Draw) -> Call:
    i = d.value()
    return f"fw.expand_dims({{0}}, {d.rng.randint(0, len(d.shape(i)))})", (i,)


def _squeeze(d: Draw) -> Call | None:
    i = d.value("any", 1)
    ones = [k for k, n in enumerate(d.shape(i)) if n == 1]
    return (f"fw.squeeze({{0}}, {d.rng.choice(ones)})", (i,)) if ones else None


def _broadcast_to(d: Draw) -> Call | None:
    i = d.value()
    shape = d.shape(i)
    if not known(shape):
        return None
    wide = [d.rng.choice([1, 2, 5]), *(n if n != 1 else d.rng.choice([1, 3]) for n in shape)]
    wide = wide if d.rng.random() < 0.5 else wide[1:]
    return (f"fw.broadcast_to({{0}}, {tuple(wide)})", (i,)) if count(tuple(wide)) <= 9000 else None


def _broadcast_arrays(d: Draw) -> Call:
    i = d.value()
    return "fw.broadcast_arrays({0}, {1})[0]", (i, d.like(i))


def _permute_dims(d: Draw) -> Call:
    i = d.value("any", 1)
    order = list(range(len(d.shape(i))))
    d.rng.shuffle(order)
    return f"fw.permute_dims({{0}}, {tuple(order)})", (i,)


def _moveaxis(d: Draw) -> Call:
    i = d.value("any", 1)
    return f"fw.moveaxis({{0}}, {axis(d, i)}, {axis(d, i)})", (i,)


def _flip(d: Draw) -> Call:
    i = d.value()
    return f"fw.flip({{0}}, axis={axes(d, i)})", (i,)


def _roll(d: Draw) -> Call:
    i = d.value("any", 1)
    return f"fw.roll({{0}}, {d.rng.randint(-5, 5)}, axis={axis(d, i)})", (i,)


def _repeat(d: Draw) -> Call:
    i = d.value("any", 1)
    return f"fw.repeat({{0}}, {d.rng.choice([1, 2, 3])}, axis={axis(d, i)})", (i,)


def _tile(d: Draw) -> Call:
    i = d.value("any", 1)
    times = tuple(d.rng.choice([1, 1, 2, 3]) for _ in d.shape(i))
    return f"fw.tile({{0}}, {times})", (i,)


def _pad(d: Draw) -> Call:
    i = d.value("any", 1)
    widths = tuple(
        d.rng.choice([(0, 0), (1, 0), (0, 2), (2, 1), (-1, 0), (1, -1)]) for _ in d.shape(i)
    )
    mode = d.rng.choice(["constant"] * 4 + ["edge", "reflect"])
    if mode != "constant":
        widths = tuple((max(a, 0), max(b, 0)) for a, b in widths)
        return f"fw.pad({{0}}, {widths}, {mode!r})", (i,)
    return f"fw.pad({{0}}, {widths}, constant_values={_scalar(d, d.dtype(i))})", (i,)


def _slice(d: Draw) -> Call:
    i = d.value("any", 1)
    picks = ["1:", ":-1", "::2", "::-1", ":", "0:1", "-1", "None, 1:", "2::3"]
    used = d.rng.randint(1, len(d.shape(i)))
    return f"{{0}}[{', '.join(d.rng.choice(picks) for _ in range(used))}]", (i,)


def _concat(d: Draw) -> Call:
    i = d.value("any", 1)
    k = axis(d, i)
    other = d.rng.choice([i, d.like(i, same=True)])
    return f"fw.concat([{{0}}, {{1}}], axis={k})", (i, other)


def _stack(d: Draw) -> Call:
    i = d.value()
    k = d.rng.randint(0, len(d.shape(i)))
    return f"fw.stack([{{0}}, {{1}}], axis={k})", (i, d.like(i, same=True))


def _unstack(d: Draw) -> Call | None:
    i = d.value("any", 1)
    k = axis(d, i)
    n = d.shape(i)[k]
    if not isinstance(n, int) or not 0 < n < 9:
        return None
    return f"fw.unstack({{0}}, axis={k})[{d.rng.randrange(n)}]", (i,)


def _insert(d: Draw) -> Call | None:
    i = d.value("any", 1)
    shape = d.shape(i)
    if not known(shape) or 0 in shape:
        return None
    block = tuple(d.rng.randint(1, n) for n in shape)  # type: ignore[arg-type]
    start = tuple(d.rng.randint(0, n - b) for n, b in zip(shape, block, strict=True))
    return f"fw.insert({{0}}, {{1}}, {start})", (i, d.leaf(block, d.dtype(i)))


def _take(d: Draw) -> Call | None:
    i = d.value("any", 1)
    k = axis(d, i)
    n = d.shape(i)[k]
    if not isinstance(n, int) or n == 0:
        return None
    picks = d.rng.choice([(3,), (2, 4), (1,), ()])
    at = d.leaf(picks, d.rng.choice(["int32", "int64"]), f"index {n}")
    return f"fw.take({{0}}, {{1}}, axis={k})", (i, at)


def _take_along_axis(d: Draw) -> Call | None:
    i = d.value("any", 1)
    k = axis(d, i)
    shape = list(d.shape(i))
    n = shape[k]
    if not isinstance(n, int) or n == 0:
        return None
    shape[k] = d.rng.randint(1, 5)
    at = d.leaf(tuple(shape), d.rng.choice(["int32", "int64", "int8"]), f"index {min(n, 100)}")
    return f"fw.take_along_axis({{0}}, {{1}}, axis={k})", (i, at)


# --- reductions and scans -----------------------------------------------------------------------


def reduction(name: str, category: str) -> Maker:
    def make(d: Draw) -> Call:
        i = d.value(category)
        return f"fw.{name}({{0}}, axis={axes(d, i)}, keepdims={d.rng.random() < 0.5})", (i,)

    return make


def position(name: str) -> Maker:
    def make(d: Draw) -> Call:
        i = d.value("numeric", 1)
        return f"fw.{name}({{0}}, axis={axis(d, i)}, keepdims={d.rng.random() < 0.5})", (i,)

    return make


def scan(name: str) -> Maker:
    def make(d: Draw) -> Call:
        i = d.value("numeric", 1)
        first = d.rng.random() < 0.3
        return f"fw.{name}({{0}}, axis={axis(d, i)}, include_initial={first})", (i,)

    return make


def _diff(d: Draw) -> Call:
    i = d.value("numeric", 1)
    return f"fw.diff({{0}}, axis={axis(d, i)}, n={d.rng.choice([1, 1, 2])})", (i,)


def _matmul(d: Draw) -> Call:
    i = d.value("numeric", 2)
    shape = d.shape(i)
    return "fw.matmul({0}, {1})", (i, d.leaf((shape[-1], d.rng.choice([1, 3, 8])), d.dtype(i)))


def _tensordot(d: Draw) -> Call:
    i = d.value("numeric", 1)
    return "fw.tensordot({0}, {1}, axes=1)", (i, d.leaf((d.shape(i)[-1], 3), d.dtype(i)))


def _vecdot(d: Draw) -> Call:
    i = d.value("numeric", 1)
    return "fw.vecdot({0}, {1})", (i, d.like(i, same=True))


# --- creation -----------------------------------------------------------------------------------


def creation(text: str) -> Maker:
    """A new value that the program makes of a value's shape or dtype."""
    return lambda d: (text, (d.value(),))


def _sized(name: str) -> Maker:
    def make(d: Draw) -> Call:
        i = d.value()
        return f"fw.{name}({d.rng.choice(['{0}.shape', '(3, 5)'])}, dtype={d.dtype(i)!r})", (i,)

    return make


def _full(d: Draw) -> Call:
    i = d.value()
    return f"fw.full({{0}}.shape, {_scalar(d, d.dtype(i))}, dtype={d.dtype(i)!r})", (i,)


def _arange(d: Draw) -> Call:
    i = d.value("numeric", 1)
    return f"{{0}} + fw.arange({{0}}.shape[-1], dtype={d.dtype(i)!r})", (i,)


def _linspace(d: Draw) -> Call | None:
    i = d.value("float", 1)
    n = d.shape(i)[-1]
    if not isinstance(n, int):
        return None
    return f"{{0}} * fw.linspace(-1.0, 2.0, {n}, dtype={d.dtype(i)!r})", (i,)


def _eye(d: Draw) -> Call:
    i = d.value("numeric", 2)
    k = d.rng.randint(-2, 2)
    return f"{{0}} + fw.eye({{0}}.shape[-2], {{0}}.shape[-1], k={k}, dtype={d.dtype(i)!r})", (i,)


def _triangle(name: str) -> Maker:
    return lambda d: (f"fw.{name}({{0}}, k={d.rng.randint(-2, 2)})", (d.value("any", 2),))


def _meshgrid(d: Draw) -> Call | None:
    i = d.value("any", 1)
    if len(d.shape(i)) != 1 or count(d.shape(i)) > 200:
        return None
    other = d.leaf((d.rng.choice([1, 4]),), d.dtype(i))
    return f"fw.meshgrid({{0}}, {{1}})[{d.rng.randint(0, 1)}]", (i, other)


def _random(name: str) -> Maker:
    extra = "" if name == "bits" else ", dtype={1}"

    def make(d: Draw) -> Call:
        i = d.value("float")
        tail = extra.replace("{1}", repr(d.rng.choice(["float32", "float64"])))
        return f"fw.random.{name}({{0}}.shape, seed={d.rng.randint(0, 99)}{tail})", (i,)

    return make


MAKERS: dict[str, Maker] = {
    **{
        n: unary(n, "float")
        for n in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "cos",
            "cosh",
            "erf",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log10",
            "log1p",
            "log2",
            "reciprocal",
            "rsqrt",
            "signbit",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
        )
    },
    **{
        n: unary(n, "numeric")
        for n in (
            "abs",
            "ceil",
            "conj",
            "floor",
            "isfinite",
            "isinf",
            "isnan",
            "negative",
            "positive",
            "imag",
            "real",
            "round",
            "sign",
            "square",
            "trunc",
        )
    },
    **{n: unary(n, "any") for n in ("copy",)},
    "logical_not": unary("logical_not", "bool"),
    "bitwise_invert": unary("bitwise_invert", "integer or bool"),
    **{
        n: binary(n, "float")
        for n in (
            "atan2",
            "copysign",
            "divide",
            "hypot",
            "logaddexp",
            "nextafter",
        )
    },
    **{
        n: binary(n, "numeric")
        for n in (
            "add",
            "floor_divide",
            "greater",
            "greater_equal",
            "less",
            "less_equal",
            "maximum",
            "minimum",
            "multiply",
            "pow",
            "remainder",
            "subtract",
        )
    },
    **{n: binary(n, "any") for n in ("equal", "not_equal")},
    **{n: binary(n, "bool") for n in ("logical_and", "logical_or", "logical_xor")},
    **{n: binary(n, "integer or bool") for n in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{n: _shift(n) for n in ("bitwise_left_shift", "bitwise_right_shift")},
    "where": _where,
    "fma": _fma,
    "clip": _clip,
    "astype": _astype,
    "reshape": _reshape,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "broadcast_to": _broadcast_to,
    "broadcast_arrays": _broadcast_arrays,
    "permute_dims": _permute_dims,
    "moveaxis": _moveaxis,
    "flip": _flip,
    "roll": _roll,
    "matrix_transpose": lambda d: ("fw.matrix_transpose({0})", (d.value("any", 2),)),
    "repeat": _repeat,
    "tile": _tile,
    "pad": _pad,
    "slice": _slice,
    "concat": _concat,
    "stack": _stack,
    "unstack": _unstack,
    "insert": _insert,
    "take": _take,
    "take_along_axis": _take_along_axis,
    **{n: reduction(n, "numeric") for n in ("max", "min", "prod", "sum")},
    **{n: reduction(n, "float") for n in ("mean", "std", "var")},
    **{n: reduction(n, "any") for n in ("all", "any", "count_nonzero")},
    **{n: position(n) for n in ("argmax", "argmin")},
    **{n: scan(n) for n in ("cumulative_prod", "cumulative_sum")},
    "diff": _diff,
    "matmul": _matmul,
    "tensordot": _tensordot,
    "vecdot": _vecdot,
    **{n: creation(f"fw.{n}({{0}})") for n in ("empty_like", "ones_like", "zeros_like")},
    "full_like": creation("fw.full_like({0}, 1)"),
    **{n: _sized(n) for n in ("empty", "ones", "zeros")},
    "full": _full,
    "arange": _arange,
    "linspace": _linspace,
    "eye": _eye,
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
    "meshgrid": _meshgrid,
    **{f"random.{n}": _random(n) for n in fw.random.__all__},
}

REGIONS = ("cond", "fori_loop", "scan", "while_loop")
NOT_DRAWN = {
    "broadcast_shapes": "computes with shapes only",
    "random": "its functions are drawn",
    "split": "slices, which are drawn",
    "median": "a sort, which is drawn, and two of its elements",
    "quantile": "a sort, which is drawn, and two of its elements",
    **dict.fromkeys(REGIONS, "drawn with bodies of their own by tests/runtime"),
}
VIEWS = (
    "reshape",
    "permute_dims",
    "slice",
    "pad",
    "concat",
    "broadcast_to",
    "flip",
    "roll",
    "repeat",
    "tile",
    "take",
    "expand_dims",
)
