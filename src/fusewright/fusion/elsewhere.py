"""Names of numpy, JAX and PyTorch that this package does not have, and what to write instead.

An operation has one name here, that of the array API standard or of torch.nn.functional; whoever
asks for another one is told ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_SAME: Mapping[str, str] = {
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh",
    "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "around": "round", "array": "asarray", "as_tensor": "asarray",
    "bitwise_not": "bitwise_invert", "bmm": "matmul", "broadcast_in_dim": "broadcast_to",
    "cat": "concat", "clamp": "clip", "clone": "copy", "concatenate": "concat",
    "conjugate": "conj", "cummax": "cumulative_max", "cummin": "cumulative_min",
    "cumprod": "cumulative_prod", "cumsum": "cumulative_sum", "div": "divide",
    "dynamic_update_slice": "insert", "eq": "equal", "expand": "broadcast_to",
    "expand_as": "broadcast_to", "fix": "trunc", "from_numpy": "asarray",
    "gather": "take_along_axis", "ge": "greater_equal", "gt": "greater",
    "index_add": "scatter_add", "index_select": "take", "jit": "fuse", "le": "less_equal",
    "left_shift": "bitwise_left_shift", "lt": "less", "mm": "matmul", "mod": "remainder",
    "movedim": "moveaxis", "mul": "multiply", "ne": "not_equal", "neg": "negative",
    "permute": "permute_dims", "power": "pow", "repeat_interleave": "repeat",
    "right_shift": "bitwise_right_shift", "rint": "round", "select_n": "where",
    "sub": "subtract", "tensor": "asarray", "top_k": "topk", "true_divide": "divide",
    "unbind": "unstack", "unsqueeze": "expand_dims",
}  # fmt: skip
"""Functions that are called otherwise elsewhere and take the same arguments, but for `axis`."""

_WRITTEN: Mapping[str, str] = {
    "addcdiv": "x + value * a / b",
    "addcmul": "x + value * a * b",
    "addmm": "x @ y + bias",
    "argwhere": "fw.nonzero(x, size=...)",
    "at": "fw.insert(x, value, start) for x.at[start:].set(value), fw.scatter_add for .add",
    "average": "fw.mean(x), or fw.sum(x * weights) / fw.sum(weights)",
    "bool": 'x.astype("bool")',
    "cbrt": "fw.sign(x) * fw.abs(x) ** (1 / 3)",
    "chunk": "fw.split(x, parts, axis=...)",
    "contiguous": "x: where values lie is the compiler's choice",
    "convolve": "fw.nn.conv1d(x[None, None], weight[None, None, ::-1], padding=...)",
    "correlate": "fw.nn.conv1d(x[None, None], weight[None, None], padding=...)",
    "deg2rad": "x * (math.pi / 180)",
    "diag": "fw.diagonal(x) of a matrix, fw.eye(n) * x of a vector",
    "digitize": 'fw.searchsorted(bins, x, side="right")',
    "dim": "x.ndim",
    "divmod": "x // y and x % y",
    "dot": "x @ y",
    "double": 'x.astype("float64")',
    "fft": "a library of transforms between two programs, or a product with cosines and sines",
    "float": 'x.astype("float32")',
    "fmax": "fw.where(fw.isnan(x), y, fw.maximum(x, y))",
    "fmin": "fw.where(fw.isnan(x), y, fw.minimum(x, y))",
    "fmod": "x - y * fw.trunc(x / y)",
    "half": 'x.astype("float16")',
    "hstack": "fw.concat([...], axis=1)",
    "index_copy": "fw.insert(x, value, start)",
    "index_put": "fw.insert(x, value, start), or fw.scatter_add",
    "interp": "fw.searchsorted(xp, x), and fw.lerp between the neighbours",
    "inverse": "a library of linear algebra between two programs",
    "lax": "fw.cond, fw.scan, fw.fori_loop and fw.while_loop, which stand in fw itself",
    "linalg": "fw.matmul, and fw.sqrt(fw.sum(x * x, axis=...)) for a norm",
    "long": 'x.astype("int64")',
    "masked_fill": "fw.where(mask, value, x)",
    "masked_select": "fw.compress(mask, x, size=...)",
    "nanmax": "fw.max(fw.where(fw.isnan(x), -math.inf, x))",
    "nanmean": "fw.sum(fw.where(fw.isnan(x), 0, x)) / fw.sum(~fw.isnan(x))",
    "nanmin": "fw.min(fw.where(fw.isnan(x), math.inf, x))",
    "nansum": "fw.sum(fw.where(fw.isnan(x), 0, x))",
    "narrow": "x[start : start + length]",
    "norm": "fw.sqrt(fw.sum(x * x, axis=...))",
    "numel": "x.size",
    "partition": "fw.sort, or fw.topk",
    "percentile": "fw.quantile(x, percent / 100, axis=...)",
    "ptp": "fw.max(x) - fw.min(x)",
    "put_along_axis": "fw.where(fw.arange(n) == indices, value, x), or fw.scatter_add",
    "rad2deg": "x * (180 / math.pi)",
    "scatter": "fw.scatter_add, or fw.insert for a block",
    "segment_max": "fw.max(fw.where(ids == fw.arange(n)[:, None], x, -math.inf), axis=1)",
    "select": "fw.where, one inside of the other",
    "sinc": "fw.where(x == 0, 1, fw.sin(math.pi * x) / (math.pi * x))",
    "swapaxes": "x.swapaxes(axis1, axis2)",
    "transpose": "x.transpose(axes), or fw.permute_dims",
    "trapezoid": "fw.sum((x[1:] - x[:-1]) * (y[1:] + y[:-1])) / 2",
    "type": "x.astype(dtype)",
    "unique": "fw.unique_values(x, size=...)",
    "vector_norm": "fw.sqrt(fw.sum(x * x, axis=...))",
    "view": "x.reshape(sizes), or x.astype(dtype)",
    "view_as": "x.reshape(y.shape)",
    "vstack": "fw.concat([...]), or fw.stack for arrays of rank 1",
}
"""What is an expression here, or no function of an array at all."""

_KEYWORDS: Mapping[str, str] = {
    "a": "x, by position",
    "ddof": "correction",
    "dim": "axis",
    "dims": "axes, or axis",
    "input": "x, by position",
    "decimals": "fw.round(x * 10**decimals) / 10**decimals",
    "keepdim": "keepdims",
    "unbiased": "correction, 1 for True and 0 for False,",
}


def instead_of_name(name: str, functions: Iterable[str], layers: Iterable[str]) -> str:
    """What to write for a name that is not here; `functions` are those of the package, `layers`
    those of its `nn`. "" where nothing is known."""
    known, inside = frozenset(functions), frozenset(layers)
    if name in _WRITTEN:
        return f"write {_WRITTEN[name]}"
    ours = _SAME.get(name, name)
    if ours in known:
        return f"it is fw.{ours} here" if ours != name else f"write fw.{ours}"
    if ours in inside:
        return f"it is fw.nn.{ours} here"
    written = {n: f"fw.nn.{n}" for n in inside} | {n: f"fw.{n}" for n in known}
    close = difflib.get_close_matches(name, sorted(written), 1)
    return f"is {written[close[0]]} meant?" if close else ""


def missing_name(
    name: str, module: str, functions: Iterable[str], layers: Iterable[str]
) -> AttributeError:
    """The error of a module that is asked for a name that it does not have."""
    found = instead_of_name(name, functions, layers)
    way_out = f"; {found}" if found else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{way_out}")


def instead_of_keyword(name: str) -> str:
    """The name here of an argument that others call so; "" where it is none of theirs."""
    return _KEYWORDS.get(name, "")
