"""Finds out whether a function writes to its inputs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..internals.modes import TorchDispatchMode
from ..internals.pytree import tree_leaves

__all__ = ["WriteWatch"]

_Tensor = torch.Tensor
_HANDS_MEMORY_OUT = {
    _Tensor.numpy,
    _Tensor.data_ptr,
    _Tensor.__array__,
    _Tensor.__dlpack__,
    _Tensor.untyped_storage,
    _Tensor.storage,
    _Tensor.tolist,
}
# Operators that write to running statistics without saying so in their schemas, and where these are.
_STATISTICS = ("running_mean", "running_var")
_WRITES_UNSAID = {"aten::native_batch_norm": _STATISTICS, "aten::cudnn_batch_norm": _STATISTICS}
_READS_VALUES = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero"}


class WriteWatch:
    """Notes, while it is entered, which of some tensors are written to, and whether another run might do otherwise.

    A run whose Python saw a value, or that handed a tensor's memory to other code, says nothing about the next one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        self._written: set[int] = set()
        self.certain = True
        self._modes = (_Functions(self), _Operators(self))

    def __enter__(self):
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exc_info)

    def may_be_written(self) -> tuple[bool, ...]:
        """For each tensor, whether a run might write to it."""
        return tuple(not self.certain or storage in self._written for storage in self._storages)

    def written(self) -> tuple[bool, ...]:
        """For each tensor, whether this run wrote to it, as far as PyTorch saw."""
        return tuple(storage in self._written for storage in self._storages)

    def note_write(self, tensor: torch.Tensor) -> None:
        try:
            self._written.add(tensor.untyped_storage()._cdata)
        except Exception:  # a tensor without a storage of its own: a wrapper of any kind
            self.certain = False


class _Functions(TorchFunctionMode):
    def __init__(self, watch: WriteWatch):
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ):
        if func in _HANDS_MEMORY_OUT:
            self.watch.certain = False
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, watch: WriteWatch):
        super().__init__()
        self.watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo would be imported, which takes seconds

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ):
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None or schema.name in _READS_VALUES:
            self.watch.certain = False
        elif schema.is_mutable or schema.name in _WRITES_UNSAID:
            self._note_writes(schema, args, kwargs)
        return func(*args, **kwargs)

    def _note_writes(self, schema: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        unsaid = _WRITES_UNSAID.get(schema.name, ())
        for index, argument in enumerate(schema.arguments):
            if argument.is_write or argument.name in unsaid:
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                for leaf in tree_leaves(value):
                    if isinstance(leaf, torch.Tensor):
                        self.watch.note_write(leaf)
