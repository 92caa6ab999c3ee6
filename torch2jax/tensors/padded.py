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
    """An array whose length data decide, in place of a tensor that PyTorch would give.

    It is a pytree of its two arrays, so that it goes through ``jit``, ``vmap``, ``scan`` and the like. A translated
    function takes it, too, as the tensor that it stands for.

    Args:
        values: ``(bound, ...)``. The first `length` rows are those of PyTorch's tensor; what is beyond is zero.
        length: how many rows there are, an integer. Under ``vmap`` both have a dimension for the examples in front.
            One that is greater than the bound says that data decided more than ``bounds=`` has room for.
        axis: the dimension of PyTorch's tensor that is as long, where that is not the first: ``(..., bound, ...)``.
    """

    values: Any
    length: Any
    axis: int = 0

    @property
    def mask(self) -> jax.Array:
        """Which rows there are: ``(bound,)`` bools, with the dimensions of examples in front."""
        length = jnp.asarray(self.length)
        return jnp.arange(self.values.shape[length.ndim + self.axis]) < length[..., None]

    def compact(self) -> Any:
        """The array of PyTorch's tensor, without the padding: of several examples, a list with one for each.

        Raises:
            jax.errors.TracerArrayConversionError: the length is traced: within ``jit`` no array has such a shape.
            ValueError: there is no room for so many rows.
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
