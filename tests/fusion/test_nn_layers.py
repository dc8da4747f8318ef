"""Dropout, linear, embedding, rotary embedding and attention against numpy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from nn_checks import assert_gradients, integers, normal, run, run1

from fusewright.core.functions import FUNCTIONS
from fusewright.errors import UserError
from fusewright.fusion import nn
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Sym, TensorSpec
from fusewright.fusion.trace import trace

# --- dropout ------------------------------------------------------------------------------------


def philox_keep(shape, p, seed, offset):
    words = FUNCTIONS["philox"].numpy(seed, offset, np.arange(math.prod(shape)))
    return words.reshape(shape) >= p * 2.0**32


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 5), ()])
def test_dropout_follows_philox_in_c_order(shape):
    x = np.asarray(normal(*shape)) + 3
    out = run1(lambda v: nn.dropout(v, 0.25, seed=11, offset=2), x)
    keep = philox_keep(shape, 0.25, 11, 2)
    np.testing.assert_allclose(out, np.where(keep, x / 0.75, 0), rtol=1e-15)


def test_dropout_keeps_the_right_share_and_the_mean():
    out = run1(lambda v: nn.dropout(v, 0.3, seed=5), np.ones((100, 100), np.float32))
    assert abs(np.mean(out == 0) - 0.3) < 0.02
    assert abs(out.mean() - 1) < 0.03
    np.testing.assert_array_equal(out != 0, philox_keep((100, 100), 0.3, 5, 0))


def test_seed_and_offset_may_be_arrays_and_change_the_mask():
    x = np.ones(64)
    fusion = trace(
        lambda v, s, o: nn.dropout(v, 0.5, seed=s, offset=o),
        TensorSpec((64,), "float64"),
        TensorSpec((), "int64"),
        TensorSpec((), "int64"),
    )

    def masked(seed, offset):
        return evaluate(fusion, x, np.array(seed), np.array(offset))[0]

    for seed, offset in ((1, 0), (2, 0), (1, 7)):
        expected = run1(lambda v, s=seed, o=offset: nn.dropout(v, 0.5, seed=s, offset=o), x)
        np.testing.assert_array_equal(masked(seed, offset), expected)
    assert (masked(1, 0) != masked(2, 0)).any()
    np.testing.assert_array_equal(masked(1, 1)[:60], masked(1, 0)[4:])


def test_dropout_of_symbolic_sizes_equals_that_of_integers():
    fusion = trace(lambda v: nn.dropout(v, 0.5, seed=3), TensorSpec(("m", "n"), "float32"))
    x = normal(4, 9, dtype=np.float32)
    expected = run1(lambda v: nn.dropout(v, 0.5, seed=3), x)
    np.testing.assert_array_equal(evaluate(fusion, x)[0], expected)


def test_dropout_backward_uses_the_same_mask():
    assert_gradients(
        lambda x: nn.dropout(x, 0.4, seed=9, offset=1),
        lambda dy, x: nn.dropout_backward(dy, 0.4, seed=9, offset=1),
        normal(4, 5),
    )


def test_dropped_infinities_and_nans_become_zero_and_p_zero_changes_nothing():
    x = np.full(64, np.inf)
    out = run1(lambda v: nn.dropout(v, 0.5, seed=1), x)
    keep = philox_keep((64,), 0.5, 1, 0)
    np.testing.assert_array_equal(out, np.where(keep, np.inf, 0))
    np.testing.assert_array_equal(run1(lambda v: nn.dropout(v, 0.0, seed=1), x), x)


def test_dropout_of_float16_rounds_once():
    x = normal(32, dtype=np.float16)
    out = run1(lambda v: nn.dropout(v, 0.1, seed=1), x)
    keep = philox_keep((32,), 0.1, 1, 0)
    exact = np.where(keep, x.astype(np.float64) * np.float32(1 / 0.9), 0)
    np.testing.assert_array_equal(out, exact.astype(np.float16))


# --- linear -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_linear(lead):
    x, w, b = normal(*lead, 4), normal(5, 4, seed=1), normal(5, seed=2)
    np.testing.assert_allclose(run1(nn.linear, x, w), x @ w.T, rtol=1e-12)
    np.testing.assert_allclose(run1(nn.linear, x, w, b), x @ w.T + b, rtol=1e-12)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (1, 1)])
def test_linear_gradients(lead):
    inputs = (normal(*lead, 4), normal(5, 4, seed=1), normal(5, seed=2))

    def backward(dy, x, w, b):
        return nn.linear_backward(dy, x, w)

    assert_gradients(nn.linear, backward, *inputs, wrt=(0, 1, 2))


# --- embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_embedding(shape, dtype):
    table, at = normal(9, 4), np.asarray(integers(9, *shape, dtype=dtype))
    np.testing.assert_array_equal(run1(nn.embedding, at, table), table[at])


def test_embedding_gradient():
    at = np.array([[0, 3, 3], [3, 1, -1]])

    def backward(dy, at, table):
        return nn.embedding_backward(dy, at, table.shape[0])

    assert_gradients(nn.embedding, backward, at, normal(5, 2), wrt=(1,))


def test_embedding_gradient_of_a_padding_row_is_zero():
    dy, at = normal(4, 2), np.array([1, 2, 1, 0])
    out = run1(lambda g, i: nn.embedding_backward(g, i, 3, padding_idx=1), dy, at)
    np.testing.assert_array_equal(out, [dy[3], [0, 0], dy[1]])


def test_narrow_indices_do_not_wrap_around_a_long_table():
    at = np.array([3, 250], np.uint8)
    out = run1(lambda g, i: nn.embedding_backward(g, i, 600), np.ones((2, 1)), at)
    np.testing.assert_array_equal(np.flatnonzero(out), [3, 250])


def test_one_hot():
    at = np.array([[0, 2, 3], [1, 1, -5]])
    eye = np.vstack([np.eye(4, dtype=np.int64), np.zeros((1, 4), np.int64)])
    expected = eye[np.where(at < 0, 4, at)]
    np.testing.assert_array_equal(run1(lambda i: nn.one_hot(i, 4), at), expected)
    out = run1(lambda i: nn.one_hot(i, 4, axis=1, dtype="float16"), at)
    assert out.dtype == np.float16
    np.testing.assert_array_equal(out, np.moveaxis(expected, -1, 1))


# --- rotary embedding ---------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_turns_pairs(interleaved):
    x, angle = normal(2, 3, 5, 8), normal(5, 4, seed=1)
    first, second = (
        (np.s_[..., ::2], np.s_[..., 1::2])
        if interleaved
        else (
            np.s_[..., :4],
            np.s_[..., 4:],
        )
    )
    z = (x[first] + 1j * x[second]) * np.exp(1j * angle)
    expected = np.empty_like(x)
    expected[first], expected[second] = z.real, z.imag

    def fn(v, c, s):
        return nn.rotary_embedding(v, c, s, interleaved=interleaved)

    out = run1(fn, x, np.cos(angle), np.sin(angle))
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_gradient(interleaved):
    angle = normal(3, 2, seed=1)
    assert_gradients(
        lambda x, c, s: nn.rotary_embedding(x, c, s, interleaved=interleaved),
        lambda dy, x, c, s: nn.rotary_embedding_backward(dy, c, s, interleaved=interleaved),
        normal(2, 3, 4),
        np.cos(angle),
        np.sin(angle),
    )


def test_rotary_embedding_of_short_floats_and_symbolic_sizes():
    fusion = trace(
        nn.rotary_embedding,
        TensorSpec(("s", Sym("d", multiple_of=2)), "bfloat16"),
        TensorSpec((1, 1), "float32"),
        TensorSpec((1, 1), "float32"),
    )
    x = normal(3, 6).astype(ml_dtypes.bfloat16)
    quarter = (np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
    (out,) = evaluate(fusion, x, *quarter)
    np.testing.assert_array_equal(out, np.concatenate([-x[:, 3:], x[:, :3]], 1))


# --- attention ----------------------------------------------------------------------------------


def attention(q, k, v, mask=None, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def qkv(lead, length=4, other=6, width=8, out=5):
    return (
        normal(*lead, length, width),
        normal(*lead, other, width, seed=1),
        normal(*lead, other, out, seed=2),
    )


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_attention(lead):
    q, k, v = qkv(lead)
    out = run1(nn.scaled_dot_product_attention, q, k, v)
    np.testing.assert_allclose(out, attention(q, k, v), rtol=1e-10)
    scaled = run1(lambda *a: nn.scaled_dot_product_attention(*a, scale=0.5), q, k, v)
    np.testing.assert_allclose(scaled, attention(q, k, v, scale=0.5), rtol=1e-10)


def test_masked_and_causal_attention():
    q, k, v = qkv((2,))
    rng = np.random.default_rng(0)
    keep = rng.random((4, 6)) < 0.6
    keep[:, 0] = True
    added = normal(2, 1, 6, seed=5)
    for mask in (keep, added):
        out = run1(nn.scaled_dot_product_attention, q, k, v, mask)
        np.testing.assert_allclose(out, attention(q, k, v, mask), rtol=1e-10)
    causal = run1(lambda *a: nn.scaled_dot_product_attention(*a, is_causal=True), q, k, v)
    expected = attention(q, k, v, np.tril(np.ones((4, 6), bool)))
    np.testing.assert_allclose(causal, expected, rtol=1e-10)


def test_a_row_that_sees_nothing_gives_zeros():
    q, k, v = qkv(())
    mask = np.ones((4, 6), bool)
    mask[2] = False
    out = run1(nn.scaled_dot_product_attention, q, k, v, mask)
    np.testing.assert_array_equal(out[2], np.zeros(5))
    np.testing.assert_allclose(out[0], attention(q, k, v)[0], rtol=1e-10)


def test_grouped_query_attention():
    q, k, v = normal(2, 6, 4, 8), normal(2, 2, 5, 8, seed=1), normal(2, 2, 5, 3, seed=2)
    out = run1(lambda *a: nn.scaled_dot_product_attention(*a, enable_gqa=True), q, k, v)
    expected = attention(q, np.repeat(k, 3, 1), np.repeat(v, 3, 1))
    np.testing.assert_allclose(out, expected, rtol=1e-10)


def test_attention_of_symbolic_sizes_and_short_floats():
    specs = [TensorSpec((s, w), "bfloat16") for s, w in (("l", "e"), ("s", "e"), ("s", 3))]
    fusion = trace(nn.scaled_dot_product_attention, *specs)
    q, k, v = (a.astype(ml_dtypes.bfloat16) for a in qkv((), width=16, out=3))
    (out,) = evaluate(fusion, q, k, v)
    exact = attention(*(a.astype(np.float64) for a in (q, k, v)))
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(float), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_weights_of_short_floats_are_rounded_before_they_multiply(dtype):
    q, k, v = (a.astype(dtype) for a in qkv((3,), width=16))
    out = run1(nn.scaled_dot_product_attention, q, k, v)
    wide = [a.astype(np.float64) for a in (q, k, v)]
    weights = attention(wide[0], wide[1], np.eye(6)).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(out, (weights @ wide[2]).astype(dtype))
    assert not np.array_equal(out, attention(*wide).astype(dtype))


def test_weights_beside_wider_values_are_not_rounded():
    q, k, v = (a.astype(np.float32) for a in qkv((3,), width=16))
    q, k = q.astype(np.float16), k.astype(np.float16)
    wide = [a.astype(np.float64) for a in (q, k, v)]
    out = run1(nn.scaled_dot_product_attention, q, k, v)
    np.testing.assert_array_equal(out, attention(*wide).astype(np.float16))


def test_attention_with_dropout_drops_weights():
    q, k = normal(4, 8), normal(6, 8, seed=1)
    v = np.eye(6)

    def fn(*a):
        return nn.scaled_dot_product_attention(*a, dropout_p=0.5, seed=3)

    keep = philox_keep((4, 6), 0.5, 3, 0)
    expected = np.where(keep, attention(q, k, v) * 2, 0)
    np.testing.assert_allclose(run1(fn, q, k, v), expected, rtol=1e-10)


# --- rejections ---------------------------------------------------------------------------------

REJECTIONS = {
    "p is one": (
        lambda x: nn.dropout(x, 1.0, seed=0),
        (normal(3),),
        r"dropout: p=1.0 must be at least 0 and below 1",
    ),
    "p is negative": (
        lambda x: nn.dropout_backward(x, -0.1, seed=0),
        (normal(3),),
        r"dropout_backward: p=-0.1 must be at least 0",
    ),
    "p is nan": (
        lambda x: nn.dropout(x, math.nan, seed=0),
        (normal(3),),
        r"dropout: p=nan must be",
    ),
    "seed": (
        lambda x: nn.dropout(x, 0.5, seed=-1),
        (normal(3),),
        r"seed=-1 must be an int in \[0, 2\*\*64\)",
    ),
    "seed array": (
        lambda x, s: nn.dropout(x, 0.5, seed=s),
        (normal(3), integers(3, 1)),
        r"it must be an integer array of rank 0",
    ),
    "linear weight": (
        nn.linear,
        (normal(3, 4), normal(4, 5)),
        r"linear: weight has shape \(4, 5\), x \(3, 4\): weight is \(out, in\)",
    ),
    "linear bias": (
        nn.linear,
        (normal(3, 4), normal(5, 4), normal(1)),
        r"linear: bias has shape \(1,\), axis 0 of weight has \(5,\)",
    ),
    "linear rank": (
        nn.linear,
        (np.ones(()), normal(5, 4)),
        r"linear: x has shape \(\) of rank 0; its layout is \(..., in\)",
    ),
    "linear gradient": (
        nn.linear_backward,
        (normal(3, 4), normal(3, 4), normal(5, 4)),
        r"linear_backward: dy has shape \(3, 4\), the result of linear has \(3, 5\)",
    ),
    "float indices": (
        nn.embedding,
        (normal(3), normal(4, 2)),
        r"embedding \(indices\) of float64: it takes integer arrays",
    ),
    "table": (
        nn.embedding,
        (integers(3, 2), normal(4)),
        r"embedding: weight has shape \(4,\); it is a table \(rows, width\)",
    ),
    "padding row": (
        lambda g, i: nn.embedding_backward(g, i, 3, padding_idx=3),
        (normal(2, 2), integers(3, 2)),
        r"embedding_backward: padding_idx=3 is no row of a table of 3",
    ),
    "embedding gradient": (
        lambda g, i: nn.embedding_backward(g, i, 3),
        (normal(3, 2), integers(3, 2)),
        r"dy has shape \(3, 2\), the result of embedding has \(2, 2\)",
    ),
    "one_hot axis": (
        lambda i: nn.one_hot(i, 3, axis=2),
        (integers(3, 2),),
        r"one_hot: axis 2 of an array of rank 2",
    ),
    "rotary width": (
        nn.rotary_embedding,
        (normal(2, 5), normal(2, 2), normal(2, 2)),
        r"rotary_embedding: axis 1 has size 5, which is not known even",
    ),
    "rotary angles": (
        nn.rotary_embedding,
        (normal(2, 6), normal(2, 2), normal(2, 2)),
        r"rotary_embedding \(cos\): axis 1 has sizes 3 and 2",
    ),
    "rotary rank": (
        nn.rotary_embedding,
        (normal(2, 6), normal(4, 1, 3), normal(4, 1, 3)),
        r"rotary_embedding: cos has shape \(4, 1, 3\), which does not broadcast to the halves",
    ),
    "attention widths": (
        nn.scaled_dot_product_attention,
        (normal(4, 8), normal(5, 7), normal(5, 3)),
        r"query \(4, 8\), key \(5, 7\) and value \(5, 3\): query and key must agree",
    ),
    "attention mask": (
        nn.scaled_dot_product_attention,
        (*qkv(()), normal(5, 6)),
        r"scaled_dot_product_attention \(attn_mask\): axis 0 has sizes",
    ),
    "attention integer mask": (
        nn.scaled_dot_product_attention,
        (*qkv(()), integers(2, 4, 6)),
        r"attn_mask\) of int64: it takes float arrays",
    ),
    "attention heads": (
        lambda *a: nn.scaled_dot_product_attention(*a, enable_gqa=True),
        (normal(3, 4, 8), normal(2, 4, 8), normal(2, 4, 8)),
        r"enable_gqa with 3 heads in query and 2 in key: .* the second divides the first",
    ),
    "attention dropout": (
        lambda *a: nn.scaled_dot_product_attention(*a, dropout_p=0.1),
        qkv(()),
        r"dropout_p needs seed=",
    ),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejection(name):
    fn, inputs, message = REJECTIONS[name]
    with pytest.raises(UserError, match=message):
        run(fn, *inputs)
