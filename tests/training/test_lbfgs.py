"""`torch.optim.LBFGS` under `jit`: PyTorch's iterations, evaluations and values, also as a state between steps."""

import jax
import numpy as np
import pytest
import torch

from tests.branches.test_paths import QUICK
from torch2jax import t2j

STARTS = np.array([[1.5, -0.7, 2.0], [0.3, 0.2, -0.1]], np.float32)
OPTIONS = {"max_iter": 6, "history_size": 3, "lr": 0.8}


def minimize(line_search):
    def minimized(x):
        w = x.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([w], **OPTIONS, line_search_fn=line_search)

        def closure():
            optimizer.zero_grad()
            loss = ((w[1:] - w[:-1] ** 2) ** 2).sum() * 3 + ((1 - w) ** 2).sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).detach() for _ in range(2)]
        state = optimizer.state[w]
        return w.detach(), losses, state["n_iter"], state["func_evals"]

    return minimized


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_minimized_in_one_program(line_search):
    function = minimize(line_search)
    translated = t2j(function)
    found = jax.tree.leaves(jax.jit(jax.vmap(translated), compiler_options=QUICK)(STARTS))
    for i, start in enumerate(STARTS):
        wanted = jax.tree.leaves(function(torch.from_numpy(start)))
        for leaf, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(leaf[i], np.asarray(want), 2e-3, 1e-4)
        assert [int(leaf[i]) for leaf in found[-2:]] == [int(want) for want in wanted[-2:]]


def train(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return optimizer.step(closure)


def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.LBFGS(model.parameters(), max_iter=2, max_eval=9, history_size=2)


def test_a_state_between_steps():
    """Eager and compiled steps take turns, after one of PyTorch's; PyTorch goes on from where they have been."""
    wanted, found = build(), build()
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    for model, optimizer in (wanted, found):
        train(model, optimizer, x, y)
    step = t2j(train, state=found)
    state = step.init(x.numpy(), y.numpy())
    assert state["optimizer"]["state.0.old_dirs"].shape == (2, 8)
    for run in (jax.jit(step, compiler_options=QUICK), step):
        loss, state = run(state, x.numpy(), y.numpy())
        np.testing.assert_allclose(loss, train(*wanted, x, y).detach(), 1e-4)
    step.load(state)
    torch.testing.assert_close(found[0].weight, wanted[0].weight, rtol=1e-3, atol=1e-3)
    losses = [train(model, optimizer, x, y) for model, optimizer in (wanted, found)]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
    one, other = (optimizer.state[model.weight] for model, optimizer in (wanted, found))
    assert (one["n_iter"], one["func_evals"]) == (other["n_iter"], other["func_evals"])
    assert len(one["old_dirs"]) == len(other["old_dirs"]) == 2


def test_what_is_no_line_search():
    def function(x):
        w = x.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([w], line_search_fn="armijo")
        optimizer.step(lambda: w.sum())

    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        t2j(function)(STARTS)
