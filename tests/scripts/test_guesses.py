"""Configurations and inputs that are guessed for models of transformers: what is guessed runs in PyTorch."""

import pytest
import torch

from scripts.models.building import build_transformers
from torch2jax.tools.models import define_vision_operators

define_vision_operators()
pytest.importorskip("transformers")

# A model for each thing that a guess has to know.
GUESSED = {
    "bert": {"input_ids", "attention_mask"},
    "bros": {"input_ids", "attention_mask", "bbox"},
    "align_text_model": {"input_ids", "attention_mask"},  # no `AutoModel` of it
    "bamba": {"input_ids", "attention_mask"},  # of two layers none has attention, which a cache asks for
    "deepseek_v3": {"input_ids", "attention_mask"},  # sizes of heads that hang together
    "esm": {"input_ids", "attention_mask"},  # sizes that are left open
    "kimi_linear": {"input_ids", "attention_mask"},  # heads of linear attention, counted apart
    "qwen2_vl_text": {"input_ids", "attention_mask"},  # parts of a head that are counted
    "blip_text_model": {"input_ids", "attention_mask"},  # a file of its own
    "speech_to_text": {"input_features", "decoder_input_ids"},  # the other order of a spectrogram
    "llava": {"input_ids", "attention_mask", "pixel_values"},  # configurations within, by their types
    "whisper": {"input_features", "decoder_input_ids"},
    "audio-spectrogram-transformer": {"input_values"},
    "vivit": {"pixel_values"},
    "vit_mae": {"pixel_values", "noise"},  # which would be drawn
    "autoformer": {"past_values", "past_time_features", "past_observed_mask"},
}


@pytest.mark.models
@pytest.mark.parametrize("name", GUESSED)
def test_what_is_guessed_runs(name):
    subject = build_transformers(name)
    assert subject.kwargs.keys() == GUESSED[name]
    with torch.no_grad():
        subject.target(**subject.kwargs)
    assert sum(parameter.numel() for parameter in subject.target.parameters()) < 3_000_000


@pytest.mark.models
def test_a_mask_has_padding_and_words_stand_for_images():
    inputs = build_transformers("llava").kwargs
    assert 0 < inputs["attention_mask"].sum() < inputs["attention_mask"].numel()
    token = build_transformers("llava").target.config.image_token_id
    assert (inputs["input_ids"] == token).sum() == 4
