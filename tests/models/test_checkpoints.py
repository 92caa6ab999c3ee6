"""Hugging Face's activation checkpointing, which each layer asks for by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(0))
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
TOKENS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama():
    config = transformers.LlamaConfig(
        **TOKENS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=99, decoder_start_token_id=0, dropout_rate=0
    )
    return transformers.T5ForConditionalGeneration(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=99, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize(("make", "use_reentrant"), [(llama, True), (llama, False), (t5, False)])
def test_gradients_are_those_without(make, use_reentrant):
    torch.manual_seed(0)
    model = make().train()
    params = t2j(dict(model.named_parameters()))
    model(input_ids=IDS, labels=IDS).loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})

    def loss(params):
        return t2j(model)(input_ids=t2j(IDS), labels=t2j(IDS), state_dict=params)["loss"]

    steps = [step for step in jax.make_jaxpr(loss)(params).eqns if "remat" in step.primitive.name]
    assert len(steps) == 2
    if make is llama:
        assert [len(step.outvars) for step in steps] == [1, 1]
    found = jax.jit(jax.grad(loss), compiler_options=QUICK)(params)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_dropout_is_the_same_again():
    torch.manual_seed(0)
    model = gpt2().train()
    params = t2j(dict(model.named_parameters()))

    def loss(params):
        return t2j(model)(input_ids=t2j(IDS), labels=t2j(IDS), state_dict=params, rng=jax.random.key(0))["loss"]

    expected = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)(params)
    model.activation_checkpointing_enable({"use_reentrant": False})
    found = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
    assert jnp.isfinite(found[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_training_step_with_backward(use_reentrant):
    torch.manual_seed(0)
    model = llama().train()
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})

    def step(ids):
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in model.named_parameters()}

    loss, expected = step(IDS)
    found = jax.jit(t2j(step), compiler_options=QUICK)(t2j(IDS))
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[1][name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)
