"""Local variables that share memory when some iterations begin, and in others do not: each is held apart.

``best = x`` in an iteration, where `x` is better, lets two variables be one tensor; where it is not, they are two. A
loop carries them as two: where they are one, a variable gets memory of its own. That is right as long as nobody writes
to either (`guards`), or asks whether they are the same object.
"""

import dis
import functools
import itertools
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ..errors import is_library, is_translator
from ..internals.frames import set_locals
from ..internals.guards import DisableTorchDispatch, DisableTorchFunction
from ..tensors.storage import View, steps_to
from ..tensors.tensor import Torchish, make_tensor
from .call import this_call
from .guards import Guards
from .loop_state import State

__all__ = ["HeldApart", "can_be_apart", "hold_apart", "variables_that_share"]


class HeldApart(NamedTuple):
    """Of which loop variables are held apart."""

    code: CodeType
    entry: int


def can_be_apart(codes: Iterable[CodeType]) -> bool:
    """Whether code never asks if two of its tensors are the same object. That of libraries is trusted not to."""
    return not any(map(_compares_objects, codes))


@functools.lru_cache(maxsize=512)
def _compares_objects(code: CodeType) -> bool:
    if is_library(code.co_filename) or is_translator(code.co_filename):
        return False
    steps = [step.opname for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "NOP")]
    return any(step == "IS_OP" and before != "LOAD_CONST" for before, step in itertools.pairwise(steps))


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


def hold_apart(state: State, variables: set[str], frame: FrameType, guards: Guards, cause: HeldApart) -> bool:
    """Gives variables memory of their own that share it; whether there were some."""
    shared = {path for pair in state.aliases() for path in pair}
    found = {name: state.roots[name] for name in sorted(variables & shared) if _is_plain(state.roots[name])}
    new = {name: _copied(tensor) for name, tensor in found.items()}
    for tensor in (*found.values(), *new.values()):
        guards.add(tensor._node.storage.memory, cause)
    set_locals(frame, new)
    return bool(new)


def _is_plain(value: Any) -> bool:
    """Whether a tensor has nothing but its values that iterations could have changed."""
    if type(value) is not Torchish or value.stands_for is not None or value.attributes:
        return False
    return value._node.storage.history is None


def _copied(tensor: Torchish) -> Any:
    """The same tensor in new memory, of which it is all that it can be as far as the code can tell."""
    with DisableTorchFunction(), DisableTorchDispatch():
        shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        is_all = offset == 0 and tensor.is_contiguous()
    if is_all and isinstance(tensor._node, View):
        with this_call().inside(), torch.no_grad():
            return tensor.clone(memory_format=torch.contiguous_format)
    node: Any = tensor._node.storage.copied()
    for kind, place in steps_to(tensor._node):
        node = View(node, kind)
        node.place = place
    return make_tensor(node, torch.Size(shape), tensor.dtype, strides, offset, tensor._label)
