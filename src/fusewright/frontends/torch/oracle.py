"""Host tensors through the numpy oracle, rounded at every step: one trace per sizes, no kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusewright.dtypes import dtype_of
from fusewright.errors import UserError
from fusewright.frontends.torch.library import torch
from fusewright.fusion.evaluate import evaluate
from fusewright.fusion.ir import Fusion, TensorSpec
from fusewright.fusion.trace import trace
from fusewright.runtime.arrays import describe, host_view


class OracleCall:
    """A traced function on host tensors and integers. `orders`: per result its axes from slow to
    fast in memory, None for C order. What the function returns behind these results are bools:
    a call raises UserError where one of them is false."""

    label = "oracle"

    def __init__(
        self, traced: Callable[..., list[Any]], orders: Sequence[tuple[int, ...] | None]
    ) -> None:
        self._traced = traced
        self._orders = orders
        self._fusions: dict[tuple[object, ...], Fusion] = {}

    def fusion(self, *args: Any) -> Fusion:
        """The fusion for arguments like these."""
        key = tuple((x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in args)
        found = self._fusions.get(key)
        if found is None:
            specs = [
                TensorSpec(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x
                for x in args
            ]
            found = self._fusions[key] = trace(self._traced, *specs)
        return found

    def __call__(self, *args: Any) -> list[Any]:
        fusion = self.fusion(*args)
        given = [x for x in args if isinstance(x, torch.Tensor)]
        given = [x.detach().resolve_neg() for x in given]  # held, since arrays hold no memory
        arrays = [host_view(describe(x)) for x in given]
        results = evaluate(fusion, *arrays, stepwise=True)
        count = len(self._orders)
        if not all(results[count:]):
            raise UserError("torch does not compute an index or an integer divisor of this call")
        return [_as_tensor(a, o) for a, o in zip(results[:count], self._orders, strict=True)]


def _as_tensor(array: Any, order: tuple[int, ...] | None) -> Any:
    """A new tensor with the elements of an array."""
    axes = tuple(range(array.ndim)) if order is None else order
    dtype = _TORCH_NAMES.get(dtype_of(array.dtype).name, dtype_of(array.dtype).name)
    stored = torch.empty([array.shape[a] for a in axes], dtype=getattr(torch, dtype))
    shown = stored.permute(sorted(range(array.ndim), key=lambda a: axes[a]))
    if array.size:
        host_view(describe(shown))[...] = array
    return shown


_TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}
