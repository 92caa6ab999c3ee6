"""Models with tied weights: trained with optax, put back, saved and loaded."""

import jax
import numpy as np
import optax
import pytest
import torch

from torch2jax import load_state, t2j

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))


def bert():
    """Its head has a weight and a bias that are tied."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **sizes, **dropout))


def t5():
    """It has four names of one weight."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=50, decoder_start_token_id=0, dropout_rate=0, **sizes)
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("make", [bert, t5])
def test_training_saving_and_loading(make, tmp_path):
    torch.manual_seed(0)
    model = make().train()
    expected = make().train()
    expected.load_state_dict(model.state_dict())
    call, batch = t2j(model), {"input_ids": IDS, "labels": IDS}
    params, buffers = call.split()
    assert list(params) == [name for name, _ in model.named_parameters()]
    optimizer = optax.adam(1e-2)

    def step(carry, _):
        params, buffers, opt_state = carry

        def loss(params):
            output, new = call(**t2j(batch), state_dict=params | buffers, return_state_dict=True)
            return output.loss, new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), call.split(new)[1], opt_state), value

    carry = params, buffers, optimizer.init(params)
    (params, buffers, _), losses = jax.jit(lambda carry: jax.lax.scan(step, carry, length=3))(carry)
    call.load(params, buffers)

    optimizer_of_torch = torch.optim.Adam(expected.parameters(), 1e-2)
    for value in losses:
        loss = expected(**batch).loss
        np.testing.assert_allclose(value, loss.detach(), rtol=1e-4)
        optimizer_of_torch.zero_grad()
        loss.backward()
        optimizer_of_torch.step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-3, atol=1e-4)

    model.save_pretrained(tmp_path)
    state = load_state(tmp_path)
    assert set(state) == {*params, *buffers}  # the names that files of transformers have
    fresh = make()
    t2j(fresh).load(state)
    torch.testing.assert_close(fresh.state_dict(), model.state_dict(), rtol=0, atol=0)
    loss = jax.jit(lambda state: t2j(fresh)(**t2j(batch), state_dict=state).loss)(state)
    np.testing.assert_allclose(loss, model(**batch).loss.detach(), rtol=1e-4)
