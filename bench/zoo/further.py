"""Further architectures of transformers: kinds of layers that the other files lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, imported

VOCABULARY, WIDTH = 96, 32

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_DECODER = {**_SIZES, "num_key_value_heads": 2}
_GPT = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64}
_BOTH = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
}
_SOUND = {
    **{k: v for k, v in _SIZES.items() if k != "max_position_embeddings"},
    "conv_dim": [16, 16],
    "conv_kernel": [8, 4],
    "conv_stride": [4, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "layerdrop": 0.0,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}
_PATCHES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
_PATCHES |= {"intermediate_size": 48, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
_QUERIES = {
    **{k: v for k, v in _BOTH.items() if k.startswith(("encoder", "decoder_a", "decoder_f"))},
    "d_model": WIDTH,
    "decoder_layers": 1,
    "num_queries": 5,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}


# --- inputs -------------------------------------------------------------------------------------


def _random(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def text(batch: int, length: int) -> Inputs:
    """Random tokens, none of them one that ends a text."""
    generator = torch.Generator().manual_seed(batch * length)
    return {"input_ids": torch.randint(3, VOCABULARY - 1, (batch, length), generator=generator)}


def _pair(batch: int, length: int) -> Inputs:
    tokens = text(batch, length)["input_ids"]
    return {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)}


def _boxed(batch: int, length: int) -> Inputs:
    return text(batch, length) | {"bbox": torch.zeros(batch, length, 4, dtype=torch.int64)}


def _wave(batch: int, length: int) -> Inputs:
    return {"input_values": _random(batch, 64 * length)}


def _spectrum(batch: int, length: int) -> Inputs:
    return {"input_values": _random(batch, 24, 16)}


def _series(batch: int, length: int) -> Inputs:
    return {"past_values": _random(batch, 24, 3)}


def _image(side: int) -> Callable[[int, int], Inputs]:
    return lambda batch, length: {"pixel_values": _random(batch, 3, side, side)}


def _captioned(batch: int, length: int) -> Inputs:
    return text(batch, length) | _image(32)(batch, length)


def _marked(batch: int, length: int) -> Inputs:
    """A text behind the 16 places of an image's patches."""
    places = torch.full((batch, 16), VOCABULARY - 1)
    tokens = torch.cat([places, text(batch, length)["input_ids"]], 1)
    return {"input_ids": tokens} | _image(32)(batch, length)


# --- models -------------------------------------------------------------------------------------


def _model(
    name: str, model: str, config: str, sizes: dict[str, Any], inputs: Any, *, generates: bool
) -> Architecture:
    def build() -> Any:
        t = imported("transformers")
        made = {k: v(t) if callable(v) else v for k, v in sizes.items()}
        return getattr(t, model)(getattr(t, f"{config}Config")(**made))

    return Architecture(name, "transformers", build, inputs, generates)


def _backbone(name: str, stages: list[str]) -> Callable[[Any], Any]:
    """A configuration that is made when transformers is there."""
    sizes = {**_STAGES, "embedding_size": 8, "layer_type": "basic", "out_features": stages}
    return lambda t: getattr(t, f"{name}Config")(**sizes)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_RT_DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_hidden_dim": 32,
    "encoder_in_channels": [8, 16, 16],
    "encoder_layers": 1,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_layers": 1,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
    "decoder_in_channels": [32, 32, 32],
    "num_queries": 6,
    "num_denoising": 0,
    "backbone_config": _backbone("RTDetrResNet", ["stage2", "stage3", "stage4"]),
}
_LLAVA: dict[str, Any] = {
    "text_config": {**_DECODER, "model_type": "llama"},
    "vision_config": {**_PATCHES, "model_type": "clip_vision_model"},
    "image_token_index": VOCABULARY - 1,
    "vision_feature_layer": -1,
}

_DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "olmoe": ("OlmoeForCausalLM", "Olmoe", {**_DECODER, **_EXPERTS}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2Moe",
        {**_DECODER, **_EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "gpt-oss": ("GptOssForCausalLM", "GptOss", {**_DECODER, **_LOCAL, "head_dim": 8}),
    "granite-moe": ("GraniteMoeForCausalLM", "GraniteMoe", {**_DECODER, **_LOCAL}),
    "falcon-mamba": ("FalconMambaForCausalLM", "FalconMamba", {**_SIZES, "state_size": 8}),
    "bamba": (
        "BambaForCausalLM",
        "Bamba",
        {
            **_DECODER,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 2,
            "attn_layer_indices": [1],
        },
    ),
    "mpt": (
        "MptForCausalLM",
        "Mpt",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": 2, "n_heads": 4},
    ),
    "gptj": ("GPTJForCausalLM", "GPTJ", {**_GPT, "rotary_dim": 4}),
}
_OTHERS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "convbert": (
        "ConvBertForMaskedLM",
        "ConvBert",
        {**_SIZES, "embedding_size": WIDTH, "conv_kernel_size": 3, "num_groups": 1},
        text,
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBert",
        {
            **_SIZES,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        text,
    ),
    "longformer": (
        "LongformerForMaskedLM",
        "Longformer",
        {**_SIZES, "attention_window": [8, 8]},
        text,
    ),
    "fnet": ("FNetForMaskedLM", "FNet", _SIZES, text),
    "yoso": ("YosoForMaskedLM", "Yoso", _SIZES, text),
    "reformer": (
        "ReformerModelWithLMHead",
        "Reformer",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "attention_head_size": 8,
            "num_attention_heads": 4,
            "attn_layers": ["local", "local"],
            "is_decoder": True,
            "axial_pos_embds": False,
            "feed_forward_size": 48,
            "local_attn_chunk_length": 8,
            "max_position_embeddings": 64,
        },
        text,
    ),
    "perceiver": (
        "PerceiverForMaskedLM",
        "Perceiver",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_latents": WIDTH,
            "num_latents": 8,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "qk_channels": WIDTH,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
            "v_channels": WIDTH,
            "max_position_embeddings": 16,
        },
        lambda batch, length: {"inputs": text(batch, 16)["input_ids"]},
    ),
    "led": (
        "LEDForConditionalGeneration",
        "LED",
        {
            **_BOTH,
            "attention_window": [8],
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        _pair,
    ),
    "wavlm": ("WavLMForCTC", "WavLM", {**_SOUND, "num_buckets": 32}, _wave),
    "conformer": (
        "Wav2Vec2ConformerForCTC",
        "Wav2Vec2Conformer",
        {
            **_SOUND,
            "position_embeddings_type": "relative",
            "conv_depthwise_kernel_size": 5,
        },
        _wave,
    ),
    "ast": (
        "ASTForAudioClassification",
        "AST",
        {**_PATCHES, "num_mel_bins": 16, "max_length": 24, "patch_size": 16},
        _spectrum,
    ),
    "patch-tst": (
        "PatchTSTForPrediction",
        "PatchTST",
        {
            "num_input_channels": 3,
            "context_length": 24,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 1,
            "ffn_dim": 32,
            "num_attention_heads": 4,
            "prediction_length": 4,
        },
        _series,
    ),
    "layoutlm": ("LayoutLMForMaskedLM", "LayoutLM", _SIZES, _boxed),
    "vilt": ("ViltModel", "Vilt", {**_SIZES, **_PATCHES}, _captioned),
    "siglip": (
        "SiglipModel",
        "Siglip",
        {"text_config": {**_SIZES, "projection_size": WIDTH}, "vision_config": _PATCHES},
        lambda batch, length: _captioned(batch, 16),
    ),
    "llava": ("LlavaForConditionalGeneration", "Llava", _LLAVA, _marked),
    "yolos": (
        "YolosForObjectDetection",
        "Yolos",
        {**_PATCHES, "image_size": [32, 32], "num_detection_tokens": 4},
        _image(32),
    ),
    "detr": (
        "DetrForObjectDetection",
        "Detr",
        {**_QUERIES, "backbone_config": _backbone("ResNet", ["stage4"])},
        _image(64),
    ),
    "rt-detr": ("RTDetrForObjectDetection", "RTDetr", _RT_DETR, _image(64)),
    "mobilevit": (
        "MobileViTForImageClassification",
        "MobileViT",
        {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 2,
        },
        _image(64),
    ),
    "poolformer": ("PoolFormerForImageClassification", "PoolFormer", _STAGES, _image(64)),
    "pvt": (
        "PvtForImageClassification",
        "Pvt",
        {
            **_STAGES,
            "image_size": 64,
            "mlp_ratios": [2, 2, 2, 2],
            "num_attention_heads": [1, 2, 2, 2],
        },
        _image(64),
    ),
    "focalnet": (
        "FocalNetForImageClassification",
        "FocalNet",
        {
            "image_size": 32,
            "embed_dim": 16,
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "hidden_sizes": [16, 32],
        },
        _image(32),
    ),
}

MODELS: tuple[Architecture, ...] = (
    *(_model(n, *m, inputs=text, generates=True) for n, m in _DECODERS.items()),
    *(_model(n, *m, generates=False) for n, m in _OTHERS.items()),
)
