"""The arguments of a call: which of them a program traces, and which it is compiled for."""

import enum
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..tensors.trees import flatten

__all__ = ["Arguments", "Template", "take_apart", "take_out_arrays"]


class _LeafKind(enum.Enum):
    """Where a traced leaf was."""

    TENSOR = "tensor"
    ARRAY = "array"


class Template(NamedTuple):
    """A tree without its leaves that are traced."""

    structure: Any
    leaves: list

    def fill(self, tensors: Sequence, arrays: Sequence = ()) -> Any:
        """The tree with `tensors` and `arrays` where these were."""
        rest = {_LeafKind.TENSOR: iter(tensors), _LeafKind.ARRAY: iter(arrays)}
        leaves = [next(rest[leaf]) if isinstance(leaf, _LeafKind) else leaf for leaf in self.leaves]
        return self.structure.unflatten(leaves)


class Arguments(NamedTuple):
    """The arguments of a call, taken apart.

    Everything that is neither a tensor nor an array is static: part of the program, and of `signature`, which is
    hashable if they are.
    """

    template: Template
    signature: Hashable
    tensors: list[torch.Tensor]
    constants: tuple[jax.Array, ...]
    """The arrays of JAX's and numpy's: traced, without derivatives."""


def take_apart(args: tuple, kwargs: dict) -> Arguments:
    """Sorts the leaves of a call's arguments into those that are traced and those that are static."""
    leaves, structure = flatten((args, kwargs))
    tensors, constants, rest, described = [], [], [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            rest.append(_LeafKind.TENSOR)
            described.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, (jax.Array, np.ndarray)):
            # numpy's may change while the program runs, or before a derivative is asked for
            array = leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
            constants.append(array)
            rest.append(_LeafKind.ARRAY)
            described.append((array.shape, array.dtype))
        else:
            rest.append(leaf)
            described.append(_described(leaf))
    return Arguments(Template(structure, rest), (structure, *described), tensors, tuple(constants))


def take_out_arrays(result: object) -> tuple[Template, list[jax.Array]]:
    """The result of a JAX function as arrays, for which PyTorch gets tensors, and the rest of it."""
    leaves, structure = flatten(result)
    is_array = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) for leaf in leaves]
    rest = [_LeafKind.TENSOR if traced else leaf for leaf, traced in zip(leaves, is_array, strict=True)]
    arrays = [jnp.asarray(leaf) for leaf, traced in zip(leaves, is_array, strict=True) if traced]
    return Template(structure, rest), arrays


def _described(leaf: object) -> tuple:
    """A static leaf. Equal ones have equal types and signs too: 1 is not True, 0.0 is not -0.0, nan is nan."""
    kind = type(leaf)
    return kind, repr(leaf) if kind is float or kind is complex else leaf
