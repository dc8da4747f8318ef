"""fw.verify and fw.evaluate: the two witnesses that need no GPU, over kernels and programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fusewright.arguments import COUNT, instance_of, takes
from fusewright.core.expr import Var, constant_value, variables
from fusewright.core.substitution import evaluate as evaluate_size
from fusewright.dtypes import DType
from fusewright.fusion import evaluate as oracle
from fusewright.fusion.evaluate import plain_array
from fusewright.fusion.ir import Fusion
from fusewright.fusion.passes.round_products import round_products
from fusewright.fusion.rules import traced_first
from fusewright.host.invariants import problems
from fusewright.kernel import Kernel, Sync, TensorInfo, shaped_view, size_of, span
from fusewright.program import Program
from fusewright.programs.simulation import witnesses
from fusewright.runtime.config import active
from fusewright.schedule.schedule import Schedule
from fusewright.sim.report import Kind, Race
from fusewright.sim.verify import Case, verify_kernel

Array = npt.NDArray[Any]

_PROGRAM = instance_of(
    Fusion,
    Schedule,
    words="a fusion, which fw.trace returns, or a fw.Schedule of one",
    hint=traced_first,
)
_KERNEL = instance_of(
    Kernel,
    Program,
    words="a kernel or a program, which fw.compile returns",
    hint=traced_first,
)

MAX_ELEMENTS = 1 << 18
"""Elements that an array of a witness with symbolic sizes may have."""
MAX_LONG_ELEMENTS = 1 << 22
"""The same where one size is to be long enough for several trips of a loop over it."""
LONG = 4096


@dataclass(slots=True)
class VerifyReport:
    """What removing syncs showed: `necessary` and `redundant` syncs, findings with all of them in
    place (`missing`), what goes wrong without each necessary one, and the seconds it took."""

    necessary: list[Sync] = field(default_factory=list[Sync])
    redundant: list[Sync] = field(default_factory=list[Sync])
    missing: list[Race] = field(default_factory=list[Race])
    witnesses: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every sync is needed and none is missing."""
        return not self.redundant and not self.missing

    def __str__(self) -> str:
        head = (
            f"{len(self.necessary)} necessary, {len(self.redundant)} redundant, "
            f"{len(self.missing)} missing ({self.seconds:.2f} s)"
        )
        lines = [f"redundant: {s.kind} #{s.id} {s.why}" for s in self.redundant]
        lines += [f"missing: {r}" for r in self.missing]
        lines += [f"needed: {w}" for w in self.witnesses]
        return "\n".join([head, *lines])


@takes(fusion=_PROGRAM)
def evaluate(fusion: Fusion | Schedule, *arrays: Array) -> list[Array]:
    """The outputs by the numpy oracle: float64 throughout, rounded at casts and outputs only, and
    operands of products to tf32 where `fw.config(float32_matmul="tf32")` holds."""
    whole = fusion.fusion() if isinstance(fusion, Schedule) else fusion
    whole = round_products(whole) if active().float32_matmul == "tf32" else whole
    return oracle.evaluate(whole, *arrays)


@takes(kernel=_KERNEL, seed=COUNT)
def verify(
    kernel: Kernel | Program, *arrays: Array, blocks: Any = "sample", seed: int = 0
) -> VerifyReport:
    """Replays a recorded run without each sync: which are needed, which are not, what is missing.

    Of a program the launches are verified too: `missing` lists edges that its host program lacks,
    bytes that are read before they are written, and with arrays what launches that begin early
    touch while one before them may still run. Its kernels see what they would in a run on
    the arrays. Without arrays random ones are drawn; symbolic sizes are tried at a small, an odd
    and a larger value, and each of them alone at a large one where they cannot be large together.
    `blocks`: "sample" (the first two, the middle, the last two), None for all, or block numbers.
    """
    report = VerifyReport()
    if isinstance(kernel, Program):
        for p in kernel.every_program:
            found = problems(p.assembled)
            report.missing += [Race(_KINDS[x.kind], x.message) for x in found]
    if isinstance(kernel, Program) and arrays:
        for k, given, sizes in witnesses(kernel, arrays):
            _verify_one(k, [case_of(k, given, sizes)], blocks, seed, report)
        if any(k.ir.begins_early for k in kernel.kernels):
            known = {str(r) for r in report.missing}
            found = kernel.simulate(*arrays, seed=seed).races
            report.missing += [r for r in found if str(r) not in known]
        return report
    arrays = tuple(plain_array(a, f"argument {k}") for k, a in enumerate(arrays))
    for k in kernel.kernels if isinstance(kernel, Program) else [kernel]:
        cases = [case_of(k, arrays)] if arrays else random_cases(k, seed)
        _verify_one(k, cases, blocks, seed, report)
    return report


_KINDS: dict[str, Kind] = {"order": "race", "twice": "race", "unwritten": "uninitialised"}


def _verify_one(
    k: Kernel, cases: Sequence[Case], blocks: Any, seed: int, report: VerifyReport
) -> None:
    found = verify_kernel(k.ir, cases, blocks=blocks, seed=seed)
    by_id = {s.id: s for s in k.syncs}
    report.necessary += [by_id[s.id] for s in found.necessary]
    report.redundant += [by_id[s.id] for s in found.redundant]
    report.missing += found.missing
    report.witnesses += found.witnesses
    report.seconds += found.seconds


def case_of(k: Kernel, arrays: Sequence[Array], known: Mapping[Var, int] | None = None) -> Case:
    """A witness from arrays; `known` are sizes that are no axis of an input."""
    symbols = k.symbol_values(arrays, known)
    flat = k.flat_arrays(arrays, symbols)
    outputs = k.ir.arrays[len(k.inputs) :]
    return Case(
        dict(zip(k.ir.arrays, flat, strict=True)) | k.own_arrays(symbols),
        k.arguments(),
        {s: symbols[s] for s in k.ir.symbols},
        outputs,
        str(symbols or "fixed sizes"),
    )


def random_cases(k: Kernel, seed: int) -> list[Case]:
    """Witnesses with random arrays: one when all sizes are fixed; for symbolic ones a small, an odd
    and a larger one, and where all cannot be large at once, one with each of them large alone, so
    that every loop has several trips in one of them."""
    rng = np.random.default_rng(seed)
    shapes = [e for t in (*k.inputs, *k.outputs) for e in t.shape]
    symbols = list(dict.fromkeys([*(v for e in shapes for v in variables(e)), *k.ir.symbols]))
    if not symbols:
        return [case_of(k, [random_array(rng, t, {}) for t in k.inputs])]
    picks: list[Callable[[int], int]] = [lambda i: 2, lambda i: 131 + 2 * i, lambda i: LONG]
    drawn = [fitted({s: clamp(s, pick(i)) for i, s in enumerate(symbols)}) for pick in picks]
    witnesses = [_affordable(k, sizes, MAX_ELEMENTS) for sizes in drawn]
    if witnesses[-1] != drawn[-1]:
        for long in symbols:
            sizes = fitted({s: clamp(s, LONG if s is long else 2) for s in symbols})
            witnesses.append(_affordable(k, sizes, MAX_LONG_ELEMENTS))
    return [case_of(k, [random_array(rng, t, w) for t in k.inputs], w) for w in witnesses]


def _affordable(k: Kernel, sizes: dict[Var, int], most: int) -> dict[Var, int]:
    """The sizes, halved until no array has more than `most` elements."""
    tensors = (*k.inputs, *k.outputs)

    def largest(at: dict[Var, int]) -> int:
        return max(math.prod(size_of(e, at) for e in t.shape) for t in tensors)

    while largest(sizes) > most:
        less = fitted({s: clamp(s, n // 2) for s, n in sizes.items()})
        if less == sizes:
            break
        sizes = less
    return sizes


def clamp(s: Var, n: int) -> int:
    """`n` moved into the symbol's range and onto its multiple."""
    low, high = s.interval
    n = max(n, low or 0)
    if high is not None:
        n = min(n, high)
    return max(n - n % s.multiple_of, s.multiple_of)


def fitted(sizes: dict[Var, int]) -> dict[Var, int]:
    """The sizes with those lowered that have a symbolic limit, as numbers of a call may, after what
    limits them has grown until it leaves them room."""
    out = dict(sizes)
    for s in sizes:
        if s.upper is None or constant_value(s.upper) is not None:
            continue
        limits = variables(s.upper)
        while evaluate_size(s.upper, out) < (s.interval[0] or 0):
            more = out | {v: clamp(v, 2 * out[v] + 1) for v in limits}
            if more == out:
                break
            out = more
        out[s] = min(out[s], evaluate_size(s.upper, out))
    return out


def random_array(rng: np.random.Generator, t: TensorInfo, sizes: dict[Var, int]) -> Array:
    """Normal floats, small integers, fair bools, in the tensor's layout."""
    return shaped_view(random_values(rng, (span(t, sizes),), t.dtype), t, sizes)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Random values of a dtype, never constant."""
    if dtype.kind == "bool":
        return rng.random(shape) > 0.5
    if dtype.is_float:
        return rng.normal(size=shape).astype(np.float32).astype(dtype.numpy)
    return rng.integers(0, 7, shape).astype(dtype.numpy)
