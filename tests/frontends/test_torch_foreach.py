"""torch's operators on lists of tensors: one region, and eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.foreach import foreach_rules  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

SHAPES = ((3, 5), (7,), (2, 3, 4))
NUMBERS = [0.5, 1.25, 2.0]


def tensors(seed: int) -> list[Any]:
    """Positive numbers, so that every function has them in its domain."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(s, generator=generator, dtype=torch.float64) + 0.1 for s in SHAPES]


CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scalar": lambda x, y, z: torch._foreach_add(x, 2.5),
    "list": lambda x, y, z: torch._foreach_sub(x, y, alpha=0.5),
    "scalars": lambda x, y, z: torch._foreach_mul(x, NUMBERS),
    "tensor": lambda x, y, z: torch._foreach_div(x, y[1][0]),
    "one operand": lambda x, y, z: torch._foreach_rsqrt(x),
    "three operands": lambda x, y, z: torch._foreach_addcdiv(x, y, z, value=0.25),
    "three operands, scalars": lambda x, y, z: torch._foreach_addcmul(x, y, z, NUMBERS),
    "between": lambda x, y, z: torch._foreach_lerp(x, y, 0.3),
    "between, a tensor each": lambda x, y, z: torch._foreach_lerp(x, y, z),
    "norms": lambda x, y, z: torch._foreach_norm(x, 2.0),
    "the larger of numbers": lambda x, y, z: torch._foreach_maximum(x, NUMBERS),
    "the smaller of tensors": lambda x, y, z: torch._foreach_minimum(x, y),
    "powers of a number": lambda x, y, z: torch._foreach_pow(2.0, x),
    "zeros": lambda x, y, z: torch._foreach_add(torch._foreach_mul(x, 0.0), y),
}


@pytest.mark.parametrize("name", CASES)
def test_lists_of_tensors_are_computed_as_each_of_them(name: str) -> None:
    torch.compiler.reset()
    reports: list[GraphReport] = []

    def f(x: Any, y: Any, z: Any) -> Any:
        return [t.sin() * 2 for t in CASES[name](x, y, z)]

    given = [tensors(k) for k in range(3)]
    got = torch.compile(f, backend=compiler(Options(), reports.append))(*given)
    torch.testing.assert_close(got, f(*given), rtol=1e-9, atol=1e-12)
    (report,) = reports
    assert report.regions and not any("_foreach" in str(op) for op, _ in report.left)


def test_updates_in_place() -> None:
    torch.compiler.reset()

    def f(x: Any, y: Any) -> None:
        torch._foreach_mul_(x, 0.5)
        torch._foreach_add_(x, y)

    ours, eager, y = tensors(0), tensors(0), tensors(1)
    torch.compile(f, backend="fusewright")(ours, y)
    f(eager, y)
    torch.testing.assert_close(ours, eager)


def test_operators_that_return_lists_have_rules_and_updates_have_none() -> None:
    found = {str(op) for op in foreach_rules()}
    assert {"aten._foreach_add.List", "aten._foreach_sqrt.default"} <= found
    assert not any(".out" in name or name.split(".")[1].endswith("_") for name in found)
