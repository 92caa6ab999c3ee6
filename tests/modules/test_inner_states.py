"""Modules that translated code translates again, with a state: as `torch.func.functional_call` calls them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.func import functional_call

from torch2jax import t2j

CONSTANT = torch.arange(9.0).reshape(3, 3) / 9


class Outer(torch.nn.Module):
    """Calls its parts with other states, by a function that either translates them or calls them functionally."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.part, self.scale = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.rand(3))
        self.deep = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        self.tied[1].weight = self.tied[0].weight

    def forward(self, x, other):
        return self.way(x, other)

    def of_arguments(self, x, other):
        return called(self.part, other, x) * self.scale + self.part(x)

    def some_names(self, x, other):
        return called(self.part, {"weight": other["weight"]}, x)

    def of_computed(self, x, other):
        return called(self.part, {"weight": other["weight"].T @ self.part.weight, "bias": self.scale}, x)

    def of_constants(self, x, other):
        return called(self.part, {"weight": CONSTANT, "bias": other["bias"]}, x)

    def nested(self, x, other):
        return called(self.deep, {"0.weight": other["weight"], "2.bias": other["bias"] * 2}, x)

    def of_tied(self, x, other):
        return called(self.tied, {"0.weight": other["weight"], "1.bias": other["bias"]}, x)

    def within(self, x, other):
        state = {f"part.{name}": tensor for name, tensor in other.items()}
        if translates:
            return t2j(self.of_part)(x, state_dict=state)
        names = {**dict(self.named_parameters()), **state}
        return functional_call(Shifted(self), {f"outer.{name}": tensor for name, tensor in names.items()}, x)

    def of_part(self, x):
        return called(self.part, {"bias": self.part.bias + 1}, x)

    def twice(self, x, other):
        return called(self.part, other, called(self.part, {"weight": other["weight"] * 2}, x))

    def with_buffers(self, x, other):
        state = {"weight": other["bias"], "running_mean": other["bias"].detach() * 1}
        first = called(self.norm, state, x)
        return first + state["running_mean"] + self.norm.running_mean

    def outside(self, x, other):
        return called(OUTSIDE, other, x) * OUTSIDE.weight.sum() + OUTSIDE(x)

    def own_state(self, x, other):
        if translates:
            params, buffers = t2j(self.part).split()
        else:
            params, buffers = dict(self.part.named_parameters()), dict(self.part.named_buffers())
        params = {name: tensor * 2 + other[name] for name, tensor in params.items()}
        return called(self.part, {**params, **buffers}, x)


class Shifted(torch.nn.Module):
    def __init__(self, outer):
        super().__init__()
        self.outer = outer

    def forward(self, x):
        return self.outer.of_part(x)


WAYS = [
    name for name, value in vars(Outer).items() if callable(value) and name not in ("__init__", "forward", "of_part")
]
OUTSIDE = torch.nn.Linear(3, 3)
translates = False


def called(module, state, x):
    return t2j(module)(x, state_dict=state) if translates else functional_call(module, state, (x,))


def arrays(values):
    return {name: value.detach().numpy().copy() for name, value in values.items()}


@pytest.fixture
def translating(monkeypatch):
    monkeypatch.setattr("tests.modules.test_inner_states.translates", True)


@pytest.mark.parametrize("way", WAYS)
def test_a_part_with_another_state(way, monkeypatch):
    """Values and gradients, of the other state and of the module's own, eager and jitted; the module stays as it is."""
    outer = Outer()
    outer.way = getattr(outer, way)
    x = torch.randn(2, 3)
    other = {"weight": torch.randn(3, 3, requires_grad=True), "bias": torch.randn(3, requires_grad=True)}
    before = arrays(outer.state_dict())
    wanted = outer(x, other)
    own = dict(outer.named_parameters())
    gradients = torch.autograd.grad(wanted.square().sum(), [*other.values(), *own.values()], materialize_grads=True)
    outer.load_state_dict({name: torch.from_numpy(value) for name, value in before.items()})

    monkeypatch.setattr("tests.modules.test_inner_states.translates", True)
    outer.way = getattr(outer, way)
    function, params = t2j(outer), arrays(own)

    def loss(other, params):
        y = function(x.numpy(), other, state_dict=params)
        return (y**2).sum(), y

    for apply in (lambda f: f, jax.jit):
        (_, y), (of_other, of_own) = apply(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
            arrays(other), params
        )
        np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
        found = [of_other[name] for name in other] + [of_own[name] for name in own]
        for array, tensor in zip(found, gradients, strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-5)
    for name, value in outer.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_each_example_has_its_state(translating):
    outer = Outer()
    outer.way = outer.of_arguments
    x, weights, bias = jnp.ones((2, 3)), jax.random.normal(jax.random.key(0), (4, 3, 3)), jnp.ones(3)
    found = jax.vmap(lambda weight: t2j(outer)(x, {"weight": weight, "bias": bias}))(weights)
    wanted = jnp.stack([t2j(outer)(x, {"weight": weight, "bias": bias}) for weight in weights])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_what_is_closed_over_and_what_is_left(translating):
    """Arrays from outside as entries; a state that is given back."""
    part = torch.nn.BatchNorm1d(3)
    mean = jnp.full(3, 2.0)

    def function(x):
        y, state = t2j(part)(x, state_dict={"running_mean": mean}, return_state_dict=True)
        assert all(isinstance(value, torch.Tensor) for value in state.values())
        return y, state["running_mean"] + 1, part.running_mean

    x = jax.random.normal(jax.random.key(0), (4, 3))
    _, left, own = jax.jit(t2j(function))(x)
    np.testing.assert_allclose(left, 0.9 * 2 + 0.1 * x.mean(0) + 1, rtol=1e-5)
    np.testing.assert_array_equal(own, np.zeros(3))


@pytest.mark.parametrize(
    ("state", "says"), [({"wight": jnp.ones((3, 3))}, "lacks"), ({"weight": jnp.ones((2, 3))}, r"\(2, 3\)")]
)
def test_what_does_not_fit(state, says):
    part = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=says):
        t2j(lambda x: t2j(part)(x, state_dict=state))(jnp.ones((1, 3)))
