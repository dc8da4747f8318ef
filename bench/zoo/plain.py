"""Compact models in plain torch, of the operators that the larger families are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from bench.zoo import Architecture, Inputs

WIDTH, CLASSES = 32, 48


class Decoder(nn.Module):
    """Attention by rotated positions over a window, and a gated product."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gated, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        q, k, v = (
            t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        at = torch.arange(tokens.shape[1], device=tokens.device)
        angle = at[:, None] / 10.0 ** torch.arange(q.shape[-1] // 2, device=tokens.device)
        q, k = (_rotated(t, angle.cos().to(t.dtype), angle.sin().to(t.dtype)) for t in (q, k))
        far = (at[:, None] < at) | (at[:, None] - at >= 6)
        scores = (q @ k.transpose(-1, -2) * 0.35).masked_fill(far, torch.finfo(q.dtype).min)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        gate, up = self.gated(self.norm(x)).chunk(2, -1)
        x = x + self.down(f.silu(gate) * up)
        return x @ self.embedding.weight.T


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Experts(nn.Module):
    """Each token goes to its two best experts, whose results are added where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, 4)
        self.up = nn.Parameter(torch.randn(4, WIDTH, 2 * WIDTH) / 6)
        self.down = nn.Parameter(torch.randn(4, 2 * WIDTH, WIDTH) / 8)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens).flatten(0, 1)
        share, expert = self.router(x).softmax(-1).topk(2)
        share = share / share.sum(-1, keepdim=True)
        chosen = torch.zeros(len(x), 4, dtype=x.dtype, device=x.device).scatter(1, expert, share)
        each = torch.bmm(f.gelu(torch.bmm(x.expand(4, -1, -1), self.up)), self.down)
        order = expert.flatten().argsort(stable=True)
        counts = torch.zeros(4, dtype=x.dtype, device=x.device)
        counts = counts.scatter_add(0, expert.flatten()[order], torch.ones_like(share).flatten())
        y = torch.zeros_like(x).index_add(0, order // 2, x[order // 2] * 0.1)
        y = y + torch.einsum("te,etd->td", chosen, each) * (1 + counts.mean() / 100)
        return (x + y).unflatten(0, tokens.shape)


class States(nn.Module):
    """A selective state space: a causal convolution, then a loop over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.mixed = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3)
        self.steps, self.rates = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.rand(WIDTH, 4))
        self.into, self.out = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        x = f.silu(self.mixed(x.mT)[..., : x.shape[1]]).mT
        step = f.softplus(self.steps(x))
        b, c = self.into(x).chunk(2, -1)
        kept = torch.exp(-step[..., None] * self.rates.exp())
        new = step[..., None] * b[:, :, None] * x[..., None]
        state, rows = torch.zeros_like(new[:, 0]), []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + new[:, t]
            rows.append((state * c[:, t, None]).sum(-1))
        return self.out(torch.stack(rows, 1) * f.silu(x))


class Residual(nn.Module):
    """Convolutions with batch norm, in a stem with pooling, blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.one = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.two = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32))
        self.squeeze, self.head = nn.Conv2d(32, 32, 1), nn.Linear(32, CLASSES)

    def forward(self, x: Any) -> Any:
        x = f.max_pool2d(self.stem(x), 3, 2, 1)
        x = f.relu(self.one(x) + x)
        x = f.hardswish(self.two(x))
        x = x * self.squeeze(f.adaptive_avg_pool2d(x, 1)).sigmoid()
        return self.head(f.avg_pool2d(x, 2).mean((2, 3)))


class Windows(nn.Module):
    """Attention inside of shifted windows, with a table of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv = nn.Conv2d(3, WIDTH, 2, 2), nn.Linear(WIDTH, 3 * WIDTH)
        self.table, self.norm = nn.Parameter(torch.randn(49, 4)), nn.LayerNorm(WIDTH)
        self.merge = nn.Linear(4 * WIDTH, WIDTH)
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        distance = at[:, :, None] - at[:, None] + 3
        self.register_buffer("places", distance[0] * 7 + distance[1], persistent=False)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).permute(0, 2, 3, 1)
        batch, h, w, _ = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2)).unflatten(1, (-1, 4)).unflatten(3, (-1, 4))
        y = self.qkv(y.transpose(2, 3).flatten(0, 2).flatten(1, 2))
        q, k, v = y.unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4).unbind()
        bias = self.table[self.places.flatten()].view(16, 16, 4).permute(2, 0, 1)
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].to(q.dtype))
        y = y.transpose(1, 2).reshape(batch, h // 4, w // 4, 4, 4, WIDTH).transpose(2, 3)
        x = x + torch.roll(y.reshape(batch, h, w, WIDTH), (2, 2), (1, 2))
        parts = (x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2])
        return self.merge(torch.cat(parts, -1)).mean((1, 2))


class Hourglass(nn.Module):
    """Down and up again with group norm, a skip, resampling and an embedded time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.last = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 32)])
        self.time = nn.Linear(16, 32)

    def forward(self, x: Any) -> Any:
        at = torch.arange(x.shape[0], device=x.device)[:, None] * 0.5 ** torch.arange(
            8, device=x.device
        )
        time = self.time(torch.cat((at.sin(), at.cos()), -1).to(x.dtype))
        a = f.silu(self.norms[0](self.first(x)))
        b = f.silu(self.norms[1](self.down(a)) + time[:, :, None, None])
        c = self.up(f.interpolate(b, scale_factor=2.0, mode="nearest"))
        d = f.interpolate(f.avg_pool2d(a, 2), size=a.shape[-2:], mode="bilinear")
        return self.last(torch.cat((c + d, f.pad(a[..., 1:, 1:], (1, 0, 1, 0), "reflect")), 1))


class Recurrent(nn.Module):
    """A recurrent net over padded texts, whose last states are picked by length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH, padding_idx=0)
        self.layers, self.head = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Any) -> Any:
        states, _ = self.layers(self.embedding(tokens))
        last = (tokens != 0).sum(-1) - 1
        return f.log_softmax(self.head(states[torch.arange(len(last)), last]), -1)


class Messages(nn.Module):
    """Edges carry messages, which are added and maximised where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.edge = nn.Embedding(CLASSES, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.node = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens.flatten())
        count = x.shape[0]
        to = (torch.arange(3 * count, device=x.device) * 7) % count
        of = torch.arange(3 * count, device=x.device) // 3
        message = f.leaky_relu(self.edge(torch.cat((x[of], x[to]), -1)))
        place = to[:, None].expand_as(message)
        added = torch.zeros_like(x).scatter_add(0, place, message)
        largest = torch.zeros_like(x).scatter_reduce(0, place, message, "amax")
        score, at = (added + largest).sort(-1, descending=True)
        return self.node(torch.cat((score, x.gather(-1, at)), -1)).cumsum(-1)


def tokens(batch: int, length: int) -> Inputs:
    """Random tokens by the name of the plain models."""
    generator = torch.Generator().manual_seed(batch * length)
    return {"tokens": torch.randint(1, CLASSES, (batch, length), generator=generator)}


def image(batch: int, length: int) -> Inputs:
    """Random images of 16 x 16."""
    return {"x": torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))}


_MADE: tuple[tuple[Callable[[], nn.Module], Callable[[int, int], Inputs]], ...] = (
    (Decoder, tokens),
    (Experts, tokens),
    (States, tokens),
    (Residual, image),
    (Windows, image),
    (Hourglass, image),
    (Recurrent, tokens),
    (Messages, tokens),
)
MODELS = tuple(
    Architecture(f"plain-{made.__name__.lower()}", "plain", made, inputs) for made, inputs in _MADE
)
