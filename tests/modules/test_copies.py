"""Copies of modules' structure are those of `copy.deepcopy`."""

import copy
import types

import pytest
import torch
from torch.nn.utils import parametrizations

from torch2jax.modules.skeleton import copy_structure


class _Cyclic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = {"a": [1, 2]}
        self.part = torch.nn.Linear(2, 2)
        self.again = self.part
        self.listed = [self.part, self]
        self.same = self.shared
        self.empty = {}
        self.same_empty = self.empty
        self.register_buffer("rows", None)
        self.part.owner = self.listed
        self.options = {"dtype": torch.float32, "names": ("a", "b")}


class _WithState(torch.nn.Linear):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.restored = True


class _Copied(torch.nn.Linear):
    def __deepcopy__(self, memo):
        del memo
        return self


class _WithSlots(torch.nn.Linear):
    __slots__ = ("slot",)


def _with_slot():
    module = _WithSlots(2, 2)
    module.slot = [1]
    return module


MODULES = {
    "encoder": lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
    "cyclic": _Cyclic,
    "state": lambda: torch.nn.Sequential(_WithState(2, 2)),
    "copied": lambda: torch.nn.Sequential(_Copied(2, 2)),
    "slots": _with_slot,
    "parametrized": lambda: parametrizations.orthogonal(torch.nn.Linear(3, 3)),
    "hooked": lambda: torch.nn.Sequential(parametrizations.weight_norm(torch.nn.Linear(2, 2)), torch.nn.BatchNorm1d(2)),
}


def _shape(value, seen: dict):
    """What an object is made of, with a number for each that has been seen before."""
    if isinstance(value, torch.Tensor):
        return type(value)
    if isinstance(value, (str, int, float, bool, type(None), torch.dtype, type, types.FunctionType)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return type(value), [(key, _shape(x, seen)) for key, x in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_shape(x, seen) for x in value]
    slots = [getattr(value, name, None) for name in vars(type(value)).get("__slots__", ())]
    return type(value), _shape(vars(value), seen) if hasattr(value, "__dict__") else None, _shape(slots, seen)


@pytest.mark.parametrize("name", MODULES)
def test_a_copy_is_what_deepcopy_gives(name):
    module = MODULES[name]()
    memo = {id(x): x for x in (*module.parameters(), *module.buffers())}
    expected, found = copy.deepcopy(module, dict(memo)), copy_structure(module, dict(memo))
    assert _shape(found, {}) == _shape(expected, {})
    assert (found is module) == (expected is module)
    for part, copied in zip(module.modules(), found.modules(), strict=True):
        if not isinstance(part, _Copied):
            assert part is not copied
            assert vars(part)["_forward_hooks"] is not vars(copied)["_forward_hooks"]
