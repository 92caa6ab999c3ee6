"""A physics-informed network: PyTorch differentiates it twice to write down an equation, and JAX trains it to hold.

The equation is u'' = -π² sin(πx) between -1 and 1, with u = 0 at both ends; its solution is sin(πx).

    python examples/pinn.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

from torch2jax import t2j

STEPS = 1000


class Equation(nn.Module):
    """How far a network is from a solution."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def solution(self, x):
        return (1 - x**2) * self.net(x)  # zero at both ends

    def forward(self, x):
        x.requires_grad_()
        u = self.solution(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        residual = curvature + torch.pi**2 * torch.sin(torch.pi * x)
        return residual.square().mean()


def main():
    torch.manual_seed(0)
    equation = Equation()
    x = jnp.linspace(-1, 1, 64)[:, None]
    residual, solution = t2j(equation), t2j(equation.solution)
    params, _ = residual.split()
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, STEPS))

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(lambda params: residual(x, state_dict=params))(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    train = jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS))
    (params, _), losses = train((params, optimizer.init(params)))
    error = jnp.abs(solution(x, state_dict=params) - jnp.sin(jnp.pi * x)).max()
    print(f"mean squared residual: {losses[0]:.2f}, after {STEPS} steps {losses[-1]:.1e}; largest error {error:.1e}")
    assert losses[-1] < 1e-2
    assert error < 1e-2


if __name__ == "__main__":
    main()
