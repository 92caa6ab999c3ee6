"""`generate` of transformers as one program, greedy, until each sequence has ended: the tokens are PyTorch's."""

import jax
import pytest
import torch

from torch2jax import t2j

transformers = pytest.importorskip("transformers")

END, PAD, TOKENS = 2, 0, 8


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=END,
        pad_token_id=PAD,
        initializer_range=1.0,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow("compiles a whole generation")
def test_greedy_with_a_static_cache(model):
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 13, (12, 1, 4), generator=generator)
    mask = torch.ones(1, 4, dtype=torch.int64)
    options = {"max_new_tokens": TOKENS, "do_sample": False, "cache_implementation": "static"}
    generate = t2j(model.generate)

    @jax.jit
    def call(params, prompt):
        return generate(prompt, attention_mask=mask, state_dict=params, **options)

    params, lengths = t2j(model.state_dict()), set()
    for prompt in prompts:
        wanted = model.generate(prompt, attention_mask=mask, **options)
        found = call(params, t2j(prompt)).compact()
        assert found.tolist() == wanted.tolist()
        lengths.add(wanted.shape[1])
    assert call._cache_size() == 1
    assert len(lengths) > 1, "sequences end at several lengths"
    assert str(jax.make_jaxpr(call)(params, t2j(prompts[0]))).count(" while[") >= 1
