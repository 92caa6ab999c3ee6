"""Memory, which a tensor and all its aliases share."""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .journal import Journaled, Uncontained

if TYPE_CHECKING:
    from .storage import Storage

__all__ = ["Located", "Memory", "next_number"]

_is_inference = torch.is_inference_mode_enabled
_numbers = itertools.count(1)


def next_number() -> int:
    """A number above those of all memories that there are, and below those to come."""
    return next(_numbers)


class Located(Uncontained):
    """Code needs a tensor's position in memory, but only the tensor's part of the memory is there."""


class Memory(Journaled):
    """What a tensor and all its aliases share: which write was the last, and how much there is."""

    changing = ("latest", "seen", "size", "version")

    # What most have all their life is the class's: every operator makes a memory.
    is_shared = False  # whether several storages are of this memory
    latest: "Storage | None" = None  # the last written of several
    version = 0
    seen = 0  # how many writes autograd has seen: not those to `Tensor.data`
    foreign = False  # whether it stands for memory from outside the call, where writes are not seen
    place: Any = None  # what code tells it by from other memory, once it has asked
    is_part = False  # whether it stands for a part of some memory, wherever that is
    is_inference = False  # whether it was made in inference mode
    followers: Sequence[weakref.WeakMethod] = ()

    def __init__(self, size: int):
        self._begin()
        self.size = size
        if _is_inference():
            self.is_inference = True
        self.number = next(_numbers)  # in the order in which they were made; 0 if it was there before the call

    def expect_all(self) -> None:
        """Is called where it counts what else there is in memory, or where.

        Raises:
            Located: that is not known.
        """
        if self.is_part:
            raise Located("a query of where a tensor is in memory")

    def follow(self, method: Callable[[], None]) -> None:
        """Lets a method be called after each write, for as long as its object lives."""
        alive = [follower for follower in self.followers if follower() is not None]
        self.followers = [*alive, weakref.WeakMethod(method)]
