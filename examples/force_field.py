"""A force field: PyTorch takes forces and stress from an energy, and JAX trains it, batches it and relaxes a cluster.

The forces are `torch.autograd.grad` of the energy, inside the model. To JAX that is one more function: `vmap` makes it
one of many clusters, `grad` differentiates it again with respect to the weights, and `while_loop` follows the forces.

    python examples/force_field.py
"""

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn

from torch2jax import t2j

ATOMS, CLUSTERS, STEPS = 7, 16, 150


class ForceField(nn.Module):
    """A sum over pairs of atoms: a Morse potential, and a network that corrects it."""

    def __init__(self):
        super().__init__()
        self.correction = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.triu_indices(ATOMS, ATOMS, 1))

    def energy(self, positions):
        first, second = positions[self.pairs]
        distances = (first - second).norm(dim=-1, keepdim=True)
        decay = torch.exp(-6 * (distances - 1))
        return (decay**2 - 2 * decay + decay * self.correction(3 * distances - 3)).sum()

    def forward(self, positions):
        positions.requires_grad_()
        strain = torch.zeros(3, 3, requires_grad=True)
        energy = self.energy(positions + positions @ strain)
        slope, stress = torch.autograd.grad(energy, [positions, strain])
        return {"energy": energy, "forces": -slope, "stress": stress}


def lennard_jones_forces(positions):
    """What the force field has to learn."""

    def energy(positions):
        first, second = positions[jnp.stack(jnp.triu_indices(ATOMS, 1))]
        inverse = 1 / jnp.sum((first - second) ** 2, axis=-1) ** 3
        return jnp.sum(inverse**2 - 2 * inverse)

    return -jax.grad(energy)(positions)


def clusters(key):
    """A pentagonal bipyramid, shaken in many ways."""
    angles = jnp.arange(5) * 2 * jnp.pi / 5
    ring = 0.85 * jnp.stack([jnp.cos(angles), jnp.sin(angles), 0 * angles], axis=1)
    exact = jnp.concatenate([ring, jnp.array([[0, 0, 0.53], [0, 0, -0.53]])])
    return exact + 0.05 * jax.random.normal(key, (CLUSTERS, ATOMS, 3))


def main():
    torch.manual_seed(0)
    model = ForceField()
    field = jax.jit(t2j(model))
    params, _ = t2j(model).split()
    positions = clusters(jax.random.key(0))
    targets = jax.vmap(lennard_jones_forces)(positions)

    def loss(params):
        forces = jax.vmap(lambda x: field(x, state_dict=params)["forces"])(positions)
        return jnp.mean((forces - targets) ** 2) / jnp.mean(targets**2)

    optimizer = optax.adam(1e-2)

    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    train = jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS))
    (params, _), losses = train((params, optimizer.init(params)))
    print(f"relative error of the forces: {losses[0] ** 0.5:.3f}, after {STEPS} steps {losses[-1] ** 0.5:.3f}")
    assert losses[-1] ** 0.5 < 0.05 < 0.2 < losses[0] ** 0.5

    @jax.jit
    def relax(params, positions):
        def is_moving(state):
            number, _, result = state
            return (number < 1000) & (jnp.abs(result["forces"]).max() > 1e-3)

        def move(state):
            number, positions, result = state
            positions = positions + 0.005 * result["forces"]
            return number + 1, positions, field(positions, state_dict=params)

        return jax.lax.while_loop(is_moving, move, (0, positions, field(positions, state_dict=params)))

    before = field(positions[0], state_dict=params)
    number, _, after = relax(params, positions[0])
    print(f"relaxed in {number} moves: the energy falls from {before['energy']:.3f} to {after['energy']:.3f}")
    assert jnp.abs(after["forces"]).max() < 1e-3
    assert after["energy"] < before["energy"]
    # The virial theorem: the stress of a free cluster is that of its forces, and vanishes with them.
    assert jnp.allclose(before["stress"], -positions[0].T @ before["forces"], atol=1e-3)
    assert jnp.abs(after["stress"]).max() < 1e-2 * jnp.abs(before["stress"]).max() + 1e-2


if __name__ == "__main__":
    main()
