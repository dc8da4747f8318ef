"""Windows that lie beside each other are cut out of the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.errors import SpecError
from fusewright.kir.ir import Kernel, Load
from fusewright.kir.passes.share_words import share_words
from fusewright.kir.spec import check_kernel
from fusewright.kir.text import parse_kernel, print_kernel
from fusewright.kir.traverse import statements_of

FIRST = "a[0..8] = load x[9*tx] begins anywhere"
NEXT = "b[0..8] = load x[9*tx + 1] begins anywhere"
USE = ("c[0] = copy(b[3])", "store y[tx] = c[0]")
SPAN = "x_span1[0..10] = load x[9*tx] begins anywhere lanes 0..9"


def _kernel(*body: str) -> Kernel:
    head = [f"local {r}: bfloat16[8]" for r in "abd"] + ["local c: bfloat16[1]"]
    return parse_kernel(
        "kernel k {\nparam x: bfloat16[1024] align 16\nparam y: bfloat16[64] align 16\n"
        "grid (bx < 1)\nblock (tx < 64)\n" + "\n".join((*head, *body)) + "\n}"
    )


def _lines(*body: str) -> list[str]:
    """What becomes of a body, without its registers."""
    changed = share_words(_kernel(*body))
    check_kernel(changed, "lowered")
    found = [x.strip() for x in print_kernel(changed).split("\n\n")[1].splitlines()[:-1]]
    return [x for x in found if "local" not in x]


def test_a_window_shifted_by_one_shares_words() -> None:
    found = _lines(FIRST, NEXT, *USE)
    assert found == [SPAN, "c[0] = copy(x_span1[4])", "store y[tx] = x_span1[4]"]


def test_the_window_in_front_may_come_last() -> None:
    found = _lines(NEXT, "d[0] = copy(b[0])", FIRST, *USE)
    assert found[0] == SPAN and "load" not in "".join(found[1:])


@pytest.mark.parametrize(
    "body",
    [
        (FIRST, "b[0..8] = load x[9*tx + 8] begins anywhere"),  # nothing in common
        (FIRST, "b[0..8] = load x[10*tx] begins anywhere"),
        ("a[0..8] = load x[8*tx] begins anywhere", "b[0..8] = load x[8*tx + 1] begins anywhere"),
        (FIRST, "store y[tx] = a[0]", NEXT),
        (FIRST, "b[0..4] = load x[9*tx + 1] begins anywhere"),
    ],
    ids=["apart", "no known distance", "known places", "a store between", "other words"],
)
def test_other_loads_stay(body: tuple[str, ...]) -> None:
    assert _lines(*body, *USE) == [*body, *USE]


def test_what_the_kernel_writes_is_loaded_where_it_is_read() -> None:
    body = (FIRST, NEXT, "c[0] = copy(b[3])", "store x[tx] = c[0]")
    assert _lines(*body) == list(body)


def test_a_span_is_two_words_long_at_most() -> None:
    taps = [f"a[0..8] = load x[9*tx + {k}] begins anywhere" for k in (0, 6, 9, 15)]
    sums = [f"c[0] = copy(a[{k}])" for k in range(4)]
    pairs = [line for both in zip(taps, sums, strict=True) for line in both]
    loads = [x for x in _lines("c[0] = copy(0.0:bfloat16)", *pairs, USE[1]) if "load" in x]
    assert [x.split(" begins")[0] for x in loads] == [
        "x_span1[0..14] = load x[9*tx]",
        "x_span2[0..14] = load x[9*tx + 9]",
    ]


def test_windows_that_exist_apart_are_bounded_by_their_source() -> None:
    found = _lines(
        "a[0..8] = load x[9*tx] if (tx < 50) begins anywhere lanes 0..3",
        "b[0..8] = load x[9*tx + 1] if (tx < 60) begins anywhere lanes 2..8",
        *USE,
    )
    assert found[0].startswith("x_span1[0..10] = load x[9*tx] if (")
    assert found[0].endswith("lanes 0..10")
    at_end = _lines(
        "a[0..8] = load x[17*tx] if (tx < 50) begins anywhere lanes 0..3",
        "b[0..8] = load x[17*tx + 1] if (tx < 60) begins anywhere lanes 2..8",
        *USE,
    )
    assert "1024" in at_end[0].split("lanes")[1]


def _stencil(kind: str, reach: int) -> Any:
    def fn(x: Any) -> Any:
        n = x.shape[-1]
        shifts = range(2 * reach + 1)
        if kind == "pads":
            y = fw.pad(x, ((0, 0), (reach, reach)))
            parts = [y[:, s : s + n] for s in shifts]
        else:
            parts = [x[:, s : n - 2 * reach + s] for s in shifts]
        return sum(parts[1:], parts[0])

    return fn


@pytest.mark.parametrize(
    ("kind", "reach", "dtype", "alignment", "most"),
    [
        ("slices", 1, "bfloat16", 16, 2),
        ("slices", 2, "float16", 2, 2),
        ("pads", 1, "bfloat16", 2, 2),
        ("pads", 2, "float32", 4, 3),
    ],
)
def test_stencils_of_odd_rows_load_few_words(
    kind: str, reach: int, dtype: str, alignment: int, most: int
) -> None:
    spec = fw.TensorSpec((131, 323), dtype, alignment=alignment)
    fusion = fw.trace(_stencil(kind, reach), spec)
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    loads = statements_of(kernel.ir, Load)
    assert len(loads) <= most < 2 * reach + 1 + (kind == "slices")
    x = np.random.default_rng(5).standard_normal((131, 323)).astype(spec.dtype.numpy)
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(fusion, x)
    got = np.asarray(found.outputs[0], np.float64)
    np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=2e-2, atol=2e-2)
    kernel.cubin()


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("s[0..18] = load x[9*tx] begins anywhere", "18 elements of bfloat16 at once"),
        ("s[0..9] = load x[9*tx] begins anywhere", "9 elements of bfloat16 at once"),
        ("s[0..10] = load x[9*tx]", "10 elements of bfloat16 at once"),
    ],
    ids=["beyond two words", "no whole registers", "a word of its own"],
)
def test_spans_that_no_load_brings_are_refused(load: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_kernel(_kernel("local s: bfloat16[20]", load), "lowered")
    check_kernel(_kernel("local s: bfloat16[20]", SPAN.replace("x_span1", "s")), "lowered")


@pytest.mark.parametrize(("alignment", "name"), [(16, "fw_load_span<"), (2, "fw_load_span_any")])
def test_spans_that_exist_whole_compile(alignment: int, name: str) -> None:
    spec = fw.TensorSpec((64, 1026), "bfloat16", strides=(1027, 1), alignment=alignment)
    fusion = fw.trace(_stencil("slices", 1), spec)
    program = fw.compile(fusion)
    (kernel,) = program.kernels
    assert name in kernel.cuda
    kernel.cubin()
    rows = np.random.default_rng(6).standard_normal((64, 1027)).astype(spec.dtype.numpy)
    x = rows[:, :1026]
    found = program.simulate(x)
    assert found.races == []
    (want,) = fw.evaluate(fusion, x)
    got = np.asarray(found.outputs[0], np.float64)
    np.testing.assert_allclose(got, np.asarray(want, np.float64), rtol=2e-2, atol=2e-2)
