"""Tensors that hold no values but wrap others, and compute in a ``__torch_dispatch__`` of their own."""

import pytest
import torch

from torch2jax import t2j


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # pyright: ignore

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(x.inner if isinstance(x, cls) else x for x in args), **(kwargs or {}))


def test_their_memory_is_not_read():
    outside = Wrapped(torch.ones(3))
    for function in (lambda: outside * 2, lambda: Wrapped(torch.ones(3)).sin()):
        with pytest.raises(NotImplementedError, match="Wrapped, which holds no values"):
            t2j(function)()
