"""Parameters whose gradients are means over devices, in place of a module's own.

JAX differentiates functions, so a module computes with what an identity gives for each parameter, whose transpose
averages: that serves `jax.grad` and ``.backward()``. What a ``.grad`` holds already, of passes that were not averaged,
is averaged after the backward pass has added to it. Means of means are the same means, so the order does not count.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import torch

from ...internals.jax_traces import varying_axes
from ...tracing.manual_axes import axes_in_types, varying
from .collectives import all_reduce
from .groups import MeshGroup
from .operations import all_reduced, computed

__all__ = ["Exchanged", "averaged"]

Axes = tuple[str, ...]


class Exchanged:
    """Tensors in the places of a module's parameters, until it is closed.

    `functional_call` leaves some there if a part is in two places.

    Args:
        given: the tensors, by the ids of the parameters.
    """

    def __init__(self, module: torch.nn.Module, given: Mapping[int, torch.Tensor]):
        self._places = []
        for part in module.modules():
            table = vars(part)["_parameters"]
            for name, parameter in table.items():
                if id(parameter) in given:
                    self._places.append((table, name, parameter, given[id(parameter)]))
                    table[name] = given[id(parameter)]

    def close(self) -> None:
        for table, name, parameter, tensor in self._places:
            if table.get(name) is tensor:  # the module may have put another there
                table[name] = parameter


def averaged(parameter: torch.Tensor, group: MeshGroup, when: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What a module computes with in the place of a parameter.

    Args:
        when: its gradients are averaged over a group: ``"now"``, ``"later"`` or ``"never"``.
        dtype: in which they are; that of the parameter by default.
    """
    if when == "now" and torch.is_grad_enabled() and parameter.grad is not None:
        _average_after(parameter, group)
    value = parameter if dtype is None else parameter.to(dtype)
    return computed("average_gradient", _averaging, [value], group.axes, when)


def _average_after(parameter: torch.Tensor, group: MeshGroup) -> None:
    """Averages all that a parameter's gradient holds after the next backward pass."""

    def average(parameter: torch.Tensor) -> None:
        handle.remove()
        with torch.no_grad():
            assert parameter.grad is not None  # it has just been added to
            parameter.grad.copy_(all_reduced(parameter.grad, "avg", group))

    handle = parameter.register_post_accumulate_grad_hook(average)


def _averaging(x: jax.Array, axes: Axes, when: str) -> jax.Array:
    """The array, whose cotangents are averaged over some axes.

    It is typed as one that differs over them (``check_vma``): else JAX would sum the cotangents of one that is the same
    on all devices before they come here. In JAX's types such a one has no cotangent of its own on each device, so what
    is to be averaged later is averaged now, which gives the same in the end; and one that never is cannot be right.

    Args:
        when: ``"now"``, ``"later"`` or ``"never"``.
    """
    before, differing = varying_axes(x), axes_in_types().intersection(axes)
    return _identity(x, axes, differing, before, when) if when == "now" or differing - before else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _identity(x: jax.Array, axes: Axes, differing: frozenset[str], before: frozenset[str], when: str) -> jax.Array:
    del axes, before, when
    return varying(x, differing)


def _forward_of_identity(x: jax.Array, *args: Any) -> tuple[jax.Array, None]:
    return _identity(x, *args), None


def _backward_of_identity(
    axes: Axes, differing: frozenset[str], before: frozenset[str], when: str, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    del differing
    if when == "never":
        raise ValueError(
            f"the wrapper ignores a parameter, whose gradient then differs over {', '.join(axes)}; for "
            "jax.shard_map its value is the same there, and so is its gradient. Use check_vma=False, and take the "
            "gradient within"
        )
    return (varying(all_reduce(cotangent, axes, "avg"), before),)


_identity.defvjp(_forward_of_identity, _backward_of_identity)
