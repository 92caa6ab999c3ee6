"""Example inputs for transformers models, guessed from their signatures and configurations."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["guesses"]

_LENGTH = 16
_PADDING = 4
_FIRST_WORD = 32  # what is below may stand for images, or for an end
_SECONDS_OF_SOUND = 0.5
_SAMPLES_PER_SECOND = 16_000
_FRAMES = 100  # of a spectrogram


def guesses(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Random inputs by name, the most likely and richest first."""
    guess = _Guess(model)
    known = guess.known()
    main = model.main_input_name
    text = {name: known[name] for name in known if name.endswith(("input_ids", "attention_mask"))}
    if with_images := guess.words_with_images(known):
        yield with_images
    yield _first(main, {name: tensors[0] for name, tensors in known.items()})
    if text and len(text) < len(known):
        yield {name: tensors[0] for name, tensors in text.items()}
    for name, tensors in known.items():
        for tensor in tensors:
            if len(known) > 1:
                everything = {other: x[0] for other, x in known.items()}
                yield _first(main, {**everything, name: tensor})
                yield _first(main, {**{other: x for other, x in everything.items() if other not in text}, name: tensor})
            yield _first(main, {**guess.required(), name: tensor})
    if not known:
        yield guess.required()


def _first(main: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: inputs[name] for name in sorted(inputs, key=lambda name: name != main)}


class _Guess:
    """What a model may be given, of each argument by its name."""

    def __init__(self, model: Any):
        self._model, self._config = model, model.config
        self._generator = torch.Generator().manual_seed(0)
        self._parameters = inspect.signature(model.forward).parameters
        self._text = self._config.get_text_config()
        self._vision = getattr(self._config, "vision_config", None) or self._config
        self._sound = getattr(self._config, "audio_config", None) or self._config

    def known(self) -> dict[str, list[torch.Tensor]]:
        """Tensors of likely shapes, for the arguments that models of their kind need."""
        makers = {
            "pixel_values": self._images,
            "pixel_values_videos": self._videos,
            "input_features": self._spectrograms,
            "input_values": self._sounds,
            "past_values": self._series,
            "noise_sequence": self._noise,
            "noise": self._order,
        }
        found = {name: make() for name, make in makers.items() if name in self._parameters}
        if "input_ids" in self._parameters:
            found["input_ids"] = self._words()
            if "attention_mask" in self._parameters:
                found["attention_mask"] = [_mask()]
            if "bbox" in self._parameters:
                found["bbox"] = [self._of_name("bbox")]
        if self._config.is_encoder_decoder and "decoder_input_ids" in self._parameters:
            found["decoder_input_ids"] = self._words()
        return {name: tensors for name, tensors in found.items() if tensors}

    def required(self) -> dict[str, torch.Tensor]:
        """Tensors for the arguments without a default."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [name for name, x in self._parameters.items() if x.default is x.empty and x.kind in kinds]
        known = self.known()
        return {name: known[name][0] if name in known else self._of_name(name) for name in names}

    def words_with_images(self, known: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor] | None:
        """Words among which as many stand for an image as the model makes of it."""
        token = _number(self._config, "image_token_id", "image_token_index")
        if token is None or not {"input_ids", "pixel_values"} <= known.keys():
            return None
        image, (words, *_) = known["pixel_values"][0], known["input_ids"]
        try:
            with torch.no_grad():
                features = self._model.get_image_features(pixel_values=image)
        except Exception:  # it takes something else, or has no such method
            return None
        features = getattr(features, "pooler_output", features)
        features = torch.cat(list(features)) if isinstance(features, (list, tuple)) else features
        places = torch.full((1, features[..., 0].numel()), token)
        inputs = {"input_ids": torch.cat([words[:, :2], places, words[:, 2:]], 1), "pixel_values": image}
        if "attention_mask" in known:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["attention_mask"][:, -_PADDING:] = 0
        return inputs

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def _words(self) -> list[torch.Tensor]:
        size = _number(self._text, "vocab_size", "num_hash_buckets") or 256
        below = min(_FIRST_WORD, size // 2)
        books = _number(self._config, "num_codebooks", "num_quantizers", "n_codes_total")
        shapes = [(1, _LENGTH)] + ([(books, _LENGTH), (1, _LENGTH, books), (1, books, _LENGTH)] if books else [])
        return [torch.randint(below, size, shape, generator=self._generator) for shape in shapes]

    def _images(self) -> list[torch.Tensor]:
        config = self._vision
        backbone = getattr(config, "backbone_config", None)
        channels = _number(config, "num_channels", "in_channels", "in_chans") or 3
        found = []
        for size in (_size(config), _size(backbone), 224, 64, 384):
            if size:
                height, width = size if isinstance(size, (list, tuple)) else (size, size)
                found.append(self._random(1, channels, height, width))
        patch = _number(config, "patch_size")
        if patch:
            found += [self._random(1, 16, channels * patch**2), self._random(16, channels * patch**2)]
        return [*self._videos(), *found] if _number(config, "num_frames") else [*found, found[0][:, None]]

    def _videos(self) -> list[torch.Tensor]:
        config = self._vision
        size, frames = _size(config) or 224, _number(config, "num_frames") or 2
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = _number(config, "num_channels", "in_channels") or 3
        return [self._random(1, frames, channels, height, width), self._random(1, channels, frames, height, width)]

    def _spectrograms(self) -> list[torch.Tensor]:
        config = self._sound
        bins = _number(
            config,
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_feat_size",
            "feature_projection_input_dim",
            "input_dim",
            "mel_bins",
            "hidden_size",
        )
        bins = bins or 80
        length = _number(config, "max_source_positions")
        shapes: list[tuple[int, ...]] = [(1, bins, 2 * length)] if length else []
        shapes += [(1, _FRAMES, bins), (1, bins, _FRAMES), (1, 1, 1024, bins)]
        return [self._random(*shape) for shape in shapes]

    def _noise(self) -> list[torch.Tensor]:
        """What a vocoder otherwise draws for each frame."""
        return [self._random(1, _FRAMES, _number(self._config, "model_in_channels") or 1)]

    def _order(self) -> list[torch.Tensor]:
        """What orders the patches of which a masked autoencoder sees the first, which it otherwise draws."""
        size, patch = _size(self._config), _number(self._config, "patch_size")
        return [torch.rand(1, (size // patch) ** 2, generator=self._generator)] if type(size) is int and patch else []

    def _sounds(self) -> list[torch.Tensor]:
        samples = int(_SECONDS_OF_SOUND * _SAMPLES_PER_SECOND)
        shapes = [(1, samples), (1, 1, samples)]
        if (bins := _number(self._sound, "num_mel_bins")) is not None:
            shapes.append((1, _number(self._sound, "max_length") or _FRAMES, bins))
        return [self._random(*shape) for shape in shapes]

    def _series(self) -> list[torch.Tensor]:
        length = _number(self._config, "context_length", "prediction_length") or _LENGTH
        lags = max(getattr(self._config, "lags_sequence", None) or [0])
        channels = _number(self._config, "num_input_channels", "input_size") or 1
        shapes = [(1, length, channels), (1, length), (1, length + lags), (1, length + lags, channels)]
        return [self._random(*shape) for shape in shapes]

    def _of_name(self, name: str) -> torch.Tensor:
        config = self._config
        width = _number(config, "hidden_size", "d_model", "dim", "embed_dim") or 64
        if name in ("image", "images", "pixel_values"):
            return self._images()[0]
        if name.endswith("mask"):
            return torch.ones(1, _LENGTH, dtype=torch.int64)
        if name == "position_ids":
            return torch.arange(_LENGTH)[None]
        if name == "bbox":
            return torch.randint(10, (1, _LENGTH, 1), generator=self._generator).expand(-1, -1, 4).contiguous()
        if name.endswith(("_ids", "codes", "indices")):
            return torch.randint(8, (1, _LENGTH), generator=self._generator)
        if name.endswith(("time_features",)):
            length = _number(config, "context_length", "prediction_length") or _LENGTH
            length += max(getattr(config, "lags_sequence", None) or [0])
            return self._random(1, length, _number(config, "num_time_features") or 0)
        if name == "spectrogram":
            return self._random(1, _LENGTH, _number(config, "model_in_dim") or 80)
        if name.endswith("observed_mask"):
            return torch.ones_like(self._series()[0])
        return self._random(1, _LENGTH, width)


def _mask() -> torch.Tensor:
    """One with padding at the end, as one of ones is what models leave out where they see that."""
    mask = torch.ones(1, _LENGTH, dtype=torch.int64)
    mask[:, -_PADDING:] = 0
    return mask


def _size(config: Any) -> Any:
    return getattr(config, "image_size", None) or getattr(config, "input_size", None)


def _number(config: Any, *names: str) -> int | None:
    return next((value for name in names if type(value := getattr(config, name, None)) is int), None)
