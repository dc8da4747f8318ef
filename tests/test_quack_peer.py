"""quack as a peer of products: what it is asked for is the product, and it may be missing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bench import products, quack_peer
from bench.peers import Absent

torch = pytest.importorskip("torch")

MADE = {
    "TN": lambda m, n, k: products.plain("TN", m, n, k),
    "TT": lambda m, n, k: products.plain("TT", m, n, k),
    "NN": lambda m, n, k: products.plain("NN", m, n, k),
    "relu": products.relu,
    "gelu": lambda m, n, k: products.gelu(m, n, k, "tanh"),
    "residual": products.residual,
    "batch": lambda m, n, k: products.batched(3, m, n, k),
}


class Interface(ModuleType):
    """The functions of `quack.gemm_interface` that are called, by torch: `C` is added, a bias has
    one number for each column, and an activation returns what it was given, if that is stored."""

    def gemm(self, a: Any, b: Any) -> Any:
        return a @ b

    def gemm_add(self, a: Any, b: Any, c: Any) -> Any:
        return a @ b + c

    def gemm_act(
        self, a: Any, b: Any, *, bias: Any, activation: str, store_preact: bool
    ) -> tuple[Any, Any]:
        assert not store_preact
        before = a @ b + bias
        if activation == "relu":
            return None, torch.relu(before)
        assert activation == "gelu_tanh_approx"
        return None, torch.nn.functional.gelu(before, approximate="tanh")


def _arrays(p: products.Product, dtype: Any = torch.bfloat16) -> list[Any]:
    rng = np.random.default_rng(sum(p.shapes[0]))
    return [torch.asarray(rng.normal(size=s)).to(dtype) for s in p.shapes]


@pytest.mark.parametrize("name", MADE)
def test_it_is_asked_for_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, quack_peer.INTERFACE, Interface(quack_peer.INTERFACE))
    p = MADE[name](5, 7, 6)
    arrays = _arrays(p)
    got = quack_peer.make(p, arrays)(*arrays)
    torch.testing.assert_close(got, p.torch(torch, *arrays), rtol=2e-2, atol=2e-2)


def test_what_it_has_no_kernel_for() -> None:
    for p in (products.gated(8, 8, 8), products.gelu(8, 8, 8), products.float8(8, 8, 8)):
        with pytest.raises(Absent, match="quack has no kernel for"):
            quack_peer.make(p, [])


def test_other_types() -> None:
    p = products.plain("TN", 8, 8, 8)
    with pytest.raises(Absent, match=r"multiplies 16 bits; TN 8x8x8 has torch\.float32"):
        quack_peer.make(p, _arrays(p, torch.float32))


def test_it_is_left_out_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, quack_peer.INTERFACE, None)
    p = products.plain("TN", 8, 8, 8)
    with pytest.raises(Absent, match="quack is not installed"):
        quack_peer.make(p, _arrays(p))
