"""The motifs of the wider random programs, and the program of a seed.

A motif is a small composition that stresses one decision of the compiler: how pieces are placed
into joins, who reads a view of a result, what a symbolic size leaves open, how many operands a
kernel takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fuzz_ops
from fuzz_ops import known
from fuzz_programs import Impossible, Recipe, makers
from fuzz_wide import ELEMENTWISE, ENDS, HOSTILE, MANY, READERS, RESULTS, Broken, Wide

from fusewright.errors import FusewrightError


def _part(b: Wide, i: int, k: int) -> int:
    """Some of a value along axis `k`."""
    n = b.shape(i)[k]
    at = b.rng.randint(0, n) if isinstance(n, int) else b.rng.choice([1, 2, 4, 8])
    limits = b.rng.choice([f":{at}", f"{at}:", f"{at}::2", f":{at}:-1", f"{at // 2}:{at}"])
    if not isinstance(n, int) and b.rng.random() < 0.3:
        half = f"{{0}}.shape[{k}] // 2"
        limits = b.rng.choice([f":{half}", f"{half}:"])
    return b.line(f"{{0}}[{':, ' * k}{limits}]", i)


def join_read_in_parts(b: Wide) -> None:
    """Results joined along an axis; each reader sees a part of the join."""
    x = b.result()
    k = b.rng.randrange(len(b.shape(x)))
    pieces = [x]
    for _ in range(b.rng.randint(1, 2)):
        pieces.append(b.pick(RESULTS, b.leaf(b.shape(x), b.dtype(x))))
    if any(b.shape(p) != b.shape(x) for p in pieces) and b.rng.random() < 0.5:
        pieces = [x, x]
    names = ", ".join(f"{{{i}}}" for i in range(len(pieces)))
    joined = b.line(f"fw.concat([{names}], axis={k})", *pieces)
    if b.rng.random() < 0.25:
        b.pick(READERS, pieces[0])
    for _ in range(b.rng.randint(1, 3)):
        b.pick(READERS, _part(b, joined, k))


def view_of_result(b: Wide) -> None:
    """A view of a result goes into a join; something else reads the result or the view."""
    x = b.result()
    v = x
    for _ in range(b.rng.randint(0, 2)):
        v = b.random_step(on=v)
    kind = b.rng.random()
    other = b.leaf(b.shape(v), b.dtype(v))
    rank = len(b.shape(v))
    pair = (other, v) if b.rng.random() < 0.5 else (v, other)
    if kind < 0.4 and rank:
        b.line("fw.concat([{0}, {1}], axis=A)", *pair)
    elif kind < 0.6:
        b.line(f"fw.stack([{{0}}, {{1}}], axis={b.rng.randint(0, rank)})", *pair)
    elif kind < 0.8 and rank and known(b.shape(v)):
        wide = tuple(n + b.rng.randint(0, 3) for n in b.shape(v))  # type: ignore[operator]
        at = tuple(b.rng.randint(0, w - n) for w, n in zip(wide, b.shape(v), strict=True))  # type: ignore[operator]
        b.line(f"fw.insert({{0}}, {{1}}, {at})", b.leaf(wide, b.dtype(v)), v)
    elif rank:
        widths = tuple((b.rng.randint(0, 2), b.rng.randint(0, 2)) for _ in range(rank))
        b.line(f"fw.pad({{0}}, {widths})", v)
    b.pick(READERS, x if b.rng.random() < 0.6 else v)


def argument_beside_result(b: Wide) -> None:
    """An argument and a result of it in one join, and another reader of the result."""
    a = b.source_value(2)
    k = b.rng.randrange(len(b.shape(a)))
    what = b.rng.choice(["sum", "max", "mean", "min"])
    s = b.line(f"fw.{what}({{0}}, axis={k}, keepdims=True)", a)
    b.line(
        f"fw.concat([{b.rng.choice(['{0}, {1}', '{1}, {0}', '{1}, {0}, {1}'])}], axis={k})", a, s
    )
    b.pick(READERS, s)


def transposed_broadcast(b: Wide) -> None:
    """An operand whose axes are permuted, broadcast over new axes."""
    x = b.source_value(2)
    rank = len(b.shape(x))
    order = list(range(rank))
    b.rng.shuffle(order)
    turned = b.line(f"fw.permute_dims({{0}}, {tuple(order)})", x)
    shape = list(b.shape(turned))
    for _ in range(b.rng.randint(0, 2)):
        shape = [b.rng.choice([1, 2, 3, 5, "n"]), *shape]
    if b.rng.random() < 0.3:
        shape[b.rng.randrange(len(shape))] = 1
    y = b.leaf(tuple(shape), b.dtype(x))
    made = b.line(b.rng.choice(["{0} + {1}", "{1} * {0}", "fw.maximum({0}, {1})"]), y, turned)
    if b.rng.random() < 0.4:
        b.pick(READERS, made)


def many_operands(b: Wide) -> None:
    """More operands than one kernel takes."""
    n = b.rng.choice(MANY)
    limit = [b.rng.choice([1, 2, 3, 4]) for _ in b.base[-2:]]
    shape = tuple(
        s if isinstance(s, str) else min(s, c) for s, c in zip(b.base[-2:], limit, strict=True)
    )
    kind = b.rng.choice(["concat", "stack", "add", "norms", "results", "views", "pieces", "uneven"])
    names = ", ".join(f"{{{i}}}" for i in range(n))
    dtype = b.home if b.home in fuzz_ops.FLOATS else "float32"
    if kind == "views":
        x = b.leaf((n, *shape), dtype)
        parts = ", ".join(f"{{0}}[{i}]" for i in b.rng.sample(range(n), n))
        b.pick(READERS, b.line(f"fw.stack([{parts}], axis={b.rng.randint(0, len(shape))})", x))
        return
    if kind == "uneven" or (kind == "concat" and not shape):
        shape = (3, *shape)
    sizes = [
        (b.rng.choice([0, 1, 1, 2, 5]), *shape[1:]) if kind == "uneven" else shape for _ in range(n)
    ]
    leaves = [b.leaf(s, dtype) for s in sizes]
    if kind == "pieces":
        leaves = [b.line(f"{{0}} * {i}", x) for i, x in enumerate(leaves)]
    if kind == "results":
        b.every_result = True
        for x in leaves:
            b.line("fw.exp({0}) + {1}", x, leaves[0])
        return
    if kind == "norms":
        squares = [b.line("fw.sum({0} * {0})", x) for x in leaves]
        total = b.line(f"fw.sqrt(fw.sum(fw.stack([{names}])))", *squares)
        if b.rng.random() < 0.5:
            b.every_result = True
            for x in leaves:
                b.line("{0} / {1}", x, total)
        return
    texts = {
        "add": " + ".join(f"{{{i}}}" for i in range(n)),
        "stack": f"fw.stack([{names}], axis={b.rng.randint(-1, 0)})",
    }
    along = b.rng.randrange(max(len(shape), 1)) if kind == "concat" else 0
    if not shape and kind == "pieces":
        kind = "stack"
    made = b.line(texts.get(kind, f"fw.concat([{names}], axis={along})"), *leaves)
    for _ in range(b.rng.randint(0, 2)):
        b.pick(READERS, made)


def ends_of_axes(b: Wide) -> None:
    """First and last elements, crops, steps and flips, then something over them."""
    x = b.source_value(2)
    if b.rng.random() < 0.3:
        x = b.pick(RESULTS, x)
    rank = len(b.shape(x))
    key = [":"] * rank
    for _ in range(b.rng.randint(1, 2)):
        key[b.rng.randrange(rank)] = b.rng.choice(ENDS)
    v = b.line(f"{{0}}[{', '.join(key)}]", x)
    if b.rng.random() < 0.3:
        joined = b.rng.choice(["fw.stack([{0}, {0}], axis=-1)", "fw.concat([{0}, {0}], axis=A)"])
        v = b.line(joined, v)
    b.pick(READERS if b.rng.random() < 0.6 else RESULTS, v)


def scalars(b: Wide) -> None:
    """Arguments of rank 0 beside others, joined, as indices, as shifts."""
    x = b.source_value(b.rng.choice([0, 1, 2]))
    s = b.leaf((), b.dtype(x))
    rank = len(b.shape(x))
    kind = b.rng.random()
    if kind < 0.35 and rank:
        b.line("fw.concat([{0} * {1}, {0} + {1}], axis=A)", x, s)
    elif kind < 0.6 and rank:
        k = b.rng.randrange(rank)
        n = b.shape(x)[k]
        at = b.leaf((), "int32", f"index {min(n, 4) if isinstance(n, int) else 2}")
        if n == 0:
            raise Impossible("nothing to take")
        b.pick(READERS, b.line(f"fw.take({{0}}, {{1}}, axis={k})", x, at))
    elif kind < 0.8:
        total = b.line("fw.sum({0})", x)
        b.line("{0} * {1} - {2}", x, s, total)
        b.line("fw.stack([{0}, {1}, {0} + {1}])", s, total)
    else:
        b.pick(READERS, b.line("fw.broadcast_to({0}, {1}.shape) + {1}", s, x))


def window(b: Wide) -> None:
    """A sliding window as shifted slices of a padded value."""
    x = b.source_value(2)
    rank = len(b.shape(x))
    k, w = b.rng.randrange(rank), b.rng.randint(2, 5)
    mode = b.rng.choice(["constant", "edge", "reflect", "symmetric", "wrap"])
    widths = [(0, 0)] * rank
    widths[k] = (b.rng.randint(0, 2), w - 1)
    padded = b.line(f"fw.pad({{0}}, {tuple(widths)}, {mode!r})", x)
    lead = ":, " * k
    step = b.rng.choice(["", "", ":2", ":3"])
    parts = [f"{{0}}[{lead}{i}:{f'-{w - 1 - i}' if i < w - 1 else ''}{step}]" for i in range(w)]
    if step or b.rng.random() < 0.7:
        made = b.line(
            b.rng.choice([" + ".join(parts), f"fw.sum(fw.stack([{', '.join(parts)}]), axis=0)"]),
            padded,
        )
    else:
        texts = [f"fw.maximum({parts[0]}, {parts[1]})"]
        made = (
            b.line(texts[0], padded) if w == 2 else b.line(" * ".join(parts[1:-1] or parts), padded)
        )
    if b.rng.random() < 0.4:
        b.pick(READERS, made)


def padded(b: Wide) -> None:
    """Every mode of padding and cropping, of arguments and of results, then a reader."""
    x = b.source_value(1) if b.rng.random() < 0.5 else b.result()
    rank = len(b.shape(x))
    mode = b.rng.choice(["constant", "constant", "edge", "reflect", "symmetric", "wrap"])
    low = -2 if mode == "constant" else 0
    widths = tuple((b.rng.randint(low, 3), b.rng.randint(low, 3)) for _ in range(rank))
    fill = f", constant_values={b.rng.choice([1, 0, -2.5])}" if mode == "constant" else ""
    made = b.line(f"fw.pad({{0}}, {widths}, {mode!r}{fill})", x)
    if b.rng.random() < 0.6:
        b.pick(READERS, made)


def masked(b: Wide) -> None:
    """Masks made of positions, and softmax over what they leave."""
    x = b.source_value(2)
    k = b.rng.randint(-2, 3)
    texts = (
        f"fw.where(fw.arange({{0}}.shape[-1]) < {k + 3}, {{0}}, -100.0)",
        f"fw.tril({{0}}, k={k})",
        f"fw.triu({{0}}, k={k})",
        "fw.where(fw.arange({0}.shape[-2])[:, None] >= fw.arange({0}.shape[-1]), {0}, -50.0)",
        f"{{0}} * (fw.arange({{0}}.shape[-1]) % 2 == {k % 2})",
        "{0} + fw.eye({0}.shape[-2], {0}.shape[-1])",
    )
    b.pick(RESULTS if b.rng.random() < 0.7 else READERS, b.pick(texts, x))


def empties(b: Wide) -> None:
    """Values without elements among others."""
    x = b.source_value(1)
    rank = len(b.shape(x))
    k = b.rng.randrange(rank)
    none = b.line(f"{{0}}[{':, ' * k}:0]", x)
    texts = (
        f"fw.concat([{{0}}, {{1}}], axis={k})",
        f"fw.concat([{{1}}, {{0}}, {{1}}, {{0}}], axis={k})",
        f"fw.insert({{0}}, {{1}}, {(0,) * rank})",
        f"fw.sum({{1}}, axis={k}, keepdims=True) + {{0}}",
        f"fw.prod({{1}}, axis={k}, keepdims=True) * {{0}}",
        "fw.stack([{1}, {1}])",
        "fw.exp({1})",
        f"fw.cumulative_sum({{1}}, axis={k}, include_initial=True)",
        f"fw.pad({{1}}, {tuple((1, 1) if a == k else (0, 0) for a in range(rank))}) + 1",
        "fw.sum({1}) + {0}",
        f"fw.tile({{1}}, {(2,) * rank})",
        "fw.reshape({1}, (-1,)) if 0 else {1}[::-1]",
    )
    made = b.pick(texts, x, none)
    if b.rng.random() < 0.5 and len(b.shape(made)):
        b.pick(READERS, made)


def sizes_as_values(b: Wide) -> None:
    """Shapes that come from shapes: ranges, reshapes, tiles and fills by symbolic sizes."""
    x = b.source_value(2)
    k = b.rng.randrange(len(b.shape(x)))
    texts = (
        f"fw.prod(fw.arange({{0}}.shape[{k}]), keepdims=True)[::-1]",
        f"fw.arange({{0}}.shape[{k}]) * 2",
        f"{{0}} * {{0}}.shape[{k}]"
        if known(b.shape(x))
        else f"{{0}} / fw.sum(fw.ones(({{0}}.shape[{k}],)))",
        f"fw.full(({{0}}.shape[{k}], 3), 2.0)",
        "fw.reshape({0}, (-1,))",
        "fw.reshape({0}, ({0}.shape[0] * {0}.shape[1], *{0}.shape[2:]))",
        "fw.repeat({0}, 3, axis=A)",
        f"fw.tile({{0}}, {tuple(b.rng.choice([1, 2]) for _ in b.shape(x))})",
        "fw.broadcast_to(fw.sum({0}, axis=0, keepdims=True), {0}.shape)",
        "fw.linspace(0.0, 1.0, 7)",
        f"fw.zeros({{0}}.shape)[{':, ' * k}1:]",
        "fw.concat([fw.zeros({0}.shape), {0}], axis=A)",
    )
    made = b.pick(texts, x)
    if len(b.shape(made)):
        b.pick(READERS if b.rng.random() < 0.6 else RESULTS, made)


def elementwise(b: Wide) -> None:
    """A chain over one iteration space: one kernel, if anything is."""
    x = b.source_value(0)
    y = b.leaf(b.shape(x), b.dtype(x))
    for _ in range(b.rng.randint(1, 6)):
        x, y = b.pick(ELEMENTWISE, x, y), x


def function(b: Wide) -> None:
    """A function of fw.nn over a value at hand."""
    names = [n for n in makers() if n.startswith("nn.")]
    for _ in range(6):
        name = b.rng.choice(names)
        if b.step(name, makers()[name]):
            return


def calls(b: Wide) -> None:
    """Random calls on what is there."""
    for _ in range(b.rng.randint(1, 4)):
        b.random_step()


def cast_and_back(b: Wide) -> None:
    """A result stored in another type before something reads it."""
    x = b.result()
    stored = b.line(f"fw.astype({{0}}, {b.rng.choice(fuzz_ops.DTYPES)!r})", x)
    b.pick(("fw.sum({0}, axis=A)", "{0}[::-1]", "fw.stack([{0}, {0}])"), stored)


MOTIFS: dict[str, tuple[Callable[[Wide], None], float]] = {
    "join_read_in_parts": (join_read_in_parts, 1.5),
    "view_of_result": (view_of_result, 1.5),
    "argument_beside_result": (argument_beside_result, 0.7),
    "transposed_broadcast": (transposed_broadcast, 1.2),
    "many_operands": (many_operands, 0.7),
    "ends_of_axes": (ends_of_axes, 1.5),
    "scalars": (scalars, 1.0),
    "window": (window, 1.0),
    "padded": (padded, 1.0),
    "masked": (masked, 1.0),
    "empties": (empties, 0.7),
    "sizes_as_values": (sizes_as_values, 1.0),
    "elementwise": (elementwise, 0.8),
    "function": (function, 1.5),
    "calls": (calls, 2.0),
    "cast_and_back": (cast_and_back, 0.6),
}


def draw_wide(seed: int) -> tuple[Recipe, tuple[str, ...]]:
    """The wider program of a seed, and the motifs in it."""
    b = Wide(seed)
    drawn: list[str] = []
    weights = [w for _, w in MOTIFS.values()]
    try:
        for attempt in range(20):
            enough = 1 if b.rng.random() < 0.7 else 2
            if attempt and b.steps and len(drawn) >= enough:
                break
            name = b.rng.choices(list(MOTIFS), weights)[0]
            drawn.append(name)
            try:
                MOTIFS[name][0](b)
            except Broken:
                raise
            except (FusewrightError, Impossible):
                pass
        if not b.steps:
            b.call("exp", "fw.exp({0})", (b.source_value(),))
        if b.hostile:
            _name_results(b)
    except Broken:
        return b.broken_recipe(), tuple(drawn)
    return b.recipe(), tuple(drawn)


def _name_results(b: Wide) -> None:
    """Odd names for some results."""
    for k in range(len(b.steps)):
        name = b.rng.choice(HOSTILE)
        if b.rng.random() < 0.4 and name not in b.named:
            b.named.add(name)
            b.steps[k] = replace(b.steps[k], text=f"fw.name({b.steps[k].text}, {name!r})")
