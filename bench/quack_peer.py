"""quack as a peer of products: its kernels for Hopper, `quack.gemm_interface`.

Its wheel (quack-kernels, which needs nvidia-cutlass-dsl) may be missing: `make` then raises
`Absent`, and where it has no kernel for a product. Each product says how its own users would call
it (`bench.products.Product.quack`); it tunes itself at the first call, which is not timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from bench.peers import Absent
from bench.products import Product

INTERFACE = "quack.gemm_interface"
ITEMSIZE = 2
"""Bytes of an element: it has no products of float32, and those of 8 bits take blocks of scales."""


def make(p: Product, arrays: Sequence[Any]) -> Callable[..., Any]:
    """A function of such arrays that computes the product by one kernel of quack. Raises Absent."""
    call = p.quack
    if call is None:
        raise Absent(f"quack has no kernel for {p.name}")
    if any(a.element_size() != ITEMSIZE for a in arrays):
        raise Absent(f"quack multiplies 16 bits; {p.name} has {arrays[0].dtype}")
    try:
        interface = importlib.import_module(INTERFACE)
    except ImportError as e:
        raise Absent(f"quack is not installed: {e}") from e
    return lambda *a: call(interface, *a)
