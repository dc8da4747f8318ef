"""Sums of products over named axes, as numpy.einsum writes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.arguments import instance_of, takes
from fusewright.core.expr import Expr, as_expr, constant_value
from fusewright.errors import UserError
from fusewright.fusion import build
from fusewright.fusion.array import Array, as_tensor, check_array, common_dtype
from fusewright.fusion.ir import Tensor
from fusewright.fusion.operands import check_category

MAX_EXACT = 6
"""Operands up to which every order of pairs is compared (6: 2,700 of them); beyond that the
cheapest pair is taken again and again."""
_ASSUMED = 1024  # the size that an order assumes for a symbolic axis


@takes(subscripts=instance_of(str, words="a string such as 'ij,jk->ik'"))
def einsum(subscripts: str, /, *operands: Array) -> Array:
    """The products of elements of all operands whose labels agree, summed over the labels that the
    result lacks, after numpy.einsum: `"bik,bkj->bij"`. A label of one operand twice is its
    diagonal, "..." the axes without labels, which broadcast; without "->" the result has the
    labels that occur once, in alphabetic order. Operands are multiplied pair by pair in the order
    that moves the fewest bytes, as matrix products where a label is summed.

    Raises UserError for labels that are no letters, for another number of operands or axes, for
    sizes that differ, and for a result with labels that no operand has.
    """
    arrays = [check_array("einsum", x) for x in operands]
    if not arrays:
        raise UserError(f"einsum({subscripts!r}) of no operands: give one for each term")
    dtype = common_dtype("einsum", tuple(arrays))
    check_category("einsum", dtype, "numeric", of_complex=True)
    inputs, output = _terms(subscripts, [x.ndim for x in arrays])
    sizes = _sizes(subscripts, inputs, arrays)
    terms = [_Term(labels, as_tensor(x, dtype)) for labels, x in zip(inputs, arrays, strict=True)]
    terms = [_diagonal(_without_ones(t, sizes)) for t in terms]
    for a, b in _order([t.labels for t in terms], output, sizes):
        rest = [t for k, t in enumerate(terms) if k not in (a, b)]
        terms = [*rest, _product(terms[a], terms[b], _wanted(rest, output))]
    return Array(_result(terms[0], output, sizes))


@dataclass(frozen=True, slots=True)
class _Term:
    """A value with a label for each axis."""

    labels: tuple[str, ...]
    tensor: Tensor


# --- subscripts ---------------------------------------------------------------------------------


def _terms(subscripts: str, ranks: Sequence[int]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each operand and of the result; axes under "..." are labelled by numbers that
    count from the last one."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    given = left.split(",")
    if len(given) != len(ranks):
        raise UserError(
            f"einsum({subscripts!r}): {len(given)} terms for {len(ranks)} operands; write one term "
            "for each, with commas between them"
        )
    unnamed = 0
    for term, rank in zip(given, ranks, strict=True):
        unnamed = max(unnamed, _unnamed(subscripts, term, rank))
    inputs = [
        _labels(subscripts, term, _unnamed(subscripts, term, rank))
        for term, rank in zip(given, ranks, strict=True)
    ]
    if arrow:
        output = _labels(subscripts, right, unnamed if "..." in right else 0)
    else:
        letters = [c for term in inputs for c in term if c.isalpha()]
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        output = (*map(str, reversed(range(unnamed))), *once)
    _check_output(subscripts, inputs, output, unnamed)
    return inputs, output


def _unnamed(subscripts: str, term: str, rank: int) -> int:
    """The number of axes under an ellipsis of a term."""
    named = len(term.replace("...", "", 1))
    is_open = "..." in term
    if named > rank or (named < rank and not is_open):
        raise UserError(
            f"einsum({subscripts!r}): the term {term!r} names {named} axes of an operand of rank "
            f"{rank}; name every axis, or write ... for the others"
        )
    return rank - named if is_open else 0


def _labels(subscripts: str, term: str, unnamed: int) -> tuple[str, ...]:
    before, _, behind = term.partition("...")
    for c in before + behind:
        if not (c.isascii() and c.isalpha()):
            raise UserError(
                f"einsum({subscripts!r}): {c!r} in the term {term!r} is no label; labels are "
                "letters, terms are separated by commas, and -> stands before the result"
            )
    return (*before, *map(str, reversed(range(unnamed))), *behind)


def _check_output(
    subscripts: str, inputs: Sequence[tuple[str, ...]], output: tuple[str, ...], unnamed: int
) -> None:
    known = {c for term in inputs for c in term}
    for c in output:
        if c not in known or output.count(c) > 1:
            rule = "no operand has it" if c not in known else "it is there twice"
            raise UserError(
                f"einsum({subscripts!r}): the result has the label {c!r}, but {rule}; a label of "
                "the result is one of an operand, once"
            )
    if any(str(k) not in output for k in range(unnamed)):
        raise UserError(
            f"einsum({subscripts!r}): the operands have {unnamed} axes under ..., which the result "
            "lacks; write ... there too, or label and sum them"
        )


def _sizes(
    subscripts: str, inputs: Sequence[tuple[str, ...]], arrays: Sequence[Array]
) -> dict[str, Expr]:
    """The size of each label: 1 broadcasts."""
    found: dict[str, Expr] = {}
    for labels, x in zip(inputs, arrays, strict=True):
        for c, n in zip(labels, x.tensor.shape, strict=True):
            known = found.get(c, n)
            if known != n and not build.is_one(known) and not build.is_one(n):
                what = f"label {c!r}" if c.isalpha() else "an axis under ..."
                raise UserError(
                    f"einsum({subscripts!r}): {what} has sizes {known} and {n}; axes of one label "
                    "must be equal, or 1"
                )
            found[c] = n if build.is_one(known) else known
    return found


# --- one operand --------------------------------------------------------------------------------


def _without_ones(t: _Term, sizes: dict[str, Expr]) -> _Term:
    """The term without axes of size 1 that broadcast: they do not vary."""
    kept = [
        k for k, (c, n) in enumerate(zip(t.labels, t.tensor.shape, strict=True)) if n == sizes[c]
    ]
    shape = tuple(t.tensor.shape[k] for k in kept)
    return _Term(tuple(t.labels[k] for k in kept), build.reshape("einsum", t.tensor, shape))


def _diagonal(t: _Term) -> _Term:
    """The elements at equal places of the axes of one label."""
    labels = tuple(dict.fromkeys(t.labels))
    if labels == t.labels:
        return t
    shape = tuple(t.tensor.shape[t.labels.index(c)] for c in labels)
    at = build.coordinates(shape)
    index = [as_expr(at[labels.index(c)]) for c in t.labels]
    return _Term(labels, build.index_map(t.tensor, shape, at, index))


def _summed(t: _Term, wanted: set[str]) -> _Term:
    axes = tuple(k for k, c in enumerate(t.labels) if c not in wanted)
    return _Term(tuple(c for c in t.labels if c in wanted), build.reduce("add", t.tensor, axes))


def _ordered(t: _Term, labels: Sequence[str]) -> Tensor:
    """The value with its axes in the order of labels, all of which it has."""
    return build.permute(t.tensor, [t.labels.index(c) for c in labels])


def _result(t: _Term, output: tuple[str, ...], sizes: dict[str, Expr]) -> Tensor:
    """The last term with the result's axes; those that no operand varies along are repeated."""
    last = _summed(t, set(output))
    placed = _ordered(last, [c for c in output if c in last.labels])
    for k, c in enumerate(output):
        if c not in last.labels:
            placed = build.expand(placed, k)
    return build.spread(placed, tuple(sizes[c] for c in output))


# --- two operands -------------------------------------------------------------------------------


def _wanted(rest: Sequence[_Term], output: tuple[str, ...]) -> set[str]:
    return {*output, *(c for t in rest for c in t.labels)}


def _product(a: _Term, b: _Term, wanted: set[str]) -> _Term:
    """The product of two terms, summed over the labels that nobody else wants."""
    a = _summed(a, wanted | set(b.labels))
    b = _summed(b, wanted | set(a.labels))
    both = [c for c in a.labels if c in b.labels]
    inner = [c for c in both if c not in wanted]
    batch = [c for c in both if c in wanted]
    rows = [c for c in a.labels if c not in both]
    columns = [c for c in b.labels if c not in both]
    if not inner or not (rows or columns):
        return _elementwise(a, b, wanted)
    left = _as_matrix(a, batch, rows, inner)
    right = _as_matrix(b, batch, inner, columns)
    sizes = {**_sizes_of(a), **_sizes_of(b)}
    labels = (*batch, *rows, *columns)
    made = build.matmul("einsum", left, right)
    return _Term(labels, build.reshape("einsum", made, tuple(sizes[c] for c in labels)))


def _sizes_of(t: _Term) -> dict[str, Expr]:
    return dict(zip(t.labels, t.tensor.shape, strict=True))


def _as_matrix(
    t: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Tensor:
    """The value as one batch of matrices, a group of labels along each axis."""
    sizes = _sizes_of(t)
    groups = (batch, rows, columns) if batch else (rows, columns)
    shape = tuple(build.element_count(tuple(sizes[c] for c in g)) for g in groups)
    return build.reshape("einsum", _ordered(t, [*batch, *rows, *columns]), shape)


def _elementwise(a: _Term, b: _Term, wanted: set[str]) -> _Term:
    """The product of elements, then its sum."""
    labels = tuple(dict.fromkeys((*a.labels, *b.labels)))
    sizes = {**_sizes_of(a), **_sizes_of(b)}
    shape = tuple(sizes[c] for c in labels)
    parts = [_result(t, labels, sizes) for t in (a, b)]
    made = build.pointwise("mul", *(build.spread(p, shape) for p in parts))
    return _summed(_Term(labels, made), wanted)


# --- the order ----------------------------------------------------------------------------------

Pairs = list[tuple[int, int]]


def _order(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: dict[str, Expr]
) -> Pairs:
    """The pairs to multiply, by position; a product stands behind the terms that are left."""
    known = {c: constant_value(n) or _ASSUMED for c, n in sizes.items()}
    sets = [frozenset(t) for t in terms]
    if len(sets) <= MAX_EXACT:
        return _least_bytes(sets, frozenset(output), known)[1]
    pairs: Pairs = []
    while len(sets) > 1:
        pair = min(
            itertools.combinations(range(len(sets)), 2),
            key=lambda p: _moved(_joined(sets, p, frozenset(output))[-1], sets, p, known),
        )
        pairs.append(pair)
        sets = _joined(sets, pair, frozenset(output))
    return pairs


def _least_bytes(
    sets: list[frozenset[str]], output: frozenset[str], sizes: dict[str, int]
) -> tuple[tuple[int, int], Pairs]:
    """The least (elements that products read and write, multiplications) and its pairs."""
    if len(sets) == 1:
        return (0, 0), []
    found: list[tuple[tuple[int, int], Pairs]] = []
    for pair in itertools.combinations(range(len(sets)), 2):
        joined = _joined(sets, pair, output)
        (moved, work), rest = _least_bytes(joined, output, sizes)
        here = _moved(joined[-1], sets, pair, sizes)
        work += _count(sets[pair[0]] | sets[pair[1]], sizes)
        found.append(((moved + here, work), [pair, *rest]))
    return min(found, key=lambda f: f[0])


def _joined(
    sets: list[frozenset[str]], pair: tuple[int, int], output: frozenset[str]
) -> list[frozenset[str]]:
    rest = [s for k, s in enumerate(sets) if k not in pair]
    wanted = output.union(*rest)
    return [*rest, (sets[pair[0]] | sets[pair[1]]) & wanted]


def _moved(
    product: frozenset[str],
    sets: list[frozenset[str]],
    pair: tuple[int, int],
    sizes: dict[str, int],
) -> int:
    return sum(_count(s, sizes) for s in (product, sets[pair[0]], sets[pair[1]]))


def _count(labels: frozenset[str], sizes: dict[str, int]) -> int:
    total = 1
    for c in labels:
        total *= sizes[c]
    return total


__all__ = ["einsum"]
