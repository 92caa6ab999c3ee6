"""`torch.autograd.graph.saved_tensors_hooks`: the values that a derivative stores pass through these hooks.

Which values those are, JAX's derivatives decide; a hook sees each of them once, as a tensor.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..internals.transforms import autograd_module, top_saved_tensors_default_hooks
from ..patches import stands_in
from ..tensors.dtypes import logical
from ..tensors.history import NeedsTape
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import values_only
from ..translation import this_call

_push, _pop = autograd_module._push_saved_tensors_default_hooks, autograd_module._pop_saved_tensors_default_hooks


class _Set:
    """Hooks that a call has set: what undoes it."""

    def __init__(self, changes: list):
        self._changes = changes
        changes.append(self)

    def __call__(self) -> None:
        self._changes.remove(self)
        _pop()


@stands_in(autograd_module, "_push_saved_tensors_default_hooks")
def _push_hooks(pack_hook: Callable[[torch.Tensor], Any], unpack_hook: Callable[[Any], torch.Tensor]) -> None:
    if this_call().attempt.depth == 0:
        raise NeedsTape(1)
    _push(pack_hook, unpack_hook)
    _Set(this_call().settings.changes)


@stands_in(autograd_module, "_pop_saved_tensors_default_hooks")
def _pop_hooks() -> None:
    found = _set_ones()
    (found[-1] if found else _pop)()


def _set_ones() -> list[_Set]:
    return [change for change in this_call().settings.changes if isinstance(change, _Set)]


@contextlib.contextmanager
def set_within():
    """Removes hooks that are set inside, such as those of a backward pass, and are still set at the end."""
    count = len(_set_ones())
    try:
        yield
    finally:
        for found in reversed(_set_ones()[count:]):
            found()


class Packing:
    """What `saved_tensors_hooks` make of the values that one tape keeps."""

    def __init__(self):
        self._is_suspended = False

    def __call__(self, array: jax.Array) -> Callable[[], Any] | None:
        """Lets the hooks that are set pack an array.

        Returns:
            What gives the array back, unpacked; None if there are no hooks.

        Raises:
            RuntimeError: the hook wrote to its argument.
        """
        hooks = None if self._is_suspended else top_saved_tensors_default_hooks(False)
        if hooks is None or jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):  # a key of random numbers
            return None
        pack, unpack = hooks
        with self._suspended():
            tensor = wrap(array, logical(array.dtype, ()))
            packed = pack(tensor)
        if tensor._writes[0]:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook can "
                "not be modified by in-place operations as this can lead to unexpected side-effects."
            )
        return lambda: self._unpacked(unpack, packed, array)

    def _unpacked(self, unpack: Callable, packed: object, array: jax.Array):
        with self._suspended():
            tensor = unpack(packed)
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"Output of saved tensor unpack_hook expected to be a Tensor but got {type(tensor)}")
            lifted: Torchish = this_call().lift(tensor)
            found = lifted.read()
        if (found.shape, found.dtype) != (array.shape, array.dtype):
            raise RuntimeError(
                f"a saved tensor was unpacked as one of {lifted.dtype} and shape {list(lifted.shape)}; wanted "
                f"{logical(array.dtype, ())} and {list(array.shape)}"
            )
        # As in PyTorch it is differentiated as what was packed.
        return array if found is array or array.dtype.kind in "biu" else values_only(array, found)

    @contextlib.contextmanager
    def _suspended(self):
        before, self._is_suspended = self._is_suspended, True
        try:
            with this_call().at(None), torch.no_grad():
                yield
        finally:
            self._is_suspended = before
