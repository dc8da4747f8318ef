"""Masks of attention that sizes decide are told to torch's attention, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusewright.frontends.torch.known_masks import shape_of, tell_known_masks  # noqa: E402

attention = torch.nn.functional.scaled_dot_product_attention
ROWS = 13


def told(f: Callable[..., Any], *args: Any) -> list[tuple[bool, bool]]:
    """Of each attention of a compiled function whether it has a mask, and whether it is causal; the
    function's result is eager's."""
    found: list[tuple[bool, bool]] = []

    def backend(module: Any, _: Any) -> Any:
        tell_known_masks(module)
        for n in module.graph.nodes:
            if n.op == "call_function" and n.target is attention:
                mask = n.kwargs.get("attn_mask", n.args[3] if len(n.args) > 3 else None)
                causal = n.kwargs.get("is_causal", n.args[5] if len(n.args) > 5 else False)
                found.append((mask is not None, causal))
        return module

    torch.compiler.reset()
    got = torch.compile(f, backend=backend, dynamic=False)(*args)
    torch.testing.assert_close(got, f(*args))
    return found


def heads(rows: int = ROWS, batch: int = 2) -> Any:
    torch.manual_seed(0)
    return torch.randn(batch, 3, rows, 8)


def positions() -> Any:
    return torch.arange(ROWS)


def causal() -> Any:
    return positions()[None, :] <= positions()[:, None]


def test_a_causal_mask_of_positions_is_told() -> None:
    assert told(lambda q: attention(q, q, q, causal()), heads()) == [(False, True)]


def test_a_mask_that_allows_all_is_dropped() -> None:
    def f(q: Any) -> Any:
        return attention(q, q, q, attn_mask=(positions() >= 0).expand(2, 1, ROWS, ROWS), scale=0.5)

    assert told(f, heads()) == [(False, False)]


def test_a_mask_that_is_added_is_told_where_it_is_0_or_forbids() -> None:
    for forbidden in (float("-inf"), torch.finfo(torch.float32).min):

        def f(q: Any, value: float = forbidden) -> Any:
            mask = torch.zeros(ROWS, ROWS).masked_fill(~causal(), value)
            return attention(q, q, q, mask, 0.0)

        assert told(f, heads()) == [(False, True)]


def test_a_mask_that_is_mapped_over_positions_is_told() -> None:
    def f(q: Any) -> Any:
        def allowed(row: Any, column: Any) -> Any:
            return column <= row

        over = torch.vmap(torch.vmap(allowed, (None, 0)), (0, None))
        return attention(q, q, q, over(positions(), positions()))

    assert told(f, heads()) == [(False, True)]


def test_all_attentions_of_one_mask_are_told() -> None:
    def f(q: Any) -> Any:
        mask = causal()
        return attention(attention(q, q, q, mask), q, q, mask)

    assert told(f, heads()) == [(False, True)] * 2


def other_masks() -> dict[str, Callable[[Any], Any]]:
    return {
        "of an argument": lambda q: causal() & (q[0, 0, :, 0] == q[0, 0, :, 0]),
        "banded": lambda q: causal() & (positions()[None, :] > positions()[:, None] - 4),
        "strictly lower": lambda q: (
            (positions()[None, :] < positions()[:, None]) | (positions() == 0)
        ),
        "added, and neither": lambda q: torch.where(causal(), 0.0, -1.0),
    }


@pytest.mark.parametrize("name", other_masks())
def test_other_masks_stay(name: str) -> None:
    mask = other_masks()[name]
    assert told(lambda q: attention(q, q, q, mask(q)), heads()) == [(True, False)]


def test_masks_of_fewer_rows_than_columns_stay() -> None:
    def f(q: Any, k: Any) -> Any:
        return attention(q, k, k, causal()[-4:])

    assert told(f, heads(4), heads()) == [(True, False)]


def test_masks_by_chance_stay() -> None:
    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        tell_known_masks(module)
        found.extend(n for n in module.graph.nodes if n.target is attention and n.args[3:])
        return module

    def f(q: Any) -> Any:
        return attention(q, q, q, torch.rand(ROWS, ROWS) >= 0)

    torch.compiler.reset()
    torch.compile(f, backend=backend)(heads())
    assert len(found) == 1


def test_masks_that_are_written_to_stay() -> None:
    def by_item(q: Any) -> Any:
        mask = causal()
        mask[3, 1] = False
        return attention(q, q, q, mask)

    def by_method(q: Any) -> Any:
        mask = causal()
        mask[:, 1:].fill_(True)
        return attention(q, q, q, mask)

    assert told(by_item, heads()) == told(by_method, heads()) == [(True, False)]


def test_what_nobody_reads_stays_beside_a_mask() -> None:
    """A vmap is opened and closed by calls without readers, and so may a write be."""

    def mapped(q: Any) -> Any:
        doubled = torch.vmap(lambda rows: rows * 2 + rows.sum())(q)
        return attention(doubled, q, q, causal())

    def written(q: Any, buffer: Any) -> Any:
        out = attention(q, q, q, causal())
        buffer[1:] += 1
        return out

    def routed(q: Any) -> Any:
        chosen = torch.zeros_like(q[0, 0])
        chosen.scatter_(1, torch.tensor([[1, 3]]).expand(ROWS, 2), 1.0)
        return attention(q * chosen, q, q, causal())

    assert told(mapped, heads()) == told(routed, heads()) == [(False, True)]
    buffer = torch.zeros(3)
    assert told(written, heads(), buffer) == [(False, True)]
    assert buffer.tolist() == [0, 2, 2]


def test_masks_of_symbolic_sizes_stay() -> None:
    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        tell_known_masks(module)
        found.extend(n.kwargs.get("is_causal") for n in module.graph.nodes if n.target is attention)
        return module

    def f(q: Any) -> Any:
        rows = torch.arange(q.shape[2])
        return attention(q, q, q, attn_mask=rows[None, :] <= rows[:, None])

    torch.compiler.reset()
    compiled = torch.compile(f, backend=backend, dynamic=True)
    for rows in (5, 9):
        torch.testing.assert_close(compiled(heads(rows)), f(heads(rows)))
    assert found == [None]


def test_shapes_of_masks() -> None:
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    assert shape_of(triangle) == shape_of(triangle.expand(2, 3, 5, 5)) == "causal"
    assert shape_of(triangle | True) == shape_of(torch.zeros(4, 7)) == "full"
    assert shape_of(triangle[:, :4]) is shape_of(triangle.T) is None
    assert shape_of(torch.full((5, 5), float("-inf")).triu(1)) == "causal"
    assert shape_of(torch.zeros(5, 5).masked_fill(~triangle, float("nan"))) is None
    assert shape_of(torch.zeros(5, 5).masked_fill(~triangle, float("-inf"))) == "causal"


def test_a_compiled_model_trains_with_a_mask_that_sizes_decide() -> None:
    from fusewright.frontends.torch.dynamo import compiler
    from fusewright.frontends.torch.options import Options

    def f(q: Any, w: Any) -> Any:
        return attention(q @ w, q, q, causal()).sin().sum()

    q, w = heads(), torch.randn(8, 8, requires_grad=True)
    torch.compiler.reset()
    torch.compile(f, backend=compiler(Options(cpu="oracle")))(q, w).backward()
    ours, w.grad = w.grad, None
    f(q, w).backward()
    torch.testing.assert_close(ours, w.grad, rtol=1e-4, atol=1e-4)
