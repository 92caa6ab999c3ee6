"""An operator of control flow against Python's own `if` and loops in PyTorch: values, dtypes, and derivatives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from torch2jax import t2j


def agree(function: Callable, plain: Callable, *args: torch.Tensor, derivatives: bool = True, atol=1e-5) -> None:
    """`function`, translated, does what `plain` does in PyTorch: eagerly, under jit, and differentiated three ways.

    The derivatives are those of a sum with respect to all floating-point arguments: by `jax.grad` of the translated
    function, by its own tape, and of that gradient, by `jax.grad` again.
    """
    arrays = [jnp.asarray(x.numpy()) for x in args]
    places = [i for i, x in enumerate(args) if x.is_floating_point()]
    compare(t2j(function)(*arrays), plain(*[x.clone() for x in args]))
    program: Callable = t2j(function)
    if derivatives:

        def total(*arrays):
            return t2j(lambda *xs: _total(function(*xs)))(*arrays)

        def of_gradient(*arrays):
            return t2j(lambda *xs: sum((x * x).sum() for x in _gradients(function, xs, places)))(*arrays)

        def program(*arrays):
            return (
                t2j(function)(*arrays),
                jax.grad(total, places)(*arrays),
                t2j(lambda *xs: _gradients(function, xs, places))(*arrays),
                jax.grad(of_gradient, places)(*arrays),
            )

        leaves = [x.clone() for x in args]
        first = _gradients(plain, leaves, places)
        of_first = sum((x * x).sum() for x in first)
        second = torch.autograd.grad(of_first, [leaves[i] for i in places], materialize_grads=True)
        wanted = (plain(*[x.clone() for x in args]), first, first, second)
    else:
        wanted = plain(*[x.clone() for x in args])
    compare(jax.jit(program)(*arrays), wanted, atol)


def compare(got, wanted, atol=1e-5) -> None:
    """The same structure, values and dtypes."""
    got, wanted = jax.tree.leaves(got), [x for x in tree_leaves(wanted) if x is not None]
    assert len(got) == len(wanted)
    for mine, other in zip(got, wanted, strict=True):
        other = np.asarray(other.detach() if isinstance(other, torch.Tensor) else other)
        assert jnp.asarray(mine).dtype == jax.dtypes.canonicalize_dtype(other.dtype)
        np.testing.assert_allclose(mine, other, 2e-4, atol)


def _total(results):
    return sum((x * x).sum() for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.is_floating_point())


def _gradients(function: Callable, xs, places: list[int]):
    leaves = [xs[i].requires_grad_() for i in places]
    return torch.autograd.grad(_total(function(*xs)), leaves, create_graph=True, materialize_grads=True)


def graph(function: Callable, *arrays) -> str:
    """A function's graph as text, without names that differ where nothing else does."""
    return str(jax.make_jaxpr(function)(*arrays))
