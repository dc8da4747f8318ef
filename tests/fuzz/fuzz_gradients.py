"""Random functions of floats, drawn while they run, for comparing gradients with differences.

`Drawn(seed)` is a function of arrays. It draws 3 to 8 operations for the shapes at hand, so that a
trace, a map and a numpy evaluation of one seed compute the same. Every maker returns a line of
source over `v`, the values so far, or None where these do not suit it; `Drawn.lines` are those of
the last run. Values stay within a few units, and arguments of functions inside of their domains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

import fusewright as fw

Maker: TypeAlias = "Callable[[Draw], str | None]"
MOST_ELEMENTS = 400


class Draw:
    """The values of a run, and choices among them."""

    def __init__(self, seed: str, values: Sequence[Any]) -> None:
        self.rng = random.Random(seed)
        self.values = list(values)

    def shape(self, i: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.values[i].shape)

    def pick(self, rank: int = 0, most: int = 9) -> int | None:
        """A value of that rank or more; the younger, the likelier."""
        fit = [
            i
            for i in range(len(self.values))
            if rank <= len(self.shape(i)) <= most and 0 not in self.shape(i)
        ]
        if not fit:
            return None
        return max(self.rng.choice(fit), self.rng.choice(fit))

    def partner(self, i: int) -> int:
        """A value that broadcasts with value i: itself, if there is no other."""
        fit: list[int] = []
        for j in range(len(self.values)):
            try:
                shape = np.broadcast_shapes(self.shape(i), self.shape(j))
            except ValueError:
                continue
            if np.prod(shape) <= MOST_ELEMENTS:
                fit.append(j)
        return self.rng.choice(fit or [i])

    def axis(self, i: int) -> int:
        rank = len(self.shape(i))
        return self.rng.randrange(-rank, rank)

    def axes(self, i: int) -> int | tuple[int, ...] | None:
        rank = len(self.shape(i))
        several = tuple(sorted(self.rng.sample(range(rank), self.rng.randint(0, rank))))
        return self.rng.choice([None, self.axis(i) if rank else None, several or None])

    def places(self, extent: int, *shape: int) -> str:
        """An array of indices, some of them negative."""
        count = int(np.prod(shape))
        numbers = [self.rng.randrange(-extent, extent) for _ in range(count)]
        return f"np.array({np.array(numbers, dtype=np.int64).reshape(shape).tolist()})"


# --- elementwise --------------------------------------------------------------------------------

UNARY = (
    *("fw.sin({0})", "fw.tanh({0})", "fw.exp(-{0} * {0})", "fw.sqrt({0} * {0} + 0.3)", "-{0}"),
    *("fw.log1p({0} * {0})", "fw.erf({0})", "fw.atan({0})", "fw.abs({0})", "{0} ** 3 / 4"),
    *(
        "fw.rsqrt({0} ** 2 + 0.5)",
        "fw.asinh({0})",
        "fw.clip({0}, -0.7, 0.9)",
        "1 / (2 + fw.cos({0}))",
    ),
    *("fw.nn.sigmoid({0})", "fw.nn.gelu({0})", "fw.nn.silu({0})", "fw.nn.softplus({0})"),
    *("fw.nn.leaky_relu({0})", "fw.nn.elu({0})", "fw.nn.hardswish({0})", "fw.nn.mish({0})"),
    *("{0} * fw.stop_gradient(fw.round({0} + 0.1))", "fw.where({0} > 0.1, {0} * {0}, fw.sin({0}))"),
    *("{0} * fw.sign({0}) + fw.floor({0})", "fw.nan_to_num({0})", "2.0 ** fw.tanh({0})"),
)
BINARY = (
    *("{0} + {1}", "{0} - {1}", "{0} * fw.tanh({1})", "{0} / (1 + {1} * {1})"),
    *("fw.maximum({0}, {1} + 0.05)", "fw.minimum({0} - 0.03, {1})", "fw.logaddexp({0}, {1})"),
    *("fw.hypot({0}, {1} + 0.01)", "fw.atan2({0}, {1} * {1} + 0.5)", "fw.fma({0}, {1}, {0})"),
    *("fw.where({0} > {1}, {0} * 2, fw.sin({1}))", "({0} * {0} + 0.5) ** fw.tanh({1})"),
    *("fw.lerp({0}, {1}, 0.3)", "fw.copysign({0}, {1})", "fw.remainder({0}, 3 + fw.tanh({1}))"),
)


def unary(d: Draw) -> str | None:
    i = d.pick()
    return None if i is None else d.rng.choice(UNARY).format(f"v[{i}]")


def binary(d: Draw) -> str | None:
    i = d.pick()
    if i is None:
        return None
    return d.rng.choice(BINARY).format(f"v[{i}]", f"v[{d.partner(i)}]")


# --- reductions and scans -----------------------------------------------------------------------


def reduction(d: Draw) -> str | None:
    i = d.pick()
    if i is None:
        return None
    name = d.rng.choice(["sum", "mean", "max", "min", "prod", "var", "logsumexp", "std"])
    operand = {"prod": f"fw.tanh(v[{i}]) + 1.2", "sum": f"v[{i}] / 3"}.get(name, f"v[{i}]")
    keep = d.rng.random() < 0.5
    text = f"fw.{name}({operand}, axis={d.axes(i)}, keepdims={keep})"
    return f"fw.sqrt(fw.var(v[{i}], axis={d.axes(i)}) + 0.1)" if name == "std" else text


def scan(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    a = d.axis(i)
    first = d.rng.random() < 0.5
    return d.rng.choice(
        [
            f"fw.cumulative_sum(v[{i}] / 4, axis={a}, include_initial={first})",
            f"fw.flip(fw.cumulative_sum(fw.flip(v[{i}] / 4, axis={a}), axis={a}), axis={a})",
            f"fw.diff(v[{i}], axis={a})",
            f"fw.cumulative_prod(fw.sin(v[{i}]) + 0.3, axis={a}, include_initial={first})",
            f"fw.cumulative_{d.rng.choice(['max', 'min'])}(v[{i}], axis={a})",
        ]
    )


def order(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    a = d.axis(i)
    k = d.rng.randint(1, d.shape(i)[a])
    down = d.rng.random() < 0.5
    return d.rng.choice(
        [
            f"fw.sort(v[{i}], axis={a}, descending={down})",
            f"fw.topk(v[{i}], {k}, axis={a}, largest={down})[0]",
            f"fw.median(v[{i}], axis={a})",
            f"fw.quantile(v[{i}], [0.2, 0.7], axis={a})",
            f"fw.take_along_axis(v[{i}], fw.argsort(v[{i}], axis={a}), axis={a})",
        ]
    )


# --- moves --------------------------------------------------------------------------------------


def move(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    shape, a = d.shape(i), d.axis(i)
    order = d.rng.sample(range(len(shape)), len(shape))
    n = shape[a]
    pads = [(d.rng.randint(0, 2), d.rng.randint(0, 2)) for _ in shape]
    mode = d.rng.choice(["constant", "edge", "wrap", "reflect", "symmetric"])
    most = 0 if mode != "constant" and min(shape) < 3 else 2
    pads = [(min(b, most), min(e, most)) for b, e in pads]
    return d.rng.choice(
        [
            f"fw.permute_dims(v[{i}], {tuple(order)})",
            f"v[{i}].T" if len(shape) == 2 else f"fw.moveaxis(v[{i}], {a}, 0)",
            f"v[{i}].reshape(-1)",
            f"fw.flip(v[{i}], axis={a})",
            f"fw.roll(v[{i}], {d.rng.randint(-7, 7)}, axis={a})",
            f"fw.pad(v[{i}], {pads}, mode={mode!r})",
            f"fw.repeat(v[{i}], 2, axis={a})",
            f"fw.tile(v[{i}], {tuple(d.rng.randint(1, 2) for _ in shape)})",
            f"fw.expand_dims(v[{i}], axis={a})",
            f"fw.broadcast_to(v[{i}], {(3, *shape)})",
            f"fw.split(v[{i}], [{n // 2}], axis={a})[0]" if n > 1 else f"v[{i}][..., None]",
        ]
    )


def part(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    keys: list[str] = []
    for n in d.shape(i):
        low = d.rng.randrange(n)
        kinds = [":", "::-1", f"{low}:", f"{low}::-1", f"{low}:{n}:2", f":{low + 1}", f"{low - n}"]
        keys.append(d.rng.choice(kinds))
    return f"v[{i}][{', '.join(keys)}]"


def join(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    a = d.axis(i)
    other = f"fw.cos(v[{i}])"
    return d.rng.choice(
        [
            f"fw.concat([v[{i}], {other}], axis={a})",
            f"fw.stack([{other}, v[{i}]], axis={a})",
            f"fw.concat([v[{i}], fw.ones_like(v[{i}]), v[{i}] * v[{i}]], axis={a})",
            f"fw.insert({other}, v[{i}][{', '.join('0:1' for _ in d.shape(i))}], "
            f"{tuple(d.rng.randrange(n) for n in d.shape(i))})",
        ]
    )


# --- gathers and sums by index ------------------------------------------------------------------


def gather(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    shape, a = d.shape(i), d.axis(i)
    n, few = shape[a], d.rng.randint(1, 5)
    along = list(shape)
    along[a] = few
    lines = [
        f"fw.take(v[{i}], {d.places(n, few)}, axis={a})",
        f"fw.take(v[{i}], {d.places(n, 2, few)}, axis={a})",
        f"fw.take_along_axis(v[{i}], {d.places(n, *along)}, axis={a})",
        f"v[{i}][{d.places(shape[0], few)}]",
        f"v[{i}][fw.argsort(v[{i}].reshape({shape[0]}, -1)[:, 0])]",
    ]
    if len(shape) > 1:
        lines.append(f"v[{i}][{d.places(shape[0], few)}, {d.places(shape[1], few)}]")
        lines.append(f"v[{i}][{d.places(shape[0], few)}[:, None], {d.places(shape[1], 3)}]")
    return d.rng.choice(lines)


def scatter(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    n = d.shape(i)[0]
    ids = [d.rng.randrange(0, 4) for _ in range(n)]
    target = f"fw.sin(v[{i}])"
    return d.rng.choice(
        [
            f"fw.segment_sum(v[{i}], np.array({ids}), 4)",
            f"fw.scatter_add({target}, {d.places(n, n)}, v[{i}])",
        ]
    )


# --- products -----------------------------------------------------------------------------------


def product(d: Draw) -> str | None:
    i = d.pick(2, 3)
    if i is None:
        return None
    x, rank = f"v[{i}] / 2", len(d.shape(i))
    lines = [f"({x}) @ fw.matrix_transpose(v[{i}])", f"fw.tanh({x}).mT @ ({x})"]
    lines.append(f"fw.vecdot({x}, fw.sin(v[{i}]))")
    lines.append(f"fw.einsum('...ij,...kj->...ik', {x}, {x})")
    lines.append(f"fw.einsum('...ij->...i', {x})")
    if rank == 2:
        lines += [f"fw.einsum('ij,ik,il->jl', {x}, {x}, {x})", f"fw.tensordot({x}, {x}, axes=2)"]
        lines += [f"fw.inner({x}, {x})", f"fw.outer(v[{i}][0], v[{i}][:, 0])"]
        lines.append(f"fw.diagonal({x})")
    return d.rng.choice([*lines, f"fw.tril({x}, k=1)", f"fw.triu({x})"])


# --- nn -----------------------------------------------------------------------------------------


def layer(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    shape, a, x = d.shape(i), d.axis(i), f"v[{i}]"
    width = shape[-1]
    lines = [f"fw.nn.softmax({x}, axis={a})", f"fw.nn.log_softmax({x}, axis={a})"]
    lines += [f"fw.nn.normalize({x} + 1, axis={a})", f"fw.nn.rms_norm({x}, ({width},), eps=0.1)"]
    lines.append(f"fw.nn.layer_norm({x}, ({width},), eps=0.1)")
    lines.append(f"fw.nn.smooth_l1_loss({x}, fw.sin({x}) + 0.3)")
    lines.append(f"fw.nn.huber_loss({x} * 2, fw.cos({x}))")
    if shape[a] % 2 == 0:
        lines.append(f"fw.nn.glu({x}, axis={a})")
    if len(shape) == 2:
        labels = [d.rng.randrange(width) for _ in range(shape[0])]
        lines.append(f"fw.nn.cross_entropy({x}, np.array({labels}))")
        lines.append(f"fw.nn.scaled_dot_product_attention({x}, fw.sin({x}), fw.cos({x}))")
        lines.append(f"fw.nn.embedding({d.places(shape[0], 2, 3)}, {x})")
        lines.append(f"fw.nn.linear({x}, {x}, {x}[:, 0])")
    if len(shape) == 3:
        if shape[0] * width > 1:
            lines.append(f"fw.nn.batch_norm({x}, None, None, training=True, eps=0.1)")
        lines.append(f"fw.nn.group_norm({x}, 1, eps=0.1)")
        lines.append(f"fw.nn.interpolate({x}, size={width + 2}, mode='linear')")
        lines.append(f"fw.nn.conv1d({x}, {x}[:, :, :1], padding=1)")
        if width > 2:
            lines.append(f"fw.nn.max_pool1d({x}, 2)")
            lines.append(f"fw.nn.avg_pool1d({x}, 3, stride=1, padding=1)")
    return d.rng.choice(lines)


# --- loops, branches, maps ----------------------------------------------------------------------


def region(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    x, trips = f"v[{i}]", d.rng.randint(0, 3)
    return d.rng.choice(
        [
            f"fw.scan(lambda c, x: (fw.tanh(c + x), c * x), fw.zeros_like({x}[0]), {x})[1]",
            f"fw.scan(lambda c, x: (fw.sin(c) + x, c), {x}[0], {x}, reverse=True)[0]",
            f"fw.fori_loop(0, {trips}, lambda i, c: fw.sin(c) * {x} + c / 2, {x})",
            f"fw.fori_loop(0, {d.shape(i)[0]}, lambda i, c: c + fw.tanh({x}[i]), {x}[0])",
            f"fw.cond(fw.sum({x}) > 0.1, lambda a: fw.sin(a), lambda a: a * {x}, {x})",
            f"fw.fori_loop(0, 2, lambda i, c: c * fw.stop_gradient(fw.sign(c)), fw.sort({x}))",
            f"fw.scan(lambda c, x: (c + fw.nn.softmax(x, axis=-1), fw.sum(c)), {x}[0], {x})[1]"
            if len(d.shape(i)) > 1
            else f"fw.cumulative_sum({x})",
        ]
    )


def mapped(d: Draw) -> str | None:
    i = d.pick(1)
    if i is None:
        return None
    x, a = f"v[{i}]", d.axis(i)
    return d.rng.choice(
        [
            f"fw.vmap(lambda r: fw.nn.softmax(r.reshape(-1), axis=0), in_axes={a})({x})",
            f"fw.vmap(lambda r: fw.sin(r) * fw.sum(r), in_axes={a}, out_axes=-1)({x})",
            f"fw.vmap(fw.grad(lambda r: fw.sum(fw.sin(r) * r)), in_axes={a})({x})",
            f"fw.grad(lambda r: fw.sum(fw.vmap(fw.tanh, in_axes={a})(r) ** 2))({x})",
        ]
    )


MAKERS: tuple[Maker, ...] = (
    *(unary, unary, binary, binary, reduction, reduction, scan, order, move, move, part, join),
    *(gather, gather, scatter, product, layer, layer, region, mapped),
)


class Drawn:
    """A function of one to three arrays, drawn for a seed, with one float as its result."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lines: list[str] = []

    def arguments(self) -> list[np.ndarray]:
        rng = random.Random(f"arguments of {self.seed}")
        numbers = np.random.default_rng(self.seed)
        first = [rng.choice([1, 2, 3, 4, 5, 7]) for _ in range(rng.randint(1, 3))]
        shapes = [tuple(first)]
        for _ in range(rng.randint(0, 2)):
            cut = first[rng.randint(0, len(first) - 1) :]
            shapes.append(tuple(n if rng.random() < 0.7 else 1 for n in cut))
        return [numbers.uniform(-1.5, 1.5, s) for s in shapes]

    def __call__(self, *arguments: Any) -> Any:
        d = Draw(f"operations of {self.seed}", arguments)
        self.lines = []
        wanted = d.rng.randint(3, 8)
        for _ in range(200):
            if len(self.lines) == wanted:
                break
            text = d.rng.choice(MAKERS)(d)
            if text is None:
                continue
            value = eval(text, {"fw": fw, "np": np, "v": d.values})
            if np.prod([1, *map(int, value.shape)]) > MOST_ELEMENTS or 0 in value.shape:
                continue
            d.values.append(value)
            self.lines.append(f"v[{len(d.values) - 1}] = {text}")
        parts = [self._weighed(v, k) for k, v in enumerate(d.values)]
        return sum(parts[1:], parts[0])

    def _weighed(self, x: Any, number: int) -> Any:
        """The sum of the elements, each with a weight of its own."""
        count = int(np.prod([1, *map(int, x.shape)]))
        weights = np.sin(1.0 + number + np.arange(count)).reshape(tuple(map(int, x.shape)))
        return fw.sum(x * fw.asarray(weights, dtype=x.dtype))
