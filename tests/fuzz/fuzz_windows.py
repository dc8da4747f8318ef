"""How a random program calls the windows, distances, losses and thresholds of fw.nn; see fuzz_ops
for what a maker is."""

from __future__ import annotations

from fuzz_ops import Call, Draw, Maker, axis

_REDUCTION = ("'mean'", "'sum'", "'none'")


def _unary(text: str) -> Maker:
    return lambda d: (text, (d.value("float"),))


def _loss(name: str, *numbers: str, extra: str = "") -> Maker:
    """A loss of a value, and of arguments of its shape with these numbers."""

    def make(d: Draw) -> Call:
        i = d.value("float")
        others = tuple(d.leaf(d.shape(i), d.dtype(i), n) for n in numbers)
        at = ", ".join(f"{{{k}}}" for k in range(1 + len(others)))
        return f"fw.nn.{name}({at}{extra}, reduction={d.rng.choice(_REDUCTION)})", (i, *others)

    return make


def _probabilities(d: Draw) -> Call:
    i = d.value("float")
    target = d.leaf(d.shape(i), d.dtype(i), "unit")
    return "fw.nn.binary_cross_entropy(fw.nn.sigmoid({0}), {1})", (i, target)


def _of_shapes(*texts: str, shapes: tuple[tuple[int, ...], ...]) -> Maker:
    """One of these calls, of arguments of these shapes."""

    def make(d: Draw) -> Call:
        dtype = d.rng.choice(["float32", "float32", "float16", "bfloat16", "float64"])
        text = d.rng.choice(texts)
        used = [s for k, s in enumerate(shapes) if f"{{{k}}}" in text]
        return text, tuple(d.leaf(s, dtype) for s in used)

    return make


def _pool(name: str, dims: int) -> Maker:
    line = (2, 3, *(13, 9, 6)[:dims])
    return _of_shapes(
        f"fw.nn.{name}({{0}}, 3, stride=2, padding=1)",
        f"fw.nn.{name}({{0}}, 2)",
        f"fw.nn.{name}({{0}}, 3, stride=1, ceil_mode=True)",
        shapes=(line,),
    )


def _along(text: str) -> Maker:
    """`A` in the text is an axis."""

    def make(d: Draw) -> Call:
        i = d.value("float", 1)
        other = (d.leaf(d.shape(i), d.dtype(i)),) if "{1}" in text else ()
        return text.replace("A", str(axis(d, i))), (i, *other)

    return make


def _labelled(d: Draw) -> Call:
    dtype = d.rng.choice(["float32", "float64"])
    return "fw.nn.multi_margin_loss({0}, {1})", (
        d.leaf((8, 5), dtype),
        d.leaf((8,), "int64", "label 5"),
    )


MAKERS: dict[str, Maker] = {
    **{
        n: _unary(f"fw.nn.{n}({{0}})")
        for n in (
            "celu",
            "hardshrink",
            "hardsigmoid",
            "hardtanh",
            "logsigmoid",
            "relu6",
            "selu",
            "softshrink",
            "softsign",
            "tanhshrink",
        )
    },
    "threshold": _unary("fw.nn.threshold({0}, 0.1, -2.0)"),
    "softmin": _along("fw.nn.softmin({0}, axis=A)"),
    "normalize": _along("fw.nn.normalize({0}, axis=A)"),
    "cosine_similarity": _along("fw.nn.cosine_similarity({0}, {1}, axis=A)"),
    "pairwise_distance": _along("fw.nn.pairwise_distance({0}, {1})"),
    "binary_cross_entropy": _probabilities,
    "cosine_embedding_loss": _of_shapes(
        "fw.nn.cosine_embedding_loss({0}, {1}, fw.sign({2}))", shapes=((6, 9), (6, 9), (6,))
    ),
    "gaussian_nll_loss": _loss("gaussian_nll_loss", "any", "positive"),
    "hinge_embedding_loss": _loss("hinge_embedding_loss", "any"),
    "huber_loss": _loss("huber_loss", "any", extra=", delta=0.5"),
    "margin_ranking_loss": _loss("margin_ranking_loss", "any", "any"),
    "multi_margin_loss": _labelled,
    "multilabel_soft_margin_loss": _of_shapes(
        "fw.nn.multilabel_soft_margin_loss({0}, fw.nn.sigmoid({1}))", shapes=((6, 9), (6, 9))
    ),
    "poisson_nll_loss": _loss("poisson_nll_loss", "unit"),
    "soft_margin_loss": _loss("soft_margin_loss", "any"),
    "triplet_margin_loss": _of_shapes(
        "fw.nn.triplet_margin_loss({0}, {1}, {2})", shapes=((6, 9), (6, 9), (6, 9))
    ),
    **{
        f"{kind}_pool{dims}d": _pool(f"{kind}_pool{dims}d", dims)
        for kind in ("avg", "max")
        for dims in (1, 2, 3)
    },
    "adaptive_avg_pool1d": _of_shapes("fw.nn.adaptive_avg_pool1d({0}, 4)", shapes=((2, 3, 12),)),
    "adaptive_avg_pool2d": _of_shapes(
        "fw.nn.adaptive_avg_pool2d({0}, (1, 4))", shapes=((2, 3, 9, 12),)
    ),
    "adaptive_avg_pool3d": _of_shapes(
        "fw.nn.adaptive_avg_pool3d({0}, 2)", shapes=((1, 2, 4, 6, 5),)
    ),
    "conv3d": _of_shapes(
        "fw.nn.conv3d({0}, {1}, padding=1)", shapes=((1, 2, 4, 5, 6), (3, 2, 3, 3, 3))
    ),
    "conv1d": _of_shapes(
        "fw.nn.conv1d({0}, {1}, padding=1)",
        "fw.nn.conv1d({0}, {1}, stride=2)",
        shapes=((2, 4, 13), (5, 4, 3)),
    ),
    "conv2d": _of_shapes(
        "fw.nn.conv2d({0}, {1}, padding=1)",
        "fw.nn.conv2d({0}, {1}, stride=2, dilation=2)",
        shapes=((2, 4, 9, 10), (6, 4, 3, 3)),
    ),
    "conv_transpose1d": _of_shapes(
        "fw.nn.conv_transpose1d({0}, {1}, stride=2)", shapes=((2, 4, 7), (4, 5, 3))
    ),
    "conv_transpose2d": _of_shapes(
        "fw.nn.conv_transpose2d({0}, {1})", shapes=((1, 3, 5, 6), (3, 4, 3, 3))
    ),
    "channel_shuffle": _of_shapes("fw.nn.channel_shuffle({0}, 3)", shapes=((2, 6, 4, 5),)),
    "pixel_shuffle": _of_shapes("fw.nn.pixel_shuffle({0}, 2)", shapes=((2, 8, 3, 5),)),
    "pixel_unshuffle": _of_shapes("fw.nn.pixel_unshuffle({0}, 2)", shapes=((2, 3, 4, 6),)),
    "unfold": _of_shapes("fw.nn.unfold({0}, 3, padding=1)", shapes=((2, 3, 6, 7),)),
    "fold": _of_shapes("fw.nn.fold({0}, (6, 6), 2, stride=2)", shapes=((2, 12, 9),)),
    "interpolate": _of_shapes(
        "fw.nn.interpolate({0}, scale_factor=2)",
        "fw.nn.interpolate({0}, size=(5, 9), mode='bilinear')",
        shapes=((2, 3, 4, 6),),
    ),
    "local_response_norm": _of_shapes("fw.nn.local_response_norm({0}, 3)", shapes=((2, 7, 5),)),
    "prelu": _of_shapes("fw.nn.prelu({0}, {1})", shapes=((3, 5, 4), (5,))),
}
