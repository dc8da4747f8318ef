"""The table of memory-bound cases: what each computes, in torch and in fusewright, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fusewright as fw

Spec = tuple[tuple[int, ...], str]
BF16 = "bfloat16"
F32 = "float32"


@dataclass(frozen=True, slots=True)
class Case:
    """`torch(torch, *arrays)` and `ours(*arrays)` compute the same. `inputs` are shape and dtype;
    `twice` names inputs that any kernel has to read twice; `read_mostly` cases are compared with a
    read kernel instead of a copy; `high` bounds integer inputs."""

    name: str
    torch: Callable[..., Any]
    ours: Callable[..., Any]
    inputs: tuple[Spec, ...]
    twice: tuple[int, ...] = ()
    read_mostly: bool = False
    high: int = 8


def _softmax(x: Any) -> Any:
    return fw.nn.softmax(x, axis=-1)


def _torch_rms(torch: Any, x: Any, w: Any) -> Any:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


def _torch_rms_backward(torch: Any, dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    d = dy.float() * w.float()
    xhat = x.float() * rstd
    c = (d * xhat).mean(-1, keepdim=True)
    return ((d - xhat * c) * rstd).to(x.dtype), (dy.float() * xhat).sum(0).to(w.dtype)


def _rms_backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    d = dy * w
    xhat = x * rstd
    c = fw.mean(d * xhat, axis=-1, keepdims=True)
    dx = fw.astype((d - xhat * c) * rstd, x.dtype)
    return dx, fw.astype(fw.sum(dy * xhat, axis=0), w.dtype)


def _torch_ln_backward(torch: Any, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    d = dy.float() * w.float()
    xhat = (x.float() - mean) * rstd
    c1 = (d * xhat).mean(-1, keepdim=True)
    c2 = d.mean(-1, keepdim=True)
    dx = ((d - xhat * c1 - c2) * rstd).to(x.dtype)
    return dx, (dy.float() * xhat).sum(0).to(w.dtype), dy.float().sum(0).to(w.dtype)


def _ln_backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    d = dy * w
    xhat = (x - mean) * rstd
    c1 = fw.mean(d * xhat, axis=-1, keepdims=True)
    c2 = fw.mean(d, axis=-1, keepdims=True)
    dx = fw.astype((d - xhat * c1 - c2) * rstd, x.dtype)
    dw = fw.astype(fw.sum(dy * xhat, axis=0), w.dtype)
    return dx, dw, fw.astype(fw.sum(fw.astype(dy, fw.float32), axis=0), w.dtype)


def _torch_residual_ln(torch: Any, x: Any, r: Any, w: Any, b: Any) -> Any:
    h = x + r
    return h, torch.nn.functional.layer_norm(h, (h.shape[-1],), w, b)


def _residual_ln(x: Any, r: Any, w: Any, b: Any) -> Any:
    h = x + r
    return h, fw.nn.layer_norm(h, (h.shape[-1],), w, b)


def _torch_batch_norm(torch: Any, x: Any, w: Any, b: Any) -> Any:
    y = x.float()
    var, mean = torch.var_mean(y, dim=(0, 1, 2), correction=0)
    return ((y - mean) * torch.rsqrt(var + 1e-5) * w + b).to(x.dtype)


def _batch_norm(x: Any, w: Any, b: Any) -> Any:
    y = fw.astype(x, fw.float32)
    mean = fw.mean(y, axis=(0, 1, 2), keepdims=True)
    var = fw.mean((y - mean) * (y - mean), axis=(0, 1, 2), keepdims=True)
    return fw.astype((y - mean) / fw.sqrt(var + 1e-5) * w + b, x.dtype)


def _torch_group_norm_silu(torch: Any, x: Any, w: Any, b: Any) -> Any:
    f = torch.nn.functional
    return f.silu(f.group_norm(x, 32, w, b))


def _group_norm_silu(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.silu(fw.nn.group_norm(x, 32, w, b))


def _torch_rotary(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def _rotary(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = fw.concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + turned * sin


def _torch_concat(torch: Any, a: Any, b: Any, c: Any) -> Any:
    f = torch.nn.functional
    return torch.cat((f.gelu(a), f.relu(b), c * 0.5), dim=1)


def _concat(a: Any, b: Any, c: Any) -> Any:
    return fw.concat([fw.nn.gelu(a), fw.nn.relu(b), c * 0.5], axis=1)


def _torch_norm(torch: Any, x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b)


def _norm(x: Any, w: Any, b: Any) -> Any:
    return fw.nn.layer_norm(x, (x.shape[-1],), w, b)


def bf(*shape: int) -> Spec:
    return shape, BF16


def f32(*shape: int) -> Spec:
    return shape, F32


CASES: tuple[Case, ...] = (
    Case(
        "bias_gelu_8192x8192",
        lambda torch, x, b: torch.nn.functional.gelu(x + b),
        lambda x, b: fw.nn.gelu(x + b),
        (bf(8192, 8192), bf(8192)),
    ),
    Case(
        "mul_add_relu_16384x4096",
        lambda torch, x, y, s: torch.relu(x * s + y),
        lambda x, y, s: fw.nn.relu(x * s + y),
        (bf(16384, 4096), bf(16384, 4096), bf(16384, 1)),
    ),
    Case(
        "silu_mul_16384x11008",
        lambda torch, g, u: torch.nn.functional.silu(g) * u,
        lambda g, u: fw.nn.silu(g) * u,
        (bf(16384, 11008), bf(16384, 11008)),
    ),
    *(
        Case(
            f"softmax_{m}x{n}",
            lambda torch, x: torch.softmax(x, -1),
            _softmax,
            (bf(m, n),),
        )
        for m, n in ((32768, 4096), (8192, 32768), (2048, 131072))
    ),
    *(
        Case(f"layer_norm_{m}x{n}", _torch_norm, _norm, (bf(m, n), bf(n), bf(n)))
        for m, n in ((32768, 4096), (8192, 16384))
    ),
    Case(
        "residual_layer_norm_16384x5120",
        _torch_residual_ln,
        _residual_ln,
        (bf(16384, 5120), bf(16384, 5120), bf(5120), bf(5120)),
    ),
    Case(
        "rms_norm_32768x4096",
        _torch_rms,
        lambda x, w: fw.nn.rms_norm(x, (x.shape[-1],), w, 1e-6),
        (bf(32768, 4096), bf(4096)),
    ),
    Case(
        "rms_norm_backward_16384x4096",
        _torch_rms_backward,
        _rms_backward,
        (bf(16384, 4096), bf(16384, 4096), bf(4096), f32(16384, 1)),
    ),
    Case(
        "layer_norm_backward_16384x8192",
        _torch_ln_backward,
        _ln_backward,
        (bf(16384, 8192), bf(16384, 8192), bf(8192), f32(16384, 1), f32(16384, 1)),
    ),
    Case(
        "sum_rows_32768x8192",
        lambda torch, x: x.sum(1),
        lambda x: fw.sum(x, axis=1),
        (f32(32768, 8192),),
        read_mostly=True,
    ),
    Case(
        "sum_columns_32768x8192",
        lambda torch, x: x.sum(0),
        lambda x: fw.sum(x, axis=0),
        (f32(32768, 8192),),
        read_mostly=True,
    ),
    Case(
        "sum_all_32768x8192",
        lambda torch, x: x.sum(),
        fw.sum,
        (f32(32768, 8192),),
        read_mostly=True,
    ),
    Case(
        "var_mean_axis0_65536x1024",
        lambda torch, x: torch.var_mean(x.float(), dim=0, correction=0),
        lambda x: (
            fw.var(fw.astype(x, fw.float32), axis=0),
            fw.mean(fw.astype(x, fw.float32), axis=0),
        ),
        (bf(65536, 1024),),
        read_mostly=True,
    ),
    Case(
        "batch_norm_nhwc_64x56x56x256",
        _torch_batch_norm,
        _batch_norm,
        (bf(64, 56, 56, 256), f32(256), f32(256)),
        twice=(0,),
    ),
    Case(
        "group_norm_silu_16x512x64x64",
        _torch_group_norm_silu,
        _group_norm_silu,
        (bf(16, 512, 64, 64), bf(512), bf(512)),
    ),
    Case(
        "transpose_add_16384x8192",
        lambda torch, x, y: x.T + y,
        lambda x, y: x.T + y,
        (bf(8192, 16384), bf(16384, 8192)),
    ),
    Case(
        "permute_0213_32x2048x32x128",
        lambda torch, x: x.permute(0, 2, 1, 3).contiguous(),
        lambda x: fw.copy(fw.permute_dims(x, (0, 2, 1, 3))),
        (bf(32, 2048, 32, 128),),
    ),
    Case(
        "pad_relu_bias_8192x8000",
        lambda torch, x, b: torch.nn.functional.pad(torch.relu(x + b), (0, 128, 0, 64)),
        lambda x, b: fw.pad(fw.nn.relu(x + b), ((0, 64), (0, 128))),
        (bf(8192, 8000), bf(8000)),
    ),
    Case(
        "concat_gelu_relu_scale_8192x4096",
        _torch_concat,
        _concat,
        (bf(8192, 4096), bf(8192, 4096), bf(8192, 4096)),
    ),
    Case(
        "rotary_8x32x4096x128",
        _torch_rotary,
        _rotary,
        (bf(8, 32, 4096, 128), bf(4096, 128), bf(4096, 128)),
    ),
    Case(
        "cross_entropy_8192x128256",
        lambda torch, x, t: torch.nn.functional.cross_entropy(x.float(), t, reduction="none"),
        lambda x, t: fw.nn.cross_entropy(fw.astype(x, fw.float32), t, reduction="none"),
        (bf(8192, 128256), ((8192,), "int64")),
        read_mostly=True,
        high=128256,
    ),
)
