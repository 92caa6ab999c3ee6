"""Specs of ``transformers:CONFIG``: a model type, a class, or a configuration file; always with random weights."""

import difflib
import inspect
import json
from pathlib import Path
from typing import Any

import torch

from .subject import SpecError, Subject

__all__ = ["build_transformers"]

_LENGTH = 16
_SECONDS_OF_SOUND = 0.5
_SAMPLES_PER_SECOND = 16_000

# What makes a configuration small, under the names that configurations have for it.
_SMALL: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "ffn_hidden_size"), 128),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 128),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    "vocab_size": 512,
    "projection_dim": 32,
    "image_size": 64,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def build_transformers(name: str) -> Subject:
    """A model of transformers, small unless a configuration file says otherwise, with inputs for its signature."""
    import transformers

    transformers.logging.set_verbosity_error()
    config, model_class = _configuration(name, transformers)
    try:
        model = model_class._from_config(config) if model_class else transformers.AutoModel.from_config(config)
    except Exception as error:
        raise SpecError(f"transformers:{name} cannot be built: {_first_line(error)}") from None
    return Subject(f"transformers:{name}", model.eval(), kwargs=_inputs(model))


def _configuration(name: str, transformers) -> tuple[Any, Any]:
    """The configuration, and the class of the model where the name decides it."""
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        return _from_file(path / "config.json" if path.is_dir() else path, transformers)
    if name in transformers.CONFIG_MAPPING.keys():  # noqa: SIM118  (it is no plain dict)
        return _small(transformers.CONFIG_MAPPING[name]), None
    found = getattr(transformers, name, None) if name.isidentifier() else None
    if isinstance(found, type) and issubclass(found, transformers.PretrainedConfig):
        return _small(found), None
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class:
        return _small(found.config_class), found
    near = difflib.get_close_matches(name, transformers.CONFIG_MAPPING.keys(), n=3)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    raise SpecError(f"transformers has no model type, configuration or model {name!r}{hint}")


def _from_file(path: Path, transformers) -> tuple[Any, Any]:
    try:
        values = json.loads(path.read_text())
        config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except FileNotFoundError:
        raise SpecError(f"no configuration file {path}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"{path} is no configuration of a model: {_first_line(error)}") from None
    architecture = next(iter(values.get("architectures") or ()), "")
    return config, getattr(transformers, architecture, None)


def _small(config_class) -> Any:
    """A configuration with few, narrow layers; configurations within it likewise."""
    overrides = _overrides(config_class)
    try:
        return config_class(**overrides)
    except Exception as error:
        raise SpecError(f"{config_class.__name__} cannot be made small: {_first_line(error)}") from None


def _overrides(config_class) -> dict[str, Any]:
    default = config_class()
    if isinstance(getattr(default, "depths", None), (list, tuple)):
        return {}  # a pyramid of stages: its sizes hang together, and it is small as it is
    names = {default.attribute_map.get(name, name): value for name, value in {**_SMALL, **_TOKENS}.items()}
    overrides: dict[str, Any] = {
        name: value
        for name, value in names.items()
        if type(getattr(default, name, None)) is int and not isinstance(getattr(config_class, name, None), property)
    }
    for name, inner in config_class.sub_configs.items():
        if hasattr(inner, "model_type") and getattr(default, name, None) is not None:
            overrides[name] = _overrides(inner)
    return overrides


def _inputs(model) -> dict[str, torch.Tensor]:
    """Random inputs by name, for those of its parameters that a model of its kind needs."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    parameters = inspect.signature(model.forward).parameters
    text, vision = config.get_text_config(), getattr(config, "vision_config", config)

    def ids() -> torch.Tensor:
        return torch.randint(3, text.vocab_size, (1, _LENGTH), generator=generator)

    def image() -> torch.Tensor:
        size = getattr(vision, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return torch.randn(1, getattr(vision, "num_channels", 3), height, width, generator=generator)

    def spectrogram() -> torch.Tensor:
        return torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)

    def sound() -> torch.Tensor:
        return torch.randn(1, int(_SECONDS_OF_SOUND * _SAMPLES_PER_SECOND), generator=generator)

    makers = {"pixel_values": image, "input_features": spectrogram, "input_values": sound}
    wanted = {name: make for name, make in makers.items() if name in parameters}
    if "input_ids" in parameters and hasattr(text, "vocab_size"):
        wanted["input_ids"] = ids
        if "attention_mask" in parameters:
            wanted["attention_mask"] = lambda: torch.ones(1, _LENGTH, dtype=torch.int64)
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted["decoder_input_ids"] = ids
    first = model.main_input_name
    return {name: wanted[name]() for name in sorted(wanted, key=lambda name: name != first)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
