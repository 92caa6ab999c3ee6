"""What leaves a call where data decide how long it is: a padded array and its length."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Padded"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Padded:
    """An array whose length data decide, in place of a tensor that PyTorch would give.

    It is a pytree of its two fields, so that it goes through ``jit``, ``vmap``, ``scan`` and the like. A translated
    function takes it, too, as the tensor that it stands for.

    Args:
        values: ``(bound, ...)``. The first `length` rows are those of PyTorch's tensor; what is beyond is zero.
        length: how many rows there are, an integer. Under ``vmap`` both have a dimension for the examples in front.
    """

    values: Any
    length: Any

    @property
    def mask(self) -> jax.Array:
        """Which rows there are: ``(bound,)`` bools, with the dimensions of examples in front."""
        length = jnp.asarray(self.length)
        return jnp.arange(self.values.shape[length.ndim]) < length[..., None]

    def compact(self) -> Any:
        """The array of PyTorch's tensor, without the padding: of several examples, a list with one for each.

        Raises:
            jax.errors.TracerArrayConversionError: the length is traced: within ``jit`` no array has such a shape.
        """
        length = np.asarray(self.length)
        if length.ndim:
            return [Padded(*each).compact() for each in zip(self.values, length, strict=True)]
        return self.values[: int(length)]
