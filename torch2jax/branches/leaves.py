"""Tensors that require grad, in code that is recorded on a tape of its own.

The code may take derivatives with respect to them, as with respect to what begins within it. That is right where no
derivative leads from one of them to another: all are leaves, or what a custom function's backward has been given.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ..tensors.history import Saved, Source
from ..tensors.physical import PhysicalArray
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish
from .loop_state import State


@contextlib.contextmanager
def beginning_anew(state: State, tape: Any) -> Iterator[bool]:
    """A context, within a journal, in which the histories of a state begin on a tape, if all of them can.

    It gives whether there are any.
    """
    if tape is None or not (ends := _ends(state)):
        yield False
        return
    before = [(x.history, x.history.variables) for x in ends if isinstance(x.history, Source)]
    try:
        for storage, views in ends.items():
            array, layout = storage.physical
            is_leaf = isinstance(storage.history, Source)
            array = tape.leaf(array, storage.history) if is_leaf else tape.beginning(array, 0)
            storage.replace(PhysicalArray(array, layout), None, is_written=False)
            for view in views:  # what they hold has the other history
                view._touch()
                view.forget()
        yield True
    finally:
        for source, variables in before:
            source.variables = variables


def _ends(state: State) -> dict[Storage, list[View]]:
    """The storages that require grad, and the views of them; none if a derivative leads beyond one of them."""
    found: dict[Storage, list[View]] = {}
    for entry in state.entries.values():
        tensor = entry.value
        if not isinstance(tensor, Torchish) or tensor.history is None:
            continue
        node, storage = tensor._node, tensor._node.storage
        history = storage.history
        is_leaf = isinstance(history, Source) and history.variable is not None and history.variable._node is storage
        if not is_leaf and not isinstance(history, Saved):
            return {}
        views = found.setdefault(storage, [])
        while isinstance(node, View):
            views.append(node)
            node = node.parent
    return found
