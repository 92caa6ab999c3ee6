"""Rows of a table that require grad in the table's place, so that its gradient is built from theirs.

A gradient with respect to the whole would have its size. One of rows, and where they are, has theirs: a sparse tensor.
So the rows that code takes begin a history of their own, and the whole is none of it. Where a backward pass asks for
the gradient of the whole it asks for those of its parts beside, and adds them up (`with_parts`, `joined`).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from ..tensors.history import GradientPart, Source
from ..tensors.journal import journal
from ..tensors.tensor import Torchish
from .call import this_call

__all__ = ["begin_part", "joined", "sum_of", "takes_parts", "with_parts"]


def takes_parts(tensor: Torchish) -> bool:
    """Whether parts of a tensor may require grad in its place: a leaf of the code's own, on the tape that records."""
    call, source = this_call(), tensor.history
    tape = call.tape
    if tape is None or not isinstance(source, Source) or source.variable is not tensor or source.is_given:
        return False
    if not torch.is_grad_enabled() or call.dual is not None or journal() is not None:
        return False
    return tape.is_current and tape.outer is None and not any(x in tape.hooks for x in source.variables)


def begin_part(tensor: Torchish, part: GradientPart) -> None:
    """Lets a tensor require grad as a part of another one."""
    tensor.start_history()
    source = cast(Source, tensor.history)
    source.part = part
    part.whole.history.parts[source._sequence_nr()] = tensor


def with_parts(tensors: Sequence[Torchish]) -> list[Torchish]:
    """Tensors, and behind each the parts of it."""
    found: list[Torchish] = []
    for tensor in tensors:
        found.append(tensor)
        source: Any = tensor.history
        if isinstance(source, Source) and source.has_parts and source.variable is tensor:
            found.extend(x for x in source.parts.values() if not any(x is y for y in found))
    return found


def joined(tensors: Sequence[Torchish], gradients: Sequence[Any]) -> tuple[list[Torchish], list[Any]]:
    """Tensors that are no parts, and their gradients with those of their parts added."""
    wholes: list[Torchish] = []
    found: list[Any] = []
    of_parts: dict[int, list] = {}
    for tensor, gradient in zip(tensors, gradients, strict=True):
        part = getattr(tensor.history, "part", None)
        if part is None:
            wholes.append(tensor)
            found.append(gradient)
        elif gradient is not None:
            of_parts.setdefault(id(part.whole), []).append(part.gradient(gradient))
            if not any(part.whole is x for x in (*wholes, *tensors)):
                wholes.append(part.whole)
                found.append(None)
    for i, whole in enumerate(wholes):
        for gradient in of_parts.get(id(whole), ()):
            found[i] = gradient if found[i] is None else sum_of(found[i], gradient)
    return wholes, found


def sum_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The sum of two gradients, which is strided if one of them is."""
    return one + other if isinstance(one, Torchish) else other + one
