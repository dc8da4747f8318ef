"""The sign of a NaN that a program names: every key and text tells -nan from nan, and all three
witnesses hold the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion import trees
from fusewright.fusion.printing import print_fusion
from fusewright.fusion.text import parse_fusion
from fusewright.runtime.torch_calls import call_key

NEGATIVE = math.copysign(math.nan, -1.0)
POSITIVE = math.copysign(math.nan, 1.0)


def both(x: fw.TensorSpec) -> object:
    return fw.where(x > 0, NEGATIVE, x), fw.where(x > 0, POSITIVE, x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_witnesses_keep_the_sign_of_a_nan(dtype: str):
    fusion = fw.trace(both, fw.TensorSpec((4,), dtype))
    x = np.ones(4, dtype)
    program = fw.compile(fusion)
    for found in (fw.evaluate(fusion, x), program.simulate(x).outputs):
        assert [np.signbit(a).all() for a in found] == [True, False]
    text = "".join(k.cuda for k in program.kernels)
    bits = ("0xfff8", "0x7ff8") if dtype == "float64" else ("0xffc0", "0x7fc0")
    assert all(b in text for b in bits)


def test_texts_of_fusions_and_kernels_keep_it():
    fusion = fw.trace(both, fw.TensorSpec((4,), "float32"))
    text = print_fusion(fusion)
    assert "value=-nan" in text and "value=nan" in text
    assert print_fusion(parse_fusion(text)) == text
    for k in fw.compile(fusion).kernels:
        assert str(fw.parse_kernel(str(k.ir))) == str(k.ir) and "-nan" in str(k.ir)


def test_calls_that_differ_in_it_have_keys_of_their_own():
    for key in (lambda v: trees.key(trees.flatten(v)[1]), lambda v: call_key((v,), {})):
        assert key(NEGATIVE) != key(POSITIVE)
        assert key(NEGATIVE) == key(NEGATIVE)
