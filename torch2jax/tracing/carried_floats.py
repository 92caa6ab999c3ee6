"""Python floats that a loop carries while 64-bit types are off: the graph rounds them, and Python does not.

``while t < 1.0: t += 0.1`` runs eleven times in Python, where ten steps make a little less than one, and ten times in
float32. Such a number may be used, but a comparison of it is an error. It is none where float32 holds each step, as
0.5, nor of what ``.item()`` gives: that is as exact as its tensor.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import BranchError
from ..errors.locations import SourceLine
from ..tensors.dtypes import has_doubles

_HELD = 2**24  # whole numbers up to it are exact in float32


class CarriedFloat:
    """A Python float that a loop carries.

    Args:
        path: where the code keeps it.
        loop: the line of the loop.
    """

    def __init__(self, path: str, loop: SourceLine):
        self.path, self.loop = path, loop
        self.is_rounded = False
        """True if iterations change it by steps that float32 does not hold."""


class Computed(NamedTuple):
    """The computation of a Python float from nothing but numbers that loops carry, integers and known numbers."""

    carried: frozenset[CarriedFloat]
    is_exact: bool
    """True if float32 holds the known numbers."""


def start_of(carried: CarriedFloat, first: Any) -> Computed | None:
    """The number at the beginning of an iteration; `first` is that of the first one, if there is one."""
    if has_doubles():
        return None
    before: Computed | None = getattr(first, "computed", None)
    if before is not None:
        return Computed(before.carried | {carried}, before.is_exact)
    return Computed(frozenset((carried,)), type(first) not in (int, float) or _is_held(first))


def computed(operands: Iterable[Any], keeps_exact: bool = True) -> Computed | None:
    """The result of an operator on numbers; None if one of them is a tensor's.

    Args:
        keeps_exact: whether it gives what float32 holds of what float32 holds.
    """
    found, is_exact = set[CarriedFloat](), keeps_exact
    for x in operands:
        if (one := getattr(x, "computed", None)) is not None:
            found |= one.carried
            is_exact = is_exact and one.is_exact
        elif isinstance(x, torch.Tensor):
            if x.is_floating_point():
                return None
        else:
            is_exact = is_exact and _is_held(x)
    return Computed(frozenset(found), is_exact) if found else None


def expect_exact(*operands: Any) -> None:
    """Expects of the operands of a comparison that Python's float and the graph's compare alike.

    Raises:
        BranchError: one of them is rounded.
    """
    for x in operands:
        one: Computed | None = getattr(x, "computed", None)
        rounded = None if one is None else next((x for x in one.carried if x.is_rounded), None)
        if rounded is not None:
            raise BranchError(
                f"the comparison got {rounded.path}, a Python float that the loop at {rounded.loop} changes in steps. "
                "As jax_enable_x64 is off, the graph has it in float32, which rounds the steps, and the loop might end "
                "one iteration early or late; wanted an integer that counts the iterations, steps that float32 holds, "
                "as 0.5, or a tensor, torch.tensor(0.0), which PyTorch rounds as well; or turn 64-bit types on"
            )


def _is_held(number: int | float) -> bool:
    if isinstance(number, int):
        return abs(number) <= _HELD
    with np.errstate(over="ignore"):
        return number != number or float(np.float32(number)) == number
