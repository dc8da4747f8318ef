"""`fusewright demo`: three fusions, compiled, shown, run and compared with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

import fusewright as fw
from fusewright.errors import UserError
from fusewright.fusion.ir import constant_shape
from fusewright.report.summary import Summary, summarise
from fusewright.report.table import plural, table
from fusewright.report.traffic import size_text
from fusewright.runtime.device import has_gpu

Array = npt.NDArray[Any]
Fn = Callable[..., Any]


def bias_gelu(x: Any, bias: Any) -> Any:
    """A linear layer's tail."""
    return fw.nn.gelu(x + bias)


def softmax(x: Any) -> Any:
    """Along rows, shifted so that nothing overflows."""
    e = fw.exp(x - fw.max(x, axis=-1, keepdims=True))
    return e / fw.sum(e, axis=-1, keepdims=True)


def residual_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
    """A transformer block's border: the new residual, and its normalised form."""
    h = x + residual
    wide = fw.astype(h, "float32")
    scale = fw.rsqrt(fw.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return h, fw.astype(wide * scale, h.dtype) * weight


@dataclass(frozen=True, slots=True)
class DemoCase:
    """One fusion of the demo and the arguments it is shown at."""

    fn: Fn
    specs: tuple[fw.TensorSpec, ...]


CASES = (
    DemoCase(
        bias_gelu, (fw.TensorSpec((2048, 3072), "float32"), fw.TensorSpec((3072,), "float32"))
    ),
    DemoCase(softmax, (fw.TensorSpec((2048, 1024), "float32"),)),
    DemoCase(
        residual_rms_norm,
        (
            fw.TensorSpec((1024, 4096), "bfloat16"),
            fw.TensorSpec((1024, 4096), "bfloat16"),
            fw.TensorSpec((4096,), "bfloat16"),
        ),
    ),
)
HEADER = (
    "fusion", "shape", "kernels", "moved", "least", "ratio", "shared", "syncs", "races",
    "error", "allowed",
)  # fmt: skip


def run(*, target: str, cases: tuple[DemoCase, ...] = CASES) -> int:
    """Print what became of every case, then the table. Returns 1 when a result is wrong, a race
    was found or a sync is not needed."""
    where = "the GPU" if has_gpu() else "the simulator (there is no GPU here)"
    rows: list[tuple[str, ...]] = []
    good = True
    for case in cases:
        title = case.fn.__name__
        program = fw.compile(fw.trace(case.fn, *case.specs), target=target)
        facts = summarise(program, title)
        print(brief(facts), end="\n\n")
        outcome = check(program, arguments(program.fusion))
        good = good and outcome.ok
        rows.append(row(title, case, facts, outcome))
    print("loops, syncs, CUDA: fusewright explain fusewright.demo:softmax \\")
    print("    --spec 'f32[2048,1024]' --show all\n")
    print(f"=== compiled for {target}, run on {where}, compared with float64 numpy\n")
    print(table(HEADER, rows))
    print("\nall good" if good else "\nFAILED: see the columns races, error and allowed")
    return 0 if good else 1


def arguments(fusion: fw.Fusion) -> list[Array]:
    """Normally distributed arrays for inputs of constant shape, the same ones every time.

    Raises UserError for a symbolic shape.
    """
    rng = np.random.default_rng(0)
    out: list[Array] = []
    for t in fusion.inputs:
        shape = constant_shape(t)
        if shape is None:
            raise UserError(f"{t!r}: the demo needs constant sizes")
        out.append(rng.standard_normal(shape, np.float32).astype(t.dtype.numpy))
    return out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found: races and needless syncs; the largest error relative to the largest
    value of its output, and the error that rounding explains."""

    races: int
    redundant: int
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return not self.races and not self.redundant and self.error <= self.allowed


def check(program: fw.Program, arrays: list[Array]) -> Outcome:
    """Run a program on the GPU if there is one, else in the simulator; compare; verify syncs."""
    outputs = program(*arrays, device="cuda" if has_gpu() else "sim")
    expected = fw.evaluate(program.fusion, *arrays)
    verified = fw.verify(program)
    errors = [relative_error(a, b) for a, b in zip(outputs, expected, strict=True)]
    allowed = [rounding(b.dtype) for b in expected]
    worst = max(range(len(errors)), key=lambda i: errors[i] / allowed[i])
    return Outcome(len(verified.missing), len(verified.redundant), errors[worst], allowed[worst])


def relative_error(a: Array, b: Array) -> float:
    """The largest difference over the largest value; infinite where `a` is not finite."""
    got, want = a.astype(np.float64), b.astype(np.float64)
    difference = np.where(np.isfinite(got), np.abs(got - want), np.inf)
    return float(np.max(difference) / max(np.max(np.abs(want)), np.finfo(np.float64).tiny))


def rounding(dtype: np.dtype[Any]) -> float:
    """The relative error of float32 arithmetic along a row, rounded once to `dtype`."""
    return 16 * 2.0**-23 + float(cast("Any", ml_dtypes.finfo(dtype)).eps)


def brief(s: Summary) -> str:
    """What became of a function, in a few lines."""
    head = f"{s.title}: {plural(len(s.kernels), 'kernel')}"
    if s.us is not None and s.kernels:
        head += f", predicted {s.us:.1f} us, limited by {s.costliest[0].limit}"
    return "\n".join([head, *(f"  {k.name}: {k.ops}" for k in s.kernels)])


def row(title: str, case: DemoCase, facts: Summary, outcome: Outcome) -> tuple[str, ...]:
    """One line under HEADER."""
    return (
        title,
        f"{case.specs[0].dtype}[{', '.join(map(str, case.specs[0].shape))}]",
        str(len(facts.kernels)),
        size_text(facts.traffic.moved),
        size_text(facts.traffic.least),
        f"{facts.traffic.ratio:.2f}",
        ", ".join(size_text(k.shared_nbytes) for k in facts.kernels),
        str(sum(len(k.syncs) for k in facts.kernels)),
        str(outcome.races),
        f"{outcome.error:.1e}",
        f"{outcome.allowed:.1e}",
    )
