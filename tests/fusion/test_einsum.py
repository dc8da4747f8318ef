"""einsum: against numpy's, with the terms, broadcasts and diagonals that it takes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from nn_checks import normal, run1

import fusewright as fw
from fusewright.fusion.ir import MatMul

SIZES = dict(zip("abcdefg", (2, 3, 4, 5, 3, 2, 1), strict=True))
TERMS = (
    *("ab,bc->ac", "ab,bc", "ab->ba", "bb", "be->", "bb->b", "bbe->be", "ab,ab->", "ab,cd->abcd"),
    *("abc,acd->abd", "abc,cd,de->abe", "a,a,a->a", "bb,be->e", "ab,b->a", "abd,cd->abc"),
    *("abg,gcd->abcd", "ab,ac,ad->bcd", "ab,bc,cd,da", "abc,", "", "ba,,a", "a,b,c,d,e,f,g->abg"),
)


def operands(terms: str) -> list[np.ndarray]:
    names = terms.partition("->")[0].split(",")
    return [np.asarray(normal(*(SIZES[c] for c in t), seed=k)) for k, t in enumerate(names)]


def check(terms: str, *arrays: np.ndarray) -> None:
    expected = np.einsum(terms, *arrays)
    found = run1(lambda *xs: fw.einsum(terms, *xs), *arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("terms", TERMS)
def test_einsum_is_numpys(terms: str) -> None:
    check(terms, *operands(terms))


@pytest.mark.parametrize(
    ("terms", "shapes"),
    [
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
        ("...ij,...jk", ((2, 1, 3, 4), (5, 4, 2))),
        ("i...->...i", ((2, 3, 4),)),
        ("...,...", ((2, 3, 4), (4,))),
        ("ii...->...i", ((3, 3, 4),)),
        ("i j, j k -> k i", ((2, 3), (3, 4))),
    ],
)
def test_axes_without_labels_broadcast(terms: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(terms, *(np.asarray(normal(*s, seed=k)) for k, s in enumerate(shapes)))


def test_random_terms() -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        sizes = {c: int(rng.choice([1, 2, 3])) for c in "abcd"}
        terms = ["".join(rng.choice(list("abcd"), rng.integers(0, 4))) for _ in range(3)]
        letters = sorted(set("".join(terms)))
        output = "".join(rng.permutation(letters)[: rng.integers(0, len(letters) + 1)])
        arrays = [rng.standard_normal([sizes[c] for c in t]) for t in terms]
        check(f"{','.join(terms)}->{output}", *arrays)


@pytest.mark.parametrize("terms", ["abc,cd,de->abe", "bb,be->e", "abd,cd->abc"])
def test_its_kernels_compute_it(terms: str) -> None:
    arrays = [a.astype(np.float32) for a in operands(terms)]
    specs = [fw.TensorSpec(a.shape, "float32") for a in arrays]
    result = fw.compile(fw.trace(lambda *xs: fw.einsum(terms, *xs), *specs)).simulate(*arrays)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], np.einsum(terms, *arrays), rtol=1e-5, atol=1e-5)


def test_pairs_are_multiplied_where_they_move_least() -> None:
    """A matrix, a matrix and a vector: the vector goes first, so that no matrix is made."""
    specs = [fw.TensorSpec(s, "float32") for s in ((64, 96), (96, 128), (128,))]
    fusion = fw.trace(lambda a, b, v: fw.einsum("ij,jk,k->i", a, b, v), *specs)
    products = [t for t in fusion.values if isinstance(t.op, MatMul)]
    assert products
    assert all(math.prod(int(str(n)) for n in t.shape) <= 96 for t in products)


def test_many_operands_have_a_greedy_order() -> None:
    check("ab,bc,cd,de,ef,fg,ga", *operands("ab,bc,cd,de,ef,fg,ga"))


def test_gradient() -> None:
    a, b = np.asarray(normal(3, 4)), np.asarray(normal(4, 2, seed=1))
    found = run1(lambda a, b: fw.grad(lambda a: fw.sum(fw.einsum("ij,jk->ik", a, b)))(a), a, b)
    np.testing.assert_allclose(found, np.ones((3, 2)) @ b.T, rtol=1e-12)


def test_symbolic_sizes() -> None:
    specs = [fw.TensorSpec(("n", 4), "float32"), fw.TensorSpec((4, 5), "float32")]
    fusion = fw.trace(lambda a, b: fw.einsum("ij,jk->ik", a, b), *specs)
    a, b = normal(7, 4, dtype=np.float32), normal(4, 5, dtype=np.float32)
    np.testing.assert_allclose(fw.evaluate(fusion, a, b)[0], a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("terms", "shapes", "message"),
    [
        (7, ((2,),), "subscripts=7 is int; it must be a string such as"),
        ("a", (), "of no operands"),
        ("a,b", ((2,),), "2 terms for 1 operands"),
        ("ab", ((2,),), "names 2 axes of an operand of rank 1"),
        ("a", ((2, 3),), "names 1 axes of an operand of rank 2"),
        ("a1", ((2, 3),), "'1' in the term 'a1' is no label"),
        ("a->b", ((2,),), "the label 'b', but no operand has it"),
        ("a->aa", ((2,),), "the label 'a', but it is there twice"),
        ("...a->a", ((2, 3),), "1 axes under ..., which the result lacks"),
        ("a,a->a", ((2,), (3,)), "label 'a' has sizes 2 and 3"),
        ("...,...", ((2,), (3,)), "an axis under ... has sizes 2 and 3"),
    ],
)
def test_rejections(terms: object, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    specs = [fw.TensorSpec(s, "float32") for s in (*shapes, (1,))]
    with pytest.raises(fw.UserError, match=re.escape(message)):
        fw.trace(lambda *xs: fw.einsum(terms, *xs[:-1]), *specs)
