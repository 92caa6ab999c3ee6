"""Small configurations of transformers models: few, narrow layers, by the names that configurations use."""

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["small_configurations"]

_WIDTHS: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    "backbone_hidden_size": 64,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_head_dim", "kv_lora_rank", "q_lora_rank", "projection_dim"), 32),
    "rotary_dim": 8,
    "image_size": 64,
}
_COUNTS: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "depth", "num_encoder_layers"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "ffn_hidden_size", "mlp_dim"), 128),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "block_ff_dim"), 128),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "n_group"), 2),
    **dict.fromkeys(("topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("linear_num_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("vocab_size", "text_vocab_size"), 512),
    "linear_num_key_heads": 2,
    "prediction_length": 8,  # that a configuration may leave open
}
_MOST = {"context_length": 512, "depth_coefficient": 1.0}  # of a series; of EfficientNets
_SMALL_IMAGES = {**_MOST, "image_size": 224}
# Heads of a usual size, whose parts a configuration may count: they make up what positions are told by.
_WIDER: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "backbone_hidden_size", "d_model", "n_embd", "dim"), 512),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    "head_dim": 128,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_FIRST_TOKEN = 3  # of those that stand for something else than text
_LEFT_OPEN = {"prediction_length", "vocab_size", "pad_token_id"}


def small_configurations(config_class: type) -> Iterator[Any]:
    """Configurations, the smallest first: sizes may hang together in a way that only the larger ones leave as it is.

    Raises:
        Exception: what the last of them raises, where there is none.
    """
    found, failure = 0, None
    narrow, wider, default = {**_COUNTS, **_WIDTHS}, {**_COUNTS, **_WIDER}, {}
    for sizes, most in (
        *((narrow, _MOST), (wider, _MOST), (_COUNTS, _MOST)),
        *((default, _SMALL_IMAGES), (default, _MOST)),
    ):
        try:
            config = config_class(**_overrides(config_class(), {**sizes, **_TOKENS}, most))
        except Exception as error:
            failure = error
            continue
        found += 1
        yield config
        if getattr(config, "use_cache", False):  # which asks for a layer of attention, among the few
            config.use_cache = False
            yield config
    if not found and failure:
        raise failure


def _overrides(default: Any, sizes: dict[str, int], limits: dict[str, float]) -> dict[str, Any]:
    """What makes a configuration of these sizes, within these limits, and those within it likewise."""
    kind = type(default)
    pyramid = isinstance(getattr(default, "depths", None), (list, tuple))  # its sizes hang together, and are small
    if hasattr(default, "kv_lora_rank") and "num_attention_heads" in sizes:  # of latent attention all heads have keys
        sizes = {**sizes, "num_key_value_heads": sizes["num_attention_heads"]}
    names = {} if pyramid else {default.attribute_map.get(name, name): value for name, value in sizes.items()}
    overrides: dict[str, Any] = {
        name: value
        for name, value in names.items()
        if type(getattr(default, name, None)) is int or (name in _LEFT_OPEN and hasattr(default, name))
        if not isinstance(getattr(kind, name, None), property)
    }
    for name, most in limits.items():
        if isinstance(given := getattr(default, name, None), int | float) and given > most:
            overrides.setdefault(name, most)
    if "vocab_size" in overrides or default.sub_configs:
        special = (name for name, value in vars(default).items() if type(value) is int and name not in _TOKENS)
        tokens = sorted(name for name in special if re.search(r"_token_(id|index)$", name))
        overrides |= {name: _FIRST_TOKEN + i for i, name in enumerate(tokens)}
    for name in default.sub_configs:
        inner = getattr(default, name, None)
        if hasattr(inner, "model_type") and hasattr(inner, "sub_configs"):
            overrides[name] = {**_kept(inner), **_overrides(inner, sizes, limits)}
    return overrides


def _kept(inner: Any) -> dict[str, Any]:
    """What the configuration around sets in one within it, but for sizes and what hangs together with them."""
    changed = inner.to_diff_dict()
    backbone = inner.model_type == "timm_backbone" or hasattr(inner, "out_features")
    kept = changed if backbone else {name: x for name, x in changed.items() if isinstance(x, (str, bool))}
    return {**kept, "model_type": inner.model_type}
