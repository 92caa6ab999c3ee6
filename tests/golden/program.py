"""Programs, each of which gives its graph."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import ClosedJaxpr
from torch.utils import _pytree as pytree

from torch2jax import t2j
from torch2jax.calls.compiled.program import PartProgram

__all__ = ["Graph", "Program", "drawing", "gradient", "of", "of_jax", "of_module", "of_part", "of_step"]

KEY = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)


class Graph(NamedTuple):
    """What JAX traces."""

    equations: ClosedJaxpr
    tree: Any
    """The structure of the result."""


Program = Callable[[], Graph]


def of_jax(function: Callable, *args: Any) -> Program:
    """A function of JAX's."""

    def traced() -> Graph:
        equations, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        return Graph(equations, jax.tree.structure(shapes))

    return traced


def of(function: Callable, *args: Any, **options: Any) -> Program:
    """A translated function."""
    return lambda: of_jax(t2j(function, **options), *args)()


def drawing(function: Callable, *args: Any) -> Program:
    """One that draws random numbers, by a key that is an argument."""
    return of_jax(lambda key, *args: t2j(function)(*args, rng=key), KEY, *args)


def gradient(function: Callable, *args: Any, **options: Any) -> Program:
    """JAX's gradient of the sum of what a function gives, for its first argument."""
    return of_jax(jax.grad(lambda *args: _total(t2j(function, **options)(*args))), *args)


def of_module(module: torch.nn.Module, *args: Any, train: bool = False, by: bool = False, **kwargs: Any) -> Program:
    """A module, whose weights are arguments.

    Args:
        train: it returns its state too, and draws by a key.
        by: the gradient for its parameters.
    """
    module.train(train)

    def run(params, buffers, key, *args):
        given = {"state_dict": params | buffers, "rng": key if train else None, "return_state_dict": train}
        result = t2j(module)(*args, **given, **kwargs)
        return (_total(result[0] if train else result), result) if by else result

    def traced() -> Graph:
        state = [dict(found) for found in t2j(module).split()]
        arrays = pytree.tree_map_only(torch.Tensor, t2j, args)
        return of_jax(jax.grad(run, has_aux=True) if by else run, *state, KEY, *arrays)()

    return traced


def of_step(function: Callable, objects: tuple, *args: Any, **options: Any) -> Program:
    """A training step, whose state is an argument."""

    def traced() -> Graph:
        step = t2j(function, state=objects, **options)
        _, state = jax.eval_shape(step, step.init(*args), *args)  # with what an optimizer makes in its first step
        return of_jax(step, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state), *args)()

    return traced


def of_part(function: Callable, *args: Any, part: Any = None, state: Any = None, **kwargs: Any) -> Program:
    """The last program that a call compiles of a part; the call is run."""

    def traced() -> Graph:
        found, finish = [], PartProgram._finish

        def note(program, *args):
            found.append(program._program)
            finish(program, *args)

        with mock.patch.object(PartProgram, "_finish", note):
            t2j(function, compile=part)(*args, **kwargs)
        return Graph(found[-1], jax.tree.structure(0))

    return traced


def _total(tree: Any) -> jax.Array:
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return functools.reduce(jnp.add, [jnp.sum(x.real) for x in leaves])
