"""PyTorch's `associative_scan` within translated code."""

import functools

import jax.numpy as jnp
import pytest
import torch
from jax import lax
from torch._higher_order_ops import associative_scan

from tests.ops.control_flow.agreement import agree, graph
from torch2jax import t2j

X = torch.linspace(0.5, 1.5, 15).reshape(3, 5)


def plain_scan(combine_fn, xs, dim, reverse=False, combine_mode="pointwise"):
    a, b = (x.flip(dim).unbind(dim) if reverse else x.unbind(dim) for x in (xs["a"], xs["b"]))
    results = [{"a": a[0], "b": b[0]}]
    for first, second in zip(a[1:], b[1:], strict=True):
        results.append(combine_fn(results[-1], {"a": first, "b": second}))
    stacked = [torch.stack([result[name] for result in results], dim) for name in "ab"]
    return dict(zip("ab", [x.flip(dim) if reverse else x for x in stacked], strict=True))


def test_associative_scan_is_that_of_lax():
    assert graph(t2j(lambda x: associative_scan(torch.mul, x, 0)), jnp.ones((5, 3))) == graph(
        lambda x: lax.associative_scan(jnp.multiply, x), jnp.ones((5, 3))
    )
    assert graph(t2j(lambda x: associative_scan(torch.mul, x, 1)), jnp.ones((3, 5))).count("transpose[") == 2


@pytest.mark.parametrize(("dim", "reverse", "mode"), [(1, False, "pointwise"), (0, True, "generic")])
def test_values_and_derivatives(dim, reverse, mode):
    scale = torch.nn.Parameter(torch.tensor(1.0))

    def function(run, a, b):
        def combine(left, right):
            return {"a": left["a"] * right["a"], "b": left["b"] * right["a"] * scale + right["b"]}

        return run(combine, {"a": a, "b": b}, dim, reverse, mode)

    agree(functools.partial(function, associative_scan), functools.partial(function, plain_scan), X, X.sin())


def test_arguments_are_checked_by_pytorch():
    wrong = {"callable": (3, X, 0), "neither": (torch.mul, X, 0, False, "neither"), "> 0": (torch.mul, X[:, :0], 1)}
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=message):
            t2j(lambda: associative_scan(*arguments))()  # noqa: B023
