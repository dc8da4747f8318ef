"""The corpus: every entry traces and computes; its small variants suit the simulator."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.corpus import CORPUS, CaseArgument, CorpusCase
from fusewright.corpus.case import case
from fusewright.fusion.evaluate import evaluate

SMALL_LIMIT = 20_000
by_name = pytest.mark.parametrize("entry", CORPUS, ids=lambda c: c.name)


def named(name: str) -> CorpusCase:
    (found,) = [c for c in CORPUS if c.name == name]
    return found


@by_name
def test_small_variant_computes_finite_numbers(entry: CorpusCase) -> None:
    fusion = fw.trace(entry.fn, *entry.small)
    arrays = entry.arrays()
    outs = evaluate(fusion, *arrays)
    for out, t in zip(outs, fusion.outputs, strict=True):
        assert out.dtype == t.dtype.numpy
        assert np.isfinite(out.astype(np.float64)).all()
        assert np.unique(out.astype(np.float64)).size > 1 or out.size == 1
    assert sum(a.size for a in (*arrays, *outs)) < SMALL_LIMIT


@by_name
def test_full_variant_traces_to_the_same_outputs(entry: CorpusCase) -> None:
    full, small = (fw.trace(entry.fn, *s) for s in (entry.specs, entry.small))
    assert [(t.dtype, t.ndim) for t in full.outputs] == [(t.dtype, t.ndim) for t in small.outputs]
    assert [t.dtype for t in full.inputs] == [t.dtype for t in small.inputs]


def test_names_are_unique_identifiers() -> None:
    names = [c.name for c in CORPUS]
    assert len(set(names)) == len(names) >= 60
    assert all(n.isidentifier() for n in names)


def test_the_corpus_spans_the_dtypes() -> None:
    found = {a.dtype.name for c in CORPUS for a in c.arguments}
    found |= {t.dtype.name for c in CORPUS for t in fw.trace(c.fn, *c.small).outputs}
    assert found >= {
        "bool",
        "int8",
        "uint8",
        "int32",
        "int64",
        "float8_e4m3",
        "float8_e5m2",
        "float16",
        "bfloat16",
        "float32",
    }


def test_arrays_follow_the_seed() -> None:
    entry = named("embedding")
    first, again, other = (entry.arrays(seed=s) for s in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()


def test_bounds_are_kept() -> None:
    tokens, table = named("embedding").arrays(seed=3)
    assert tokens.min() >= 0
    assert tokens.max() < len(table)
    rstd = named("rms_norm_backward").arrays()[1]
    assert rstd.min() > 0
    assert named("softmax_backward").arrays()[1].astype(float).max() <= 1


def test_quantisation_comes_back_within_half_a_step() -> None:
    entry = named("quantise_int8")
    (x,) = entry.arrays()
    q, scale = evaluate(fw.trace(entry.fn, *entry.small), x)
    error = np.abs(q.astype(float) * scale - x.astype(float))
    assert (error <= 0.5001 * scale).all()
    assert np.abs(q.astype(int)).max() == 127


def test_window_mask_follows_its_definition() -> None:
    entry = named("window_mask")
    lengths, keep = entry.arrays()
    (out,) = evaluate(fw.trace(entry.fn, *entry.small), lengths, keep)
    for b, i, j in np.ndindex(out.shape):
        assert out[b, i, j] == (0 <= i - j <= 4 and j < lengths[b] and keep[b, j])


def test_packed_nibbles_come_out_low_first() -> None:
    entry = named("dequantise_nibbles")
    packed, scale = entry.arrays()
    (out,) = evaluate(fw.trace(entry.fn, *entry.small), packed, np.ones_like(scale))
    np.testing.assert_array_equal(out[:, ::2].astype(int), packed.astype(int) % 16 - 8)
    np.testing.assert_array_equal(out[:, 1::2].astype(int), packed.astype(int) // 16 - 8)


# --- rejections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float32", r"argument 'float32': write dtype\[dims\]"),
        ("float32[n] = 3", r"write dtype\[dims\], dtype\[dims\] < bound or > bound"),
        ("int32[n] > 3", r"argument 'int32\[n\] > 3': int32 takes no bound >"),
        ("bool[n] < 1", r"bool takes no bound <"),
        ("float31[n]", r"dtype 'float31' is not supported"),
    ],
)
def test_an_argument_that_cannot_be_read_is_rejected(text: str, message: str) -> None:
    with pytest.raises(fw.UserError, match=message):
        CaseArgument.parse(text)


@pytest.mark.parametrize("small", ["n=3", "n=3 m=2 k=1"])
def test_sizes_must_be_those_in_use(small: str) -> None:
    with pytest.raises(fw.UserError, match=r"case 'x': sizes .* are given, but .* use m, n; give"):
        case("x", fw.exp, "float32[n, m]", full="n=30 m=20", small=small)
