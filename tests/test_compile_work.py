"""How much work compiling takes: what once took seconds, and the fusions of the corpus."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from tests.work import calls

import fusewright as fw
from fusewright.corpus import CORPUS
from fusewright.kir.analysis import accesses

A_FIFTH_OF_A_SECOND = 2_400_000
"""Calls, with room for a fifth more: ten million take a second on the slower machine."""


def _odd_middle(a: Any) -> Any:
    return fw.concat([fw.exp(a)] * 2, axis=-2)


def _padded(a: Any) -> Any:
    return fw.pad(fw.exp(a), ((1, 2), (3, 1)))


def _joined(a: Any, b: Any, c: Any) -> Any:
    return fw.concat([fw.exp(a), fw.nn.relu(b), c * 0.5], axis=-1)


def _spread(a: Any) -> Any:
    return fw.var(a, axis=(1, 2))


def _rms_backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    xhat = x * rstd
    d = dy * w
    dx = fw.astype((d - xhat * fw.mean(d * xhat, axis=-1, keepdims=True)) * rstd, x.dtype)
    return dx, fw.astype(fw.sum(dy * xhat, axis=0), w.dtype)


def _bf16(*shape: int | str) -> fw.TensorSpec:
    return fw.TensorSpec(shape, "bfloat16")


NORM = (_bf16(4096, 302), _bf16(4096, 302), _bf16(302), fw.TensorSpec((4096, 1), "float32"))
JOINED = (_bf16(100000, 13), _bf16(100000, 15), _bf16(100000, 5))


@pytest.mark.parametrize(
    ("fn", "specs", "least"),
    [
        (_odd_middle, (_bf16("n", 33, 3),), 369_000),
        (_padded, (_bf16(30001, 121),), 404_000),
        (_joined, JOINED, 419_000),
        (_spread, (_bf16(19, 37, 3001),), 597_000),
        (_rms_backward, NORM, 424_000),
    ],
)
def test_of_a_kernel(fn: Callable[..., Any], specs: tuple[fw.TensorSpec, ...], least: int) -> None:
    """`least`: the calls that were seen; a quarter more is a cause to look for."""
    programs: list[fw.Program] = []
    work = calls(lambda: programs.append(fw.compile(fw.trace(fn, *specs))))
    assert work < 1.25 * least * len(programs[0].kernels)


def test_cycles_are_not_searched_for_in_the_middle_of_a_program() -> None:
    """Each run looks through the objects of the whole process, sooner or later."""
    fusion, runs = fw.trace(_rms_backward, *NORM), list[str]()

    def seen(phase: str, _: object) -> None:
        runs.append(phase)

    usual = gc.get_threshold()
    gc.callbacks.append(seen)
    gc.set_threshold(700, 10, 10)
    try:
        fw.compile(fusion)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(seen)
    assert runs.count("start") < 3
    assert gc.isenabled()


def _gelu(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.gelu(fw.matmul(x, w) + b)


def _linear(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.gelu(fw.nn.linear(x, w, b))


def _gated(x: Any, g: Any, u: Any) -> Any:
    return fw.nn.silu(fw.matmul(x, g.T)) * fw.matmul(x, u.T)


def _tn(x: Any, w: Any) -> Any:
    return fw.matmul(x, w.T)


GELU = (_bf16(8192, 4096), _bf16(4096, 16384), _bf16(16384))
LAPS = (_bf16(7936, 4032), _bf16(4032, 16128), _bf16(16128))
"""63 tiles of the depth in a ring of four: a lap begins at another slot for each tile."""
LINEAR = (_bf16(4096, 4096), _bf16(4096, 4096), _bf16(4096))
GATED = (_bf16(8192, 4096), _bf16(14336, 4096), _bf16(14336, 4096))


def _residual(x: Any, w: Any, r: Any) -> Any:
    return fw.matmul(x, w.T) + r


def _gelu_backward(x: Any, w: Any, saved: Any) -> Any:
    return fw.nn.gelu_backward(fw.matmul(x, w.T), saved)


def _nn(x: Any, w: Any) -> Any:
    return fw.matmul(x, w)


def _of(dtype: str, *shape: int) -> fw.TensorSpec:
    return fw.TensorSpec(shape, dtype)


RESIDUAL = (_bf16(8192, 4096), _bf16(4096, 4096), _bf16(8192, 4096))
IN_TURN = (_bf16(8192, 768), _bf16(8192, 768), _bf16(8192))
BACKWARD = (_bf16(12608, 768), _bf16(3072, 768), _bf16(12608, 3072))
EIGHT_BITS = (_of("float8_e4m3fn", 4096, 4096),) * 2
FLOATS, DOUBLES = (_of("float32", 4096, 4096),) * 2, (_of("float64", 2048, 2048),) * 2


@pytest.mark.parametrize(
    ("fn", "specs", "target", "least"),
    [
        pytest.param(_tn, (_bf16(4096, 4096),) * 2, "sm_90a", 702_000, id="4096 cubed"),
        pytest.param(_tn, (_bf16(4096, 512),) * 2, "sm_90a", 585_000, id="K of 512"),
        pytest.param(_tn, (_bf16(4096, 65536),) * 2, "sm_90a", 660_000, id="K of 65536"),
        pytest.param(_gelu, GELU, "sm_90a", 851_000, id="bias and gelu"),
        pytest.param(_gelu, LAPS, "sm_90a", 970_000, id="bias and gelu, laps that are not full"),
        pytest.param(_linear, LINEAR, "sm_90a", 759_000, id="linear, bias and gelu"),
        pytest.param(_gated, GATED, "sm_90a", 759_000, id="gated"),
        pytest.param(_residual, RESIDUAL, "sm_90a", 1_236_000, id="residual"),
        pytest.param(_linear, IN_TURN, "sm_90a", 2_565_000, id="tiles in turn"),
        pytest.param(
            _gelu_backward, BACKWARD, "sm_90a", 2_032_000, id="tiles in turn, inputs ahead"
        ),
        pytest.param(_tn, EIGHT_BITS, "sm_90a", 627_000, id="8 bits"),
        pytest.param(
            _nn, (_bf16(32, 1024, 512), _bf16(32, 512, 1024)), "sm_90a", 828_000, id="a batch"
        ),
        pytest.param(
            _tn, (_bf16(4097, 4104), _bf16(4104, 4104)), "sm_90a", 1_266_000, id="odd rows"
        ),
        pytest.param(
            _tn, (_bf16("m", 4096), _bf16(4096, 4096)), "sm_90a", 448_000, id="symbolic rows"
        ),
        pytest.param(_tn, (_bf16(16, 4096), _bf16(4096, 4096)), "sm_90a", 456_000, id="few rows"),
        pytest.param(_linear, LINEAR, "sm_80", 1_494_000, id="single warps"),
        pytest.param(_tn, FLOATS, "sm_90a", 1_553_000, id="tiles of scalars, float32"),
        pytest.param(_tn, DOUBLES, "sm_90a", 2_143_000, id="tiles of scalars, float64"),
    ],
)
def test_of_a_product(
    fn: Callable[..., Any], specs: tuple[fw.TensorSpec, ...], target: str, least: int
) -> None:
    """`least`: the calls of 2026-11-28; they do not grow with the sum's length."""
    fusion = fw.trace(fn, *specs)
    assert calls(lambda: fw.compile(fusion, target=target)) < 1.25 * least


@pytest.mark.parametrize(
    ("fn", "specs", "most"),
    [
        pytest.param(_gelu, GELU, 30_000, id="bias and gelu"),
        pytest.param(_linear, IN_TURN, 35_000, id="tiles in turn"),
        pytest.param(_gelu_backward, BACKWARD, 65_000, id="tiles in turn, inputs ahead"),
    ],
)
def test_texts_of_products_do_not_grow_with_the_sums_of_a_thread(
    fn: Callable[..., Any], specs: tuple[fw.TensorSpec, ...], most: int
) -> None:
    """What a thread does with its 128 sums is written once for all rows without a condition of
    their own: 175,000 characters otherwise, of two groups that take tiles in turn."""
    (kernel,) = fw.compile(fw.trace(fn, *specs)).kernels
    assert len(kernel.cuda) < most


def test_accesses_of_a_ring_whose_laps_are_not_full_are_enumerated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """63 tiles of the depth in four stages: which slot is the first is another one for each tile of
    the result, so that six of those and seven of each stand for all. What a pass found the next one
    finds again; 28 accesses are different ones in the course of the pipeline."""
    made: list[object] = []
    original = accesses._enumerate

    def counted(*a: Any) -> Any:
        made.append(a)
        return original(*a)

    monkeypatch.setattr(accesses, "_enumerate", counted)
    fw.compile(fw.trace(_gelu, *LAPS))
    assert 10 < len(made) < 40


LARGE = {"group_norm_silu": 1.3}
"""Fusions with a kernel that does, in a cluster, what three launches did: its threads walk over 20
vectors of a row three times, in the open. By how much they may take longer."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CORPUS, ids=lambda c: c.name)
def test_of_a_fusion_of_the_corpus(case: Any) -> None:
    programs: list[fw.Program] = []
    work = calls(lambda: programs.append(fw.compile(fw.trace(case.fn, *case.specs))))
    assert work < A_FIFTH_OF_A_SECOND * len(programs[0].kernels) * LARGE.get(case.name, 1)


def test_of_a_join_of_many_symbolic_pieces() -> None:
    """Which lanes lie in which piece is asked of pairs of conditions; most are told apart by the
    region that their own lane found."""
    specs = [fw.TensorSpec(("n",), "bfloat16")] * 24

    def f(*pieces: Any) -> Any:
        joined = fw.concat(pieces)
        return fw.argmax(joined), joined

    fusion = fw.trace(f, *specs)
    assert calls(lambda: fw.compile(fusion)) < 4 * A_FIFTH_OF_A_SECOND
