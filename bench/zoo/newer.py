"""Architectures that the other files lack: experts of more routings, latents of keys, states and
linear attention beside attention, adapters, codecs of sound, depth, upscaling, video, groups of
patches, and timm's mixers, cross-covariance and class attention."""

from __future__ import annotations

from typing import Any

from bench.zoo import Architecture, Inputs, imported
from bench.zoo.further import (
    _BOTH,
    _DECODER,
    _LOCAL,
    _PATCHES,
    _SIZES,
    _SOUND,
    _STAGES,
    WIDTH,
    _boxed,
    _image,
    _model,
    _pair,
    _random,
    _wave,
    text,
)
from bench.zoo.vision import Named, image

_LATENT = {
    **_DECODER,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def _sound(batch: int, length: int) -> Inputs:
    return {"input_values": _random(batch, 1, 64 * length)}


def _frames(batch: int, length: int) -> Inputs:
    return {"pixel_values": _random(batch, 4, 3, 32, 32)}


_TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arcee": ("ArceeForCausalLM", "Arcee", {**_DECODER}),
    "apertus": ("ApertusForCausalLM", "Apertus", {**_DECODER}),
    "bitnet": ("BitNetForCausalLM", "BitNet", {**_DECODER}),
    "biogpt": ("BioGptForCausalLM", "BioGpt", {**_SIZES}),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2", {**_DECODER, "sliding_window": 8}),
    "ctrl": (
        "CTRLLMHeadModel",
        "CTRL",
        {"vocab_size": 96, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "dff": 48},
    ),
    "dots1": (
        "Dots1ForCausalLM",
        "Dots1",
        {
            **_DECODER,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "ernie4-5": ("Ernie4_5ForCausalLM", "Ernie4_5", {**_DECODER}),
    "falcon-h1": (
        "FalconH1ForCausalLM",
        "FalconH1",
        {
            **_DECODER,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    "gpt-bigcode": (
        "GPTBigCodeForCausalLM",
        "GPTBigCode",
        {"vocab_size": 96, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "granite-moe-shared": (
        "GraniteMoeSharedForCausalLM",
        "GraniteMoeShared",
        {**_DECODER, **_LOCAL, "shared_intermediate_size": 16},
    ),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1", {**_DECODER, "head_dim": 8}),
    "jamba": (
        "JambaForCausalLM",
        "Jamba",
        {
            **_DECODER,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    "jetmoe": (
        "JetMoeForCausalLM",
        "JetMoe",
        {
            **_SIZES,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "minicpm3": ("MiniCPM3ForCausalLM", "MiniCPM3", {**_LATENT}),
    "minimax": (
        "MiniMaxForCausalLM",
        "MiniMax",
        {
            **_DECODER,
            **_LOCAL,
            "head_dim": 8,
            "block_size": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "openai-gpt": (
        "OpenAIGPTLMHeadModel",
        "OpenAIGPT",
        {"vocab_size": 96, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "phimoe": ("PhimoeForCausalLM", "Phimoe", {**_DECODER, **_LOCAL}),
    "seed-oss": ("SeedOssForCausalLM", "SeedOss", {**_DECODER, "head_dim": 8}),
    "zamba2": (
        "Zamba2ForCausalLM",
        "Zamba2",
        {
            **_DECODER,
            "num_hidden_layers": 4,
            "mamba_d_state": 8,
            "mamba_headdim": 8,
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "chunk_size": 8,
            "num_mem_blocks": 1,
            "layers_block_type": ["mamba", "hybrid"] * 2,
            "use_mem_rope": True,
            "adapter_rank": 4,
        },
    ),
    "kimi-linear": (
        "KimiLinearForCausalLM",
        "KimiLinear",
        {
            **_LATENT,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
}
_OTHERS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "deberta-v1": (
        "DebertaForMaskedLM",
        "Deberta",
        {**_SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        text,
    ),
    "flaubert": (
        "FlaubertWithLMHeadModel",
        "Flaubert",
        {"vocab_size": 96, "emb_dim": WIDTH, "n_layers": 2, "n_heads": 4},
        text,
    ),
    "xmod": (
        "XmodForMaskedLM",
        "Xmod",
        {**_SIZES, "languages": ["en_XX"], "default_language": "en_XX"},
        text,
    ),
    "mbart": ("MBartForConditionalGeneration", "MBart", {**_BOTH}, _pair),
    "m2m-100": ("M2M100ForConditionalGeneration", "M2M100", {**_BOTH}, _pair),
    "mvp": ("MvpForConditionalGeneration", "Mvp", {**_BOTH}, _pair),
    "pegasus-x": (
        "PegasusXForConditionalGeneration",
        "PegasusX",
        {**_BOTH, "block_size": 8, "num_global_tokens": 4},
        _pair,
    ),
    "nllb-moe": (
        "NllbMoeForConditionalGeneration",
        "NllbMoe",
        {**_BOTH, "num_experts": 4, "expert_capacity": 8},
        _pair,
    ),
    "sew-d": (
        "SEWDForCTC",
        "SEWD",
        {
            **_SOUND,
            "squeeze_factor": 2,
            "num_feat_extract_layers": 2,
            "position_buckets": 8,
            "max_position_embeddings": 64,
        },
        _wave,
    ),
    "unispeech-sat": ("UniSpeechSatForCTC", "UniSpeechSat", {**_SOUND}, _wave),
    "data2vec-audio": (
        "Data2VecAudioForCTC",
        "Data2VecAudio",
        {**_SOUND, "conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2},
        _wave,
    ),
    "encodec": (
        "EncodecModel",
        "Encodec",
        {
            "num_filters": 4,
            "hidden_size": 16,
            "codebook_dim": 16,
            "codebook_size": 32,
            "upsampling_ratios": [4, 2],
            "num_lstm_layers": 1,
        },
        _sound,
    ),
    "dac": (
        "DacModel",
        "Dac",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "decoder_hidden_size": 32,
            "n_codebooks": 2,
            "codebook_size": 32,
            "codebook_dim": 4,
        },
        _sound,
    ),
    "glpn": (
        "GLPNForDepthEstimation",
        "GLPN",
        {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 8,
        },
        _image(64),
    ),
    "mobilevitv2": (
        "MobileViTV2ForImageClassification",
        "MobileViTV2",
        {"width_multiplier": 0.25, "image_size": 64, "n_attn_blocks": [1, 1, 1]},
        _image(64),
    ),
    "dinov2-registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegisters",
        {**_PATCHES, "num_register_tokens": 2},
        _image(32),
    ),
    "ijepa": ("IJepaModel", "IJepa", {**_PATCHES}, _image(32)),
    "vitdet": (
        "VitDetModel",
        "VitDet",
        {
            **_PATCHES,
            "window_size": 2,
            "window_block_indices": [0],
            "use_relative_position_embeddings": True,
            "pretrain_image_size": 32,
        },
        _image(32),
    ),
    "vit-msn": ("ViTMSNForImageClassification", "ViTMSN", {**_PATCHES}, _image(32)),
    "aimv2": ("Aimv2VisionModel", "Aimv2Vision", {**_PATCHES}, _image(32)),
    "swin2sr": (
        "Swin2SRForImageSuperResolution",
        "Swin2SR",
        {
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "image_size": 32,
        },
        _image(32),
    ),
    "bit": (
        "BitForImageClassification",
        "Bit",
        {
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "embedding_size": 8,
            "num_groups": 4,
        },
        _image(64),
    ),
    "hgnet-v2": (
        "HGNetV2ForImageClassification",
        "HGNetV2",
        {
            "stage_in_channels": [8, 8, 16, 16],
            "stage_mid_channels": [4, 4, 8, 8],
            "stage_out_channels": [8, 16, 16, 32],
            "stage_num_blocks": [1, 1, 1, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
            "stem_channels": [3, 8, 8],
            "hidden_sizes": [8, 16, 16, 32],
        },
        _image(64),
    ),
    "resnet-v1": (
        "ResNetForImageClassification",
        "ResNet",
        {"embedding_size": 8, **_STAGES, "layer_type": "bottleneck"},
        _image(64),
    ),
    "mobilenet-v1": (
        "MobileNetV1ForImageClassification",
        "MobileNetV1",
        {"depth_multiplier": 0.25, "image_size": 64},
        _image(64),
    ),
    "vivit": (
        "VivitForVideoClassification",
        "Vivit",
        {**_PATCHES, "num_frames": 4, "tubelet_size": [2, 8, 8]},
        _frames,
    ),
    "imagegpt": (
        "ImageGPTForCausalImageModeling",
        "ImageGPT",
        {"vocab_size": 96, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64},
        text,
    ),
    "blip-vision": ("BlipVisionModel", "BlipVision", {**_PATCHES}, _image(32)),
    "groupvit": (
        "GroupViTVisionModel",
        "GroupViTVision",
        {
            **_PATCHES,
            "depths": [1, 1],
            "num_group_tokens": [4, 0],
            "num_output_groups": [4, 2],
            "hidden_size": 32,
            "num_hidden_layers": 2,
        },
        _image(32),
    ),
    "lilt": (
        "LiltForTokenClassification",
        "Lilt",
        {**_SIZES, "hidden_size": 48, "channel_shrink_ratio": 4},
        _boxed,
    ),
}

_TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "mixer": ("mlp_mixer.MlpMixer", {"img_size": 64, "num_blocks": 2, "embed_dim": 32}),
    "convmixer": ("convmixer.ConvMixer", {"dim": 32, "depth": 2}),
    "xcit": ("xcit.Xcit", {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 4}),
    "cait": ("cait.Cait", {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 4}),
    "edgenext": ("edgenext.EdgeNeXt", {"dims": [8, 16, 16, 32], "depths": [1, 1, 2, 2]}),
    "davit": (
        "davit.DaVit",
        {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32], "num_heads": [1, 1, 2, 2]},
    ),
    "starnet": ("starnet.StarNet", {"base_dim": 8, "depths": [1, 1, 1, 1]}),
    "fastvit": (
        "fastvit.FastVit",
        {
            "layers": [1, 1, 1, 1],
            "embed_dims": [8, 16, 16, 32],
            "token_mixers": ["repmixer"] * 3 + ["attention"],
        },
    ),
}


def _timm(name: str, known: str, sizes: dict[str, Any]) -> Architecture:
    module, _, model = known.partition(".")

    def build() -> Any:
        return Named(getattr(imported(f"timm.models.{module}"), model)(num_classes=10, **sizes))

    return Architecture(f"timm-{name}", "timm", build, image(64))


MODELS: tuple[Architecture, ...] = (
    *(_model(k, *v, text, generates=True) for k, v in _TEXTS.items()),
    *(_model(k, *v, generates=False) for k, v in _OTHERS.items()),
    *(_timm(k, *v) for k, v in _TIMM.items()),
)
