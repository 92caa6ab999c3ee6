"""`torch.optim.LBFGS`: PyTorch's own iterations outside of `jit`, and an error that names optax's under it."""

import jax
import numpy as np
import optax
import pytest
import torch

from torch2jax import TracedValueError, t2j

START = np.array([1.5, -0.7, 2.0], np.float32)


def valley(w):
    return ((w[1:] - w[:-1] ** 2) ** 2).sum() * 3 + ((1 - w) ** 2).sum()


def minimize(line_search):
    def minimized(x):
        w = x.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([w], max_iter=6, history_size=3, lr=0.8, line_search_fn=line_search)

        def closure():
            optimizer.zero_grad()
            loss = valley(w)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).detach() for _ in range(2)]
        return w.detach(), losses, optimizer.state[w]["func_evals"]

    return minimized


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_minimized(line_search):
    function = minimize(line_search)
    found, losses, evaluations = t2j(function)(START)
    wanted, wanted_losses, wanted_evaluations = function(torch.from_numpy(START))
    np.testing.assert_allclose(found, wanted, 2e-3, 1e-4)
    np.testing.assert_allclose(losses, wanted_losses, 2e-3, 1e-4)
    assert evaluations == wanted_evaluations


def test_under_jit_the_error_names_optax():
    with pytest.raises(TracedValueError, match=r"LBFGS.step needs .* optax.lbfgs\(\)"):
        jax.jit(t2j(minimize(None)))(START)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def step(model, optimizer, x):
        return optimizer.step(lambda: model(x).sum())

    with pytest.raises(TracedValueError, match=r"optax\.lbfgs"):
        t2j(step, state=(model, optimizer)).init(START)


def test_optax_in_its_place():
    loss, optimizer = t2j(valley), optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(w, state):
        value, gradient = value_and_grad(w, state=state)
        updates, state = optimizer.update(gradient, state, w, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(w, updates), state

    w, state = START, optimizer.init(START)
    for _ in range(20):
        w, state = step(w, state)
    np.testing.assert_allclose(w, np.ones(3), atol=1e-3)
