"""What leaves a call where data decide how long it is: a padded array and its length."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Padded"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=("values", "length"), meta_fields=("axis",))
@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """A padded array with a data-dependent length, in place of PyTorch's tensor.

    It is a pytree of its two arrays, so it works with ``jit``, ``vmap``, ``scan`` and so on. Translated functions also
    accept it, as the tensor that it stands for.

    Args:
        values: ``(bound, ...)``. The first `length` rows are those of PyTorch's tensor; the other rows are zero.
        length: the number of rows, an integer. Under ``vmap`` both arrays have a leading dimension for the examples. A
            length greater than the bound means that the data need more room than ``bounds=`` gives.
        axis: the dimension of PyTorch's tensor with that length, if it is not the first: ``(..., bound, ...)``.
    """

    values: Any
    length: Any
    axis: int = 0

    @property
    def mask(self) -> jax.Array:
        """Which rows are valid: ``(bound,)`` bools, with the leading dimensions of the examples."""
        length = jnp.asarray(self.length)
        return jnp.arange(self.values.shape[length.ndim + self.axis]) < length[..., None]

    def compact(self) -> Any:
        """Returns PyTorch's tensor as an array, without padding; for several examples, a list with one array for each.

        Raises:
            jax.errors.TracerArrayConversionError: the length is traced: no array has such a shape within ``jit``.
            ValueError: the length is greater than the bound.
        """
        length = np.asarray(self.length)
        if length.ndim:
            examples = zip(self.values, length, strict=True)
            return [Padded(values, number, self.axis).compact() for values, number in examples]
        room = self.values.shape[self.axis]
        if length > room:
            raise ValueError(
                f"got a Padded with room for {room} rows, where data decided that there are more than bounds= says; "
                "wanted a greater bound in t2j(..., bounds=...)"
            )
        return self.values[(*[slice(None)] * self.axis, slice(int(length)))]
