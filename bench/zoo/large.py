"""Architectures in sizes that are measured: real widths, few layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.zoo import Architecture, Inputs, imported
from bench.zoo.vision import Named, image

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 1024, 16, 4, 32000, 2048

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
}
_DECODER = {**_TEXT, "num_key_value_heads": HEADS // 2, "use_cache": False, "bos_token_id": 1}
_DECODER |= {"eos_token_id": 2, "pad_token_id": 0, "intermediate_size": 3 * WIDTH}
_HEAD = {**_DECODER, "head_dim": WIDTH // HEADS}
_GPT2 = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_positions": POSITIONS}
_GPT2 |= {"vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"d_model": WIDTH, "d_ff": 4 * WIDTH, "d_kv": WIDTH // HEADS, "num_heads": HEADS}
_T5 |= {"num_layers": LAYERS, "vocab_size": VOCABULARY, "use_cache": False}
_BART = {"d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "use_cache": False}
_BART |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
_BART |= {"encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH, "vocab_size": VOCABULARY}
_BART |= {"max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2}
_BART |= {"pad_token_id": 0, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
_WHISPER = {**_BART, "num_mel_bins": 80, "max_source_positions": 750}
_WHISPER |= {"max_target_positions": 448}
_DEBERTA = {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_DEBERTA |= {"position_buckets": 256}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "state_size": 16, "use_cache": False}
_MAMBA |= {"num_hidden_layers": 2}
_VIT = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
_VIT |= {"intermediate_size": 3072, "image_size": 224, "patch_size": 16}


def tokens(batch: int, length: int) -> Any:
    """Random tokens, none of them one that ends a text."""
    return torch.randint(3, VOCABULARY, (batch, length))


def _text(batch: int, length: int) -> Inputs:
    return {"input_ids": tokens(batch, length)}


def _pair(batch: int, length: int) -> Inputs:
    return {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, length // 2)}


def _spectrum(batch: int, length: int) -> Inputs:
    sound = torch.randn(batch, 80, 1500)
    return {"input_features": sound, "decoder_input_ids": tokens(batch, min(length, 448))}


def _named(
    name: str,
    stem: str,
    head: str,
    sizes: dict[str, Any],
    inputs: Callable[[int, int], Inputs] = _text,
) -> Architecture:
    def build() -> Any:
        t = imported("transformers")
        config = getattr(t, f"{stem}Config")(**sizes)
        return getattr(t, f"{stem.removesuffix('Text')}{head}")(config)

    return Architecture(name, "transformers", build, inputs)


def _decoder(name: str, stem: str, sizes: dict[str, Any] = _DECODER, **more: Any) -> Architecture:
    return _named(name, stem, "ForCausalLM", {**sizes, **more})


def _timm(name: str, **more: Any) -> Architecture:
    def build() -> Any:
        return Named(imported("timm").create_model(name, num_classes=1000, **more))

    return Architecture(name, "timm", build, image(224))


def _torchvision(name: str) -> Architecture:
    def build() -> Any:
        return Named(getattr(imported("torchvision.models"), name)(num_classes=1000))

    return Architecture(name, "torchvision", build, image(224))


MODELS: tuple[Architecture, ...] = (
    _decoder("llama", "Llama"),
    _decoder("qwen3", "Qwen3", _HEAD),
    _decoder("gemma3", "Gemma3Text", _HEAD, sliding_window=256),
    _decoder("phi3", "Phi3"),
    _decoder("olmo2", "Olmo2"),
    _decoder("gpt-neox", "GPTNeoX", _TEXT, use_cache=False, bos_token_id=1, eos_token_id=2),
    _decoder("opt", "OPT", _TEXT, ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH, use_cache=False),
    _named("gpt2", "GPT2", "LMHeadModel", _GPT2),
    _decoder("mixtral", "Mixtral", num_local_experts=8, num_hidden_layers=2),
    _decoder("mamba", "Mamba", _MAMBA),
    _named("bert", "Bert", "ForMaskedLM", _TEXT),
    _named("roberta", "Roberta", "ForMaskedLM", _TEXT),
    _named("electra", "Electra", "ForMaskedLM", {**_TEXT, "embedding_size": 512}),
    _named("albert", "Albert", "ForMaskedLM", {**_TEXT, "embedding_size": 128}),
    _named("deberta-v2", "DebertaV2", "ForMaskedLM", _DEBERTA),
    _named("t5", "T5", "ForConditionalGeneration", _T5, _pair),
    _named("bart", "Bart", "ForConditionalGeneration", _BART, _pair),
    _named("whisper", "Whisper", "ForConditionalGeneration", _WHISPER, _spectrum),
    _named("vit", "ViT", "ForImageClassification", _VIT, image(224)),
    _named("beit", "Beit", "ForImageClassification", _VIT, image(224)),
    _timm("deit3_small_patch16_224", depth=6),
    _timm("mixer_s16_224"),
    _timm("convnext_tiny"),
    _timm("swin_tiny_patch4_window7_224"),
    _timm("efficientnet_b0"),
    _timm("mambaout_tiny"),
    _torchvision("resnet50"),
    _torchvision("mobilenet_v3_large"),
    _torchvision("regnet_y_1_6gf"),
    _torchvision("densenet121"),
    _torchvision("shufflenet_v2_x1_0"),
    _torchvision("vgg11_bn"),
)
