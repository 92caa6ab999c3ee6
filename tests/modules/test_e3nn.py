"""A force field of e3nn, whose modules compile parts of themselves, and again when they are copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
e3nn = pytest.importorskip("e3nn")


class ForceField(nn.Module):
    """Messages over edges, from tensor products with spherical harmonics, as in NequIP."""

    def __init__(self):
        from e3nn import o3
        from e3nn.nn import FullyConnectedNet

        super().__init__()
        self.harmonics = o3.Irreps("0e+1o")
        self.embed = o3.Linear("2x0e", "3x0e+2x1o")
        instructions = [(0, 0, 0, "uvu", True), (1, 1, 1, "uvu", True), (0, 1, 2, "uvu", True)]
        self.product = o3.TensorProduct(
            "3x0e+2x1o", self.harmonics, "3x0e+2x0e+3x1o", instructions, shared_weights=False, internal_weights=False
        )
        self.radial = FullyConnectedNet([4, 8, self.product.weight_numel], torch.nn.functional.silu)
        self.out = o3.Linear("3x0e+2x0e+3x1o", "1x0e")

    def forward(self, positions, kinds, senders, receivers):
        from e3nn import o3
        from e3nn.math import soft_one_hot_linspace

        positions = positions.detach().requires_grad_()
        edges = positions[receivers] - positions[senders]
        angular = o3.spherical_harmonics(self.harmonics, edges, True, normalization="component")
        weights = self.radial(soft_one_hot_linspace(edges.norm(dim=1), 0.0, 4.0, 4, basis="smooth_finite", cutoff=True))
        messages = self.product(self.embed(kinds)[senders], angular, weights)
        nodes = torch.zeros(positions.shape[0], messages.shape[1]).index_add(0, receivers, messages)
        energy = self.out(nodes).sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy, -gradient


@pytest.fixture(params=["script", "eager"])
def field(request):
    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(jit_mode=request.param)
    torch.manual_seed(0)
    yield ForceField()
    e3nn.set_optimization_defaults(**before)


def test_energies_forces_and_their_gradients(field):
    positions, kinds = torch.randn(4, 3), torch.eye(2)[[0, 1, 0, 1]]
    senders, receivers = (~torch.eye(4, dtype=torch.bool)).nonzero().T
    inputs = (positions, kinds, senders, receivers)
    state = {name: 0.9 * value for name, value in t2j(field.state_dict()).items()}

    def loss(params, *inputs):
        energy, forces = t2j(field)(*inputs, state_dict={**state, **params})
        return (forces**2).sum(), (energy, forces)

    params = {name: state[name] for name, _ in field.named_parameters()}
    gradients, (energy, forces) = jax.jit(jax.grad(loss, has_aux=True))(params, *map(t2j, inputs))
    field.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in state.items()})
    expected_energy, expected_forces = field(*inputs)
    expected_forces.square().sum().backward()
    np.testing.assert_allclose(energy, expected_energy.detach(), rtol=1e-4)
    np.testing.assert_allclose(forces, expected_forces.detach(), rtol=1e-3, atol=1e-5)
    assert jnp.abs(forces).max() > 1e-3
    for name, parameter in field.named_parameters():
        if parameter.grad is not None:
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)
