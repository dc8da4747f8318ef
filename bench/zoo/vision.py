"""Images: the tiny test models of timm, small ones of torchvision and of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, imported

_TIMM = (
    "test_vit",
    "test_resnet",
    "test_convnext",
    "test_efficientnet",
    "test_efficientnet_gn",
    "test_nfnet",
    "test_mambaout",
    "test_byobnet",
)
_TORCHVISION = (
    "resnet18",
    "mobilenet_v3_small",
    "densenet121",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
)
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32}
_SIZES |= {"intermediate_size": 128, "patch_size": 8}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}
_SWIN |= {"window_size": 4}
_STAGES = {"hidden_sizes": [32, 64], "depths": [2, 2]}
_SEGFORMER = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32}
_TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("ViT", "ForImageClassification", _SIZES),
    "dinov2": ("Dinov2", "Model", _SIZES),
    "beit": ("Beit", "ForImageClassification", {**_SIZES, "use_relative_position_bias": True}),
    "swin": ("Swin", "ForImageClassification", _SWIN),
    "swinv2": ("Swinv2", "ForImageClassification", _SWIN),
    "convnext": ("ConvNext", "ForImageClassification", {**_STAGES, "num_stages": 2}),
    "resnet50": (
        "ResNet",
        "ForImageClassification",
        {**_STAGES, "embedding_size": 16, "layer_type": "bottleneck"},
    ),
    "regnet": (
        "RegNet",
        "ForImageClassification",
        {**_STAGES, "embedding_size": 16, "groups_width": 16},
    ),
    "segformer": ("Segformer", "ForSemanticSegmentation", _SEGFORMER),
    "mobilenet-v2": ("MobileNetV2", "ForImageClassification", {"depth_multiplier": 0.25}),
}


def image(side: int) -> Callable[[int, int], Inputs]:
    """Random images of a side, by the name that transformers gives them."""

    def inputs(batch: int, length: int) -> Inputs:
        generator = torch.Generator().manual_seed(batch)
        return {"pixel_values": torch.randn(batch, 3, side, side, generator=generator)}

    return inputs


class Named(torch.nn.Module):
    """A model of one image that takes it by name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Any) -> Any:
        return self.model(pixel_values)


def _timm(name: str) -> Architecture:
    def build() -> Any:
        return Named(imported("timm").create_model(name, num_classes=10))

    return Architecture(f"timm-{name.removeprefix('test_')}", "timm", build, image(160))


def _torchvision(name: str) -> Architecture:
    def build() -> Any:
        models = imported("torchvision.models")
        return Named(getattr(models, name)(num_classes=10))

    return Architecture(f"torchvision-{name}", "torchvision", build, image(64))


def _transformers(name: str, stem: str, head: str, sizes: dict[str, Any]) -> Architecture:
    def build() -> Any:
        t = imported("transformers")
        return getattr(t, f"{stem}{head}")(getattr(t, f"{stem}Config")(**sizes))

    side = sizes.get("image_size", 64)
    return Architecture(name, "transformers", build, image(side))


MODELS: tuple[Architecture, ...] = (
    *(_transformers(name, *known) for name, known in _TRANSFORMERS.items()),
    *map(_timm, _TIMM),
    *map(_torchvision, _TORCHVISION),
)
