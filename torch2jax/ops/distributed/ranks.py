"""The number of a device, which is traced: code computes with it, asks about it, and says by it whom it talks to."""

from typing import Any

import torch
from jax import lax

from ...tensors.tensor import wrap
from ...values.item import Item

__all__ = ["rank_along"]


def rank_along(axes: tuple[str, ...]) -> Any:
    """The number of the device along some axes."""
    return Item.of(wrap(lax.axis_index(axes), torch.int64))
