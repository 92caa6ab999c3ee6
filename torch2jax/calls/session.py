"""What an outermost call and the calls that its code makes have in common."""

import functools
from collections.abc import Callable
from typing import Any

from ..autograd.runs import Attempt
from ..autograd.tape import Tape
from ..values.numpy_views import NumpyViews
from ..values.pickled import Pickles
from ..values.valueless import StandIns
from .constants import Constants
from .library_kernels import Kernels
from .settings import ChangedSettings

__all__ = ["Session"]


class Session:
    """Lasts as long as the outermost call.

    Args:
        attempt: which run of its function it is.
    """

    def __init__(self, attempt: Attempt):
        self.attempt = attempt
        self.constants, self.settings = Constants(), ChangedSettings()
        self.ends: list[Callable[[], None]] = []
        """What is to be called at the end."""
        self.transformations: list = []
        self.paths: list = [attempt.path]
        self.passes: list = []
        self.registered: dict[int, Any] = {}
        """The optimizers, schedulers and scalers that the call made or copied; others are not its to change."""
        self.outermost: Any = None
        """What JAX traces with, and the tape, outside of all transformations that the code has begun."""

    # What few calls need is made for those alone.

    @functools.cached_property
    def pickles(self) -> Pickles:
        return Pickles()

    @functools.cached_property
    def kernels(self) -> Kernels:
        return Kernels()

    @functools.cached_property
    def numpy_views(self) -> NumpyViews:
        return NumpyViews()

    @functools.cached_property
    def stand_ins(self) -> StandIns:
        """What PyTorch has seen in place of tensors, where it asks for no values."""
        return StandIns()

    def begin(self, trace: object, tape: Tape | None) -> None:
        self.outermost = trace, tape
        self.attempt.begin()

    def abandon(self) -> None:
        """Prepares for another run, with a deeper tape."""
        self.settings.abandon()
        self.attempt.abandon()
        if "kernels" in vars(self):
            self.kernels.undo()
