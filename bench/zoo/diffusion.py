"""Diffusion: a U-Net with cross attention, an image autoencoder and a diffusion transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, imported


def _noise(batch: int, *shape: int) -> Any:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))


def _denoising(batch: int, length: int) -> Inputs:
    return {
        "sample": _noise(batch, 4, 16, 16),
        "timestep": torch.arange(batch) * 10 + 1,
        "encoder_hidden_states": _noise(batch, 7, 32),
    }


def _picture(batch: int, length: int) -> Inputs:
    return {"sample": _noise(batch, 3, 16, 16)}


def _labelled(batch: int, length: int) -> Inputs:
    times = torch.arange(batch) * 10 + 1
    return {
        "hidden_states": _noise(batch, 4, 8, 8),
        "timestep": times,
        "class_labels": torch.arange(batch),
    }


def _built(name: str, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        return getattr(imported("diffusers"), name)(**sizes)

    return build


_UNET = _built(
    "UNet2DConditionModel",
    sample_size=16,
    block_out_channels=(32, 64),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    cross_attention_dim=32,
    attention_head_dim=8,
    norm_num_groups=8,
)
_AUTOENCODER = _built(
    "AutoencoderKL",
    block_out_channels=(32, 64),
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    norm_num_groups=8,
)
_TRANSFORMER = _built(
    "DiTTransformer2DModel",
    sample_size=8,
    num_layers=2,
    attention_head_dim=16,
    num_attention_heads=4,
    norm_num_groups=4,
)

MODELS: tuple[Architecture, ...] = (
    Architecture("unet", "diffusers", _UNET, _denoising),
    Architecture("autoencoder", "diffusers", _AUTOENCODER, _picture),
    Architecture("dit", "diffusers", _TRANSFORMER, _labelled),
)
