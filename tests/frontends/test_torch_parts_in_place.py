"""Writes to parts of arguments through torch.compile: what moves is the part, not the tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch import region as region_room, rewrite as room  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.frontends.torch.report import GraphReport  # noqa: E402
from fusewright.runtime.arrays import Device  # noqa: E402

BLOCK = 2 * 4 * 16 * 4  # bytes of one row of each head
ALL = slice(None)


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are told that their tensors are on a GPU when they are asked what they can write."""
    real = region_room._described

    def described(value: Any, k: int) -> Any:
        found = real(value, k)
        is_tensor = isinstance(value, torch.Tensor)
        return replace(found, device=Device("cuda", 0)) if is_tensor else found

    monkeypatch.setattr(region_room, "_described", described)


def compiled(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *calls: tuple[Any, ...]
) -> tuple[list[str], list[fw.Program]]:
    """The operators that torch runs in the last graph, and the programs that write to arguments;
    results, and what becomes of the arguments, are eager's in every call."""
    torch.compiler.reset()
    graphs: list[Any] = []
    reports: list[GraphReport] = []
    real = room.join_copies
    monkeypatch.setattr(room, "join_copies", lambda g: (real(g), graphs.append(g))[0])
    run = torch.compile(fn, backend=compiler(Options(cpu="sim"), reports.append))
    for args in calls:
        ours, eagers = ([x if type(x) is int else x.clone() for x in args] for _ in range(2))
        torch.testing.assert_close(run(*ours), fn(*eagers))
        torch.testing.assert_close(ours, eagers)
    regions = reports[-1].regions
    assert [f for r in regions for f in r.failures] == []
    programs = [p.program for r in regions if r.targets for p in r.fused._programs.values()]
    nodes = [n for n in graphs[-1].nodes if n.op == "call_function"]
    found = [str(n.target) for n in nodes if isinstance(n.target, torch._ops.OpOverload)]
    return found, [p for p in programs if any(h is not None for h in p.holders)]


def fitting(program: fw.Program, *tensors: Any) -> list[np.ndarray]:
    """For each input of a program the tensor of its shape."""
    known = {str(tuple(t.shape)): t.numpy() for t in tensors}
    return [known[str(i.shape)] for i in program.inputs]


def set_row(c: Any, k: Any) -> Any:
    c[:, :, 5] = k * 2 + 1
    return k + 1


def set_rows(c: Any, k: Any) -> Any:
    c[:, :, 5:9] = k[:, :, None] * 2 + 1
    return k + 1


def set_rows_of_heads(c: Any, k: Any) -> Any:
    c[:, 1:3, 5] = k[:, 1:3] * 2 + 1
    return k + 1


def set_twice(c: Any, k: Any) -> Any:
    c[:, :, 5] = k * 2
    c[:, :, 9:11] = (k * 3 + 1)[:, :, None]
    return k + 1


def set_of_another_type(c: Any, k: Any) -> Any:
    c[:, :, 5] = (k * 2).double()
    return k + 1


def set_from_the_end(c: Any, k: Any) -> Any:
    c[:, :, -1] = k.exp() + 1
    return k + 1


@pytest.mark.parametrize(
    ("fn", "nbytes"),
    [
        (set_row, 2 * BLOCK),
        (set_rows, 5 * BLOCK),
        (set_rows_of_heads, BLOCK),
        (set_twice, 5 * BLOCK),
        (set_of_another_type, 2 * BLOCK),
        (set_from_the_end, 2 * BLOCK),
    ],
)
def test_a_region_writes_its_part(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], nbytes: int
) -> None:
    c, k = rand(2, 4, 64, 16), rand(2, 4, 16)
    found, (program,) = compiled(monkeypatch, fn, (c, k))
    assert not any("copy_" in n for n in found)
    assert program.host.stats["bytes_moved"] == nbytes < c.nbytes
    arrays = fitting(program, c, k, k[:, 1:3], k[:, :, None])
    expected = c.clone()
    fn(expected, k)
    result = program.simulate(*arrays)
    assert result.races == []
    np.testing.assert_allclose(result.outputs[0], expected.numpy(), rtol=1e-6)


def test_one_program_writes_all_rows_and_reads_up_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(c: Any, k: Any, at: int) -> Any:
        c[:, :, at : at + 1] = k[:, :, None] * 2
        return (c[:, :, : at + 1] + 1).sum(2)

    c, k = rand(2, 4, 64, 16), rand(2, 4, 16)
    calls = [(c, k, at) for at in (3, 7, 20, 62)]
    found, (program,) = compiled(monkeypatch, step, *calls)
    assert not any("copy_" in n for n in found)
    (number,) = program.numbers
    assert str(program.host.stats["bytes_moved"]).count(number.name) == 1
    for at in (0, 1, 63):
        expected = c.clone()
        total = step(expected, k, at)
        result = program.simulate(*fitting(program, c, k, k[:, :, None]), at)
        assert result.races == []
        by_rank = {r.ndim: r for r in result.outputs}
        np.testing.assert_allclose(by_rank[4], expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(by_rank[3], total.numpy(), rtol=1e-4, atol=1e-5)


def test_parts_that_nothing_is_computed_for_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(c: Any, k: Any) -> Any:
        c[:, :, 5] = k
        return torch.linalg.det(c[:, :, :16])

    def filled(c: Any, k: Any) -> Any:
        c[:, 1:3] = 0
        return torch.linalg.det(c[:, :, :16])

    args = rand(2, 4, 64, 16), rand(2, 4, 16)
    found, programs = compiled(monkeypatch, plain, args)
    assert "aten.select.int" in found and "aten.copy_.default" in found and programs == []
    assert "aten.select_scatter.default" not in found
    found, _ = compiled(monkeypatch, filled, args)
    assert "aten.copy_.default" in found and "aten.slice_scatter.default" not in found


def test_others_read_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(c: Any, k: Any) -> Any:
        c[:, :, 5] = k * 2 + 1
        return torch.linalg.det(c[:, :, :16])

    found, (program,) = compiled(monkeypatch, step, (rand(2, 4, 64, 16), rand(2, 4, 16)))
    assert not any("copy_" in n for n in found)
    assert program.host.stats["bytes_moved"] == 2 * BLOCK


def test_buffers_are_written_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", rand(2, 4, 64, 16))

        def forward(self, k: Any) -> Any:
            self.rows[:, :, 7] = k * 2 + 1
            return k + 1

    torch.compiler.reset()
    reports: list[GraphReport] = []
    ours, eager = Cache(), Cache()
    start = ours.rows.data_ptr()
    run = torch.compile(ours, backend=compiler(Options(cpu="sim"), reports.append))
    k = rand(2, 4, 16)
    torch.testing.assert_close(run(k), eager(k))
    torch.testing.assert_close(ours.rows, eager.rows)
    assert ours.rows.data_ptr() == start and len(reports[-1].regions[0].targets) == 1


def overlapping(c: Any, k: Any) -> Any:
    c[:, :, 1:] = c[:, :, :-1] * 2 + 1
    return k + 1


def old_content_returned(c: Any, k: Any) -> Any:
    before = c.clone()
    c[:, :, 5] = k * 2 + 1
    return before


def new_content_returned(c: Any, k: Any) -> Any:
    new = torch.select_scatter(c, k * 2 + 1, 2, 5)
    c.copy_(new)
    return new[:, :2]


def read_again(c: Any, k: Any) -> Any:
    new = torch.select_scatter(c, k, 2, 5)
    norm = torch.linalg.det(c[:, :, :16])
    c.copy_(new)
    return norm


@pytest.mark.parametrize(
    "fn", [overlapping, old_content_returned, new_content_returned, read_again]
)
def test_old_and_new_content_stay_apart(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any]
) -> None:
    compiled(monkeypatch, fn, (rand(2, 4, 64, 16), rand(2, 4, 16)))
    torch.compiler.reset()
    c, k = rand(2, 4, 64, 16), rand(2, 4, 16)
    made = torch.compile(fn, backend=compiler(Options(cpu="sim")))(c, k)
    assert made.untyped_storage().data_ptr() != c.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "part",
    [
        (lambda c: c[:, :, 1:], lambda c: c[:, :, :-1]),
        (lambda c: c[:, :, :-2], lambda c: c[:, :, 2:]),
        (lambda c: c[0, 0, 1:9], lambda c: c[0, 0, :16].t()[:8]),
        (lambda c: c[:, :, 3], lambda c: c[:, :, 4]),
    ],
)
def test_a_part_that_shows_the_tensor_itself_is_read_before_it_is_written(
    part: tuple[Callable[..., Any], Callable[..., Any]],
) -> None:
    torch.compiler.reset()
    target, source = part

    def moved(c: Any) -> None:
        target(c)[...] = source(c)

    c = rand(2, 4, 64, 16)
    expected = c.clone()
    target(expected)[...] = source(c)
    torch.compile(moved, backend=compiler(Options()))(c)
    torch.testing.assert_close(c, expected, rtol=0, atol=0)


def filled_view(c: Any, k: Any) -> Any:
    c = c.clone()
    c[:] = k
    return (c.view(-1),)


def filled_view_of_what_changes(c: Any, k: Any) -> Any:
    c = c.clone()
    c[:] = k
    k.add_(1)
    return c.view(-1), c * 2


def copied_and_changed(k: Any, c: Any) -> Any:
    c[:] = k
    k.add_(1)


def read_in_another_type(c: Any, k: Any) -> Any:
    old = c.view(torch.int32) * 3
    c[1] = k[0] * 2
    return old + 1, c.view(torch.int32)[1:]


def the_same_twice(c: Any, k: Any) -> Any:
    c.add_(1)
    first = c.clone()
    return first[1], first.clone().view(torch.int32), k + 1, k + 1


@pytest.mark.parametrize("cpu", ["oracle", "sim"])
@pytest.mark.parametrize(
    "fn",
    [
        filled_view,
        filled_view_of_what_changes,
        copied_and_changed,
        read_in_another_type,
        the_same_twice,
    ],
)
def test_results_have_memory_of_their_own(fn: Callable[..., Any], cpu: Any) -> None:
    torch.compiler.reset()
    ours, eagers = ((rand(4, 6), rand(6, 4).reshape(4, 6)) for _ in range(2))
    made, expected = torch.compile(fn, backend=compiler(Options(cpu=cpu)))(*ours), fn(*eagers)
    torch.testing.assert_close((made, ours), (expected, eagers))
    for x, y in zip(made or (), expected or (), strict=True):
        x.fill_(7)
        y.fill_(7)
        torch.testing.assert_close((made, ours), (expected, eagers))


def shifted(labels: Any) -> Any:
    out = labels.clone()
    out[:, 1:] = out[:, :-1] * 2
    out[:, 0] = 7
    return out


def ends(labels: Any) -> Any:
    out = labels.clone()
    out[:, -1] = 0
    out[:, -2:] += 1
    return out


def inner(labels: Any) -> Any:
    out = labels.clone()
    out[:, 1:-1] = 0
    return out


@pytest.mark.parametrize("fn", [shifted, ends, inner])
def test_parts_of_axes_of_any_size_are_one_program(fn: Callable[..., Any]) -> None:
    torch.compiler.reset()
    reports: list[GraphReport] = []
    run = torch.compile(fn, backend=compiler(Options(cpu="sim"), reports.append), dynamic=True)
    for n in (5, 9, 7, 13):
        x = rand(3, n)
        torch.testing.assert_close(run(x), fn(x))
    (report,) = reports
    (region,) = report.regions
    assert region.failures == [] and len(region.fused._programs) == 1
