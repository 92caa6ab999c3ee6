"""What an outermost call and the calls that its code makes have in common."""

from typing import Any

from ..transforms.tape import Attempt
from .constants import Constants
from .kernels import Kernels
from .lent import Lent
from .native import StandIns
from .pickled import Kept
from .settings import Settings

__all__ = ["Session"]


class Session:
    """Lasts as long as the outermost call.

    Args:
        attempt: which run of its function it is.
    """

    def __init__(self, attempt: Attempt):
        self.attempt = attempt
        self.constants, self.settings, self.kept, self.kernels = Constants(), Settings(), Kept(), Kernels()
        self.lent = Lent()
        self.stand_ins = StandIns()
        """What PyTorch has seen in place of tensors, where it asks for no values."""
        self.levels: list = []
        self.paths: list = [attempt.path]
        self.passes: list = []
        self.own: dict[int, Any] = {}
        """The optimizers, schedulers and scalers that the call made or copied; others are not its to change."""
        self.outermost: Any = None
        """What JAX traces with, and the tape, outside of all transformations that the code has begun."""

    def begin(self, trace, tape) -> None:
        self.outermost = trace, tape
        self.attempt.begin()

    def abandon(self) -> None:
        """Prepares for another run, with a deeper tape."""
        self.settings.abandon()
        self.attempt.abandon()
        self.kernels.undo()
