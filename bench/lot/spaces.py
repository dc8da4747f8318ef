"""torch under fusewright's names, as a user of torch would write it; and the same in float64."""

from __future__ import annotations

from typing import Any

import torch

EXACT = torch.float64


def kind_of(name: str) -> torch.dtype:
    """torch's dtype of a name."""
    return getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(name, name))


def _dims(x: Any, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


class Activations:
    """torch.nn.functional, `axis` for `dim`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.nn.functional, name)

    def softmax(self, x: Any, axis: int) -> Any:
        return torch.softmax(x, axis)

    def log_softmax(self, x: Any, axis: int) -> Any:
        return torch.log_softmax(x, axis)

    def sigmoid(self, x: Any) -> Any:
        return torch.sigmoid(x)

    def layer_norm(self, x: Any, shape: tuple[int, ...], w: Any, b: Any) -> Any:
        return torch.nn.functional.layer_norm(x, shape, w, b)

    def rms_norm(self, x: Any, shape: tuple[int, ...], w: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, shape, w, eps)

    def cross_entropy(self, x: Any, t: Any, reduction: str) -> Any:
        return torch.nn.functional.cross_entropy(x, t.long(), reduction=reduction)


class TorchSpace:
    """Names that are equal in torch are taken from there."""

    def __init__(self, device: str = "cuda") -> None:
        self.nn = Activations()
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return kind_of(name) if name.startswith("float8") else getattr(torch, name)

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    def copy(self, x: Any) -> Any:
        return x.clone(memory_format=torch.contiguous_format)

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.sum(x, _dims(x, axis), keepdim=keepdims)

    def mean(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.mean(x, _dims(x, axis), keepdim=keepdims)

    def max(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.amax(x, _dims(x, axis), keepdim=keepdims)

    def min(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.amin(x, _dims(x, axis), keepdim=keepdims)

    def var(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.var(x, _dims(x, axis), correction=0, keepdim=keepdims)

    def std(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.std(x, _dims(x, axis), correction=0, keepdim=keepdims)

    def any(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.any(x, _dims(x, axis), keepdim=keepdims)

    def count_nonzero(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return torch.sum(x != 0, _dims(x, axis), keepdim=keepdims)

    def argmax(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return torch.argmax(x, axis, keepdim=keepdims)

    def argmin(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return torch.argmin(x, axis, keepdim=keepdims)

    def cumulative_sum(self, x: Any, axis: int, include_initial: bool = False) -> Any:
        y = torch.cumsum(x, axis)
        return self._behind(y, axis, 0) if include_initial else y

    def cumulative_prod(self, x: Any, axis: int, include_initial: bool = False) -> Any:
        y = torch.cumprod(x, axis)
        return self._behind(y, axis, 1) if include_initial else y

    def _behind(self, y: Any, axis: int, first: int) -> Any:
        shape = list(y.shape)
        shape[axis] = 1
        return torch.cat((y.new_full(shape, first), y), axis)

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def concat(self, arrays: Any, axis: int) -> Any:
        return torch.cat(arrays, axis)

    def stack(self, arrays: Any, axis: int) -> Any:
        return torch.stack(arrays, axis)

    def expand_dims(self, x: Any, axis: int) -> Any:
        return x.unsqueeze(axis)

    def roll(self, x: Any, shift: Any, axis: Any) -> Any:
        return torch.roll(x, shift, axis)

    def flip(self, x: Any, axis: Any) -> Any:
        return torch.flip(x, _dims(x, axis))

    def repeat(self, x: Any, count: int, axis: int) -> Any:
        return torch.repeat_interleave(x, count, axis)

    def tile(self, x: Any, repetitions: tuple[int, ...]) -> Any:
        return torch.tile(x, repetitions)

    def pad(self, x: Any, widths: Any, mode: str = "constant") -> Any:
        flat = [n for pair in reversed(widths) for n in pair]
        if mode == "constant":
            return torch.nn.functional.pad(x, flat)
        rows = x.reshape(-1, x.shape[-1])
        mode = {"edge": "replicate"}.get(mode, mode)
        return torch.nn.functional.pad(rows, flat[:2], mode).reshape(*x.shape[:-1], -1)

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        return torch.index_select(x, axis, indices)

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return torch.take_along_dim(x, indices.long(), axis)

    def tril(self, x: Any, k: int = 0) -> Any:
        return torch.tril(x, k)

    def triu(self, x: Any, k: int = 0) -> Any:
        return torch.triu(x, k)

    def arange(self, n: int) -> Any:
        return torch.arange(n, device=self._device)


class ExactSpace(TorchSpace):
    """In float64: what is cast to a float type stays as it is, unless that has 8 bits; positions
    are those of the first extreme."""

    def astype(self, x: Any, dtype: Any) -> Any:
        if not dtype.is_floating_point:
            return x.to(dtype)
        if dtype.itemsize > 1:
            return x.to(EXACT)
        most = torch.finfo(dtype).max
        return x.clamp(-most, most).float().to(dtype).to(EXACT)

    def argmax(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return self._first(x == x.amax(axis, keepdim=True), axis, keepdims)

    def argmin(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        return self._first(x == x.amin(axis, keepdim=True), axis, keepdims)

    def _first(self, found: Any, axis: int, keepdims: bool) -> Any:
        n = found.shape[axis]
        shape = [n if k == axis % found.ndim else 1 for k in range(found.ndim)]
        places = torch.arange(n, device=found.device).reshape(shape)
        return torch.where(found, places, n).amin(axis, keepdim=keepdims)


def widened(x: Any) -> Any:
    """An argument in float64; integers and bools as they are."""
    return x.to(EXACT) if x.is_floating_point() else x
