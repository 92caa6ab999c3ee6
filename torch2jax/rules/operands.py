"""Arguments of PyTorch functions as a rule's body takes them: arrays, or known values, in place of tensors."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from ..errors import TracedValueError
from ..tensors.tensor import Torchish
from .call import this_call
from .numpy_arguments import number_of

__all__ = ["UNKNOWN", "arrays_of", "knowns_of", "lift", "lifted"]


_AS_THEY_ARE = frozenset((Torchish, int, float, bool, complex, str, type(None), torch.dtype))


def lift(value: Any) -> Torchish:
    return this_call().lift(value)


def lifted(value: Any) -> Any:
    """`value` with tensors of this call for all that stand for them."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple:
        return tuple([lifted(item) for item in value])
    if kind is dict:
        return {key: lifted(item) for key, item in value.items()}
    return _map(lambda tensor: tensor, value)


def _map(fn: Callable[[Any], Any], value: Any):
    """Maps the tensors in an argument; PyTorch's signatures hold them at most in lists."""
    if isinstance(value, (torch.Tensor, jax.Array, np.ndarray)):
        return value if _is_key(value) else fn(lift(value))
    if isinstance(value, (list, tuple)):
        mapped = [_map(fn, item) for item in value]
        return mapped if isinstance(value, list) else tuple(mapped)
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    return number_of(value) if isinstance(value, np.generic) else value


def _is_key(value: object) -> bool:
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def arrays_of(value: Any, tensors: list) -> Any:
    """`value` with arrays for tensors, which are gathered in `tensors`.

    Raises:
        TracedValueError: one stands for a number, which a body would have to know.
    """

    def read(tensor: Torchish):
        if tensor.stands_for is not None:
            raise TracedValueError("a number, by a function that takes it for no operand,")
        tensors.append(tensor)
        return tensor.read()

    return _map(read, value)


def knowns_of(value: Any) -> Any:
    def known(tensor: Torchish):
        known = tensor.known
        return UNKNOWN if known is None else known

    return _map(known, value)


class _NotKnown:
    pass


UNKNOWN = _NotKnown()
