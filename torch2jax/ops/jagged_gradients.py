"""The gradient attributes of a jagged tensor: those of its values, with the same lengths.

To PyTorch's autograd a jagged tensor is one, and its class computes below. Here the values have the history, so what
code asks of the whole is asked of them; `autograd.engine` takes them in its place.
"""

# Properties are looked up on the class, where pyright takes them for their values.
# pyright: reportAttributeAccessIssue=false

import functools

import torch

from ..internals.jagged import nested_view_from_jagged
from ..tensors.jagged import NestedTensor, like, values_of
from ..tensors.wrapped import is_of_call
from ..values.wrapper_subclasses import implements_of_class

__all__: list[str] = []

Tensor = torch.Tensor
_implements = functools.partial(implements_of_class, NestedTensor, is_asked_below=True)


def _of_values(name, self):
    return getattr(self._values, name) if is_of_call(self) else NotImplemented


for _name in ("requires_grad", "is_leaf", "grad_fn", "retains_grad"):
    _implements(getattr(Tensor, _name).__get__)(functools.partial(_of_values, _name))


@_implements(Tensor.requires_grad_, Tensor.requires_grad.__set__)
def requires_grad_(self, requires_grad=True):
    if not is_of_call(self):
        return NotImplemented
    if requires_grad and not self._values.requires_grad:
        self._values = self._values.detach()  # others that have these values do not require grad
    self._values.requires_grad_(requires_grad)
    return self


@_implements(Tensor.grad.__get__)
def _grad(self):
    if not is_of_call(self):
        return NotImplemented
    gradient = self._values.grad
    return None if gradient is None else like(self, gradient)


@_implements(Tensor.grad.__set__)
def _set_grad(self, gradient):
    if not is_of_call(self):
        return NotImplemented
    self._values.grad = values_of(gradient)
    return None


@_implements(Tensor.retain_grad)
def retain_grad(self):
    return self._values.retain_grad() if is_of_call(self) else NotImplemented


@_implements(Tensor.register_hook)
def register_hook(self, hook):
    if not is_of_call(self):
        return NotImplemented
    return self._values.register_hook(lambda gradient: values_of(hook(like(self, gradient))))


@implements_of_class(NestedTensor, nested_view_from_jagged)
def _view(input, offsets, dummy, lengths=None, ragged_idx=1, min_seqlen=None, max_seqlen=None):
    del dummy  # by which PyTorch's C++ finds the class
    lengths_of_rows = {"min_seqlen": min_seqlen, "max_seqlen": max_seqlen}
    known = {name: length for name, length in lengths_of_rows.items() if length is not None}
    made = NestedTensor(input, offsets, lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=known)
    made.is_view_of_values = True
    return made


@_implements(Tensor._is_view)
def _is_view(self):
    return hasattr(self, "is_view_of_values") if is_of_call(self) else NotImplemented


@_implements(Tensor._base.__get__)
def _base(self):
    if not is_of_call(self):
        return NotImplemented
    if not hasattr(self, "is_view_of_values"):
        return None
    return self._values._base if self._values._is_view() else self._values
