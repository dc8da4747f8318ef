"""Register buffers that stay in machine words: which ones, and how their elements are spelled."""

from __future__ import annotations

import re

import pytest
from cuda_kernels import dims, kernel

import fusewright as fw
from fusewright.core.conditions import less
from fusewright.core.expr import Int, Var
from fusewright.cuda.emit import emit
from fusewright.cuda.listing import instructions
from fusewright.cuda.words import element
from fusewright.dtypes import dtype_of
from fusewright.errors import SpecError
from fusewright.kir.analysis.words import kept_in_words
from fusewright.kir.ir import (
    Alloc,
    Buffer,
    Compute,
    Imm,
    Kernel,
    Load,
    Memory,
    Reg,
    Statement,
    Store,
)
from fusewright.kir.passes.keep_words import keep_words
from fusewright.target import target_of


def _buffers(dtype: str, count: int = 4) -> tuple[Buffer, Buffer, Buffer]:
    d = dtype_of(dtype)
    x = Buffer("x", d, Int(1024), Memory.GLOBAL, 16)
    r = Buffer("r", d, Int(count), Memory.LOCAL, 16)
    s = Buffer("s", d.compute, Int(1), Memory.LOCAL, 4)
    return x, r, s


DIMS = dims()


def _kernel(dtype: str, *more: Statement, load: Load | None = None) -> tuple[Kernel, Buffer]:
    x, r, s = _buffers(dtype)
    load = load or Load(Reg(r), x, Int(0), 4)
    r = load.dst.buffer
    use = [Compute("cast", Reg(s), (Reg(r, Int(k)),)) for k in range(4)]
    return kernel("k", (load.src,), (Alloc(r), Alloc(s), load, *use, *more), **DIMS), r


def test_elements_are_cut_out_where_they_are_used() -> None:
    k, r = _kernel("bfloat16")
    assert kept_in_words(k) == {r}
    text = emit(keep_words(k), target_of("sm_90a"))
    assert "unsigned r[2];" in text
    assert "fw_load<2>(reinterpret_cast<const unsigned*>(x))" in text
    for k, half in ((0, 0), (0, 1), (1, 1)):
        assert re.search(rf"fw_\w+<{half}>\(r\[{k}\]\)", text), text


@pytest.mark.parametrize(("dtype", "name"), [("float8_e4m3", "UNPACK_B"), ("float8_e5m2", "PRMT")])
def test_two_floats_of_8_bits_are_widened_by_one_instruction(dtype: str, name: str) -> None:
    spec = fw.TensorSpec((1 << 20,), dtype)
    (found,) = fw.compile(fw.trace(lambda x: fw.astype(x, "float32") + 0.25, spec)).kernels
    assert f"fw_{dtype.removeprefix('float8_')}_in_word<3>(x_c[0])" in found.cuda
    code = [str(i) for i in instructions(found.sass())]
    stores = sum(i.startswith("STG.E.128") for i in code)
    assert stores and sum(name in i for i in code) == 2 * stores


def test_several_loads_fill_words_of_one_buffer() -> None:
    x, r, _ = _buffers("float16")
    (tx,) = (d.var for d in DIMS["block"])
    one = Imm(1.0, dtype_of("float16"))
    second = Load(Reg(r, Int(2)), x, Int(8), 2, less(tx, 5), one)
    k, r = _kernel("float16", second, load=Load(Reg(r), x, Int(0), 2))
    assert kept_in_words(k) == {r}
    text = emit(keep_words(k), target_of("sm_90a"))
    assert "unsigned r[2];" in text and "r[0] = x_word.at[0];" in text
    assert "r[1] = x_word_2.at[0];" in text
    assert "fw_load_where<2>(x + 8, tx < 5, fw_vec<fw_f16, 2>{{0x3c00, 0x3c00}})" in text


def test_what_a_predicate_leaves_out_is_filled_by_the_word() -> None:
    x, r, _ = _buffers("bfloat16")
    (tx,) = (d.var for d in DIMS["block"])
    one = Imm(1.0, dtype_of("bfloat16"))
    k, r = _kernel("bfloat16", load=Load(Reg(r), x, Int(0), 4, less(tx, 5), one))
    assert kept_in_words(k) == {r}
    text = emit(keep_words(k), target_of("sm_90a"))
    assert f"(x, tx < 5, fw_vec<fw_bf16, 4>{{{{{', '.join(['0x3f80'] * 4)}}}}})" in text
    tile = Buffer("tile", x.dtype, x.size, Memory.SHARED, 16)
    load = Load(Reg(r), tile, Int(0), 4, less(tx, 5), one)
    k = kernel("k", (), (Alloc(tile, 0), Alloc(r), load, *k.body[2:]), **DIMS)
    assert "r[0] = 0x3f803f80u;" in emit(keep_words(k), target_of("sm_90a"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int64"])
def test_other_types_stay_as_they_are(dtype: str) -> None:
    k, _ = _kernel(dtype)
    assert not kept_in_words(k)


def test_what_is_written_otherwise_stays_as_it_is() -> None:
    x, r, _ = _buffers("float16")
    load = Load(Reg(r), x, Int(0), 4)
    k, _ = _kernel("float16", Compute("copy", Reg(r, Int(1)), (Reg(r, Int(0)),)), load=load)
    assert not kept_in_words(k)
    k, _ = _kernel("float16", Store(x, Int(0), Reg(r), 4), load=load)
    assert not kept_in_words(k)
    k, _ = _kernel("float16", load=Load(Reg(r, Int(1)), x, Int(0), 2))
    assert not kept_in_words(k)


def test_a_register_without_a_literal_index_is_refused() -> None:
    x, r, s = _buffers("float16")
    i = Var("i", 0, 3)
    body = (Alloc(r), Alloc(s), Load(Reg(r), x, Int(0), 4), Compute("cast", Reg(s), (Reg(r, i),)))
    k = kernel("k", (x,), body)
    assert not kept_in_words(k)
    with pytest.raises(SpecError, match=r"kept in words and has no literal index"):
        element("r", Reg(r, i), i)
