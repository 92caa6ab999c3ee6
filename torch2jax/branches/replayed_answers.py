"""Conditions in code that runs twice: first where both branches can be traced, then with the same answers."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import TracedValueError
from ..tensors.tensor import Torchish
from ..translation import this_call


class ReplayedAnswers:
    """In the place of a path: keeps the answers that it gives, and gives them again, in order.

    Args:
        path: the path that the code is on.
    """

    def __init__(self, path: Any):
        self._path = path
        self._left: list[bool] | None = None
        self.answers: list[bool] = []

    def __getattr__(self, name: str):
        return getattr(self._path, name)

    def asking(self) -> contextlib.AbstractContextManager:
        """A context in which the path is asked, and what it answers is kept."""
        self._left = None
        return self._in_place()

    def answering(self) -> contextlib.AbstractContextManager:
        """A context in which the answers are given again."""
        self._left = list(self.answers)
        return self._in_place()

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        paths: list = this_call().paths
        paths.append(self)
        try:
            yield
        finally:
            paths.remove(self)

    def can_answer(self, tensor: Torchish) -> bool:
        """As `paths.Path.can_answer`."""
        return self._left is not None or self._path.can_answer(tensor)

    def answer(self, tensor: Torchish, what: str) -> bool:
        """As `paths.Path.answer`."""
        if self._left is None:
            self.answers.append(self._path.answer(tensor, what))
            return self.answers[-1]
        if not self._left:
            raise TracedValueError(what)
        return self._left.pop(0)
