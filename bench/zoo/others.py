"""Architectures of transformers of kinds that the other files of them lack: states and rules of
deltas beside attention, experts of other routings, differences of two attentions, text beside
images, and stages of convolutions."""

from __future__ import annotations

from typing import Any

from bench.zoo import Architecture, Inputs
from bench.zoo.further import (
    _BOTH,
    _DECODER,
    _PATCHES,
    _SIZES,
    _image,
    _model,
    _pair,
    _random,
    text,
)

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def _question(batch: int, length: int) -> Inputs:
    """A text, and the features and corners of five things on an image."""
    return text(batch, length) | {
        "visual_feats": _random(batch, 5, 12),
        "visual_pos": _random(batch, 5, 4).sigmoid(),
    }


def _features(batch: int, length: int) -> Inputs:
    """A spectrum, and the tokens of what is said."""
    tokens = text(batch, length)["input_ids"]
    return {"input_features": _random(batch, 32, 16), "decoder_input_ids": tokens}


_TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "olmo": ("OlmoForCausalLM", "Olmo", {**_DECODER}),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3", {**_DECODER, "sliding_window": 8}),
    "granite": ("GraniteForCausalLM", "Granite", {**_DECODER, "residual_multiplier": 0.5}),
    "glm4-moe": (
        "Glm4MoeForCausalLM",
        "Glm4Moe",
        {**_DECODER, **_EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1, "head_dim": 8},
    ),
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        "Qwen3Next",
        {
            **_DECODER,
            **_EXPERTS,
            "head_dim": 8,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "diff-llama": ("DiffLlamaForCausalLM", "DiffLlama", {**_DECODER}),
    "recurrent-gemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemma",
        {**_DECODER, "lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
    ),
    "codegen": (
        "CodeGenForCausalLM",
        "CodeGen",
        {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        "GPTNeo",
        {
            **_SIZES,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "nano-chat": ("NanoChatForCausalLM", "NanoChat", {**_DECODER}),
}
_OTHERS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "mobilebert": (
        "MobileBertForMaskedLM",
        "MobileBert",
        {**_SIZES, "embedding_size": 16, "intra_bottleneck_size": 16},
        text,
    ),
    "ibert": ("IBertForMaskedLM", "IBert", {**_SIZES}, text),
    "nomic-bert": ("NomicBertForMaskedLM", "NomicBert", {**_SIZES}, text),
    "marian": ("MarianMTModel", "Marian", {**_BOTH}, _pair),
    "prophetnet": (
        "ProphetNetForConditionalGeneration",
        "ProphetNet",
        {
            **{
                k: v
                for k, v in _SIZES.items()
                if k not in ("intermediate_size", "num_hidden_layers")
            },
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
        },
        _pair,
    ),
    "lxmert": (
        "LxmertModel",
        "Lxmert",
        {**_SIZES, "visual_feat_dim": 12, "l_layers": 1, "x_layers": 1, "r_layers": 1},
        _question,
    ),
    "speech-to-text": (
        "Speech2TextForConditionalGeneration",
        "Speech2Text",
        {**_BOTH, "input_feat_per_channel": 16, "conv_channels": 16, "max_source_positions": 64},
        _features,
    ),
    "cvt": (
        "CvtForImageClassification",
        "Cvt",
        {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
        _image(32),
    ),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        "ConvNextV2",
        {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
        _image(32),
    ),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViT", {**_PATCHES}, _image(32)),
    "pvt-v2": (
        "PvtV2ForImageClassification",
        "PvtV2",
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "image_size": 64,
        },
        _image(64),
    ),
    "swiftformer": (
        "SwiftFormerForImageClassification",
        "SwiftFormer",
        {"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16], "drop_path_rate": 0.0},
        _image(64),
    ),
}

MODELS: tuple[Architecture, ...] = (
    *(_model(k, *v, text, generates=k != "recurrent-gemma") for k, v in _TEXTS.items()),
    *(_model(k, *v, generates=False) for k, v in _OTHERS.items()),
)
