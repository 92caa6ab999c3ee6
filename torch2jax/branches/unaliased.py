"""Tensors that share memory when some iterations begin, and in others do not: each gets memory of its own.

``best = x`` in an iteration, where `x` is better, lets two variables be one tensor; where it is not, they are two. So
do the parts of a solver's state: its polynomial begins as five times the first value. A loop carries them as two: where
they are one, a tensor gets memory of its own. That is right as long as nobody writes to either (`guards`), or asks
whether they are the same object.
"""

import dis
import functools
import sys
from collections.abc import Callable, Collection, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import is_library, is_translator
from ..internals.frames import set_locals
from ..tensors.interop import fills_memory
from ..tensors.objects import codec_of
from ..tensors.tensor import Torchish
from ..tracing.tensor_spec import TensorSpec
from ..translation import this_call
from .guards import Guards
from .loop_state import State, TensorEntry, item_names

_SILENT = ("EXTENDED_ARG", "NOP", "CACHE")
_NUMPY = str(np.__file__).removesuffix("__init__.py")


class Unaliased(NamedTuple):
    """A loop whose tensors get memory of their own."""

    code: CodeType
    entry: int


def can_unalias(codes: Iterable[CodeType]) -> bool:
    """Whether code never asks if two of its tensors are the same object. That of libraries is trusted not to."""
    return not any(_compares_objects(code) for code in codes if not _is_trusted(code.co_filename))


def _is_trusted(file: str) -> bool:
    return is_library(file) or is_translator(file) or file.startswith(_NUMPY)


@functools.lru_cache(maxsize=512)
def _compares_objects(code: CodeType) -> bool:
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    return any(step.opname == "IS_OP" and not _is_for_good(code, steps[:i]) for i, step in enumerate(steps))


def _is_for_good(code: CodeType, steps: list[dis.Instruction]) -> bool:
    """Whether the last of some instructions gives a constant, or what a module has that is no tensor, as an Enum."""
    if steps[-1].opname == "LOAD_CONST":
        return True
    names: list[str] = []
    while steps and steps[-1].opname == "LOAD_ATTR":
        names.insert(0, steps.pop().argval)
    if not steps or steps[-1].opname != "LOAD_GLOBAL":
        return False
    modules = (x for x in [*sys.modules.values()] if getattr(x, "__file__", None) == code.co_filename)
    found = next(modules, None)
    for name in (steps[-1].argval, *names):
        found = getattr(found, name, None)
    return found is not None and not isinstance(found, torch.Tensor)


def variables_that_share(begun: State, ended: State) -> set[str]:
    """The local variables whose memory something else has as well when an iteration begins or ends: one of each two.

    Tensors of another size in each iteration are left out.
    """
    resized = begun.resized_until(ended)
    return _sharing(begun, resized) | _sharing(ended, resized)


def _sharing(state: State, resized: list[str]) -> set[str]:
    found = set()
    for path, first in state.aliases():
        if path in resized or first in resized:
            continue
        variable = next((x for x in (path, first) if x in state.roots and _is_plain(state.roots[x])), None)
        if variable is not None:
            found.add(variable)
    return found


def _is_plain(value: Any) -> bool:
    """Whether a tensor has nothing but its values that iterations could have changed."""
    if type(value) is not Torchish or value.stands_for is not None or value.attributes.keys() - {"_restriction"}:
        return False
    return value._node.storage.history is None


def paths_that_share(before: State, later: State) -> set[str]:
    """The paths of what shares memory otherwise where two iterations begin; empty if more than that differs."""
    found = set()
    if before.entries.keys() != later.entries.keys():
        return found
    for one, other in zip(before.entries.values(), later.entries.values(), strict=True):
        if one.path == other.path and one.is_like(other):
            continue
        if one.path != other.path or not _are_tensors(before, one, later, other):
            return set()
        found.add(one.path)
    return found


def _are_tensors(before: State, one: Any, later: State, other: Any) -> bool:
    """Whether these are tensors that differ in whose memory they are on alone."""
    kinds = [_kind(state, entry) for state, entry in ((before, one), (later, other))]
    return None not in kinds and kinds[0] == kinds[1]


def _kind(state: State, entry: Any) -> Any:
    """What a tensor is like by itself; None for what cannot get memory of its own."""
    like = state.tensor_at(entry.path)
    if like is None or like.kind is not Torchish or getattr(entry.value, "stands_for", None) is not None:
        return None
    if state.storages[like.storage].history is not None:
        return None
    shape, strides, *_ = like.geometry
    return like.dtype, shape, strides


def unalias(
    state: State, paths: Collection[str], frame: FrameType, guards: Guards, cause: Unaliased
) -> list[Callable[[], None]] | None:
    """Gives tensors memory of their own that share it.

    Args:
        state: what lives, as it was just taken down.
        paths: those of the tensors.
        frame: whose local variables are the roots.
        guards: lets nobody write to them, nor to what they have shared.
        cause: why, for `guards`.

    Returns:
        What undoes changes of objects; None if all have memory of their own already.
    """
    shared = {path for path in paths if not _is_by_itself(state, path)}
    return _Unaliasing(state, shared, guards, cause).into(frame) if shared else None


def _is_by_itself(state: State, path: str) -> bool:
    """Whether there is no tensor at a path that shares memory, or is a part of some."""
    entry = state.entries.get(path)
    like = entry.like if entry is not None else None
    if not isinstance(like, TensorEntry):
        return entry is None or state.tensor_at(path) is None
    _, _, offset, _, places = like.geometry
    is_first = like.storage == path and type(like.of_storage) is tuple and like.of_storage[-1] == path
    return is_first and path not in state.shared and not places and offset == 0


class _Unaliasing:
    def __init__(self, state: State, paths: set[str], guards: Guards, cause: Any):
        self._state, self._paths, self._guards, self._cause = state, paths, guards, cause
        self._memo: dict[int, Any] = {}
        self._undo: list[Callable[[], None]] = []

    def into(self, frame: FrameType) -> list[Callable[[], None]]:
        roots = self._state.roots
        found = {name: self._put(value, name) for name, value in roots.items()}
        set_locals(frame, {name: value for name, value in found.items() if value is not roots[name]})
        return self._undo

    def _put(self, value: Any, path: str) -> Any:
        """What takes the place of a value."""
        if isinstance(value, torch.Tensor):
            return self._by_itself(value) if path in self._paths else value
        codec = codec_of(type(value)) if not isinstance(value, type) else None
        if id(value) in self._memo:
            return self._memo[id(value)]
        if codec is None or self._state.seen.get(id(value)) != path:
            return value
        if not any(other.startswith(path) for other in self._paths):
            return value
        self._memo[id(value)] = value
        head, items = codec.open(value)
        items, fill = list(items), codec.fill
        found = [self._put(item, path + name) for name, item in zip(item_names(value, len(items)), items, strict=True)]
        if all(map(lambda x, y: x is y, items, found)):
            return value
        if fill is None:
            self._memo[id(value)] = codec.make(type(value), head, found)
        elif (cause := self._guards.cause(value)) is not None:  # nobody writes to it, and another one may be it
            self._memo[id(value)] = new = codec.make(type(value), head, ())
            fill(new, head, found)
            self._guards.add(new, cause)
        else:
            fill(value, head, found)
            self._undo.append(lambda: fill(value, head, items))
        return self._memo[id(value)]

    def _by_itself(self, tensor: torch.Tensor) -> torch.Tensor:
        call: Any = this_call()
        before = call.lift(tensor)
        if not _is_plain(before):
            return tensor
        spec, strides = TensorSpec.of(before)._replace(layout=None, wants_grad=False), before.stride()
        is_known = before.known is not None and fills_memory(before.shape, strides)
        if is_known:
            new = spec._replace(strides=strides).tensor(before.read(), before.real_values)
        else:
            new = spec.at(before.read(), strides, 0)
        new._node.storage.differentiable = before._node.storage.differentiable
        for memory in (before._node.storage.memory, new._node.storage.memory):
            self._guards.add(memory, self._cause)
        return new
