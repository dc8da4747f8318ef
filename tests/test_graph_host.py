"""`bench.graph_host`: the figures of a graph, and what they are made of."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from bench import graph_host  # noqa: E402
from bench.stand_in import IdleDriver, stand_in  # noqa: E402


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    model = graph_host.Decoder(1)
    tokens = torch.randint(0, graph_host.WORDS, (2, graph_host.LENGTH))
    with stand_in(IdleDriver()):
        yield graph_host.graphs_of(model, tokens, backward=True, target="sm_90a")


@pytest.mark.parametrize("number", [0, 1])
def test_operators_that_are_played_back_do_not_run(seen, number):
    """The results of the function are those that torch's operators gave before; without playing
    back they are new ones."""
    one = seen[number]
    own = graph_host.pieces(one)
    noted = {id(x) for x in own.operators if isinstance(x, torch.Tensor)}
    with torch.no_grad():
        with own.played_back():
            played = own.call(list(one.args))
        fresh = own.call(list(one.args))
    assert any(id(x) in noted for x in played)
    assert not any(id(x) in noted for x in fresh if isinstance(x, torch.Tensor))


def test_a_line_and_figures_for_forward_and_backward(seen):
    found = [graph_host.measured(one, lambda: None, 1) for one in seen]
    assert [f["graph"] for f in found] == ["forward", "backward"]
    for f in found:
        assert f["pieces"]["launches"]["calls"] == f["launches"] >= 3
        assert f["pieces"]["operators"]["calls"] >= 8
        assert math.isfinite(f["us_ours_a_launch"])
        assert f["us_ours_a_launch"] < f["us"] / f["launches"]
        assert f"{f['us_ours_a_launch']} us a launch are ours" in graph_host.line(f)
