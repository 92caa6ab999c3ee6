"""Arguments that PyTorch leaves out where it hands a call on."""

import ast
import inspect
import itertools
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j
from torch2jax.rules.options import DROPPED


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=1e-5, atol=1e-6)


def _left_out(function) -> set[str]:
    """The parameters of a function of PyTorch's that its call of ``handle_torch_function`` does not name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    handed = next(
        (x for x in ast.walk(tree) if isinstance(x, ast.Call) and getattr(x.func, "id", "") == "handle_torch_function"),
        None,
    )
    if handed is None:
        return set()
    passed = [*handed.args[2:], *(keyword.value for keyword in handed.keywords)]
    names = {x.id for value in passed for x in ast.walk(value) if isinstance(x, ast.Name)}
    return set(inspect.signature(function).parameters) - names


# einsum's are in another form, __dlpack__ has a rule
ANSWERED = (torch.functional.einsum, torch.Tensor.__dlpack__)


def test_all_that_pytorch_leaves_out_is_known():
    places = (vars(place).values() for place in (F, torch.functional, torch.Tensor, torch.nn.init))
    functions = dict.fromkeys(x for x in itertools.chain.from_iterable(places) if inspect.isfunction(inspect.unwrap(x)))
    found = {
        function: _left_out(function)
        for function in functions
        if function.__module__.startswith("torch") and function not in ANSWERED
    }
    left_out = {function: names for function, names in found.items() if names}
    assert left_out.items() <= {function: {name} for function, name in DROPPED.items()}.items()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_weights_of_a_loss(reduction):
    x, y, weight = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4)
    expected = F.l1_loss(x, y, reduction=reduction, weight=weight)
    function = t2j(lambda x, y, weight: F.l1_loss(x, y, reduction=reduction, weight=weight))
    for run in (function, jax.jit(function)):
        close(run(*map(t2j, (x, y, weight))), expected)
    mixed = t2j(lambda x: F.l1_loss(x, y, None, None, reduction, weight))
    close(mixed(t2j(x)), expected)


@pytest.mark.parametrize("loss", [F.l1_loss, F.mse_loss, F.huber_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_of_a_loss_of_what_a_mask_chose(loss, reduction):
    x, y, weight = torch.randn(7), torch.randn(7), torch.rand(7)

    def function(x, y, weight):
        chosen = x > 0
        return loss(x[chosen], y[chosen], reduction=reduction, weight=weight[chosen])

    close(jax.jit(t2j(function))(*map(t2j, (x, y, weight))), function(x, y, weight))


def test_the_order_of_dimensions_may_be_ambiguous():
    def order(check):
        return t2j(lambda x: str(x.dim_order(ambiguity_check=check)))(jnp.ones((2, 2, 1, 2)))

    assert order(False) == "(0, 1, 2, 3)"
    assert order([torch.contiguous_format, torch.channels_last]) == "(0, 1, 2, 3)"
    with pytest.raises(RuntimeError, match="unique dim order"):
        order(True)
    with pytest.raises(TypeError, match="ambiguity_check"):
        order("any")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_product_of_matrices_is_written_where_it_is_wanted():
    matrices = [np.random.default_rng(0).normal(size=shape).astype("f4") for shape in ((2, 3), (3, 4), (4, 5))]

    def function(*matrices):
        out = torch.zeros(2, 5)
        torch.chain_matmul(*matrices, out=out)
        return out

    close(t2j(function)(*map(jnp.asarray, matrices)), function(*map(torch.as_tensor, matrices)))
