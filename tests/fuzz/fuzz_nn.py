"""How a random program calls each function of fw.nn; see fuzz_ops for what a maker is."""

from __future__ import annotations

from fuzz_ops import Call, Draw, Maker, axis, known

import fusewright as fw

_REDUCTION = ("'mean'", "'sum'", "'none'")


def _unary(text: str) -> Maker:
    return lambda d: (text, (d.value("float"),))


def _pair(text: str) -> Maker:
    """A function of two values of one shape and dtype."""

    def make(d: Draw) -> Call:
        i = d.value("float")
        return text, (d.leaf(d.shape(i), d.dtype(i)), i)

    return make


def _loss(text: str, numbers: str = "any") -> Maker:
    def make(d: Draw) -> Call:
        i = d.value("float")
        target = d.leaf(d.shape(i), d.dtype(i), numbers)
        return text.replace("R", d.rng.choice(_REDUCTION)), (i, target)

    return make


def _along_axis(text: str) -> Maker:
    """`A` in the text is an axis."""

    def make(d: Draw) -> Call:
        i = d.value("float", 1)
        operands = (i, d.leaf(d.shape(i), d.dtype(i)))
        return text.replace("A", str(axis(d, i))), operands[: 2 if "{1}" in text else 1]

    return make


def _glu(d: Draw) -> Call | None:
    i = d.value("float", 1)
    even = [k for k, n in enumerate(d.shape(i)) if isinstance(n, int) and n % 2 == 0 and n]
    return (f"fw.nn.glu({{0}}, axis={d.rng.choice(even)})", (i,)) if even else None


def _norm(name: str, saved: str, bias: bool) -> Maker:
    """A norm over trailing axes: its result, or its gradient from the values it saved."""

    def make(d: Draw) -> Call:
        i = d.value("float", 1)
        shape, dtype = d.shape(i), d.dtype(i)
        n = d.rng.randint(1, len(shape))
        over = f"{{0}}.shape[-{n}:]"
        weight = d.leaf(shape[-n:], dtype)
        if d.rng.random() < 0.5:
            args = "{1}, {2}" if bias else "{1}"
            both = (i, weight, d.leaf(shape[-n:], dtype)) if bias else (i, weight)
            return f"fw.nn.{name}({{0}}, {over}, {args})", both
        dy = d.leaf(shape, dtype)
        forward = f"fw.nn.{name}_forward({{0}}, {over}, {{1}}){saved}"
        text = f"fw.nn.{name}_backward({{2}}, *{forward}, {{0}}, {over}, {{1}})"
        return f"{text}[{d.rng.randrange(3 if bias else 2)}]", (i, weight, dy)

    return make


def _group_norm(d: Draw) -> Call | None:
    i = d.value("float", 2)
    shape, dtype = d.shape(i), d.dtype(i)
    channels = shape[1]
    if not isinstance(channels, int) or not channels or not known(shape):
        return None
    groups = d.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    weight = d.leaf((channels,), dtype)
    if d.rng.random() < 0.5:
        return f"fw.nn.group_norm({{0}}, {groups}, {{1}})", (i, weight)
    forward = f"fw.nn.group_norm_forward({{0}}, {groups}, {{1}})[1:]"
    text = f"fw.nn.group_norm_backward({{2}}, *{forward}, {{0}}, {groups}, {{1}})"
    return f"{text}[{d.rng.randrange(3)}]", (i, weight, d.leaf(shape, dtype))


def _batch_norm(d: Draw) -> Call | None:
    i = d.value("float", 2)
    shape, dtype = d.shape(i), d.dtype(i)
    if 1 in shape or 0 in shape:
        return None
    vector = (shape[1],)
    weight, mean = d.leaf(vector, dtype), d.leaf(vector, dtype)
    var = d.leaf(vector, dtype, "positive")
    kind = d.rng.random()
    operands = (i, mean, var, weight)
    training = d.rng.random() < 0.5
    if kind < 0.4:
        return f"fw.nn.batch_norm({{0}}, {{1}}, {{2}}, {{3}}, training={training})", operands
    forward = f"fw.nn.batch_norm_forward({{0}}, {{1}}, {{2}}, {{3}}, training={training})"
    if kind < 0.6:
        return f"{forward}[{d.rng.randrange(5)}]", operands
    text = f"fw.nn.batch_norm_backward({{4}}, *{forward}[3:5], {{0}}, {{3}}, training={training})"
    return f"{text}[{d.rng.randrange(3)}]", (*operands, d.leaf(shape, dtype))


def _instance_norm(d: Draw) -> Call | None:
    i = d.value("float", 3)
    shape, dtype = d.shape(i), d.dtype(i)
    if 1 in shape or 0 in shape:
        return None
    if d.rng.random() < 0.5:
        return "fw.nn.instance_norm({0})", (i,)
    text = "fw.nn.instance_norm_backward({1}, *fw.nn.instance_norm_forward({0})[3:5], {0})"
    return f"{text}[0]", (i, d.leaf(shape, dtype))


def _labels(name: str) -> Maker:
    def make(d: Draw) -> Call | None:
        i = d.value("float", 2)
        shape = d.shape(i)
        classes = shape[1]
        if not isinstance(classes, int) or classes == 0:
            return None
        target = d.leaf((shape[0], *shape[2:]), "int64", f"label {classes}")
        how = d.rng.choice(_REDUCTION)
        if name != "cross_entropy_backward":
            pick = "[0]" if name.endswith("forward") else ""
            return f"fw.nn.{name}({{0}}, {{1}}, reduction={how}){pick}", (i, target)
        saved = f"fw.nn.cross_entropy_forward({{0}}, {{1}}, reduction={how})"
        dy = f"fw.ones_like({saved}[0])"
        text = f"fw.nn.{name}({dy}, {saved}[1], {{0}}, {{1}}, reduction={how})"
        return text, (i, target)

    return make


def _linear(d: Draw) -> Call:
    i = d.value("float", 1)
    dtype, n = d.dtype(i), d.rng.choice([1, 3, 16])
    weight = d.leaf((n, d.shape(i)[-1]), dtype)
    return "fw.nn.linear({0}, {1}, {2})", (i, weight, d.leaf((n,), dtype))


def _linear_backward(d: Draw) -> Call:
    i = d.value("float", 2)
    shape, dtype, n = d.shape(i), d.dtype(i), d.rng.choice([1, 3, 16])
    operands = (i, d.leaf((n, shape[-1]), dtype), d.leaf((*shape[:-1], n), dtype))
    return f"fw.nn.linear_backward({{2}}, {{0}}, {{1}})[{d.rng.randrange(3)}]", operands


def _attention(d: Draw) -> Call:
    dtype = d.rng.choice(["float32", "float16", "bfloat16"])
    batch, rows, columns, width = (d.rng.choice([1, 2, 3, 8]) for _ in range(4))
    q = d.leaf((batch, rows, width), dtype)
    k = d.leaf((batch, columns, width), dtype)
    causal = d.rng.random() < 0.5
    text = f"fw.nn.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, is_causal={causal})"
    return text, (q, k, d.leaf((batch, columns, 5), dtype))


def _embedding(d: Draw) -> Call:
    rows, dtype = d.rng.choice([3, 17]), d.rng.choice(["float32", "float16", "bfloat16"])
    at = d.leaf(d.rng.choice([(4,), (2, 3)]), "int64", f"label {rows}")
    return "fw.nn.embedding({1}, {0})", (d.leaf((rows, d.rng.choice([1, 8, 33])), dtype), at)


def _embedding_backward(d: Draw) -> Call | None:
    i = d.value("float", 2)
    shape = d.shape(i)
    at = d.leaf(shape[:-1], "int32", "label 5")
    return "fw.nn.embedding_backward({0}, {1}, 5, padding_idx=0)", (i, at)


def _one_hot(d: Draw) -> Call:
    at = d.leaf(d.rng.choice([(4,), (2, 3)]), "int64", "label 6")
    return "fw.nn.one_hot({0}, 6)", (at,)


def _rotary(name: str) -> Maker:
    def make(d: Draw) -> Call | None:
        i = d.value("float", 2)
        shape, dtype = d.shape(i), d.dtype(i)
        n = shape[-1]
        if not isinstance(n, int) or n % 2 or n == 0:
            return None
        angles = (shape[-2], n // 2)
        how = d.rng.random() < 0.5
        text = f"fw.nn.{name}({{0}}, {{1}}, {{2}}, interleaved={how})"
        return text, (i, d.leaf(angles, dtype), d.leaf(angles, dtype))

    return make


MAKERS: dict[str, Maker] = {
    **{
        n: _unary(f"fw.nn.{n}({{0}})")
        for n in (
            "elu",
            "gelu",
            "hardswish",
            "leaky_relu",
            "mish",
            "relu",
            "sigmoid",
            "silu",
            "softplus",
            "tanh",
        )
    },
    **{
        f"{n}_backward": _pair(f"fw.nn.{n}_backward({{0}}, {{1}})")
        for n in (
            "gelu",
            "relu",
            "sigmoid",
            "silu",
            "softplus",
            "tanh",
        )
    },
    "glu": _glu,
    "swiglu": _pair("fw.nn.swiglu({0}, {1})"),
    **{
        n: _loss(f"fw.nn.{n}({{0}}, {{1}}, reduction=R)")
        for n in (
            "l1_loss",
            "mse_loss",
            "smooth_l1_loss",
        )
    },
    **{
        n: _loss(f"fw.nn.{n}({{0}}, {{1}}, reduction=R)", "unit")
        for n in (
            "binary_cross_entropy_with_logits",
            "kl_div",
        )
    },
    **{n: _along_axis(f"fw.nn.{n}({{0}}, axis=A)") for n in ("softmax", "log_softmax")},
    **{
        n: _along_axis(f"fw.nn.{n}({{1}}, {{0}}, axis=A)")
        for n in (
            "softmax_backward",
            "log_softmax_backward",
        )
    },
    "layer_norm": _norm("layer_norm", "[1:]", True),
    "rms_norm": _norm("rms_norm", "[1:]", False),
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    **{
        n: _labels(n)
        for n in (
            "cross_entropy",
            "cross_entropy_forward",
            "cross_entropy_backward",
            "nll_loss",
        )
    },
    "linear": _linear,
    "linear_backward": _linear_backward,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "one_hot": _one_hot,
    **{n: _rotary(n) for n in ("rotary_embedding", "rotary_embedding_backward")},
    "dropout": _unary("fw.nn.dropout({0}, 0.3, seed=7)"),
    "dropout_backward": _unary("fw.nn.dropout_backward({0}, 0.3, seed=7)"),
    "dropout_mask": _unary("fw.nn.dropout_mask({0}.shape, 0.3, seed=5)"),
}


def covered(text: str) -> list[str]:
    """The functions of fw.nn that a call uses."""
    return [n for n in fw.nn.__all__ if f"fw.nn.{n}(" in text]
