"""Programs of `bench/moves.py` as one writes them in torch: for times beside torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F


def rotary_pairs(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2).to(torch.float32)


def rotary_halves(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., :64], x[..., 64:]
    return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


def rotated_half(x: Any, c: Any, s: Any) -> Any:
    return x * c + torch.cat([-x[..., 64:], x[..., :64]], dim=-1) * s


def repeated(x: Any) -> Any:
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


def three_neighbours(x: Any) -> Any:
    y = torch.exp(x)
    return y[:, :-2] + y[:, 1:-1] + y[:, 2:]


def five_points(x: Any) -> Any:
    y = torch.exp(x)
    sides = y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:]
    return y[1:-1, 1:-1] * 4 - sides


def sobel(x: Any) -> Any:
    right = x[:-2, 2:] + 2 * x[1:-1, 2:] + x[2:, 2:]
    return right - (x[:-2, :-2] + 2 * x[1:-1, :-2] + x[2:, :-2])


def around(x: Any) -> Any:
    turned = [torch.roll(x, by, a) for a in (0, 1) for by in (1, -1)]
    return turned[0] + turned[1] + turned[2] + turned[3] - 4 * x


def padded(mode: str) -> Callable[[Any], Any]:
    """A pad of a function of images."""
    return lambda x: F.pad(torch.exp(x), (3, 3, 3, 3), mode=mode)


def norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def mixed(x: Any, w: Any, b: Any, m: Any) -> Any:
    y = norm(x, w, b)
    return y * m + F.pad(y, (0, 0, 1, 0))[:, :-1] * (1 - m)


def halves(x: Any, w: Any) -> Any:
    y = F.rms_norm(x, (4096,), w, eps=1e-5)
    return y[:, :2048].contiguous(), y[:, 2048:].contiguous()


def gated(x: Any, w: Any) -> Any:
    a, b = F.rms_norm(x, (4096,), w, eps=1e-5).chunk(2, dim=1)
    return F.silu(a) * b


def joined_and_split(a: Any, b: Any) -> Any:
    y = torch.cat([a, b], dim=1) * 2
    return y[:, :1024].contiguous(), y[:, 1024:].contiguous()


def in_zeros(a: Any, b: Any) -> Any:
    z = torch.zeros(4096, 4096, device=a.device)
    z[8:2008, 8:2008] = a
    z[2056:4056, 2056:4056] = b
    return z


def haar(x: Any) -> Any:
    a, b = x[:, ::2], x[:, 1::2]
    return torch.cat([(a + b) * 0.7, (a - b) * 0.7], dim=1)


def haar_back(x: Any) -> Any:
    a, b = x[:, :2048], x[:, 2048:]
    return torch.stack([(a + b) * 0.7, (a - b) * 0.7], dim=-1).flatten(1)


def class_token(c: Any, x: Any, p: Any) -> Any:
    return torch.cat([c.expand(64, 1, 768), x], dim=1) + p


def prefix_from_behind(x: Any) -> Any:
    return torch.flip(torch.cumsum(torch.flip(x, (1,)), 1), (1,))


TWINS: dict[str, Callable[..., Any]] = {
    "mean of four neighbours": lambda x: (
        (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]) * 0.25
    ),
    "roll of flip": lambda x: torch.roll(torch.flip(x, (1,)), 100, 1),
    "crop of exp": lambda x: torch.exp(x)[:, 5:-5].contiguous(),
    "stencil of exp": three_neighbours,
    "five points of exp": five_points,
    "diff of exp": lambda x: torch.diff(torch.exp(x), dim=1),
    "shift by one of exp": lambda x: F.pad(torch.exp(x), (1, -1)),
    "roll of exp": lambda x: torch.roll(torch.exp(x), 1, 1),
    "reflect pad of exp of images": padded("reflect"),
    "edge pad of exp of images": padded("replicate"),
    "wrap pad of exp of images": padded("circular"),
    "sin beside cos": lambda x: torch.cat([torch.sin(x), torch.cos(x)], -1),
    "exp beside exp": lambda x: torch.cat([torch.exp(x), torch.exp(x)], -1),
    "four powers": lambda x: torch.cat([x, x**2, x**3, x**4], -1),
    "two blocks in zeros": in_zeros,
    "halves of a norm": halves,
    "gated halves of a norm": gated,
    "join, then split": joined_and_split,
    "norm mixed with the token before": mixed,
    "upsampling beside a skip": lambda x, y: torch.cat([repeated(x), y], 1),
    "nearest upsampling, repeat": repeated,
    "rotary by halves": rotary_halves,
    "rotary with a rotated half": rotated_half,
    "rotary by pairs": rotary_pairs,
    "tile of exp": lambda x: torch.exp(x).tile(1, 3),
    "pads and joins joined": lambda a, b, c: torch.cat([F.pad(a, (1, 1)), b, c], 1),
    "turned by a quarter": lambda x: torch.exp(torch.flip(x.T, (1,))).contiguous(),
    "Sobel": sobel,
    "Laplacian with wrap": around,
    "norm of all tokens but one": lambda x, w, b: norm(x, w, b)[:, 1:].contiguous(),
    "log-probabilities but the last": lambda x: torch.log_softmax(x, -1)[:, :-1].contiguous(),
    "Haar": haar,
    "Haar back": haar_back,
    "class token": class_token,
    "gated unit": lambda x: x[:, :2048] * torch.sigmoid(x[:, 2048:]),
    "gated unit of pairs": lambda x: F.silu(x[:, ::2]) * x[:, 1::2],
    "padded softmax": lambda x: F.pad(torch.softmax(x, -1), (0, 96)),
    "reflect pad of a softmax": lambda x: F.pad(
        torch.softmax(x, -1)[None], (2, 2, 1, 1), mode="reflect"
    )[0],
    "rows with their mean": lambda x: torch.cat([x, x.mean(1, keepdim=True)], 1),
    "two softmaxes": lambda a, b: torch.cat([torch.softmax(a, -1), torch.softmax(b, -1)], 1),
    "rows beside their softmax": lambda x: torch.cat([x, torch.softmax(x, -1)], 1),
    "reversed prefix sums": prefix_from_behind,
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "even and odd": lambda a, b: torch.stack([torch.exp(a), b], 2).flatten(1),
}
"""By the names there, those that the measured page lists first."""
