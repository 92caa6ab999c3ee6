"""A network with weights of one bit: their signs count on the way forward, and gradients pass straight through them.

The sign has no slope to learn from. The custom `torch.autograd.Function` gives it one, and that is what JAX
differentiates with.

    python examples/straight_through.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
import torch.nn.functional as F
from torch import nn

from torch2jax import t2j

SAMPLES, FEATURES, STEPS = 512, 16, 200


class Sign(torch.autograd.Function):
    """The sign, with the derivative of the identity between -1 and 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, Sign.apply(self.weight), self.bias) / self.in_features**0.5


def main():
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(FEATURES, 64), nn.Tanh(), BinaryLinear(64, 2))
    jax_model = t2j(model)
    params, _ = jax_model.split()
    of_inputs, of_teacher = jax.random.split(jax.random.key(0))
    x = jax.random.normal(of_inputs, (SAMPLES, FEATURES))
    labels = (x @ jax.random.rademacher(of_teacher, (FEATURES,), jnp.float32) > 0).astype(int)
    optimizer = optax.adam(1e-2)

    def loss(params):
        logits = jax_model(x, state_dict=params)
        value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return value, (logits.argmax(axis=1) == labels).mean()

    def step(carry, _):
        params, state = carry
        (_, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), accuracy

    before = jnp.sign(params["0.weight"])
    train = jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS))
    (params, _), accuracies = train((params, optimizer.init(params)))
    flipped = jnp.mean(jnp.sign(params["0.weight"]) != before)
    print(
        f"accuracy: {accuracies[0]:.2f}, after {STEPS} steps {accuracies[-1]:.2f}; {flipped:.0%} of the signs flipped"
    )
    assert accuracies[-1] > 0.95
    assert flipped > 0.05


if __name__ == "__main__":
    main()
