"""Nets of images in plain torch: the blocks of ResNet-50, of ConvNeXt-T and of a diffusion U-Net in
their real widths, few of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f


class Bottleneck(nn.Module):
    """Three convolutions with batch norms, and a skip, which is normed too where sizes change."""

    def __init__(self, channels: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(channels, inner, 1, bias=False),
                nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
                nn.Conv2d(inner, out, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (inner, inner, out))
        self.skip = nn.Sequential()
        if stride > 1 or channels != out:
            self.skip.append(nn.Conv2d(channels, out, 1, stride, bias=False))
            self.skip.append(nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = x
        for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
            y = f.relu(norm(conv(y)))
        return f.relu(self.norms[2](self.convs[2](y)) + self.skip(x))


class ResNet(nn.Module):
    """Stem, three blocks of two widths, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(
            Bottleneck(64, 64, 256, 1), Bottleneck(256, 64, 256, 1), Bottleneck(256, 128, 512, 2)
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        x = f.max_pool2d(f.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(f.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class Nearby(nn.Module):
    """A convolution of each channel, a norm over channels, two products, a scale, a skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(f.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def normed(norm: nn.LayerNorm, x: Any) -> Any:
    """A norm over the channels of an image."""
    return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """Stem, two blocks, a step to half the size, a block, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 96, 4, 4), nn.LayerNorm(96)
        self.wide = nn.Sequential(Nearby(96), Nearby(96))
        self.between, self.halve = nn.LayerNorm(96), nn.Conv2d(96, 192, 2, 2)
        self.narrow = Nearby(192)
        self.last, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

    def forward(self, x: Any) -> Any:
        x = self.wide(normed(self.first, self.stem(x)))
        x = self.narrow(self.halve(normed(self.between, x)))
        return self.head(self.last(x.mean((2, 3))))


class Steps(nn.Module):
    """Two convolutions behind group norms and SiLU, the time added between, and a skip."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(32, channels), nn.GroupNorm(32, out)))
        self.convs = nn.ModuleList(
            (nn.Conv2d(channels, out, 3, 1, 1), nn.Conv2d(out, out, 3, 1, 1))
        )
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        y = self.convs[0](f.silu(self.norms[0](x)))
        y = y + self.time(f.silu(time))[:, :, None, None]
        return self.skip(x) + self.convs[1](f.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Each pixel attends to all others, in heads of 64."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), channels // 64
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Any) -> Any:
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1)
        )
        made = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(made).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """A step down to a width of 256 with attention, and a step up that meets what it left."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.first, self.down = nn.Conv2d(4, 128, 3, 1, 1), Steps(128, 128, 512)
        self.halve = nn.Conv2d(128, 128, 3, 2, 1)
        self.middle, self.attention = Steps(128, 256, 512), Attention(256)
        self.double = nn.Conv2d(256, 256, 3, 1, 1)
        self.up, self.norm = Steps(384, 128, 512), nn.GroupNorm(32, 128)
        self.last = nn.Conv2d(128, 4, 3, 1, 1)

    def forward(self, x: Any, time: Any) -> Any:
        at = time[:, None] * torch.exp(torch.arange(64, device=x.device) * -0.14)
        t = self.embed(torch.cat((at.sin(), at.cos()), -1).to(x.dtype))
        kept = self.down(self.first(x), t)
        y = self.attention(self.middle(self.halve(kept), t))
        y = self.double(f.interpolate(y, scale_factor=2.0, mode="nearest"))
        y = self.up(torch.cat((y, kept), 1), t)
        return self.last(f.silu(self.norm(y)))


SIDE = 224
Made = tuple[nn.Module, dict[str, Any]]


def resnet(batch: int) -> Made:
    """With images of 224 x 224."""
    return ResNet(), {"x": torch.randn(batch, 3, SIDE, SIDE)}


def convnext(batch: int) -> Made:
    """With images of 224 x 224."""
    return ConvNext(), {"x": torch.randn(batch, 3, SIDE, SIDE)}


def unet(batch: int) -> Made:
    """With latents of 64 x 64 and a time each."""
    return UNet(), {
        "x": torch.randn(batch, 4, SIDE // 4, SIDE // 4),
        "time": torch.arange(batch) * 10.0,
    }


NETS = {"ResNet": resnet, "ConvNeXt": convnext, "U-Net": unet}
