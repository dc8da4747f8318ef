"""Architectures in tiny sizes, by family: what the census of operators compiles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model by name: the package that defines it, how to build it, and its inputs for a batch and
    a length (tokens of a text; of an image or a sound it is not looked at). `generates`: whether
    the model has a `generate` that continues `input_ids`."""

    name: str
    package: str
    build: Callable[[], Any]
    inputs: Callable[[int, int], Inputs]
    generates: bool = False

    def model(self) -> Any:
        """The model with random weights, without dropout: the same for every call."""
        torch.manual_seed(0)
        return without_dropout(self.build())


def without_dropout(model: Any) -> Any:
    """The model, in whose modules every probability to drop something is 0."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)
    return model


def loss_of(result: Any) -> Any:
    """A scalar that depends on every element of a model's first real result: the cross entropy of
    fixed classes for logits, else the mean square of the distance from a fixed wave."""
    y = first_real(result)
    wave = torch.arange(y.numel(), device=y.device).reshape(y.shape)
    if y.ndim in (2, 3) and getattr(result, "logits", None) is y:
        classes = (wave[..., 0] * 7) % y.shape[-1]
        return torch.nn.functional.cross_entropy(y.flatten(0, -2), classes.flatten())
    return ((y - torch.cos(wave.to(y.dtype))) ** 2).mean()


def first_real(result: Any) -> Any:
    """The first floating-point tensor of a result: of its logits, where it has some."""
    found = getattr(result, "logits", None)
    if found is not None:
        return found
    leaves = torch.utils._pytree.tree_leaves(result)
    return next(t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())


def in_dtype(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The inputs with their floating-point tensors in a dtype."""
    return {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }


def architectures(names: str = "", packages: str = "") -> Iterator[Architecture]:
    """The architectures whose name, and package, is in a comma-separated list; all for none."""
    from bench.zoo import diffusion, further, language, newer, others, plain, vision, wider

    wanted, from_packages = ([n for n in s.split(",") if n] for s in (names, packages))
    everywhere = (plain, language, further, wider, others, newer, vision, diffusion)
    for a in (a for room in everywhere for a in room.MODELS):
        if (not wanted or a.name in wanted) and (not from_packages or a.package in from_packages):
            yield a


def imported(module: str) -> Any:
    """A module that may import torchvision, whose compiled operators a build of torch without a GPU
    cannot load. No model here calls them, but their names are asked for: they get schemas."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
    return importlib.import_module(module)


_KEPT: list[Any] = []
"""Libraries of operators, whose schemas last as long as they do."""
