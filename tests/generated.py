"""The most used families of language models in transformers, with few narrow layers and random weights."""

from typing import Any

import torch

_SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_TOKENS: dict[str, Any] = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 1}
_PLAIN = {**_SIZES, **_TOKENS, "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.4}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_WINDOW = {"sliding_window": 6}
_NARROW = {"head_dim": 8}
_HYBRID = {"layer_types": ["sliding_attention", "full_attention"]}
_OF_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.4}
_ENCODER: dict[str, Any] = {"vocab_size": 61, "d_model": 32, **_TOKENS}
_OF_BART = {
    f"{part}_{size}": n
    for part in ("encoder", "decoder")
    for size, n in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()
}

FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED, "full"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED, "full"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, **_NARROW}, "full"),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, **_WINDOW}, "sliding"),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**_GROUPED, **_NARROW}, "full"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GROUPED, **_NARROW, **_WINDOW}, "hybrid"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_GROUPED, **_NARROW, **_WINDOW, **_HYBRID}, "hybrid"),
    "phi": ("PhiForCausalLM", "PhiConfig", _GROUPED, "full"),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, **_WINDOW}, "sliding"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**_OF_GPT2, **_TOKENS, "vocab_size": 61}, "full"),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _PLAIN, "full"),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_SIZES, **_TOKENS, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64, "init_std": 0.4},
        "full",
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", {**_SIZES, **_TOKENS, "initializer_range": 0.4}, "full"),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4, **_TOKENS, "initializer_range": 0.4},
        "full",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **_ENCODER,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "initializer_factor": 3.0,
        },
        "encoder",
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            **_ENCODER,
            **_OF_BART,
            "max_position_embeddings": 64,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
            "init_std": 0.4,
        },
        "encoder",
    ),
}
"""The model, its configuration, and the kind of its cache."""


def family(name: str) -> Any:
    """A model of a family."""
    import transformers

    model, config, sizes, _ = FAMILIES[name]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
