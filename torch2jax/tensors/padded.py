"""Results with a data-dependent length: a padded array, and the length."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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

    Where data decides the lengths of several dimensions, as for ``x[mask] @ x[mask].T``, `axis` is a tuple of these
    dimensions, in order, and `length` is a tuple with the length of each.
    """

    values: Any
    length: Any
    axis: int | tuple[int, ...] = 0

    @classmethod
    def of(cls, values: object, lengths: Mapping[int, object]) -> "Padded":
        """An array with the lengths of some of its axes."""
        if len(lengths) == 1:
            ((axis, length),) = lengths.items()
            return cls(values, length, axis)
        return cls(values, tuple(lengths.values()), tuple(lengths))

    @property
    def lengths(self) -> dict[int, Any]:
        """The number of valid rows along each data-dependent axis."""
        if isinstance(self.axis, tuple):
            return dict(zip(self.axis, self.length, strict=True))
        return {self.axis: self.length}

    @property
    def mask(self) -> jax.Array:
        """The mask of the valid rows: ``(bound,)`` bools, or ``(bound, bound)`` for two axes, and so on.

        Leading dimensions are those of the examples.
        """
        count, found = len(self.lengths), jnp.ones((), bool)
        for position, (axis, length) in enumerate(self.lengths.items()):
            length = jnp.asarray(length)
            size = self.values.shape[length.ndim + axis]
            there = jnp.arange(size) < length[..., None]
            found = found & there.reshape(*length.shape, *[size if i == position else 1 for i in range(count)])
        return found

    def compact(self) -> Any:
        """Returns PyTorch's tensor as an array, without padding; for several examples, a list with one array for each.

        Raises:
            jax.errors.TracerArrayConversionError: the length is traced: no array has such a shape within ``jit``.
            ValueError: the length is greater than the bound.
        """
        lengths = {axis: np.asarray(length) for axis, length in self.lengths.items()}
        if any(length.ndim for length in lengths.values()):
            examples = zip(self.values, *lengths.values(), strict=True)
            return [Padded.of(values, dict(zip(lengths, each, strict=True))).compact() for values, *each in examples]
        parts = [slice(None)] * self.values.ndim
        for axis, length in lengths.items():
            capacity = self.values.shape[axis]
            if length > capacity:
                raise ValueError(
                    f"got a Padded with room for {capacity} rows, where data decided that there are more than bounds= "
                    "says, or elements that do not fill the shape of a view; wanted a greater bound in "
                    "t2j(..., bounds=...), or another shape"
                )
            parts[axis] = slice(int(length))
        return self.values[tuple(parts)]
