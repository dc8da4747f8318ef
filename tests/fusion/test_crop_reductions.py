"""Crops in front of reductions, and crops of what a kernel with reductions computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewright as fw
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Reduce, constant_shape
from fusewright.fusion.passes.crop_reductions import crop_reductions
from fusewright.fusion.passes.cse import cse
from fusewright.fusion.passes.decompose import decompose

S = fw.TensorSpec


def norm(x: Any, w: Any) -> Any:
    return fw.nn.layer_norm(x, (24,), w, None)


SPARED: dict[str, Callable[..., Any]] = {
    "the last token": lambda x, w: norm(x, w)[:, -1],
    "a run of tokens": lambda x, w: norm(x, w)[:, 2:5] * 2,
    "of sums": lambda x, w: fw.sum(x * w, axis=2)[1:],
    "through a transposition": lambda x, w: fw.permute_dims(norm(x, w), (2, 1, 0))[:, 1:3],
    "of means kept": lambda x, w: fw.mean(x, axis=2, keepdims=True)[:, :2] + w[:1],
    "two reductions in a row": lambda x, w: fw.max(fw.sum(x, axis=2), axis=0)[3:],
    "softmax": lambda x, w: fw.nn.softmax(x * w)[0],
    "of another part": lambda x, w: (
        (y := fw.sum(x * w, axis=2)[1:]),
        fw.max(y[..., None] * w, axis=2)[1:],
    ),
}
WHOLE: dict[str, Callable[..., Any]] = {
    "read elsewhere": lambda x, w: (norm(x, w), norm(x, w)[:, -1]),
    "shared values": lambda x, w: ((y := norm(x, w)), y[:, -1]),
    "columns that are reduced": lambda x, w: norm(x, w)[..., :5],
    "no reduction": lambda x, w: fw.exp(x * w)[:, 1:],
    "two parts": lambda x, w: ((y := fw.sum(x, axis=2))[1:], y[:1]),
}


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((3, 7, 24)), rng.standard_normal(24)]


def reduced(fusion: fw.Fusion) -> int:
    """Elements that reductions read."""
    found = [t.op.operands[0] for t in fusion.values if isinstance(t.op, Reduce)]
    return sum(int(np.prod(constant_shape(t) or ())) for t in found)


def traced(fn: Callable[..., Any], dtype: str = "float64") -> fw.Fusion:
    return fw.trace(fn, S((3, 7, 24), dtype), S((24,), dtype))


@pytest.mark.parametrize("fn", SPARED.values(), ids=SPARED)
def test_less_is_reduced_and_the_values_are_the_same(fn: Callable[..., Any]) -> None:

    fusion = decompose(traced(fn))
    cropped = crop_reductions(fusion)
    assert reduced(cropped) < reduced(fusion)
    for a, b in zip(evaluate(cropped, *arrays()), evaluate(fusion, *arrays()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("fn", WHOLE.values(), ids=WHOLE)
def test_what_is_read_elsewhere_stays_whole(fn: Callable[..., Any]) -> None:

    fusion = cse(decompose(traced(fn)))
    cropped = crop_reductions(fusion)
    assert reduced(cropped) == reduced(fusion)
    for a, b in zip(evaluate(cropped, *arrays()), evaluate(fusion, *arrays()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("fn", [*SPARED.values(), *WHOLE.values()], ids=[*SPARED, *WHOLE])
def test_kernels_agree_with_the_oracle(fn: Callable[..., Any]) -> None:
    fusion = traced(fn, "float32")
    given = [a.astype(np.float32) for a in arrays()]
    made = fw.compile(fusion).simulate(*given, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_last_token_of_a_norm_reads_nothing_else() -> None:
    spec, w = S((64, 512, 1024), "float32"), S((1024,), "float32")
    program = fw.compile(
        fw.trace(lambda x, w: fw.nn.layer_norm(x, (1024,), w, None)[:, -1], spec, w)
    )
    stats = program.host.stats
    assert (stats["launches"], stats["bytes_moved"]) == (1, 4 * (2 * 64 * 1024 + 1024))


def halves(x: Any, w: Any) -> tuple[Any, Any]:
    y = fw.nn.rms_norm(x, (x.shape[-1],), w)
    return y[:, :24], y[:, 24:]


@pytest.mark.parametrize("columns", [77, 64, 1000])
def test_parts_of_a_norm_are_stored_by_its_kernel(columns: int) -> None:
    fusion = fw.trace(halves, S((5, columns), "float32"), S((columns,), "float32"))
    program = fw.compile(fusion)
    assert program.host.stats["launches"] == 1 and program.host.stats["copies"] == 0
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((5, columns), (columns,))]
    made = program.simulate(*given, check_races=True)
    assert not made.races
    for a, b in zip(made.outputs, fw.evaluate(fusion, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    report = fw.verify(program, *given)
    assert not report.missing and not report.redundant


@pytest.mark.parametrize(
    ("fn", "read"),
    [
        (lambda x: fw.cumulative_sum(x, axis=1)[:, :7], (33, 7)),
        (lambda x: fw.cumulative_sum(x, axis=1)[5:9], (4, 65)),
        (lambda x: fw.cumulative_sum(fw.exp(x), axis=0)[:8, 60:] * 2, (8, 5)),
        (lambda x: fw.flip(fw.cumulative_sum(fw.flip(x, axis=1), axis=1), axis=1)[:, 60:], None),
        (lambda x: fw.cumulative_sum(x, axis=1)[:, 3:7], (33, 65)),
        (lambda x: fw.cumulative_prod(x, axis=1)[2:3, :20], (1, 20)),
    ],
)
def test_a_scan_is_computed_for_what_is_read(fn: Any, read: tuple[int, ...] | None) -> None:
    """Along its axis a scan needs what stands before the part."""
    fusion = fw.trace(fn, fw.TensorSpec((33, 65), "float32"))
    program = fw.compile(fusion)
    x = np.random.default_rng(3).standard_normal((33, 65)).astype(np.float32)
    result = program.simulate(x)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], fw.evaluate(fusion, x)[0], rtol=2e-4, atol=1e-4)
    if read is not None:
        bound = [r.shape for k in program.launches for r in k.reads if r.root.name == "x"]
        assert [[str(n) for n in s] for s in bound] == [[str(n) for n in read]]
