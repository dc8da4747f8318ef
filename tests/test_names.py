"""Nothing is found by a printed name: arguments, results and sizes may be called anything.

Every word that the texts of kernels know is given to arguments, results and sizes in turn: those of
kernel IR, those of C++ and CUDA, those that the compiler defines, and those that schedules,
lowering and passes make up.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import fusewright as fw
from fusewright.cuda.compile import compile_cubin
from fusewright.cuda.emit import emit_module
from fusewright.cuda.names import KEYWORDS as CPP_KEYWORDS
from fusewright.cuda.prelude import pieces
from fusewright.cuda.scalars import spelled_words
from fusewright.fusion.text import parse_fusion
from fusewright.kir.names import KEYWORDS
from fusewright.schedule.parallel import BLOCK_DIMS, THREAD_DIMS

MACROS = (
    "NULL", "CUDART_CB", "NV_IF_TARGET", "NV_PROVIDES_SM_90", "assert", "cudaStreamDefault",
    "va_start", "CUDA_IPC_HANDLE_SIZE", "INFINITY", "NAN", "M_PI", "linux", "unix", "EOF",
    "size_t", "uint4", "float2", "int8_t", "half", "printf", "main", "cudaError_t",
)  # fmt: skip
MADE_UP = (
    "i0", "i1", "t0", "t1", "s0", "x_c", "x_tile", "x_near", "x_far", "lane", "lane_within", "f0",
    "s_rf", "s_split", "s_pad", "k0_s", "s_acc", "once", "a0", "several", "v_x", "_1", "x_1",
    "dict", "Input", "Pointwise", "return", "size", "values", "nan", "inf", "None", "True",
)  # fmt: skip
WORDS = sorted(
    {
        *KEYWORDS, *BLOCK_DIMS.values(), *THREAD_DIMS.values(), *CPP_KEYWORDS, *spelled_words(),
        *pieces(), *MACROS, *MADE_UP, *keyword.kwlist, "cx",
    }
)  # fmt: skip
PER_PROGRAM = 12
PER_KERNEL = 4
T = TypeVar("T")


def _groups(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _program(fusion: fw.Fusion) -> fw.Program:
    """The program, whose texts read back and whose kernels the compiler takes."""
    assert str(parse_fusion(str(fusion))) == str(fusion)
    program = fw.compile(fusion)
    for k in program.kernels:
        assert str(fw.parse_kernel(str(k.ir))) == str(k.ir)
    together = {k.name: k for k in program.kernels}  # short names of different kernels may be equal
    apart = [k for k in program.kernels if together[k.name] is not k]
    for kernels in ([*together.values()], *([k] for k in apart)):
        source = emit_module([k.ir for k in kernels], kernels[0].target)
        assert compile_cubin(source, kernels[0].target, name="names").cubin
    return program


def _check(program: fw.Program, fusion: fw.Fusion, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    found = program.simulate(*arrays)
    assert found.races == []
    for got, want in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("words", list(_groups(WORDS, PER_PROGRAM)), ids=lambda w: w[0])
def test_arguments_and_results_may_have_any_name(words: list[str]) -> None:
    spec = fw.TensorSpec(("n", 64), "float32")
    arrays = [np.full((3, 64), 1.5 + k, np.float32) for k in range(len(words))]

    def arguments(**given: fw.Array) -> list[fw.Array]:
        scaled = [x * fw.sum(x, axis=-1, keepdims=True) for x in given.values()]
        return [reduce(fw.add, xs) for xs in _groups(scaled, PER_KERNEL)]

    def results(*xs: fw.Array) -> list[fw.Array]:
        found = [fw.name(fw.max(x, axis=-1), w) for w, x in zip(words, xs, strict=True)]
        return [reduce(fw.add, ms) for ms in _groups(found, PER_KERNEL)] + found[1::2]

    for fusion in (
        fw.trace(arguments, **dict.fromkeys(words, spec)),
        fw.trace(results, *[spec] * len(words)),
    ):
        _check(_program(fusion), fusion, arrays)


SIZES = [w for w in WORDS if not keyword.iskeyword(w) and not re.fullmatch(r"i\d+", w)]


@pytest.mark.parametrize("words", list(_groups(SIZES, PER_PROGRAM)), ids=lambda w: w[0])
def test_sizes_may_have_any_name(words: list[str]) -> None:
    specs = [fw.TensorSpec(tuple(w), "float32") for w in _groups(words, PER_KERNEL)]
    arrays = [np.ones((2 + k, 3, 2, 5)[: len(s.shape)], np.float32) for k, s in enumerate(specs)]
    fusion = fw.trace(lambda *xs: [x * fw.max(x, axis=-1, keepdims=True) for x in xs], *specs)
    program = _program(fusion)
    assert sorted(str(v) for k in program.kernels for v in k.ir.symbols) == sorted(words)
    _check(program, fusion, arrays)


def test_a_saved_program_keeps_sizes_with_names_of_kernels(tmp_path: Path) -> None:
    fusion = fw.trace(
        lambda load: fw.exp(load[:, -1]), fw.TensorSpec((4, "tx", "store"), "float32")
    )
    program = fw.load(fw.compile(fusion).save(tmp_path / "p"))
    _check(program, fusion, [np.ones((4, 3, 5), np.float32)])


def test_a_tensor_that_is_named_like_a_part_of_a_reduction_keeps_its_loops() -> None:
    """`s` is split into `s_rf` and others; `s_e` only feeds it."""

    def f(x: fw.Array) -> fw.Array:
        return fw.name(fw.sum(fw.name(fw.exp(x), "s_e"), axis=-1), "s")

    s = fw.Schedule(fw.trace(f, fw.TensorSpec((8, 64), "float32")))
    s["s_e"].set_memory(fw.SHARED)
    s["s_e"].split(1, 16).parallelize(0, fw.BIDx)
    loops = [str(a) for a in s["s_e"].axes]
    s["s"].split(1, 32).parallelize(0, fw.BIDx)
    s["s"].rfactor([1])
    assert [str(a) for a in s["s_e"].axes] == loops
