"""Literals and conversions as text."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

import fusewright as fw
from fusewright import dtypes
from fusewright.cuda import scalars
from fusewright.cuda.listing import instructions
from fusewright.cuda.names import identifier
from fusewright.cuda.prelude import needed, pieces
from fusewright.dtypes import ALL, dtype_of


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 0.1, -3.5e-42, 1e30, 123456.789, 3.4e38])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_float_literals_read_back_to_the_same_value(value: float, name: str) -> None:
    dtype = dtype_of(name)
    text = scalars.literal(value, dtype)
    number = dtype.numpy.type(ast.literal_eval(text.strip("()").removesuffix("f")))
    assert np.signbit(number) == np.signbit(value)
    assert number == dtype.numpy.type(value)
    assert "." in text or "e" in text


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_integer_literals_read_back_at_both_ends(name: str) -> None:
    """No literal of C is negative, and the least integer has no positive one."""
    dtype = dtype_of(name)
    low, high = dtype.integer_range
    for value in (low, low + 1, -1, 0, 1, high):
        text = scalars.literal(value, dtype)
        assert "--" not in text
        number = re.sub(r"(\d+)ll", r"\1", text)
        assert eval(number) == value
        assert all(int(n) <= max(high, 2**31 - 1) for n in re.findall(r"\d+", number))


def test_literals_of_short_floats_are_rounded_to_them() -> None:
    assert scalars.literal(0.1, dtypes.bfloat16) == "0.100097656f"
    assert scalars.literal(1.06, dtypes.float8_e4m3) == "1.0f"


def test_special_literals() -> None:
    assert scalars.literal(float("inf"), dtypes.float32) == "__uint_as_float(0x7f800000u)"
    assert scalars.literal(1e300, dtypes.float32) == "__uint_as_float(0x7f800000u)"
    nan = scalars.literal(float("nan"), dtypes.float64)
    assert nan == "__longlong_as_double(0x7ff8000000000000ll)"


def test_integer_literals() -> None:
    assert scalars.literal(-(2**31), dtypes.int32) == "(-2147483647 - 1)"
    assert scalars.literal(-(2**63), dtypes.int64) == "(-9223372036854775807ll - 1)"
    assert scalars.literal(-1, dtypes.uint64) == "18446744073709551615ull"
    assert scalars.literal(200, dtypes.int8) == "(-56)"
    assert scalars.literal(3, dtypes.bool_) == "true"


def test_conversions() -> None:
    c = scalars.convert
    assert c("x", dtypes.float32, dtypes.float32) == "x"
    assert c("x", dtypes.float64, dtypes.float16) == "fw_double_to_f16(x)"
    assert c("x", dtypes.float64, dtypes.bfloat16) == "fw_float_to_bf16((float)(x))"
    assert c("x", dtypes.int32, dtypes.float16) == "fw_float_to_f16((float)(x))"
    assert c("x", dtypes.float32, dtypes.int8) == "(signed char)__float2int_rz(x)"
    assert c("x", dtypes.float64, dtypes.uint64) == "__double2ull_rz(x)"
    assert c("x", dtypes.float32, dtypes.uint32) == "(unsigned)__float2ll_rz(x)"
    assert c("x", dtypes.int32, dtypes.bool_) == "(x) != 0"


def test_every_dtype_has_a_type_and_every_table_only_known_functions() -> None:
    from fusewright.core.functions import FUNCTIONS

    assert list(scalars.CTYPES) == [d.name for d in ALL]
    spelled = {fn for d in ALL for fn in FUNCTIONS if scalars.supports(fn, d)}
    # `scalars.bitcast` spells casts of two types; schedules know a segment_set as a copy.
    assert spelled == set(FUNCTIONS) - {"bitcast", "segment_set"}


def test_no_piece_synchronises_or_touches_shared_memory() -> None:
    for name, text in pieces().items():
        for word in ("bar.", "barrier", "fence", "membar", "__sync", "mbarrier", "wait"):
            assert word not in text, f"{name} contains {word}"
        assert "__shared__" not in text or name == "fw_shared"


def test_pieces_come_with_what_they_need_in_order() -> None:
    assert needed("fw_float_rem(a, b)") == ("fw_signbit", "fw_fmod", "fw_float_rem")


def test_names_of_programs_may_look_like_pieces() -> None:
    assert identifier("fw_max_float32_0") == "fw_max_float32_0"
    assert needed("fw_max_float32_0(x)") == ()
    assert identifier("fw_max") == "v_fw_max"
    assert identifier("fw_load_cs") == "v_fw_load_cs"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_short_integers_take_an_instruction_and_their_place_another(
    name: str, dtype: str
) -> None:
    spec = fw.TensorSpec((1024, 64, 1024), dtype)
    (kernel,) = fw.compile(fw.trace(lambda x: getattr(fw, name)(x, axis=1), spec)).kernels
    code = [str(i) for i in instructions(kernel.sass())]
    assert any(i.startswith("VIMNMX") for i in code)
    assert not any(i.startswith("SEL") for i in code)
    x = np.random.default_rng(9).integers(-200, 200, (3, 64, 256)).astype(dtype)
    program = fw.compile(
        fw.trace(lambda x: getattr(fw, name)(x, axis=1), fw.TensorSpec(x.shape, dtype))
    )
    np.testing.assert_array_equal(program.simulate(x).outputs[0], getattr(x, name)(1))
