"""Functions that change modules, optimizers, schedulers and scalers: what they change goes in and comes out."""

import copy
import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.interpreters import partial_eval as pe
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..tensors.dtypes import canonical, dtype_j2t
from ..tensors.interop import array_to_tensor
from ..tensors.known import evaluate
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from ..transforms.paths import FOLLOWING, Policy
from ..transforms.tape import Attempt, Runs
from .dispatch import Translation
from .follow import Place
from .module import as_array, copy_structure, expect_shape, name_scopes
from .numbers import Count, Number
from .optimizers import adopt, numbers_of, recording, step_abstractly
from .translated import run_on_arrays

__all__ = ["StatefulFunction"]

State = dict[str, dict[str, Any]]
_Key = tuple[str, str]  # the object's name, and the path within it
_GRADIENT = ".grad"
_NOT_STATE = ("defaults", "param_groups", "state", "optimizer", "_per_optimizer_states")


class StatefulFunction:
    """A PyTorch function that changes its first arguments, as a pure function ``f(state, *args, rng=None, **kwargs)``.

    Args:
        function: takes the objects first, then its own arguments.
        objects: modules, optimizers, schedulers, scalers. They are only read, but by `load`.
        last_resort: as that of `Translation`.
    """

    def __init__(self, function: Callable, objects: Sequence[Any], last_resort: Any = None, policy: Policy = FOLLOWING):
        self._function, self._objects, self._last_resort = function, tuple(objects), last_resort
        self._names = _names_of(function, len(self._objects))
        self._runs = Runs(policy)
        self._numbers: set[_Key] = set()  # those that the function changes
        self._dtypes: dict[_Key, torch.dtype] = {}
        self._unused: set[_Key] = set()  # gradients that the function leaves, but never asks for
        self._shared: dict[_Key, _Key] = {}  # counters that are equal for all parameters: the one that stands for each
        self._is_ready = False
        self.__name__, self.__doc__ = getattr(function, "__name__", "step"), function.__doc__

    def init(self, *args, rng=None, **kwargs) -> State:
        """The state from which the first step starts: that of the objects, and what optimizers make in that step.

        Args:
            args, kwargs: as those of a call, without the state; of arrays only shapes and dtypes matter, so that
                `jax.ShapeDtypeStruct` serves.
            rng: as that of a call.

        Returns:
            For each object, under the name of its parameter, a dictionary of arrays: parameters and buffers by name,
            the rest by its path in the object. They share no memory with the objects.

        Raises what a call raises.
        """
        leaves, structure = flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
        arrays = [_abstract(leaves[i]) for i in at]

        def arguments(given: list) -> Any:
            filled = list(leaves)
            for i, array in zip(at, given, strict=True):
                filled[i] = array
            return structure.unflatten(filled)

        def run(state: State | None, given: list):
            args, kwargs = arguments(given)
            return self._run(state, args, kwargs, rng, first)

        self._numbers, self._unused, self._shared, first = set(), set(), {}, _First()
        jax.eval_shape(lambda given: run(None, given), arrays)
        self._is_ready = True
        self._shared = _equal_counters(first.values)
        while True:
            self._numbers |= first.changed
            values = {key: x for key, x in first.values.items() if not self._is_static(key, x)}
            state = _nested(self._names, self._merged(values))
            before, first.changed = len(self._numbers), set()
            try:
                traced = jax.make_jaxpr(lambda given, state: run(state, given)[1])(arrays, state)
            except _Uneven as uneven:
                self._shared = {key: shared for key, shared in self._shared.items() if shared != uneven.shared}
                continue
            if len(self._numbers | first.changed) == before:
                break
        self._unused = {key for key in _unused(traced, len(arrays), state) if key[1].endswith(_GRADIENT)}
        for name, path in self._unused:
            del state[name][path]
        return state

    def __call__(self, state: State, *args, rng=None, **kwargs):
        """Runs the function on a state.

        Returns:
            What the function returns, and the state after it.

        Raises:
            RuntimeError: `init` was not called, or `state` is not of the structure it gave.
        """
        if not self._is_ready:
            raise RuntimeError(f"{self!r} was called before {self.__name__}.init(*args), which makes its state")
        return self._run(state, args, kwargs, rng, None)

    def load(self, state: State) -> None:
        """Puts a state into the objects themselves, as training them in PyTorch would have left them.

        Raises:
            RuntimeError: `state` has a name that the objects lack, or something of another shape than theirs.
        """
        for thing in self._objects:
            _start(thing)
        given = self._parted(state)
        with torch.no_grad():
            for key, place in _places(self._names, self._objects):
                if key not in given:
                    continue
                value, before = given.pop(key), place.get()
                if isinstance(before, torch.Tensor):
                    before.copy_(_tensor(_fitting(value, before, key), before.dtype))
                else:
                    place.set(type(before)(np.asarray(value).item()))
            inserted = _Inserted(self._names, self._objects)
            for key, value in given.items():
                tensor = _tensor(value, self._dtypes.get(key))
                inserted.put(key, tensor.item() if key in self._numbers else tensor)

    def __repr__(self) -> str:
        return f"t2j({self._function!r}, state=({', '.join(self._names)}))"

    def _is_static(self, key: _Key, value) -> bool:
        return not isinstance(value, jax.Array) and key not in self._numbers

    def _run(self, state: State | None, args, kwargs, rng, first: "_First | None"):
        def run(attempt: Attempt):
            with Translation(rng, self._last_resort, attempt) as call, torch.enable_grad(), ExitStack() as recordings:
                copies = _Copies(self, state, call)
                before = {key: place.get() for key, place in copies.places()}
                if first is not None:
                    first.begin(state is None, before, copies, recordings)
                result = run_on_arrays(call, functools.partial(self._function, *copies.objects), args, kwargs)
                after = {key: place.get() for key, place in copies.places()}
                changed = {key for key in after if self._has_changed(key, before.get(key), after[key])}
                if first is not None:
                    first.end(state is None, before, after, changed, copies)
                elif changed:
                    listed = ", ".join(".".join(key) for key in sorted(changed))
                    raise RuntimeError(
                        f"{self.__name__} changed {listed}, which it did not change in {self.__name__}.init: call that "
                        "with arguments like those of this call"
                    )
                return result, self._outgoing(state, after, call)

        return self._runs.run(run)

    def _has_changed(self, key: _Key, before, after) -> bool:
        """Whether a Python number has changed, that is not part of the state yet."""
        if key in self._numbers or not isinstance(before, (int, float)):
            return False
        return isinstance(after, torch.Tensor) or before != after

    def _outgoing(self, state: State | None, after: dict[_Key, Any], call: Translation) -> State:
        arrays = {}
        for key, value in after.items():
            is_tensor = isinstance(value, torch.Tensor)
            if key in self._unused or (not is_tensor and key not in self._numbers):
                continue
            if not is_tensor:
                value = call.lift(torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64))
            tensor = call.lift(value)
            self._dtypes[key] = tensor.dtype
            arrays[key] = _strong(call.array_of(tensor))
        return _nested(self._names, self._merged(arrays))

    def _merged(self, arrays: dict[_Key, Any]) -> dict[_Key, Any]:
        """With one counter for those that are equal.

        Raises:
            _Uneven: some no longer are.
        """
        merged: dict[_Key, Any] = {}
        for key, array in arrays.items():
            shared = self._shared.get(key, key)
            if shared in merged and not _is_same(merged[shared], array):
                raise _Uneven(shared, self.__name__)
            merged[shared] = array
        return merged

    def _parted(self, state: State) -> dict[_Key, Any]:
        """With a counter for each parameter."""
        given = _flat(state)
        parted = {key: given[shared] for key, shared in self._shared.items() if shared in given}
        merged = set(self._shared.values())
        return {**{key: value for key, value in given.items() if key not in merged}, **parted}


class _Uneven(RuntimeError):
    """Counters that were equal for all parameters are no longer."""

    def __init__(self, shared: _Key, name: str):
        super().__init__(
            f"{name} steps some parameters that it did not step in {name}.init, or the other way round, so that "
            f"{'.'.join(shared)} differs between them: call init with arguments like those of this call"
        )
        self.shared = shared


def _equal_counters(values: dict[_Key, Any]) -> dict[_Key, _Key]:
    """The scalars of an optimizer's state that are equal for all parameters, and what stands for each."""
    groups: dict[_Key, dict[_Key, Any]] = {}
    for (name, path), value in values.items():
        parts = path.split(".", 2)
        if parts[0] == "state" and len(parts) == 3 and isinstance(value, jax.Array) and value.ndim == 0:
            groups.setdefault((name, f"state.*.{parts[2]}"), {})[(name, path)] = value
    equal = [(x, members) for x, members in groups.items() if len({float(v) for v in members.values()}) == 1]
    return {key: shared for shared, members in equal if len(members) > 1 for key in members}


def _is_same(array, other) -> bool:
    if array is other or is_traced(array) or is_traced(other):
        return array is other
    return bool(array == other)


class _First:
    """What the runs of `init` find out."""

    def __init__(self):
        self.values: dict[_Key, Any] = {}
        self.changed: set[_Key] = set()
        self._made: list[tuple[Optimizer, dict]] = []

    def begin(self, is_first: bool, before: dict[_Key, Any], copies: "_Copies", recordings: ExitStack) -> None:
        if not is_first:
            return
        self.values = {key: _value_of(x) for key, x in before.items()}
        self._made = [(x, recordings.enter_context(recording(x))) for x in copies.optimizers()]

    def end(self, is_first: bool, before, after, changed: set[_Key], copies: "_Copies") -> None:
        self.changed = changed
        if not is_first:
            return
        made = [
            (id(optimizer.state[p]), name, x) for optimizer, initial in self._made for (p, name), x in initial.items()
        ]
        initial = {(owner, name): value for owner, name, value in made}
        for key, place in copies.places():
            if key in before:
                continue
            if isinstance(place, _Gradient):
                with jax.ensure_compile_time_eval():
                    self.values[key] = jnp.zeros(place.tensor.shape, canonical(place.tensor.dtype))
                continue
            value = initial.get((id(place.owner), place.key))
            if value is not None:
                self.values[key] = _value_of(value)
                if not isinstance(value, torch.Tensor):
                    self.changed.add(key)


def _value_of(value):
    """A Python number, or a new array of the values of a tensor."""
    if not isinstance(value, Torchish):
        return value
    array = value.read() if value.known is None else evaluate(value.known)
    with jax.ensure_compile_time_eval():
        return _strong(jnp.array(array, copy=True))


class _Copies:
    """Copies of a function's objects for one call, with the arrays of a state in them."""

    def __init__(self, function: StatefulFunction, state: State | None, call: Translation):
        self._names, self._call = function._names, call
        self._memo: dict[int, Any] = {}
        given = {} if state is None else function._parted(state)
        self._originals = originals = function._objects
        for key, place in _places(self._names, originals):
            tensor = place.get()
            if isinstance(tensor, torch.Tensor) and not isinstance(place, _Gradient):
                if state is not None and key not in given:
                    self._refuse("lacks", [key], given)
                array = as_array(_fitting(given[key], tensor, key)) if key in given else None
                if array is not None:
                    found = call.bind(tensor, array)
                elif tensor.is_meta:
                    found = call.bind_missing(tensor, _without_values(key))
                else:
                    found = call.lift_own(tensor)
                self._memo[id(tensor)] = _apart(found)
        self._gradients = [
            (self._memo[id(place.tensor)], place.get())
            for _, place in _places(self._names, originals)
            if isinstance(place, _Gradient)
        ]
        self.objects = [self._copied(thing) for thing in originals]
        for module in self.objects:
            if isinstance(module, torch.nn.Module):
                name_scopes(module)
        for thing in self.objects:
            _start(thing)
        self._fill(given, function, state is None)

    def _fill(self, given: dict[_Key, Any], function: StatefulFunction, with_gradients: bool) -> None:
        if with_gradients:
            for tensor, gradient in self._gradients:
                tensor.grad = self._call.lift_own(gradient)  # pyright: ignore[reportArgumentType]
        bound = {id(tensor) for tensor in self._memo.values()}
        for key, place in list(self.places()):
            if key not in given:
                continue
            array, value = given.pop(key), place.get()
            if isinstance(value, torch.Tensor):
                if id(value) not in bound:  # one that a copy made at its start
                    place.set(_apart(wrap(jnp.asarray(array), value.dtype)))
            else:
                kind = Count if key[1].endswith("_step_count") else Number
                place.set(kind.holding(jnp.asarray(array), value))
        inserted = _Inserted(self._names, self.objects)
        for key, array in given.items():
            array = jnp.asarray(array)
            tensor = _apart(wrap(array, function._dtypes.get(key) or dtype_j2t(array.dtype)))
            inserted.put(key, Number.of(tensor) if key in function._numbers else tensor)

    def _refuse(self, what: str, keys: list[_Key], given) -> None:
        raise RuntimeError(f"the state {what} {', '.join('.'.join(key) for key in keys)}; make it with init(*args)")

    def places(self) -> Iterator[tuple[_Key, Place]]:
        return _places(self._names, self.objects)

    def optimizers(self) -> list[Optimizer]:
        return [thing for thing in self.objects if isinstance(thing, Optimizer)]

    def _copied(self, value) -> Any:
        """A copy that has the call's tensors in place of others, and copies in place of the objects."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, torch.nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                self._memo.setdefault(id(tensor), self._call.lift_own(tensor))
            result = copy_structure(value, self._memo)
            if self._call.last_resort is not None:
                self._call.last_resort.take_over(value, result)
            return result
        if isinstance(value, torch.Tensor):
            return self._remember(value, self._call.lift_own(value))
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

    def _copied_object(self, value) -> Any:
        result = self._remember(value, object.__new__(type(value)))
        for name, item in vars(value).items():
            if not (name == "step" and isinstance(value, Optimizer)):  # a scheduler's wrapper of it
                result.__dict__[name] = self._copied(item)
        adopt(result)
        if isinstance(result, Optimizer):
            result.step = types.MethodType(_step_of_copy, result)
            result.__dict__["_opt_called"] = True
        return result

    def _remember(self, value, copied) -> Any:
        self._memo[id(value)] = copied
        return copied


def _without_values(key: _Key) -> RuntimeError:
    return RuntimeError(
        f"{'.'.join(key)} is on the meta device, and init makes a first state of values: give it some, or for shapes "
        "alone translate the module, and take gradients and steps in JAX"
    )


def _apart(tensor: Torchish) -> Torchish:
    """A tensor of a state: what is computed of it with gradients off has no derivative to be stopped."""
    if tensor.history is None:
        tensor._node.storage.differentiable = False
    return tensor


def _step_of_copy(self, *args, **kwargs):
    return step_abstractly(self, *args, **kwargs)


_step_of_copy._wrapped_by_lr_sched = True  # pyright: ignore[reportFunctionMemberAccess]  # as schedulers expect


class _Gradient(Place):
    """The gradient of a tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, path: str):
        super().__init__(None, None, path)
        self.tensor = tensor

    def get(self):
        return self.tensor.grad

    def set(self, value) -> None:
        self.tensor.grad = value


def _places(names: Sequence[str], objects: Sequence[Any]) -> Iterator[tuple[_Key, Place]]:
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
            if isinstance(value, torch.Tensor) and value.is_leaf and not isinstance(place, _Gradient):
                gradient = _Gradient(value, place.path + _GRADIENT)
                if gradient.get() is not None:
                    yield (name, gradient.path), gradient


def _places_in(thing) -> Iterator[Place]:
    if isinstance(thing, torch.nn.Module):
        for path, module in thing.named_modules():
            for tensors in (module._parameters, module._buffers):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        yield Place(tensors, key, f"{path}.{key}" if path else key)
        return
    if isinstance(thing, Optimizer):
        parameters = []
        for i, group in enumerate(thing.param_groups):
            parameters.extend(group["params"])
            for j in range(len(group["params"])):
                yield Place(group["params"], j, f"param_groups.{i}.params.{j}")
            yield from numbers_of(group, f"param_groups.{i}")
        for i, parameter in enumerate(parameters):
            if parameter in thing.state:
                yield from numbers_of(thing.state[parameter], f"state.{i}")
    own = {key: value for key, value in vars(thing).items() if key not in _NOT_STATE}
    for place in numbers_of(own, ""):
        if place.owner is own:
            place.owner = vars(thing)
        yield place


class _Inserted:
    """Puts into objects what they lack: an optimizer's state before its first step, gradients."""

    def __init__(self, names: Sequence[str], objects: Sequence[Any]):
        self._objects = dict(zip(names, objects, strict=True))
        self._tensors = dict(_places(names, objects))

    def put(self, key: _Key, value) -> None:
        name, path = key
        thing = self._objects.get(name)
        owner = self._tensors.get((name, path.removesuffix(_GRADIENT)))
        if path.endswith(_GRADIENT) and owner is not None:
            owner.get().grad = value
            return
        parts = path.split(".", 2)
        if isinstance(thing, Optimizer) and parts[0] == "state" and len(parts) == 3:
            parameters = [p for group in thing.param_groups for p in group["params"]]
            thing.state[parameters[int(parts[1])]][parts[2]] = value
            return
        near = difflib.get_close_matches(path, [p for n, p in self._tensors if n == name], n=3, cutoff=0.4)
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise RuntimeError(f"the state has {name}.{path}, which the objects lack{hint}")


def _start(thing) -> None:
    """Lets a scaler make what it otherwise makes when it first scales."""
    if isinstance(thing, GradScaler) and thing.is_enabled() and thing._scale is None:
        thing._lazy_init_scale_growth_tracker(torch.device(thing._device))


def _names_of(function: Callable, count: int) -> list[str]:
    parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind < p.VAR_POSITIONAL]
    return [parameters[i] if i < len(parameters) else str(i) for i in range(count)]


def _fitting(value, tensor: torch.Tensor, key: _Key):
    return expect_shape(value, tensor, ".".join(key), "the state")


def _flat(state: State) -> dict[_Key, Any]:
    return {(name, path): value for name, part in state.items() for path, value in part.items()}


def _nested(names: Sequence[str], arrays: dict[_Key, Any]) -> State:
    nested: State = {name: {} for name in names}
    for (name, path), value in arrays.items():
        if isinstance(value, (int, float)):
            value = np.asarray(value, canonical(torch.float64 if isinstance(value, float) else torch.int64))
        nested[name][path] = jnp.asarray(value)
    return nested


def _strong(array):
    """The array without JAX's mark of a Python number, which would make the next call another."""
    return lax.convert_element_type(array, array.dtype) if array.aval.weak_type else array


def _is_array(value) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, torch.Tensor, jax.ShapeDtypeStruct))


def _abstract(value) -> jax.ShapeDtypeStruct:
    if isinstance(value, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(value.shape), canonical(value.dtype))
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _tensor(value, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = value.detach() if isinstance(value, torch.Tensor) else array_to_tensor(value)
    return tensor.to(dtype=dtype or tensor.dtype, copy=True)


def _unused(traced, count: int, state: State) -> list[_Key]:
    """The parts of a state, behind `count` other arguments, that nothing is computed from."""
    jaxpr = traced.jaxpr
    _, used = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    keys = [(path[0].key, path[1].key) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return [key for key, is_used in zip(keys, used[count:], strict=True) if not is_used]
