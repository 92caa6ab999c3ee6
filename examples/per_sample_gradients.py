"""The gradient of every sentence's own loss, at once: `vmap` of `grad` over a PyTorch language model.

Frameworks without such transformations run the backward pass once for each sample. The norms tell which samples teach
a model the most, or how far to clip them for privacy.

    python examples/per_sample_gradients.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from torch2jax import t2j

SAMPLES, LENGTH = 8, 16


def main():
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=128, n_positions=LENGTH, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config).eval()
    jax_model = t2j(model)
    params, _ = jax_model.split()
    tokens = jax.random.randint(jax.random.key(0), (SAMPLES, LENGTH), 3, config.vocab_size)
    tokens = tokens.at[0].set(5)  # one sample is a single token again and again

    def loss(params, sample):
        logits = jax_model(sample[None], state_dict=params, use_cache=False).logits[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits[:-1], sample[1:]).mean()

    @jax.jit
    def norms(params, tokens):
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, tokens)
        return jnp.sqrt(sum(jnp.sum(g.reshape(SAMPLES, -1) ** 2, axis=1) for g in gradients.values()))

    for i, norm in enumerate(norms(params, tokens)):
        print(f"sample {i}: the norm of its gradient is {norm:.2f}")


if __name__ == "__main__":
    main()
