"""Where objects keep tensors and numbers, and copies of the objects for one call, which hold the arrays of a state."""

import copy
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import jax.numpy as jnp
import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..calls.dispatch import Call
from ..calls.optimizers import adopt, numbers_of, step_abstractly
from ..hints import nearest
from ..modules.skeleton import copy_structure, name_scopes
from ..modules.states import as_array, expect_shape
from ..tensors.dtypes import dtype_j2t
from ..tensors.interop import ties
from ..tensors.tensor import Torchish, wrap
from ..tensors.wrapped import Wrapped, is_wrapper
from ..values.both_answers import Slot
from ..values.traced_numbers import Count, Number
from ..values.wrapper_subclasses import bound, entering

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


class Copies:
    """Copies of a function's objects for one call, with the arrays of a state in them.

    Args:
        call: which the tensors in the copies are of.
        names: of the objects.
        originals: the objects, which are only read.
        given: the arrays; None for the objects' own values.
        numbers: those of `given` that are Python numbers in the objects.
        dtypes: of those that the objects lack.
    """

    def __init__(
        self,
        call: Call,
        names: Sequence[str],
        originals: Sequence[Any],
        given: dict[Key, Any] | None,
        numbers: Set[Key],
        dtypes: Mapping[Key, torch.dtype],
    ):
        self._call, self._names, self._originals = call, names, originals
        self._memo: dict[int, Any] = {}
        things = dict(zip(names, originals, strict=True))
        for key, place in places(names, originals):
            tensor = place.get()
            if isinstance(tensor, torch.Tensor) and not isinstance(place, Gradient):
                if given is not None and key not in given:
                    raise RuntimeError(f"the state lacks {'.'.join(key)}; make it with init(*args)")
                array = as_array(fitting(given[key], tensor, key, things[key[0]])) if given is not None else None
                if is_wrapper(tensor):
                    self._memo[id(tensor)] = self._owned(tensor) if array is None else bound(call, tensor, array)
                    continue
                if array is not None:
                    found = call.bind(tensor, array)
                elif tensor.is_meta:
                    found = call.bind_missing(tensor, _without_values(key))
                else:
                    found = self._owned(tensor)
                self._memo[id(tensor)] = _apart(found)
        self.objects = [self._copied(thing) for thing in originals]
        for module in self.objects:
            if isinstance(module, torch.nn.Module):
                name_scopes(module)
        for thing in self.objects:
            start(thing)
        if given is None:
            self._keep_gradients()
        else:
            self._fill(dict(given), numbers, dtypes)

    def _owned(self, tensor: torch.Tensor) -> Any:
        """What stands for a tensor of the objects, with its own values."""
        return entering(self._call, tensor, is_own=True) if is_wrapper(tensor) else self._call.lift_own(tensor)

    def _keep_gradients(self) -> None:
        for _, place in places(self._names, self._originals):
            if isinstance(place, Gradient):
                gradient: Any = place.get()
                self._memo[id(place.tensor)].grad = self._call.lift_own(gradient)

    def _fill(self, given: dict[Key, Any], numbers: Set[Key], dtypes: Mapping[Key, torch.dtype]) -> None:
        have_values = {id(tensor) for tensor in self._memo.values()}
        for key, place in list(self.places()):
            if key not in given:
                continue
            array, value = given.pop(key), place.get()
            if isinstance(value, torch.Tensor) and id(value) in have_values:
                continue
            array = jnp.asarray(self._call.attempt.entering(array))
            if isinstance(value, torch.Tensor):
                place.set(_apart(wrap(array, value.dtype)))  # one that a copy made at its start
            else:
                kind = Count if key[1].endswith("_step_count") else Number
                place.set(kind.holding(array, value))
        inserted = Inserted(self._names, self.objects)
        for key, array in given.items():
            if isinstance(array, Wrapped):
                inserted.put(key, entering(self._call, array))
                continue
            array = jnp.asarray(self._call.attempt.entering(array))
            tensor = _apart(wrap(array, dtypes.get(key) or dtype_j2t(array.dtype)))
            inserted.put(key, Number.of(tensor) if key in numbers else tensor)

    def places(self) -> Iterator[tuple[Key, Slot]]:
        return places(self._names, self.objects)

    def optimizers(self) -> list[Optimizer]:
        return [thing for thing in self.objects if isinstance(thing, Optimizer)]

    def _copied(self, value: Any) -> Any:
        """A copy that has the call's tensors in place of others, and copies in place of the objects."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, torch.nn.Module):
            for tensor in (*torch.nn.Module.parameters(value), *torch.nn.Module.buffers(value)):
                if id(tensor) not in self._memo:
                    self._memo[id(tensor)] = self._owned(tensor)
            result = copy_structure(value, self._memo)
            if self._call.last_resort is not None:
                self._call.last_resort.take_over(value, result)
            return result
        if isinstance(value, torch.Tensor):
            return self._remember(value, self._owned(value))
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self._copied(value.__self__))
        if isinstance(value, dict):
            result = self._remember(value, copy.copy(value))
            result.clear()
            result.update({self._copied(key): self._copied(item) for key, item in value.items()})
            return result
        if type(value) is list:
            result = self._remember(value, [])
            result.extend(map(self._copied, value))
            return result
        if type(value) is tuple:
            return tuple(map(self._copied, value))
        if isinstance(value, (Optimizer, LRScheduler, GradScaler)) or any(value is x for x in self._originals):
            return self._copied_object(value)
        try:
            return copy.deepcopy(value, self._memo)
        except Exception:  # a lock, a file, a generator is shared
            return value

    def _copied_object(self, value: Any) -> Any:
        result = self._remember(value, object.__new__(type(value)))
        for name, item in vars(value).items():
            if not (name == "step" and isinstance(value, Optimizer)):  # a scheduler's wrapper of it
                result.__dict__[name] = self._copied(item)
        adopt(result)
        if isinstance(result, Optimizer):
            result.step = types.MethodType(_step_of_copy, result)
            result.__dict__["_opt_called"] = True
        return result

    def _remember(self, value: Any, copied: Any) -> Any:
        self._memo[id(value)] = copied
        return copied


def _without_values(key: Key) -> RuntimeError:
    return RuntimeError(
        f"{'.'.join(key)} is on the meta device, and init makes a first state of values: give it some, or for shapes "
        "alone translate the module, and take gradients and steps in JAX"
    )


def _apart(tensor: Torchish) -> Torchish:
    """A tensor of a state: what is computed of it with gradients off has no derivative to be stopped."""
    if tensor.history is None:
        tensor._node.storage.differentiable = False
    return tensor


def _step_of_copy(self: Any, *args: Any, **kwargs: Any):
    return step_abstractly(self, *args, **kwargs)


_step_of_copy._wrapped_by_lr_sched = True  # pyright: ignore[reportFunctionMemberAccess]  # as schedulers expect
