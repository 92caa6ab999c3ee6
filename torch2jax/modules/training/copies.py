"""Copies of a step's objects: for one call, with the arrays of a state in them, and without any, as a layout.

A layout is what of a state is no array: the objects as they are at one point of a training, with their dictionaries and
lists, flags and None, but without tensors. A state with the names of a layout's arrays is of that layout.
"""

import copy
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...calls.dispatch import Call
from ...calls.optimizers import adopt, step_abstractly
from ...runtime.translation import lift_own
from ...tensors.dtypes import dtype_j2t
from ...tensors.interop import array_to_tensor, ties
from ...tensors.known import real
from ...tensors.objects import Slot, codec_of
from ...tensors.tensor import Torchish, wrap
from ...tensors.wrapped import Wrapped, is_wrapper
from ...tracing.user_code import note_copies, note_made
from ...values.traced_numbers import Count, Number
from ...values.wrapper_subclasses import bound, entering
from ..deep_copy import DeepCopy
from ..skeleton import copy_structure, name_scopes
from ..states import as_array, expect_shape, overwrite, tensor_of_entry
from .slots import (
    GRADIENT,
    LAST_RATES,
    NOT_STATE,
    OF_MODULES,
    Gradient,
    Key,
    Made,
    OfModule,
    is_plain,
    is_tensor,
    is_walked,
    made_by_steps,
    slots_of,
)

_DEPTH = 4  # of containers and objects in the attributes of modules


class Layout(NamedTuple):
    """The part of a state that is no array."""

    things: list[Any]
    """The objects. In the place of tensors they have the user's, or `Made` where the user's objects lack them."""
    tensors: dict[Key, torch.dtype | None]
    """The tensors that the state has arrays of, with PyTorch's dtypes; None for wrappers."""
    numbers: dict[Key, int | float]
    """The Python numbers that the state has arrays of, with their values when the layout was made."""
    constants: dict[Key, Any]
    """All other values, which are compared."""
    members: dict[Key, list[Key]]
    """The keys in the objects for each array of the state: mostly one, several for a shared counter."""


def expect_apart(names: Sequence[str], objects: Sequence[object]) -> None:
    """Refuses different tensors on one memory: a write to one would change the other.

    Raises:
        NotImplementedError: there are two.
    """
    found = ((key, slot.get()) for key, slot in slots_of(names, objects))
    tensors = {".".join(key): value for key, value in found if isinstance(value, torch.Tensor)}
    for name, tie in ties(tensors).items():
        raise NotImplementedError(sharing(tie.first, name))


def sharing(first: str, second: str) -> str:
    return (
        f"{first} and {second} are two tensors that share memory, which a function with state= cannot keep "
        "together; wanted one tensor under both names, as model.b.weight = model.a.weight makes it, or a copy"
    )


def start(thing: object) -> None:
    """Makes a scaler create the tensors that it otherwise creates when it first scales."""
    if isinstance(thing, GradScaler) and thing.is_enabled() and thing._scale is None:
        thing._lazy_init_scale_growth_tracker(torch.device(thing._device))


def fitting(value: object, tensor: torch.Tensor, key: Key, thing: object):
    """An entry of a state, in the shape of its tensor of `thing`, or in a shape that `thing` accepts."""
    return expect_shape(value, tensor, ".".join(key), "the state", thing, key[1])


class _Copying(DeepCopy):
    """A deep copy of objects, in which shared objects stay shared.

    Args:
        memo: what stands for objects, by their ids.
        things: objects of classes of PyTorch's own that are copied as well.
    """

    def __init__(self, memo: dict[int, object], things: Sequence[object]):
        super().__init__(memo)
        self._things = list(things)

    def of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        return copy_structure(module, self.memo)

    def began(self, value: object, made: object) -> None:
        super().began(value, made)
        note_made(made)

    def copied(self, value: Any) -> Any:
        if id(value) in self.memo:
            return self.memo[id(value)]
        if is_tensor(value):
            made = self.of_tensor(value)
            self.began(value, made)
            return made
        if not isinstance(value, torch.nn.Module) and (is_walked(value) or any(value is x for x in self._things)):
            return self._of_object(value)
        return super().copied(value)

    def alone(self, value: object, error: Exception) -> object:
        return value  # a lock, a file, a generator is shared

    def _of_object(self, value: Any) -> object:
        # A namespace is C's, whose objects `object` does not make.
        result = (types.SimpleNamespace if isinstance(value, types.SimpleNamespace) else object).__new__(type(value))
        self.began(value, result)
        codec = codec_of(type(value))
        attributes = vars(value) if codec is None else dict(zip(*codec.open(value), strict=True))
        own = getattr(value, "__dict__", None)
        # Several objects of a class may have one __dict__, as accelerate's.
        if own is not None and id(own) in self.memo:
            result.__dict__ = self.memo[id(own)]
            return result
        if own is not None:
            self.memo[id(own)] = result.__dict__
        for name, item in attributes.items():
            if isinstance(value, GradScaler) and name in NOT_STATE:  # what is not finished has ended with its call
                result.__dict__[name] = copy.copy(item)
                result.__dict__[name].clear()
            elif name == "step" and isinstance(value, Optimizer):  # a scheduler's wrapper of it
                continue
            elif name == LAST_RATES and isinstance(value, LRScheduler):
                result.__dict__[name] = list(map(self.copied, item))  # which no other has
            elif own is not None and name in own:
                result.__dict__[name] = self.copied(item)
            else:
                object.__setattr__(result, name, self.copied(item))
        return result


class Copies(_Copying):
    """Copies of a function's objects for one call, with the arrays of a state in them.

    Args:
        call: which the tensors in the copies are of.
        names: of the objects.
        originals: the objects, which are only read.
        layout: of the state; None for the objects' own values.
        given: the arrays of the state.
        own: constants of the user's objects that differ from what they were when the layout was made.
        starts: what numbers were at first.
    """

    def __init__(
        self,
        call: Call,
        names: Sequence[str],
        originals: Sequence[object],
        layout: Layout | None,
        given: Mapping[Key, object],
        own: Mapping[Key, object],
        starts: Mapping[Key, object],
    ):
        things = originals if layout is None else layout.things
        super().__init__({}, things)
        self._call, self._names = call, names
        self._sources: dict[int, object] = {}  # what copies are of, by the ids of these
        self._by_key: dict[Key, object] = {}  # what stands for tensors that the user's objects lack
        self._modules = dict(zip(names, originals, strict=True))
        for key, slot in slots_of(names, things):
            tensor = slot.get()
            if is_tensor(tensor) and not isinstance(slot, Gradient):
                self.began(
                    tensor, self._own(key, tensor) if layout is None else self._given(key, tensor, layout, given)
                )
        self.objects = [self.copied(thing) for thing in things]
        for module in self.objects:
            if isinstance(module, torch.nn.Module):
                name_scopes(module)
        for thing in self.objects:
            start(thing)
        if layout is None:
            self._keep_gradients(things)
        else:
            self._fill(layout, given, own, starts)

    def _own(self, key: Key, tensor: Torchish) -> Any:
        if not is_wrapper(tensor) and tensor.is_meta:
            return self._call.constants.bind_missing(tensor, _without_values(key))
        return _apart(self.of_tensor(tensor))

    def _substitute(self, key: Key, tensor: object, layout: Layout, given: Mapping[Key, object]) -> Any:
        if id(tensor) not in self.memo:
            self.began(tensor, self._given(key, tensor, layout, given))
        return self.memo[id(tensor)]

    def _given(self, key: Key, tensor: Any, layout: Layout, given: Mapping[Key, Any]) -> object:
        if isinstance(tensor, Made) and tensor.of is not None:
            return self._substitute(key, tensor.of, layout, given).detach()
        if isinstance(tensor, Made):
            made = self._by_key[tensor.key] = self._made(tensor, given[tensor.key], layout.tensors[tensor.key])
            return made
        if key not in given:  # the step has taken it away
            return None
        array = as_array(fitting(given[key], tensor, key, self._modules[key[0]]))
        if is_wrapper(tensor):
            return bound(self._call, tensor, array)
        return _apart(self._call.constants.bind(tensor, array))

    def _made(self, made: Made | None, array: jax.Array, dtype: torch.dtype | None) -> object:
        if isinstance(array, Wrapped):
            return entering(self._call, array)
        array = jnp.asarray(self._call.execution.entering(array))
        tensor: object = _apart(wrap(array, dtype or dtype_j2t(array.dtype)))
        if made is not None and made.requires_grad:
            tensor.requires_grad_()
        if made is not None and made.is_parameter:
            tensor._is_param = True
        return tensor

    def _keep_gradients(self, things: Sequence[Any]) -> None:
        for _, slot in slots_of(self._names, things):
            if isinstance(slot, Gradient):
                gradient: Any = slot.get()
                self.memo[id(slot.tensor)].grad = lift_own(gradient)

    def _fill(
        self, layout: Layout, given: Mapping[Key, Any], own: Mapping[Key, object], starts: Mapping[Key, object]
    ) -> None:
        found = dict(self.slots())
        found |= made_by_steps(found, layout.numbers.keys() | layout.constants.keys())
        for key, slot in found.items():
            if key in layout.numbers:
                kind = Count if key[1].endswith("_step_count") else Number
                array = jnp.asarray(self._call.execution.entering(given[key]))
                slot.set(kind.holding(array, starts.get(key, layout.numbers[key])))
            elif key in own:
                slot.set(own[key])
            elif isinstance(slot, OfModule) and slot.get() != layout.constants.get(
                key, slot.get()
            ):  # layouts have no copies of modules
                slot.set(layout.constants[key])
        for key, dtype in layout.tensors.items():
            if key in found:
                continue
            owner = found.get((key[0], key[1].removesuffix(GRADIENT))) if key[1].endswith(GRADIENT) else None
            value = self._by_key[key] if key in self._by_key else self._made(None, given[key], dtype)
            _put(self.objects[list(self._names).index(key[0])], key[1], owner, value)

    def slots(self) -> Iterator[tuple[Key, Slot]]:
        return slots_of(self._names, self.objects)

    def left_in_modules(self) -> Iterator[str]:
        """The attributes of modules that the step has changed and that a state lacks: tensors, lists, dictionaries."""
        for source in [x for x in self._sources.values() if isinstance(x, torch.nn.Module)]:
            before, now = vars(source), vars(self.memo[id(source)])
            for name in now.keys() - OF_MODULES:
                value = now[name]
                is_kept = is_plain(value) or isinstance(value, Number)  # by a state
                if not is_kept and self._is_another(value, before.get(name), _DEPTH):
                    yield f"{type(source).__name__}.{name}"

    def _is_another(self, value: Any, before: Any, depth: int) -> bool:
        """True for another tensor, or for a container with other tensors, numbers or names."""
        if value is before or (is_tensor(value) and value is self.memo.get(id(before))):
            return False
        if is_tensor(value):
            return True
        is_object = is_walked(value) or isinstance(value, types.SimpleNamespace)
        if is_object and not isinstance(value, torch.nn.Module) and depth:
            return type(value) is type(before) and self._is_another(
                getattr(value, "__dict__", {}), getattr(before, "__dict__", {}), depth - 1
            )
        if isinstance(value, (list, tuple, deque, dict)) and depth:
            if type(value) is not type(before) or len(value) != len(before):
                return True
            if isinstance(value, dict):
                return any(self._is_another(x, before.get(key), depth - 1) for key, x in value.items())
            return any(self._is_another(x, other, depth - 1) for x, other in zip(value, before, strict=True))
        return isinstance(value, (bool, int, float, complex, str)) and value != before

    def layout(
        self,
        tensors: Mapping[Key, Any],
        numbers: Mapping[Key, Any],
        shown: dict[Key, Any],
        aliases: Mapping[Key, Any],
        constants: dict[Key, object],
        members: dict[Key, list[Key]],
    ) -> Layout:
        """The layout of the copies as they are now, with these tensors and numbers in them.

        Args:
            shown: Python numbers for `numbers`.
            aliases: tensors that share their memory with others of `tensors`, and these.
        """
        memo = {**self._sources, **{id(x): shown[key] for key, x in numbers.items() if isinstance(x, Torchish)}}
        for key, tensor in tensors.items():
            if not isinstance(memo.get(id(tensor)), torch.Tensor):
                memo[id(tensor)] = Made(key, tensor)
        for key, (tensor, other) in aliases.items():
            if not isinstance(memo.get(id(tensor)), torch.Tensor):
                memo[id(tensor)] = Made(key, tensor, memo[id(other)])
        without = _Without(memo, self.objects)
        things = [without.copied(thing) for thing in self.objects]
        dtypes = {key: None if is_wrapper(x) else x.dtype for key, x in tensors.items()}
        return Layout(things, dtypes, shown, constants, members)

    # What is copied.

    def of_tensor(self, tensor: torch.Tensor) -> Any:
        """The call's tensor for a tensor of the objects, with its own values."""
        return entering(self._call, tensor, is_own=True) if is_wrapper(tensor) else lift_own(tensor)

    def of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        for tensor in (*torch.nn.Module.parameters(module), *torch.nn.Module.buffers(module)):
            if id(tensor) not in self.memo:
                self.began(tensor, self.of_tensor(tensor))
        result = super().of_module(module)
        for part in result.modules():
            self._call.settings.modules.add_made(part)
        if self._call.execution.code.is_converted:
            note_copies(self.memo)
        self._sources.update({id(self.memo[id(part)]): part for part in module.modules() if id(part) in self.memo})
        if self._call.last_resort is not None:
            self._call.last_resort.take_over(module, result)
        return result

    def began(self, value: object, made: object) -> None:
        super().began(value, made)
        if is_tensor(value) and made is not None:
            self._sources[id(made)] = value

    def _of_object(self, value: object) -> object:
        result = super()._of_object(value)
        if isinstance(value, (Optimizer, LRScheduler, GradScaler)) or any(value is x for x in self._things):
            adopt(result)
        if isinstance(result, Optimizer):
            result.step = types.MethodType(_step_of_copy, result)
            result.__dict__["_opt_called"] = True
        return result


def _put(thing: Any, path: str, owner: Slot | None, value: object) -> None:
    """Sets a gradient at `owner`, or a parameter or buffer that a module lacks."""
    if owner is not None:
        owner.get().grad = value
        return
    path, _, name = path.rpartition(".")
    module = thing.get_submodule(path)
    (module._buffers if name in module._buffers else module._parameters)[name] = value


class _Without(_Copying):
    """A copy without the arrays that the call computed."""

    def of_tensor(self, tensor: Any) -> Any:
        if tensor.known is not None:
            return real(tensor.known).clone()
        raise NotImplementedError(
            f"the step leaves a tensor of shape {tuple(tensor.shape)} where a state has none, as in a set; wanted it "
            "in a dictionary, a list or an attribute of the objects in state="
        )

    def of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        result = super().of_module(module)  # one that the step has made
        for part in result.modules():
            vars(part).pop("_compiled_call_impl", None)
        return result


# Back into the user's objects.


def write(
    names: Sequence[str],
    objects: Sequence[Any],
    layout: Layout,
    given: Mapping[Key, Any],
    own: Mapping[Key, object],
) -> None:
    """Sets objects to a state: tensors and containers that exist keep their identity."""
    things, live = dict(zip(names, objects, strict=True)), dict(slots_of(names, objects))
    memo = {id(made): thing for made, thing in zip(layout.things, objects, strict=True)}

    def written(key: Key, before: Any) -> torch.Tensor:
        value = given[key]
        if isinstance(before, torch.Tensor) and not is_wrapper(before):
            fitted = fitting(value, before, key, things[key[0]])
            overwrite(before, _tensor(fitted, before.dtype))
            return before
        tensor = tensor_of_entry(value) if isinstance(value, Wrapped) else _tensor(value, layout.tensors[key])
        if before is None:
            return tensor
        overwrite(before, tensor)
        return before

    for key, slot in slots_of(names, layout.things):
        value = slot.get()
        if isinstance(slot, Gradient) or not is_tensor(value):
            continue
        if not isinstance(value, Made):
            if key in given:
                written(key, value)
            memo[id(value)] = value
            continue
        if value.of is not None:
            memo[id(value)] = memo[id(value.of)].detach()
            continue
        before = live[value.key].get() if value.key in live else None
        is_compatible = isinstance(before, torch.Tensor) and before.shape == given[value.key].shape
        memo[id(value)] = written(value.key, before if is_compatible else None)
    copying, done, used = _Copying(memo, layout.things), {}, set()
    for made, thing in zip(layout.things, objects, strict=True):
        if isinstance(thing, torch.nn.Module):
            continue
        attributes = vars(thing)
        for name, item in vars(made).items():
            if name not in NOT_STATE and not name.startswith("_optimizer_") and name not in ("step", "_opt_called"):
                attributes[name] = _transferred(attributes.get(name), copying.copied(item), done, used)
    found = dict(slots_of(names, objects))
    found |= made_by_steps(found, layout.numbers.keys() | layout.constants.keys())
    for key, slot in found.items():
        if key in layout.numbers:
            slot.set(type(layout.numbers[key])(np.asarray(given[key]).item()))
        elif key in own:
            slot.set(own[key])
        elif isinstance(slot, OfModule) and slot.get() != layout.constants.get(key, slot.get()):
            slot.set(layout.constants[key])
    for key in layout.tensors:
        owner = found.get((key[0], key[1].removesuffix(GRADIENT))) if key[1].endswith(GRADIENT) else None
        if owner is not None or (key not in found and isinstance(things[key[0]], torch.nn.Module)):
            _put(things[key[0]], key[1], owner, written(key, None))


def _tensor(value: object, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = value.detach() if isinstance(value, torch.Tensor) else array_to_tensor(value, gathers=True)
    return tensor.to(dtype=dtype or tensor.dtype, copy=True)


def _transferred(mine: object, new: object, done: dict[int, tuple[object, object]], used: set[int]) -> object:
    """The user's object with the contents of the new one in its place, if it can have them; else the new one.

    Args:
        done: by the ids of new objects, these and what stands for them.
        used: the ids of the user's objects that stand for one, and so for no other.
    """
    if mine is new or mine is None or is_tensor(new) or is_plain(new) or isinstance(new, (tuple, set)):
        return new
    if id(new) in done:
        return done[id(new)][1]
    done[id(new)] = new, new if id(mine) in used else mine
    if id(mine) in used:
        return new
    used.add(id(mine))
    if isinstance(mine, dict) and isinstance(new, dict):
        items = {key: _transferred(mine.get(key), item, done, used) for key, item in new.items()}
        mine.clear()
        mine.update(items)
    elif isinstance(mine, (list, deque)) and isinstance(new, (list, deque)):
        before = [*mine, *[None] * (len(new) - len(mine))]
        items = [_transferred(each, item, done, used) for each, item in zip(before, new, strict=False)]
        mine.clear()
        mine.extend(items)
    elif type(mine) is type(new) and is_walked(mine) and hasattr(mine, "__dict__"):
        for name, item in vars(new).items():
            vars(mine)[name] = _transferred(vars(mine).get(name), item, done, used)
    elif is_walked(new):
        return new
    return mine


def _without_values(key: Key) -> RuntimeError:
    return RuntimeError(
        f"{'.'.join(key)} is on the meta device, and init makes a first state of values: give it some, or for shapes "
        "alone translate the module, and take gradients and steps in JAX"
    )


def _apart(tensor: Torchish) -> Torchish:
    """A tensor of a state, declared to have no derivative that `no_grad` would have to stop."""
    if isinstance(tensor, Torchish) and tensor.history is None:
        tensor._node.storage.differentiable = False
    return tensor


def _step_of_copy(self: Any, *args: object, **kwargs: object):
    return step_abstractly(self, *args, **kwargs)


_step_of_copy._wrapped_by_lr_sched = True  # pyright: ignore[reportFunctionMemberAccess]  # as schedulers expect
