"""Comparing the backend with eager torch: operators on torch's own samples."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from bench.models import step
from torch.fx.experimental.proxy_tensor import make_fx

from fusewright.frontends.torch.decompositions import decompositions
from fusewright.frontends.torch.dynamo import compiler, fuse_graph
from fusewright.frontends.torch.options import Options
from fusewright.frontends.torch.report import GraphReport

if importlib.util.find_spec("expecttest") is None:
    # torch's tables of samples import it, for a base class of test cases that nobody here runs.
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
op_db = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db

UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty")
UNDEFINED += ("new_empty_strided",)
"""Operators whose results have no defined value."""

TIED = ("topk",)
"""Operators that choose among equal values as they like: their values are compared, not places."""

TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
}


def operators(dtype: torch.dtype, device: str) -> Iterator[Any]:
    """The operators of torch's table whose results are defined and take real dense tensors."""
    for op in op_db:
        prefix = op.name.split(".")[0]
        if prefix in ("fft", "sparse", "torch") or prefix.startswith("jiterator"):
            continue  # a jiterator call launches on whatever it is given, fake tensors included
        if op.name in UNDEFINED:
            continue
        if op.supports_dtype(dtype, device):
            yield op


FOREIGN = ("fft", "sparse", "torch", "special", "linalg")
"""Families of operators that are left to torch, but for those of `TAKEN`."""
TAKEN = ("linalg.vector_norm", "linalg.norm", "linalg.cross", "linalg.vecdot", "linalg.diagonal")
TAKEN += ("special.entr", "special.xlog1py", "special.log_ndtr", "special.ndtr")


def part_of(dtype: torch.dtype, device: str, part: int, parts: int) -> list[Any]:
    """Every `parts`-th of the operators, from `part` on; families that are not ours left out."""
    own = [
        op
        for op in operators(dtype, device)
        if op.name in TAKEN or op.name.split(".")[0] not in FOREIGN
    ]
    return own[part::parts]


def failures(
    ops: list[Any], dtype: torch.dtype, device: str, options: Options, limit: int, *, inside: bool
) -> tuple[list[str], int]:
    """What is wrong with operators, a line each, and the number of calls that were fused."""
    found: list[str] = []
    count = 0
    for op in ops:
        try:
            count += assert_op_as_eager(op, dtype, device, options, limit, inside=inside)
        except Exception as e:
            found.append(f"{op.name}.{op.variant_test_name}: {type(e).__name__}: {str(e)[:300]}")
    return found, count


def named(name: str, dtype: torch.dtype, device: str) -> list[Any]:
    """The operators of a name, in all variants."""
    return [op for op in operators(dtype, device) if op.name == name]


def calls(op: Any, dtype: torch.dtype, device: str, limit: int) -> Iterator[tuple[Any, list[Any]]]:
    """Sample calls as functions of their dense tensors."""
    torch.manual_seed(0)
    for k, sample in enumerate(op.sample_inputs(device, dtype, requires_grad=False)):
        if k == limit:
            return
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        tensors = [leaves[i] for i in where]
        if all(t.layout == torch.strided and t.device.type == device for t in tensors):
            yield _function(op, leaves, spec, where), tensors


def _function(op: Any, leaves: list[Any], spec: Any, where: list[int]) -> Callable[..., Any]:
    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for i, t in zip(where, tensors, strict=True):
            filled[i] = t
        args, kwargs = pytree.tree_unflatten(filled, spec)
        found = pytree.tree_leaves(op.op(*args, **kwargs))
        kept = found[:1] if op.name in TIED else found
        return tuple(x for x in kept if isinstance(x, torch.Tensor))

    return call


def surrounded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with work before and after it, so that views stand inside of a region."""

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_worked(x) for x in fn(*(_worked(t) for t in tensors)))

    return call


def _worked(x: torch.Tensor) -> torch.Tensor:
    """The same values, computed."""
    return ~~x if x.dtype is torch.bool else x.neg().neg()


def traced(fn: Callable[..., Any], tensors: list[Any]) -> Any:
    """The aten graph of a function, decomposed as the backend does; None if torch cannot trace."""
    try:
        return make_fx(
            torch.func.functionalize(fn),
            decomposition_table=decompositions(),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
        )(*tensors)
    except Exception:  # data-dependent control flow, operators without meta functions
        return None


def draws(graph: Any) -> bool:
    """Whether a graph draws random numbers. Functions that seed the generator themselves have done
    so when they were traced, so their graph is what to compare with."""
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(n.target, "tags", ()) for n in graph.graph.nodes)


def fused(graph: Any, tensors: list[Any], options: Options) -> tuple[list[Any], GraphReport]:
    """The graph's results, computed fused, and the report."""
    reports: list[GraphReport] = []
    run = fuse_graph(graph, options, observe=reports.append)
    torch.manual_seed(0)
    return run([t.clone() for t in tensors]), reports[0]


def expected(fn: Callable[..., Any], tensors: list[Any]) -> Any:
    """What eager computes; None where it raises or does not repeat itself."""
    try:
        first, second = (_seeded(fn, tensors) for _ in range(2))
        repeats = all(map(_equal, first, second))
    except (RuntimeError, AssertionError):
        return None
    return first if repeats else None


def _seeded(fn: Callable[..., Any], tensors: list[Any]) -> Any:
    torch.manual_seed(0)
    return fn(*[t.clone() for t in tensors])


def _equal(a: Any, b: Any) -> bool:
    """Whether two tensors have the same elements, all NaN counted as one."""
    same = (a == b) | ((a != a) & (b != b))
    return bool(same.all())


def assert_op_as_eager(
    op: Any, dtype: torch.dtype, device: str, options: Options, limit: int, *, inside: bool = False
) -> int:
    """Compares sample calls with eager; the number of those in which something was fused. `inside`:
    with work around the call."""
    count = 0
    for plain, tensors in calls(op, dtype, device, limit):
        fn = surrounded(plain) if inside else plain
        want = expected(fn, tensors)
        graph = None if want is None else traced(fn, tensors)
        if graph is None:
            continue
        if draws(graph) or _types(want) != _types(_seeded(graph, tensors)):
            want = _seeded(graph, tensors)
        got, report = fused(graph, tensors, options)
        assert [r.failures for r in report.regions] == [[] for _ in report.regions]
        got = _with_eager_where_ours_is_nearer(got, want, fn, tensors)
        assert_close(*_where_eager_stays_finite(got, want))
        count += bool(report.regions)
    return count


def _types(found: Any) -> list[Any]:
    """Of results. Where torch's own decomposition has others than its eager kernel, such as of
    statistics that batch norm saves, the decomposition counts: it is what a backend is given."""
    return [(x.dtype, x.shape, x.device) for x in found]


def _with_eager_where_ours_is_nearer(
    got: Any, want: Any, fn: Callable[..., Any], tensors: list[Any]
) -> Any:
    """16-bit results with eager's value, where that is finite, for every element that is at least
    as near to the one from float32: eager rounds in every step, and so may lose all digits of a
    difference."""
    short = (torch.float16, torch.bfloat16)
    if not any(t.dtype in short for t in tensors) or _types(got) != _types(want):
        return got
    try:
        exact = _seeded(fn, [t.float() if t.dtype in short else t for t in tensors])
    except RuntimeError:
        return got
    if [x.shape for x in exact] != [x.shape for x in got]:
        return got
    return [
        torch.where(b.isfinite() & ((a.double() - e).abs() <= (b.double() - e).abs()), b, a)
        if b.dtype in short and e.is_floating_point()
        else a
        for a, b, e in zip(got, want, exact, strict=True)
    ]


def _where_eager_stays_finite(got: Any, want: Any) -> tuple[list[Any], list[Any]]:
    """Both results, without the float16 elements that overflow in a step of eager's: what is fused
    rounds at the end only."""
    pairs = [
        (torch.where(b.isinf(), b, a), b) if a.dtype == b.dtype == torch.float16 else (a, b)
        for a, b in zip(got, want, strict=True)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


def assert_close(got: Any, want: Any) -> None:
    """Equal types, and values within the tolerance of the dtype."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        rtol, atol = TOLERANCES.get(a.dtype, (0.0, 0.0))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


def assert_model_as_eager(
    model: Any, dtype: torch.dtype, device: str, options: Options, **modes: Any
) -> list[GraphReport]:
    """One step of a model in a dtype beside eager in the same dtype, both measured by eager in
    float32: no worse than twice eager's own error, and some slack. `modes` are `torch.compile`'s.
    The reports."""
    torch.manual_seed(0)
    torch.compiler.reset()
    exact = model.build().to(device)
    eager, ours = (copy.deepcopy(exact).to(dtype) for _ in range(2))
    inputs = model.inputs(2, 32, device)
    reports: list[GraphReport] = []
    run = torch.compile(ours, backend=compiler(options, reports.append), **modes)
    losses = [step(f, inputs).item() for f in (exact, eager, run)]
    assert [r.failures for g in reports for r in g.regions if r.failures] == []
    assert sum(len(g.regions) for g in reports) >= 4
    slack = 1e-4 if dtype is torch.float32 else 2e-2
    assert abs(losses[2] - losses[0]) <= 2 * abs(losses[1] - losses[0]) + slack * abs(losses[0])
    trios = [
        (e.grad, t.grad.float(), o.grad.float())
        for e, t, o in zip(exact.parameters(), eager.parameters(), ours.parameters(), strict=True)
        if e.grad is not None
    ]
    largest = max(e.abs().max().item() for e, _, _ in trios)
    for e, t, o in trios:
        error, eagers = ((x - e).abs().max().item() for x in (o, t))
        assert error <= 2 * eagers + slack * (e.abs().max().item() + largest / 100)
    return reports
