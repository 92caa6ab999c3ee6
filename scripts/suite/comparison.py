"""`assertEqual` of tests that run translated: PyTorch itself compares the values.

It is no part of what is tested, and eager JAX would compile a dozen operators for every shape that a test compares.
"""

from collections.abc import Callable

import torch
from torch.testing._comparison import TensorLikePair

__all__ = ["install"]


def install() -> None:
    """Exchanges PyTorch's comparison of tensors, in this process."""
    original = TensorLikePair.compare

    def compare(self) -> None:
        from torch2jax.runtime.errors import TracedValueError

        given = self.actual, self.expected
        try:
            self.actual, self.expected = (_in_torch(tensor) for tensor in _jagged_apart(*given))
        except TracedValueError:  # it has no values yet
            original(self)
            return
        try:
            _outside(original, self)
        finally:
            self.actual, self.expected = given

    TensorLikePair.compare = compare  # type: ignore[method-assign]


def _jagged_apart(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of two jagged tensors that have the same lengths; others as they are."""
    from torch2jax.tensors.wrapped import NestedTensor

    if not isinstance(actual, NestedTensor) or not isinstance(expected, NestedTensor):
        return actual, expected
    places = (actual._offsets, expected._offsets), (actual._lengths, expected._lengths)
    if actual._ragged_idx != expected._ragged_idx or any((x is None) != (y is None) for x, y in places):
        return actual, expected
    are_equal = (
        _outside(torch.equal, _in_torch(x), _in_torch(y)) for x, y in places if x is not None and y is not None
    )
    return (actual._values, expected._values) if all(are_equal) else (actual, expected)


def _in_torch(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor of the same values, dtype, layout and strides."""
    from torch2jax.ops.values import values
    from torch2jax.tensors.interop import array_to_tensor
    from torch2jax.tensors.tensor import Torchish
    from torch2jax.values.sparse import Sparse, size_of

    if isinstance(tensor, Sparse):
        parts = [_in_torch(x) for x in (*tensor.index, tensor.elements)]
        return _outside(_sparse, tensor.kind, parts, size_of(tensor), tensor.coalesced)
    if not isinstance(tensor, Torchish):
        return tensor
    array, strides = values(tensor, "a comparison"), tensor.stride()
    return _outside(_strided, _outside(array_to_tensor, array), tensor.dtype, strides)


def _sparse(layout: torch.layout, parts: list[torch.Tensor], size: torch.Size, is_coalesced: bool) -> torch.Tensor:
    # also of one element, which counts as contiguous whatever its strides
    *index, values = (part.clone(memory_format=torch.contiguous_format) for part in parts)
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(index[0], values, size, is_coalesced=is_coalesced)
    return torch.sparse_compressed_tensor(index[0], index[1], values, size, layout=layout)


def _strided(tensor: torch.Tensor, dtype: torch.dtype, strides: tuple[int, ...]) -> torch.Tensor:
    tensor = tensor.to(dtype)
    if tensor.stride() == strides or 0 in strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=dtype).copy_(tensor)


def _outside(function: Callable, *args):
    """Calls a function that no translated call intercepts."""
    from torch2jax.internals.dispatch import DisableTorchDispatch, DisableTorchFunction

    with DisableTorchFunction(), DisableTorchDispatch():
        return function(*args)
