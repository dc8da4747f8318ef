"""How a random program calls what sorts, searches, counts and gathers, and what is made of several
operations; see fuzz_ops for what a maker is."""

from __future__ import annotations

from fuzz_ops import Call, Draw, Maker, axis, count, known, reduction

MOST_SORTED = 2_000
"""Elements that are sorted in the simulator in less than a second."""


def _along(text: str, category: str = "numeric") -> Maker:
    """`A` in the text is an axis, `B` a truth value."""

    def make(d: Draw) -> Call | None:
        i = d.value(category, 1)
        flag = str(d.rng.random() < 0.5)
        if "sort" in text and count(d.shape(i)) > MOST_SORTED:
            return None
        return text.replace("A", str(axis(d, i))).replace("B", flag), (i,)

    return make


def _topk(d: Draw) -> Call | None:
    i = d.value("numeric", 1)
    a = axis(d, i)
    n = d.shape(i)[a]
    if not isinstance(n, int) or not n:
        return None
    largest, part = d.rng.random() < 0.5, d.rng.randint(0, 1)
    return f"fw.topk({{0}}, {d.rng.randint(1, min(n, 5))}, axis={a}, largest={largest})[{part}]", (
        i,
    )


def _searchsorted(d: Draw) -> Call:
    i = d.value("numeric")
    line = d.leaf((d.rng.choice([1, 7, 40]),), d.dtype(i))
    side = d.rng.choice(["left", "right"])
    return f"fw.searchsorted(fw.sort({{0}}), {{1}}, side={side!r})", (line, i)


def _isin(d: Draw) -> Call:
    i = d.value("any")
    return "fw.isin({0}, {1})", (i, d.leaf((5,), d.dtype(i)))


def _flat(text: str, category: str = "numeric") -> Maker:
    """Of all elements of a value of known size, in a result of a size that is given."""

    def make(d: Draw) -> Call | None:
        i = d.value(category, 1)
        is_small = known(d.shape(i)) and count(d.shape(i)) <= MOST_SORTED
        return (text, (i,)) if is_small else None

    return make


def _compress(d: Draw) -> Call | None:
    i = d.value("any", 1)
    n = d.shape(i)[0]
    if not isinstance(n, int):
        return None
    return "fw.compress({0}, {1}, axis=0, size=3)", (d.leaf((n,), "bool"), i)


def _bincount(d: Draw) -> Call:
    ids = d.leaf((d.rng.choice([1, 33, 400]),), "int32", "label 9")
    return "fw.bincount({0}, length=9)", (ids,)


def _histogram(d: Draw) -> Call | None:
    i = d.value("float", 1)
    if not known(d.shape(i)):
        return None
    return "fw.histogram({0}, bins=6, range=(-2.0, 2.0))[0]", (i,)


def _segments(text: str) -> Maker:
    """Rows of a value go to places that are drawn for them."""

    def make(d: Draw) -> Call | None:
        i = d.value("float", 1)
        shape = d.shape(i)
        if not known(shape):
            return None
        dest = d.leaf((4, *shape[1:]), d.dtype(i)) if "{2}" in text else i
        return text, (i, d.leaf((shape[0],), "int32", "label 4"), dest)[: 3 if "{2}" in text else 2]

    return make


def _pair(text: str, category: str = "float") -> Maker:
    def make(d: Draw) -> Call:
        i = d.value(category)
        return text, (i, d.leaf(d.shape(i), d.dtype(i)))

    return make


def _of_shapes(text: str, *shapes: tuple[int, ...]) -> Maker:
    """Of arguments of these shapes."""

    def make(d: Draw) -> Call:
        dtype = d.rng.choice(["float32", "float16", "bfloat16", "float64"])
        return text, tuple(d.leaf(shape, dtype) for shape in shapes)

    return make


def _diagonal(d: Draw) -> Call | None:
    i = d.value("any", 2)
    if not known(d.shape(i)) or 0 in d.shape(i):
        return None
    return f"fw.diagonal({{0}}, offset={d.rng.choice([0, 0, 1, -1])})", (i,)


MAKERS: dict[str, Maker] = {
    "sort": _along("fw.sort({0}, axis=A, descending=B)"),
    "argsort": _along("fw.argsort({0}, axis=A, descending=B)"),
    "topk": _topk,
    "searchsorted": _searchsorted,
    "isin": _isin,
    "nonzero": _flat("fw.nonzero({0}, size=5)[0]", "any"),
    "unique_values": _flat("fw.unique_values({0}, size=7)"),
    "unique_counts": _flat("fw.unique_counts({0}, size=7)[1]"),
    "unique_inverse": _flat("fw.unique_inverse({0}, size=7)[0]"),
    "unique_all": _flat("fw.unique_all({0}, size=7)[1]"),
    "compress": _compress,
    "bincount": _bincount,
    "histogram": _histogram,
    "segment_sum": _segments("fw.segment_sum({0}, {1}, 4)"),
    "scatter_add": _segments("fw.scatter_add({2}, {1}, {0})"),
    "isclose": _pair("fw.isclose({0}, {1}, rtol=0.5)"),
    "allclose": _pair("fw.allclose({0}, {1}, rtol=9.0, atol=9.0)"),
    "lerp": _pair("fw.lerp({0}, {1}, 0.25)"),
    "nan_to_num": lambda d: ("fw.nan_to_num({0}, nan=2.0)", (d.value("float"),)),
    "logsumexp": reduction("logsumexp", "float"),
    "cumulative_max": _along("fw.cumulative_max({0}, axis=A)"),
    "cumulative_min": _along("fw.cumulative_min({0}, axis=A)"),
    "diagonal": _diagonal,
    "inner": _of_shapes("fw.inner({0}, {1})", (5, 12), (7, 12)),
    "outer": _of_shapes("fw.outer({0}, {1})", (9,), (14,)),
    "cross": _of_shapes("fw.cross({0}, {1})", (6, 3), (6, 3)),
    "einsum": _of_shapes("fw.einsum('bij,bjk->bki', {0}, {1})", (3, 4, 10), (3, 10, 6)),
}
