"""The places in objects that a step may change: tensors, and the numbers, flags and names that Python code reads."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...runtime.errors import TracedValueError
from ...tensors.objects import Slot, has_attributes, leaf_of
from ...values.traced_numbers import Number
from ..layers import (
    has_layers,
    name_of_row,
    names_of_layers,
    names_when_stacked,
    stack_layers,
    stacked,
    unstack_layers,
)

Key = tuple[str, str]  # the object's name, and the path within it
GRADIENT = ".grad"
LAST_RATES = "_last_lr"
"""The list of a scheduler that each step replaces. Schedulers around others have theirs; which one, data may decide."""
NOT_STATE = frozenset(("defaults", "_per_optimizer_states"))
_PLAIN = (bool, int, float, complex, str, type(None), np.generic, np.ndarray)
OF_MODULES = frozenset(vars(torch.nn.Module()))
"""The attributes that every module has."""
_MANY = 2**12  # items of one container: as of a data set, which nobody changes


class Made:
    """A stand-in for a tensor that the user's objects lack, in a copy of them without arrays.

    Args:
        of: what stands for a tensor that this one shares all of its memory with, as what ``detach()`` gives.
    """

    def __init__(self, key: Key, tensor: torch.Tensor, of: object = None):
        self.key, self.of = key, of
        self.requires_grad = getattr(tensor, "history", None) is not None  # which asks nobody
        self.is_parameter = isinstance(tensor, torch.nn.Parameter)


class Gradient(Slot):
    """The gradient of a tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, path: str):
        super().__init__(None, None, path)
        self.tensor = tensor

    def get(self):
        return self.tensor.grad

    def set(self, value: Any) -> None:
        self.tensor.grad = value


class _Item(Slot):
    """A place in a sequence; a tuple is replaced."""

    __slots__ = ()

    def get(self):
        return self.owner.get()[self.key]

    def set(self, value: Any) -> None:
        sequence: Any = self.owner.get()
        if not isinstance(sequence, tuple):
            sequence[self.key] = value
            return
        items = [*sequence[: self.key], value, *sequence[self.key + 1 :]]
        self.owner.set(type(sequence)(*items) if hasattr(sequence, "_fields") else type(sequence)(items))


class _Attribute(Slot):
    """An attribute of an object that keeps it in a slot."""

    __slots__ = ()

    def get(self):
        return getattr(self.owner, self.key)

    def set(self, value: Any) -> None:
        object.__setattr__(self.owner, self.key, value)


class OfModule(Slot):
    """An attribute of a module that may be a number, a flag or a name. What else it may be is the structure's."""

    __slots__ = ()

    def get(self):
        value = self.owner.get(self.key)
        return value if isinstance(value, (bool, int, float, complex, str, Number)) else None


class Mode(OfModule):
    """The mode of a module and of its parts: True or False, or which of them train."""

    __slots__ = ()

    def get(self):
        trains = {name: part.training for name, part in self.owner.named_modules()}
        modes = set(trains.values())
        return modes.pop() if len(modes) == 1 else " ".join(name or "." for name, is_on in trains.items() if is_on)

    def set(self, value: bool | str) -> None:
        names = value.split(" ") if isinstance(value, str) else ()
        for name, part in self.owner.named_modules():
            part.training = value if isinstance(value, bool) else (name or ".") in names


class Shared(Slot):
    """A second place of a tensor, a container or an object. Its value is the key of the first one."""

    __slots__ = ("first",)

    def __init__(self, first: Key, path: str):
        super().__init__(None, None, f"{path}()")
        self.first = ".".join(first)

    def get(self):
        return self.first

    def set(self, value: object) -> None:
        raise RuntimeError(f"{self.path[:-2]} was {self.first} when init was called, and is {value} now: call it again")


def is_tensor(value: object) -> bool:
    """Returns True if a value is a tensor, or stands for one."""
    return isinstance(value, (torch.Tensor, Made))


def is_plain(value: object) -> bool:
    """Returns True if a value is compared by what it is, not by its identity."""
    return isinstance(value, _PLAIN)


def is_number(value: object) -> bool:
    """Returns True if a value is a Python number that may change from step to step."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def is_walked(value: object) -> bool:
    """Returns True if the attributes of an object are visited: of PyTorch's own classes, only these objects'."""
    if isinstance(value, (Optimizer, LRScheduler, GradScaler)):
        return True
    return has_attributes(type(value)) and type(value).__module__.partition(".")[0] != "torch"


def slots_of(names: Sequence[str], objects: Sequence[object]) -> Iterator[tuple[Key, Slot]]:
    """The places where objects keep tensors and values; what several objects share, the first one has."""
    walk = _Walk(objects)
    seen: dict[int, Key] = {}
    for name, thing in zip(names, objects, strict=True):
        for slot in walk.within(thing, name):
            value = slot.get()
            if is_tensor(value) and not isinstance(value, Number):
                if id(value) in seen:
                    shared = Shared(seen[id(value)], slot.path)
                    yield (name, shared.path), shared
                    continue
                seen[id(value)] = name, slot.path
                walk.names.setdefault(id(value), slot.path)
            yield (name, slot.path), slot
            if isinstance(value, torch.Tensor) and not isinstance(value, Number) and value.is_leaf:
                gradient = Gradient(value, slot.path + GRADIENT)
                if gradient.get() is not None:
                    seen[id(gradient.get())] = name, gradient.path
                    yield (name, gradient.path), gradient


def made_by_steps(found: Mapping[Key, Slot], keys: Set[Key]) -> dict[Key, Slot]:
    """The attributes of modules that are among `keys` and not in `found`: a step has made them."""
    modules = [(name, slot) for (name, _), slot in found.items() if isinstance(slot, Mode)]
    made: dict[Key, Slot] = {}
    for name, path in keys - found.keys():
        for owner, mode in modules:
            prefix = mode.path.removesuffix("training")
            inner, _, attribute = path.removeprefix(prefix).rpartition(".")
            if owner == name and path.startswith(prefix) and inner in dict(mode.owner.named_modules()):
                made[name, path] = OfModule(vars(mode.owner.get_submodule(inner)), attribute, path)
    return made


def containers(names: Sequence[str], objects: Sequence[object]) -> dict[int, str]:
    """The containers and objects within objects, by their ids, and where they are."""
    walk = _Walk(objects)
    for name, thing in zip(names, objects, strict=True):
        for _ in walk.within(thing, name):
            pass
    return {number: ".".join(key) for number, key in walk.seen.items()}


def steppers(names: Sequence[str], objects: Sequence[object]) -> dict[Key, object]:
    """The optimizers and schedulers among objects, and within them, as in accelerate's wrappers, by their paths."""
    walk, found = _Walk(objects), {}
    for name, thing in zip(names, objects, strict=True):
        walk.steppers = {}
        for _ in walk.within(thing, name):
            pass
        found.update({(name, path): stepper for path, stepper in walk.steppers.items()})
    return found


def stepper_of(key: Key, steppers: Mapping[Key, object]) -> tuple[object, str, str]:
    """The innermost of the optimizers and schedulers that something is in, its path, and the path within it."""
    name, path = key
    around = [p for n, p in steppers if n == name and (not p or path.startswith(f"{p}."))]
    if not around:
        return None, "", path
    inner = max(around, key=len)
    return steppers[name, inner], inner, path[len(inner) + 1 :] if inner else path


class _Walk:
    """The way through objects, which ends where another of them begins."""

    def __init__(self, objects: Sequence[object]):
        self._started = {id(thing) for thing in objects}
        self.seen: dict[int, Key] = {}
        """The keys of containers and objects where they were first met, by id."""
        self._name = ""
        self.names: dict[int, str] = {}  # of tensors, which may be keys of dictionaries
        self.steppers: dict[str, object] = {}  # the optimizers and schedulers that were met

    def within(self, thing: object, name: str) -> Iterator[Slot]:
        """The places of one of the objects."""
        self._name = name
        yield from self._items(thing, None, "", {})

    def _value(self, value: object, slot: Slot, numbering: Mapping[int, int]) -> Iterator[Slot]:
        if is_tensor(value) or is_plain(value):
            yield slot
        elif isinstance(value, torch.Size) or id(value) in self._started:
            return
        elif isinstance(value, tuple):  # groups share their defaults, of which each may change its own
            yield from self._sequence(value, slot, numbering)
        elif id(value) in self.seen:
            yield Shared(self.seen[id(value)], slot.path)
        elif isinstance(value, (list, deque, dict, torch.nn.Module)) or is_walked(value):
            self.seen[id(value)] = self._name, slot.path
            yield from self._items(value, slot, slot.path, numbering)

    def _items(self, value: object, at: Slot | None, path: str, numbering: Mapping[int, int]) -> Iterator[Slot]:
        prefix = f"{path}." if path else ""
        if isinstance(value, (Optimizer, LRScheduler)):
            self.steppers[path] = value
        if isinstance(value, torch.nn.Module):
            parts = [(f"{prefix}{name}." if name else prefix, part) for name, part in value.named_modules()]
            for inner, module in parts:
                for tensors in (module._parameters, module._buffers):
                    for key, tensor in tensors.items():
                        if tensor is not None:
                            yield Slot(tensors, key, f"{inner}{key}")
            yield Mode(value, "", f"{prefix}training")
            for inner, module in parts:
                for name in [x for x in vars(module) if x not in OF_MODULES]:  # in their order
                    yield OfModule(vars(module), name, f"{inner}{name}")
        elif isinstance(value, dict):
            if len(value) <= _MANY:
                for i, (key, item) in enumerate(list(value.items())):
                    yield from self._value(item, Slot(value, key, prefix + self._name_of(key, i, numbering)), numbering)
        elif isinstance(value, (list, deque)):
            assert at is not None
            yield from self._sequence(value, at, numbering)
        elif hasattr(value, "__dict__"):
            attributes = vars(value)
            if id(attributes) in self._started:  # several objects may be one state
                return
            self._started.add(id(attributes))
            if isinstance(value, Optimizer):
                numbering = _numbering(value)
            first = [name for name in ("param_groups", "state") if name in attributes]
            for name in dict.fromkeys((*first, *attributes)):
                slot = Slot(attributes, name, prefix + name)
                if name == LAST_RATES and isinstance(value, LRScheduler):
                    yield from self._sequence(attributes[name], slot, numbering)
                elif name not in NOT_STATE:
                    yield from self._value(attributes[name], slot, numbering)
        else:
            for name in getattr(type(value), "__slots__", ()):
                if hasattr(value, name):
                    yield from self._value(getattr(value, name), _Attribute(value, name, prefix + name), numbering)

    def _sequence(self, value: Sequence[object], slot: Slot, numbering: Mapping[int, int]) -> Iterator[Slot]:
        if len(value) <= _MANY:
            for i, item in enumerate(list(value)):
                yield from self._value(item, _Item(slot, i, f"{slot.path}.{i}"), numbering)

    def _name_of(self, key: object, position: int, numbering: Mapping[int, int]) -> str:
        if isinstance(key, Number):
            raise TracedValueError("a number looked up in a dictionary")
        if is_tensor(key):
            return str(numbering.get(id(key), self.names.get(id(key), position)))
        return str(key) if isinstance(key, (str, int)) else str(position)


def _numbering(optimizer: Any) -> dict[int, int]:
    """The numbers that PyTorch saves the state of an optimizer's parameters under."""
    groups = optimizer.param_groups
    return {id(p): i for i, p in enumerate(p for group in groups for p in group["params"])}


def differing(before: Mapping[Key, object], after: Mapping[Key, object]) -> set[Key]:
    """The keys whose values differ, or that only one side has."""
    keys = before.keys() | after.keys()
    return {key for key in keys if _comparable(before, key) != _comparable(after, key)}


def _comparable(values: Mapping[Key, object], key: Key) -> object:
    if key not in values:
        return "nothing"
    value = values[key]
    return leaf_of(type(value))(value)


State = dict[str, dict[str, Any]]


def with_layers_stacked(state: State, objects: Mapping[str, object]) -> dict[str, Any]:
    """A state with the layers of all modules stacked, and with them the moments of optimizers.

    Args:
        objects: what the parts of the state are of.
    """
    found, layers = dict(state), {}
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            found[name] = stack_layers(state[name])
            layers[name] = names_when_stacked(state[name]).values()
    return _with_moments(found, objects, layers)


def with_moments_stacked(state: State, given: State, objects: Mapping[str, object]) -> State:
    """A state with the moments stacked that an optimizer has made for parameters which are stacked in another."""
    modules = [name for name, thing in objects.items() if isinstance(thing, torch.nn.Module)]
    layers = {name: [names_of_layers(each, given[name]) for each in given[name]] for name in modules}
    return _with_moments(dict(state), objects, layers)


def _with_moments(state: State, objects: Mapping[str, Any], layers: Mapping[str, Iterable[Sequence[str]]]) -> State:
    """A state with the moments stacked of parameters that are stacked.

    Args:
        layers: the names of what is stacked together, for each module.
    """
    rows = []
    for name, stacks in layers.items():
        parameters = dict(objects[name].named_parameters(remove_duplicate=False))
        for names in stacks:
            if len(names) > 1 and names[0] in parameters:
                rows.append([parameters[each] for each in names])
    for name, thing in objects.items():
        if isinstance(thing, Optimizer):
            state[name] = _moments(state[name], thing, rows)
    return state


def _moments(
    part: Mapping[str, object], optimizer: Optimizer, rows: Sequence[Sequence[torch.Tensor]]
) -> dict[str, object]:
    """The optimizer's state with one entry for the moments of stacked parameters."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    positions = {id(p): position for position, p in enumerate(every)}
    found = dict(part)
    for row in rows:
        indices = [positions[id(p)] for p in row if id(p) in positions]
        word = name_of_row(indices) if len(indices) == len(row) else None
        if word is None:
            continue
        before = f"state.{indices[0]}."
        for moment in [name.removeprefix(before) for name in part if name.startswith(before)]:
            names = [f"state.{position}.{moment}" for position in indices]
            if len({getattr(part.get(name), "shape", None) for name in names}) == 1 and names[-1] in part:
                found[f"state.{word}.{moment}"] = stacked([found.pop(name) for name in names])
    return found


def parts_with_layers(state: object, objects: Mapping[str, object]) -> list[str]:
    """The parts of a state that have entries for several layers."""
    if not isinstance(state, Mapping):
        return []
    return [name for name, thing in objects.items() if has_layers(_of_layers(state.get(name), thing))]


def with_layers_apart(state: dict, objects: Mapping[str, object], parts: Sequence[str]) -> dict:
    """A state whose parts with these names are unstacked."""
    apart = {}
    for name in parts:
        of_layers = _of_layers(state[name], objects[name])
        rest = {each: value for each, value in state[name].items() if each not in of_layers}
        apart[name] = {**rest, **unstack_layers(of_layers)}
    return {**state, **apart} if apart else state


def _of_layers(part: object, thing: object) -> dict[str, object]:
    """The parts of a state that may be stacked by layer; outside of modules ``*`` is one number for all parameters."""
    if not isinstance(part, Mapping):
        return {}
    return {name: value for name, value in part.items() if isinstance(thing, torch.nn.Module) or "::" in name}
