"""Writes to arguments of a graph: which are made where the argument stands, and which copies are
one call; results and arguments beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch import in_place, region, rewrite as room  # noqa: E402
from fusewright.frontends.torch.dynamo import compiler  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402

AT = torch.tensor([1, 3])


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def operators(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *args: Any, backward: bool = False
) -> list[str]:
    """What the compiled graphs call, beside fused regions and views; the results, and what becomes
    of the arguments, are eager's."""
    torch.compiler.reset()
    graphs: list[Any] = []
    real = room.join_copies

    def seen(graph: Any) -> None:
        real(graph)
        graphs.append(graph)

    monkeypatch.setattr(room, "join_copies", seen)
    ours, eagers = ([x.clone() for x in args] for _ in range(2))
    run = torch.compile(fn, backend=compiler(Options()))
    for _ in range(2):
        got, want = run(*ours), fn(*eagers)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, eagers)
    found = [n for g in graphs for n in g.nodes if n.op == "call_function"]
    return [str(n.target) for n in found if isinstance(n.target, torch._ops.OpOverload)]


def test_a_cache_is_written_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(cache: Any, x: Any) -> Any:
        cache.index_copy_(1, AT, x * 2 + 1)
        return (cache.exp() + 1).sum(-1)

    found = operators(monkeypatch, append, rand(2, 8, 4), rand(2, 2, 4))
    assert found.count("aten.index_copy_.default") == 1
    assert not any("copy_.default" in n and "index" not in n for n in found)
    assert "aten.index_copy.default" not in found


@pytest.mark.parametrize("what", ["put", "add", "scatter"])
def test_other_writers(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def write(x: Any, y: Any) -> Any:
        if what == "put":
            x[AT] = y * 2 + 1
        elif what == "add":
            x.index_add_(0, AT, y * 2 + 1)
        else:
            x.scatter_(0, AT[:, None].expand(2, 4), y * 2 + 1)
        return x.sin() * 2

    found = operators(monkeypatch, write, rand(5, 4), rand(2, 4))
    names = {"put": "index_put_", "add": "index_add_", "scatter": "scatter_"}
    assert sum(f"aten.{names[what]}." in n for n in found) == 1
    assert "aten.copy_.default" not in found


def test_old_content_that_is_read_later_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(x: Any, y: Any) -> Any:
        before = x[:2]
        new = x.index_copy(0, AT, y)
        product = (new @ new.T) + before.sum()
        x.copy_(new)
        return product

    found = operators(monkeypatch, swapped, rand(5, 4), rand(2, 4))
    assert "aten.index_copy_.default" not in found and "aten.copy_.default" in found


def test_a_source_in_the_same_memory_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(x: Any) -> Any:
        x.copy_(x.index_copy(0, AT, x[:2]))
        return x * 2 + 1

    found = operators(monkeypatch, moved, rand(5, 4))
    assert "aten.index_copy_.default" not in found


def test_a_result_shares_no_memory_with_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(x: Any, y: Any) -> Any:
        new = x.index_copy(0, AT, y)
        x.copy_(new)
        return new

    operators(monkeypatch, both, rand(5, 4), rand(2, 4))
    x = rand(5, 4)
    torch.compiler.reset()
    new = torch.compile(both, backend=compiler(Options()))(x, rand(2, 4))
    assert new.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_copies_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three statistics of each batch norm: two floats, and an integer that counts."""
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)) for _ in range(4))
    )

    def step(x: Any) -> Any:
        return model(x)

    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = rand(2, 3, 4, 4)
    torch.compiler.reset()
    targets: list[str] = []
    real = room.join_copies

    def seen(graph: Any) -> None:
        real(graph)
        targets.extend(str(n.target) for n in graph.nodes)

    monkeypatch.setattr(room, "join_copies", seen)
    run = torch.compile(step, backend=compiler(Options()))
    made = [run(x), run(x)]
    found = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(made, [model(x), model(x)])
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=1e-5, atol=1e-6)
    assert targets.count("aten._foreach_copy_.default") == 2
    assert "aten.copy_.default" not in targets


def test_copies_that_read_what_others_write_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(x: Any, y: Any, z: Any) -> Any:
        x.copy_(y)
        y.copy_(z)
        z.copy_(x * 2)
        return x + z

    called = operators(monkeypatch, turned, rand(4, 3), rand(3, 4).T, rand(4, 3) * 2)
    assert called == ["aten._foreach_copy_.default"]  # in the order of the program


def test_programs_that_write_to_arguments_are_made_ahead_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two updates of one graph, before either is made for itself."""
    asked: list[int] = []
    written: list[Any] = []
    real = region.FusedRegion.write_to

    def write_to(self: Any, wanted: Any) -> Any:
        written.append(wanted)
        return real(self, wanted)

    def make_ahead(wanted: Any, what: str) -> None:
        if "write" in what and wanted:
            assert not written
            asked.append(len(wanted))

    monkeypatch.setattr(in_place, "make_ahead", make_ahead)
    monkeypatch.setattr(region.FusedRegion, "write_to", write_to)

    def step(p: Any, q: Any, w: Any, x: Any) -> Any:
        p.mul_(0.9).add_(x.sin())
        y = x.cos().sort(-1).values[:, :4] + w
        q.mul_(y).add_(y.exp())
        return y

    torch.compiler.reset()
    run = torch.compile(step, backend=compiler(Options(cpu="sim")))
    given = [rand(8, 8), rand(8, 4), rand(8, 4), rand(8, 8)]
    ours, eagers = ([x.clone() for x in given] for _ in range(2))
    torch.testing.assert_close(run(*ours), step(*eagers))
    torch.testing.assert_close(ours, eagers)
    assert asked == [2] and len(written) == 2
