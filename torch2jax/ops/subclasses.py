"""Tensors of classes that code derives from `torch.Tensor`."""

from torch import Tensor

from ..calls.call import current
from ..rules.registry import implements_tensors
from ..tensors.derived import as_class


@implements_tensors(Tensor.as_subclass)
def as_subclass(input, cls):
    return as_class(current().lift(input), cls)
