"""torch's own operator samples through torch.compile: forward, backward, with gaps, and empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils._pytree as pytree  # noqa: E402
import torch_checks as checks  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

Run = Callable[..., Any]

SAMPLES = [
    ("select_scatter", torch.float16),
    ("diagonal_scatter", torch.float64),
    ("nn.functional.interpolate", torch.float32),
    ("var_mean", torch.float16),
    ("nn.functional.pad", torch.int32),
    ("logcumsumexp", torch.bfloat16),
    ("rot90", torch.uint8),
    ("nanmedian", torch.float32),
    ("addcdiv", torch.bfloat16),
    ("nn.functional.softplus", torch.float64),
    ("index_fill", torch.int16),
    ("isin", torch.int8),
]
"""Of operators and dtypes that the tests of single operators do not have."""


def _trained(run: Run, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The results of a call, and what its fixed gradients give of its arguments."""
    torch.manual_seed(0)
    leaves = [t.detach() for t in tensors]
    leaves = [t.requires_grad_() if t.is_floating_point() else t for t in leaves]
    made = list(run(*leaves))
    roots = [y for y in made if y.requires_grad]
    if not roots:
        return made, []
    known = [torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype) for y in roots]
    asked = [t for t in leaves if t.requires_grad]
    return made, list(torch.autograd.grad(roots, asked, known, allow_unused=True))


def _lies(x: Any) -> tuple[Any, ...]:
    """The type of a tensor, and the strides that address something."""
    if not x.numel():
        return x.dtype, x.shape, x.requires_grad
    strides = [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]
    return x.dtype, x.shape, x.requires_grad, strides


def _functions(op: Any, dtype: Any, count: int) -> list[tuple[Run, list[Any]]]:
    """Sample calls as functions of their tensors: as they are, without neighbours in memory, and of
    no elements, where all tensors have one shape."""
    torch.manual_seed(0)
    found: list[tuple[Run, list[Any]]] = []
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=False))[:count]:
        for s in (sample, sample.noncontiguous()):
            leaves, spec = pytree.tree_flatten(((s.input, *s.args), s.kwargs))
            where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
            tensors = [leaves[i] for i in where]
            call = checks._function(op, leaves, spec, where)
            found.append((checks.surrounded(call), tensors))
        if all(t.ndim and t.shape == tensors[0].shape for t in tensors):
            found.append((found[-1][0], [t[:0] for t in tensors]))
    return found


def _as_eager(run: Run, tensors: list[Any], reports: list[GraphReport]) -> bool:
    """Whether eager takes a call; then the compiled one gives the same."""
    try:
        want, slopes = _trained(run, tensors)
    except (RuntimeError, IndexError):
        return False
    torch.compiler.reset()
    compiled = torch.compile(run, backend=compiler(Options(min_ops=1), reports.append))
    got, found = _trained(compiled, tensors)
    assert [_lies(x) for x in got] == [_lies(x) for x in want]
    checks.assert_close([x.detach() for x in got], [x.detach() for x in want])
    assert [x is None for x in found] == [x is None for x in slopes]
    checks.assert_close([x for x in found if x is not None], [x for x in slopes if x is not None])
    return True


@pytest.mark.parametrize(("name", "dtype"), SAMPLES, ids=lambda x: str(x).removeprefix("torch."))
def test_compiled_operators_agree_with_eager(name: str, dtype: Any) -> None:
    reports: list[GraphReport] = []
    count = 0
    for op in checks.named(name, dtype, "cpu")[:2]:
        count += sum(_as_eager(run, given, reports) for run, given in _functions(op, dtype, 2))
    assert count >= 3
    assert any(g.regions for g in reports)
    assert not any(r.failures for g in reports for r in g.regions)


@pytest.mark.parametrize("correction", [-5, -1, 0, 2])
def test_the_variance_of_no_elements_is_nan(correction: int) -> None:
    for fn in (torch.var, torch.std):
        for x in (torch.zeros(0, 3), torch.randn(4, 3)):
            fusion = fw.from_torch(lambda x, fn=fn: fn(x, dim=0, correction=correction), x)
            (got,) = fw.evaluate(fusion, x.numpy())
            want = fn(x, dim=0, correction=correction)
            assert bool(want.isnan().all()) == (len(x) == 0)
            torch.testing.assert_close(torch.from_numpy(got), want, equal_nan=True)
