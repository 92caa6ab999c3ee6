"""Writes to all of a selection by a mask of unknown values, along whichever dimension."""

import torch

from ..rules.registry import implements_at_axis, implements_selected
from ..values.selected import in_order_of
from ..values.selected_at_axis import leading_of, with_leading

Tensor = torch.Tensor


def _implements(function):
    def register(body):
        implements_selected(function)(body)
        return implements_at_axis(function)(body)

    return register


@_implements(Tensor.zero_)
def zero_(self):
    return fill_(self, 0)


@_implements(Tensor.fill_)
def fill_(self, value):
    leading, _ = leading_of(self)
    leading.overwrite(torch.zeros_like(leading.rows).fill_(value), True)
    return self


@_implements(Tensor.copy_)
def copy_(self, src, non_blocking=False):
    del non_blocking
    everywhere = torch.ones((), dtype=torch.bool)
    found, (target, at) = torch.where(everywhere, src.to(self.dtype), self), leading_of(self)
    found = with_leading(found, at)
    target.overwrite(in_order_of(found, target.mask), found.is_safe)
    return self


@_implements(Tensor.masked_fill_)
def masked_fill_(self, mask, value):
    return copy_(self, torch.where(mask, value, self))
