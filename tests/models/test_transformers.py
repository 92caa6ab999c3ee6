"""Models of transformers in small random configurations."""

import pytest
import torch

from .agreement import assert_agrees

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 99, shape, generator=torch.Generator().manual_seed(0))


def bert():
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    config = transformers.BertConfig(**SMALL, **TOKENS, max_position_embeddings=32)
    return transformers.BertModel(config), {"input_ids": ids(2, 7), "attention_mask": mask}


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=99, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids(2, 7), "labels": ids(2, 7)}


def llama():
    config = transformers.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=2, max_position_embeddings=32)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return transformers.LlamaForCausalLM(config), {"input_ids": ids(2, 7), "attention_mask": mask}


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids(2, 7), "labels": ids(2, 5)}


def vit():
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def clip():
    config = transformers.CLIPConfig(
        text_config={**SMALL, **TOKENS, "max_position_embeddings": 16},
        vision_config={**SMALL, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    tokens = ids(2, 7)
    tokens[:, -1] = 2
    return transformers.CLIPModel(config), {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 32, 32)}


def whisper():
    config = transformers.WhisperConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=16,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **TOKENS,
    )
    features = torch.randn(2, 16, 40)
    return transformers.WhisperModel(config), {"input_features": features, "decoder_input_ids": ids(2, 5)}


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("build", [bert, gpt2, llama, t5, vit, clip, whisper], ids=lambda f: f.__name__)
def test_agrees(build, train):
    torch.manual_seed(0)
    model, inputs = build()
    for module in model.modules():  # randomness has its own tests
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.train(train)
    assert_agrees(model, tolerance=1e-4, gradient_tolerance=2e-3, eager=build is bert and not train, **inputs)
