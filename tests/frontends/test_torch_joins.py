"""Joins of torch's, which read and write each element once: launches and bytes, values in the
simulator beside torch, fixed and symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402

aten = torch.ops.aten


def _gates(dy: Any, gate: Any, up: Any) -> Any:
    """The gradient of a product of gates that one linear layer makes side by side."""
    inner = aten.silu_backward(dy * up, gate)
    return torch.cat([inner, dy * torch.nn.functional.silu(gate)], -1)


def _written(x: Any, y: Any, z: Any) -> Any:
    return aten.slice_scatter(x * z, y[:, :4] + 1, 1, 1, 5)


JOINS: dict[str, Callable[..., Any]] = {
    "gates": _gates,
    "products": lambda a, b, c: torch.cat([a * b, a * c], -1),
    "four parts": lambda a, b, c: torch.cat([a.sin(), b, c * 2, a + b], 0),
    "written": _written,
}


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("shape", [(6, 8), (5, 7), (3, 133)])
def test_a_join_is_one_launch_that_moves_each_byte_once(name: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    args = [torch.randn(shape) for _ in range(3)]
    program = fw.compile(fw.from_torch(JOINS[name], *args))
    want = JOINS[name](*args)
    assert program.host.stats["launches"] == 1
    once = sum(x.nbytes for x in (*args, want))
    assert program.host.stats["bytes_moved"] <= once
    found = program.simulate(*[x.numpy() for x in args])
    assert found.races == []
    torch.testing.assert_close(torch.from_numpy(found.outputs[0]), want)


def test_rotated_halves_of_every_length_are_one_program() -> None:
    def rotated(q: Any, cos: Any) -> Any:
        half = q.shape[-1] // 2
        turned = torch.cat([-q[..., half:], q[..., :half]], -1)
        return torch.cat([q * cos + turned, turned[:1]], 0)

    reports: list[GraphReport] = []
    torch.compiler.reset()
    backend = compiler(Options(cpu="sim", target="sm_90a"), reports.append)
    run = torch.compile(rotated, backend=backend)
    for n in (5, 9):
        q, cos = torch.randn(n, 8), torch.randn(n, 8)
        torch._dynamo.mark_dynamic(q, 0)
        torch._dynamo.mark_dynamic(cos, 0)
        torch.testing.assert_close(run(q, cos), rotated(q, cos))
    (report,) = reports
    assert [r.failures for r in report.regions] == [[]]
