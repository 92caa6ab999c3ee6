"""Random numbers within ``torch.vmap``: the same for each example, all different, or an error."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from .transformation import Transformation

__all__ = ["Mapped", "check_operands", "check_target", "draw_for_each"]


class Mapped(NamedTuple):
    """One function that ``torch.vmap`` is mapping."""

    randomness: str
    """``"same"`` for each example, ``"different"``, or ``"error"``."""
    axis_name: str | None
    """How JAX knows the dimension of the examples; needed where they are to be different."""
    level: Transformation


def check_operands(mapped: list[Mapped], arrays: list) -> None:
    """Refuses to draw the same for each example from parameters that are not the same.

    Raises:
        RuntimeError: as PyTorch does.
    """
    for randomness, _, level in mapped:
        if randomness == "same" and any(level.owns(array) for array in arrays):
            raise RuntimeError(
                "vmap: Vmap does not currently support same randomness with a batched tensor input. Please file an "
                "issue with functorch"
            )


def check_target(mapped: list[Mapped], target: Any, arrays: list) -> None:
    """Refuses to draw something different for each example into one tensor from outside, that has no examples.

    Raises:
        RuntimeError: as PyTorch does.
    """
    for randomness, _, level in mapped:
        is_batched = any(level.owns(array) for array in (target.physical.array, *arrays))
        if randomness == "different" and not is_batched and not level.is_new(target):
            raise RuntimeError(
                "vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same "
                "randomness. If this is necessary for your usage, please file an issue with functorch."
            )


def draw_for_each(
    body: Callable, key: jax.Array, shape: tuple[int, ...], dtype: Any, operands: list, axis_names: list
) -> Any:
    """``body(key, shape, dtype, *operands)`` for each example: one draw for all, as the same code draws for a batch.

    Args:
        operands: numbers, and arrays that broadcast to `shape` from the left.
        axis_names: the dimensions whose examples are to be different, the innermost last.
    """
    if not axis_names:
        return body(key, shape, dtype, *operands)
    places = [place for place, operand in enumerate(operands) if isinstance(operand, jax.Array)]

    def with_arrays(arrays: Sequence[jax.Array]) -> list:
        filled = list(operands)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        return filled

    @jax.custom_batching.custom_vmap
    def draw(index: jax.Array, key: jax.Array, *arrays: jax.Array):
        return body(jax.random.fold_in(key, index), shape, dtype, *with_arrays(arrays))

    @draw.def_vmap
    def draw_all(size: int, is_batched: Sequence[bool], index: jax.Array, key: jax.Array, *arrays: jax.Array):
        del index
        spread = [_spread(array, own, size, len(shape)) for array, own in zip(arrays, is_batched[2:], strict=True)]
        drawn = draw_for_each(body, key, (size, *shape), dtype, with_arrays(spread), axis_names[:-1])
        return drawn, True

    return draw(lax.axis_index(axis_names[-1]), key, *[operands[place] for place in places])


def _spread(array: jax.Array, is_batched: bool, size: int, ndim: int) -> Any:
    """An operand of all examples: one number each broadcasts as the examples themselves do."""
    if not is_batched:
        return array if array.ndim == 0 else lax.broadcast(array, (size,))
    return lax.reshape(array, (size, *[1] * (ndim + 1 - array.ndim), *array.shape[1:]))
