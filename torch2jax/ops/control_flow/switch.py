"""`torch.switch`, of PyTorch 2.15, is `jax.lax.switch`, and the branch itself where the index is known."""

import functools

import torch
from jax import lax

from ...rules.registry import implements_tensors
from ...tensors.arrays import reshape
from .branches import known_number, one_of


def switch(index, branches, operands=()):
    """PyTorch's own code checks the arguments, and brings the index within the branches."""
    number = known_number(index)
    if number is not None:
        return branches[int(number)](*operands)
    return one_of(functools.partial(_switch, reshape(index.read(), ())), branches, operands, "torch.switch")


def _switch(index, *branches):
    return lax.switch(index, branches)


if hasattr(torch.ops.higher_order, "switch"):
    implements_tensors(torch.ops.higher_order.switch)(switch)
