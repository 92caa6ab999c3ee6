"""The places where modules, optimizers, schedulers and scalers keep tensors and numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from ..calls.optimizers import numbers_of
from ..hints import nearest
from ..modules.states import expect_shape
from ..tensors.ties import ties
from ..values.both_answers import Slot

__all__ = ["GRADIENT", "Gradient", "Inserted", "Key", "expect_apart", "fitting", "places", "start"]

Key = tuple[str, str]  # the object's name, and the path within it
GRADIENT = ".grad"
_NOT_STATE = ("defaults", "param_groups", "state", "optimizer", "_per_optimizer_states")


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


def places(names: Sequence[str], objects: Sequence[Any]) -> Iterator[tuple[Key, Slot]]:
    """Where objects keep tensors and numbers; what several share, the first has."""
    seen: set[int] = set()
    for name, thing in zip(names, objects, strict=True):
        for place in _places_in(thing):
            value = place.get()
            if isinstance(value, torch.Tensor):
                if id(value) in seen:
                    continue
                seen.add(id(value))
            yield (name, place.path), place
            if isinstance(value, torch.Tensor) and value.is_leaf and not isinstance(place, Gradient):
                gradient = Gradient(value, place.path + GRADIENT)
                if gradient.get() is not None:
                    yield (name, gradient.path), gradient


def _places_in(thing: Any) -> Iterator[Slot]:
    if isinstance(thing, torch.nn.Module):
        for path, module in thing.named_modules():
            for tensors in (module._parameters, module._buffers):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        yield Slot(tensors, key, f"{path}.{key}" if path else key)
        return
    if isinstance(thing, Optimizer):
        parameters = []
        for i, group in enumerate(thing.param_groups):
            parameters.extend(group["params"])
            for j in range(len(group["params"])):
                yield Slot(group["params"], j, f"param_groups.{i}.params.{j}")
            yield from numbers_of(group, f"param_groups.{i}")
        for i, parameter in enumerate(parameters):
            if parameter in thing.state:
                yield from numbers_of(thing.state[parameter], f"state.{i}")
    own = {key: value for key, value in vars(thing).items() if key not in _NOT_STATE}
    for place in numbers_of(own, ""):
        if place.owner is own:
            place.owner = vars(thing)
        yield place


class Inserted:
    """Puts into objects what they lack: an optimizer's state before its first step, gradients."""

    def __init__(self, names: Sequence[str], objects: Sequence[Any]):
        self._objects = dict(zip(names, objects, strict=True))
        self._tensors = dict(places(names, objects))

    def put(self, key: Key, value: Any) -> None:
        name, path = key
        thing = self._objects.get(name)
        owner = self._tensors.get((name, path.removesuffix(GRADIENT)))
        if path.endswith(GRADIENT) and owner is not None:
            owner.get().grad = value
            return
        parts = path.split(".", 2)
        if isinstance(thing, Optimizer) and parts[:2] == ["state", "*"]:
            raise RuntimeError(
                f"the state has {name}.{path}, one number for all parameters, which is known after init(*args) of the "
                "step that the state is of: call that first"
            )
        if isinstance(thing, Optimizer) and parts[0] == "state" and len(parts) == 3:
            parameters = [p for group in thing.param_groups for p in group["params"]]
            thing.state[parameters[int(parts[1])]][parts[2]] = value
            return
        hint = nearest(path, [p for n, p in self._tensors if n == name])
        raise RuntimeError(f"the state has {name}.{path}, which the objects lack{hint}")


def expect_apart(names: Sequence[str], objects: Sequence[Any]) -> None:
    """Refuses different tensors on one memory: what writes to one changes the other.

    Raises:
        NotImplementedError: there are two.
    """
    tensors = {".".join(key): place.get() for key, place in places(names, objects)}
    for name, tie in ties(tensors).items():
        raise NotImplementedError(
            f"{tie.first} and {name} are two tensors that share memory, which a function with state= cannot keep "
            "together; wanted one tensor under both names, as model.b.weight = model.a.weight makes it, or a copy"
        )


def start(thing: Any) -> None:
    """Lets a scaler make what it otherwise makes when it first scales."""
    if isinstance(thing, GradScaler) and thing.is_enabled() and thing._scale is None:
        thing._lazy_init_scale_growth_tracker(torch.device(thing._device))


def fitting(value: Any, tensor: torch.Tensor, key: Key, thing: Any):
    """An entry of a state, in the shape of its tensor of `thing`, or in a shape that `thing` accepts."""
    return expect_shape(value, tensor, ".".join(key), "the state", thing, key[1])
