"""Text and sound: architectures of transformers with two layers of width 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, imported

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 64, 4, 2, 128, 128

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
}
_DECODER = {**_SIZES, "num_key_value_heads": 2, "use_cache": False, "bos_token_id": 1}
_DECODER |= {"eos_token_id": 2, "pad_token_id": 0}
_HEAD = {**_DECODER, "head_dim": WIDTH // HEADS}


def tokens(batch: int, length: int) -> Any:
    """Random tokens, none of them one that ends a text."""
    generator = torch.Generator().manual_seed(batch * length)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def _text(batch: int, length: int) -> Inputs:
    return {"input_ids": tokens(batch, length)}


def _pair(batch: int, length: int) -> Inputs:
    return {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, length + 2)}


def _wave(batch: int, length: int) -> Inputs:
    generator = torch.Generator().manual_seed(batch)
    return {"input_values": torch.randn(batch, 64 * length, generator=generator)}


def _spectrum(batch: int, length: int) -> Inputs:
    generator = torch.Generator().manual_seed(batch)
    sound = torch.randn(batch, 16, 64, generator=generator)
    return {"input_features": sound, "decoder_input_ids": tokens(batch, length)}


def _clip(batch: int, length: int) -> Inputs:
    generator = torch.Generator().manual_seed(batch)
    image = torch.randn(batch, 3, 32, 32, generator=generator)
    return {"input_ids": tokens(batch, length), "pixel_values": image}


def _built(config: str, model: str, sizes: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        t = imported("transformers")
        return getattr(t, model)(getattr(t, config)(**sizes))

    return build


def _model(
    name: str,
    stem: str,
    head: str,
    sizes: dict[str, Any],
    inputs: Callable[[int, int], Inputs] = _text,
    *,
    generates: bool = False,
) -> Architecture:
    build = _built(f"{stem}Config", f"{stem.removesuffix('Text')}{head}", sizes)
    return Architecture(name, "transformers", build, inputs, generates)


def _decoder(name: str, stem: str, sizes: dict[str, Any] = _DECODER, **more: Any) -> Architecture:
    return _model(name, stem, "ForCausalLM", sizes | more, generates=True)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT2 = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": POSITIONS}
_GPT2 |= {"vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"d_model": WIDTH, "d_ff": 2 * WIDTH, "d_kv": WIDTH // HEADS, "num_heads": HEADS}
_T5 |= {"num_layers": LAYERS, "vocab_size": VOCABULARY, "use_cache": False}
_BART = {"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "use_cache": False}
_BART |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
_BART |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": VOCABULARY}
_BART |= {"max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2}
_BART |= {"pad_token_id": 0, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
_WHISPER = {**_BART, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64}
_WAVES = {**_SIZES, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
_WAVES |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "mask_time_prob": 0.0}
_WAVES |= {"num_conv_pos_embedding_groups": 4, "layerdrop": 0.0}
_TOWER = {"hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": HEADS}
_TOWER |= {"num_hidden_layers": LAYERS, "projection_dim": WIDTH}
_CLIP = {
    "text_config": {**_TOWER, "vocab_size": VOCABULARY, "eos_token_id": 2, "bos_token_id": 1},
    "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8},
    "projection_dim": WIDTH,
}
_LATENT = {**_DECODER, "num_key_value_heads": HEADS, "q_lora_rank": 32, "kv_lora_rank": 16}
_LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 2}
_LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT |= {"topk_group": 1, "first_k_dense_replace": 1}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "state_size": 8, "use_cache": False}
_MAMBA |= {"num_hidden_layers": LAYERS}

MODELS: tuple[Architecture, ...] = (
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral", sliding_window=8),
    _decoder("qwen2", "Qwen2"),
    _decoder("qwen3", "Qwen3", _HEAD),
    _decoder("gemma", "Gemma", _HEAD),
    _decoder("gemma2", "Gemma2", _HEAD, sliding_window=8),
    _decoder("gemma3", "Gemma3Text", _HEAD, sliding_window=8),
    _decoder("phi", "Phi"),
    _decoder("phi3", "Phi3"),
    _decoder("olmo2", "Olmo2"),
    _decoder("cohere", "Cohere"),
    _decoder("stablelm", "StableLm"),
    _decoder("falcon", "Falcon", _SIZES, use_cache=False, bos_token_id=1, eos_token_id=2),
    _decoder("gpt-neox", "GPTNeoX", _SIZES, use_cache=False, bos_token_id=1, eos_token_id=2),
    _model("gpt2", "GPT2", "LMHeadModel", _GPT2, generates=True),
    _decoder("opt", "OPT", _SIZES, ffn_dim=128, word_embed_proj_dim=WIDTH, use_cache=False),
    _decoder(
        "bloom", "Bloom", {"vocab_size": VOCABULARY, "hidden_size": WIDTH}, n_layer=2, n_head=4
    ),
    _decoder("mixtral", "Mixtral", num_local_experts=4),
    _decoder("qwen3-moe", "Qwen3Moe", _HEAD, **_EXPERTS),
    _decoder("deepseek-v3", "DeepseekV3", _LATENT),
    _decoder("mamba", "Mamba", _MAMBA),
    _decoder(
        "mamba2", "Mamba2", _MAMBA, num_heads=8, head_dim=16, n_groups=2, chunk_size=8, expand=2
    ),
    _decoder("rwkv", "Rwkv", {"vocab_size": VOCABULARY, "hidden_size": WIDTH}, num_hidden_layers=2),
    _model("bert", "Bert", "ForMaskedLM", _SIZES),
    _model("roberta", "Roberta", "ForMaskedLM", _SIZES, _text),
    _model(
        "distilbert",
        "DistilBert",
        "ForMaskedLM",
        {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY},
    ),
    _model("albert", "Albert", "ForMaskedLM", {**_SIZES, "embedding_size": 32}),
    _model("electra", "Electra", "ForMaskedLM", {**_SIZES, "embedding_size": 32}),
    _model(
        "deberta-v2",
        "DebertaV2",
        "ForMaskedLM",
        {
            **_SIZES,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 16,
        },
    ),
    _model(
        "xlnet",
        "XLNet",
        "LMHeadModel",
        {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": VOCABULARY},
    ),
    _model(
        "funnel",
        "Funnel",
        "ForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
        },
    ),
    _model("t5", "T5", "ForConditionalGeneration", _T5, _pair),
    _model("bart", "Bart", "ForConditionalGeneration", _BART, _pair),
    _model("pegasus", "Pegasus", "ForConditionalGeneration", _BART, _pair),
    _model("whisper", "Whisper", "ForConditionalGeneration", _WHISPER, _spectrum),
    _model("wav2vec2", "Wav2Vec2", "ForCTC", _WAVES, _wave),
    _model("hubert", "Hubert", "Model", _WAVES, _wave),
    _model("clip", "CLIP", "Model", _CLIP, _clip),
)
