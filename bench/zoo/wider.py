"""More architectures of transformers: decoders with other norms, gates and positions, encoders that
mix words by other means, sound, sequences of numbers, images by stages, and film."""

from __future__ import annotations

from typing import Any

import torch

from bench.zoo import Architecture, Inputs
from bench.zoo.further import (
    _BOTH,
    _DECODER,
    _PATCHES,
    _SIZES,
    _SOUND,
    WIDTH,
    _image,
    _model,
    _pair,
    _random,
    _wave,
    text,
)


def _film(batch: int, length: int) -> Inputs:
    return {"pixel_values": _random(batch, 4, 3, 16, 16)}


def _plays(batch: int, length: int) -> Inputs:
    """Steps of a game: states, actions, rewards to go."""
    return {
        "states": _random(batch, 6, 7),
        "actions": _random(batch, 6, 3),
        "rewards": _random(batch, 6, 1),
        "returns_to_go": _random(batch, 6, 1),
        "timesteps": torch.arange(6).expand(batch, 6),
        "attention_mask": torch.ones(batch, 6),
    }


def _numbers(batch: int, length: int) -> Inputs:
    return {"past_values": _random(batch, 32, 3)}


_TUBES = {**_PATCHES, "image_size": 16, "num_frames": 4, "hidden_act": "gelu"}
_STAGED = {"image_size": 32, "num_channels": 3}

_TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2", {**_DECODER}),
    "nemotron": ("NemotronForCausalLM", "Nemotron", {**_DECODER}),
    "persimmon": ("PersimmonForCausalLM", "Persimmon", {**_SIZES}),
    "helium": ("HeliumForCausalLM", "Helium", {**_DECODER, "head_dim": 8}),
    "glm4": ("Glm4ForCausalLM", "Glm4", {**_DECODER, "head_dim": 8}),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4", {**_DECODER, "sliding_window": 8}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3", {**_DECODER}),
    "doge": ("DogeForCausalLM", "Doge", {**_DECODER}),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2", {**_DECODER, "layer_types": ["conv", "full_attention"]}),
}
_ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mpnet": ("MPNetForMaskedLM", "MPNet", {**_SIZES}),
    "squeezebert": ("SqueezeBertForMaskedLM", "SqueezeBert", {**_SIZES, "embedding_size": WIDTH}),
    "roformer": ("RoFormerForMaskedLM", "RoFormer", {**_SIZES}),
    "rembert": (
        "RemBertForMaskedLM",
        "RemBert",
        {**_SIZES, "input_embedding_size": 16, "output_embedding_size": 24},
    ),
    "esm": ("EsmForMaskedLM", "Esm", {**_SIZES, "position_embedding_type": "rotary"}),
}
_OTHERS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "blenderbot": ("BlenderbotForConditionalGeneration", "Blenderbot", {**_BOTH}, _pair),
    "umt5": (
        "UMT5ForConditionalGeneration",
        "UMT5",
        {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        _pair,
    ),
    "sew": ("SEWForCTC", "SEW", {**_SOUND, "vocab_size": 96, "squeeze_factor": 2}, _wave),
    "unispeech": ("UniSpeechForCTC", "UniSpeech", {**_SOUND}, _wave),
    "hiera": (
        "HieraForImageClassification",
        "Hiera",
        {
            **_STAGED,
            "image_size": [64, 64],
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "num_query_pool": 1,
            "masked_unit_size": [8, 8],
        },
        _image(64),
    ),
    "levit": (
        "LevitForImageClassification",
        "Levit",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "attention_ratio": [2, 2, 2],
            "mlp_ratio": [2, 2, 2],
        },
        _image(64),
    ),
    "videomae": ("VideoMAEForVideoClassification", "VideoMAE", {**_TUBES}, _film),
    "timesformer": ("TimesformerForVideoClassification", "Timesformer", {**_TUBES}, _film),
    "decision-transformer": (
        "DecisionTransformerModel",
        "DecisionTransformer",
        {"state_dim": 7, "act_dim": 3, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
        _plays,
    ),
    "patch-mixer": (
        "PatchTSMixerForPrediction",
        "PatchTSMixer",
        {
            "context_length": 32,
            "prediction_length": 8,
            "num_input_channels": 3,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_layers": 2,
        },
        _numbers,
    ),
}

MODELS: tuple[Architecture, ...] = (
    *(_model(k, *v, text, generates=True) for k, v in _TEXTS.items()),
    *(_model(k, *v, text, generates=False) for k, v in _ENCODERS.items()),
    *(_model(k, *v, generates=False) for k, v in _OTHERS.items()),
)
