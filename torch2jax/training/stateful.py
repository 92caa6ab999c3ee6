"""Functions that change modules, optimizers, schedulers and scalers, as functions of their state."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.interpreters import partial_eval as pe
from torch.optim import Optimizer

from ..autograd.hooks import finished
from ..autograd.inputs import Inputs
from ..autograd.runs import Attempt, Runs
from ..branches.policy import FOLLOWING, BranchPolicy
from ..calls.dispatch import Call
from ..calls.logical_dtypes import StandsFor
from ..calls.optimizers import recording
from ..modules.layers import (
    has_layers,
    name_of_row,
    names_when_stacked,
    restacked,
    stack_layers,
    stacked,
    unstack_layers,
)
from ..modules.states import overwrite, tensor_of_entry
from ..modules.translated import run_on_arrays
from ..tensors.dtypes import canonical
from ..tensors.interop import array_to_tensor
from ..tensors.known import evaluate
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from ..tensors.wrapped import Wrapped, is_wrapper, wrapped
from ..tracebacks import TellsOfArguments, boundary
from ..tracing.rolling import Rolling
from ..tracing.traces import alone
from ..values.sparse import Sparse
from ..values.wrapper_subclasses import leaving
from .copies import GRADIENT, Copies, Gradient, Inserted, Key, expect_apart, fitting, places, start

State = dict[str, dict[str, Any]]


class _StatefulSignature:
    """A step's own: the state in place of the objects, and the key."""

    def __get__(self, instance: "StatefulFunction | None", owner: type | None = None) -> inspect.Signature | None:
        if instance is None:
            return None
        named = inspect.signature(instance._function)
        own = [x for x in named.parameters.values() if x.name != "rng" and x.name not in instance._names]
        rest = [own.pop()] if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        state = inspect.Parameter("state", inspect.Parameter.POSITIONAL_ONLY)
        key = inspect.Parameter("rng", inspect.Parameter.KEYWORD_ONLY, default=None)
        return named.replace(parameters=[state, *own, key, *rest])


class StatefulFunction(TellsOfArguments):
    """A PyTorch function that changes its first arguments, as a pure function ``f(state, *args, rng=None, **kwargs)``.

    Args:
        function: a function that takes the objects first, then its own arguments.
        objects: modules, optimizers, schedulers, scalers. Only `load` changes them.
        last_resort: as in `Call`.
    """

    __signature__ = _StatefulSignature()

    def __init__(
        self,
        function: Callable,
        objects: Sequence[Any],
        last_resort: Any = None,
        policy: BranchPolicy = FOLLOWING,
        stands_for: StandsFor | None = None,
        rolling: Rolling | None = None,
    ):
        _expect_taken(function, objects)
        self._stands_for = stands_for
        self._function, self._objects, self._last_resort = function, tuple(objects), last_resort
        self._names = _names_of(function, len(self._objects))
        self._named = dict(zip(self._names, self._objects, strict=True))
        self._runs = Runs(policy, Inputs(), rolling)
        self._axes = [axis for _, axes in policy.groups for axis in axes]
        self._numbers: set[Key] = set()  # those that the function changes
        self._dtypes: dict[Key, torch.dtype] = {}
        self._unused: set[Key] = set()  # gradients that the function leaves, but never asks for
        self._shared: dict[Key, Key] = {}  # counters that are equal for all parameters: the one that stands for each
        self._is_ready = False
        self.__name__, self.__doc__ = getattr(function, "__name__", "step"), function.__doc__

    @boundary
    def init(self, *args: Any, rng: jax.Array | None = None, **kwargs: Any) -> State:
        """Returns the state for the first step: that of the objects, and what optimizers create in that step.

        Args:
            args, kwargs: the arguments of a call, without the state. Only their shapes and dtypes matter, so you may
                pass a `jax.ShapeDtypeStruct`. Outside of `jax.shard_map`, pass the arguments of one device:
                collectives then run on a single device.
            rng: as in a call.

        Returns:
            For each object, under the name of its parameter, a dictionary of arrays: parameters and buffers by name,
            the rest by its path in the object. They share no memory with the objects.

        Raises the exceptions of a call, and

            - NotImplementedError: two different tensors of the objects share memory.
        """
        expect_apart(self._names, self._objects)
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
        with alone(self._axes):
            return self._first_state(run, arrays, first)

    def _first_state(self, run: Callable, arrays: list, first: "_First") -> State:
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
        self._unused = {key for key in _unused(traced, len(arrays), state) if key[1].endswith(GRADIENT)}
        for name, path in self._unused:
            del state[name][path]
        return state

    @boundary
    def __call__(self, state: State, *args: Any, rng: jax.Array | None = None, **kwargs: Any) -> tuple[Any, State]:
        """Runs the function on a state.

        Args:
            state: what `init` or the last call gave, what `stack_layers` makes of that, or that with what
                `torch2jax.stack_layers` makes of a module's part.

        Returns:
            What the function returns, and the state after it.

        Raises:
            RuntimeError: `init` was not called, or `state` is not of the structure it gave.
        """
        if not self._is_ready:
            raise RuntimeError(f"{self!r} was called before {self.__name__}.init(*args), which makes its state")
        return self._run(state, args, kwargs, rng, None)

    def stack_layers(self, state: State) -> State:
        """Returns a state with stacked layers, as in `torch2jax.stack_layers`, so that the layers are one loop.

        The optimizer's values for the parameters of layers, such as their moments, are stacked too:
        ``state.2::6.exp_avg`` belongs to the parameters 2, 8, 14, … of the optimizer.

        Args:
            state: the result of `init` or of a call.
        """
        return _with_layers_stacked(state, self._named)

    def load(self, state: State) -> None:
        """Writes a state into the objects themselves, as if you had trained them in PyTorch.

        Raises:
            RuntimeError: `state` has a name that the objects lack, or an array of another shape.
        """
        for thing in self._objects:
            start(thing)
        given = self._parted(_with_layers_apart(state, self._named, _parts_with_layers(state, self._named)))
        things = self._named
        with torch.no_grad():
            for key, place in places(self._names, self._objects):
                if key not in given:
                    continue
                value, before = given.pop(key), place.get()
                if isinstance(before, torch.Tensor):
                    fitted = fitting(value, before, key, things[key[0]])
                    overwrite(before, tensor_of_entry(fitted) if is_wrapper(before) else _tensor(fitted, before.dtype))
                else:
                    place.set(type(before)(np.asarray(value).item()))
            inserted = Inserted(self._names, self._objects)
            for key, value in given.items():
                tensor = tensor_of_entry(value) if isinstance(value, Wrapped) else _tensor(value, self._dtypes.get(key))
                inserted.put(key, tensor.item() if key in self._numbers else tensor)

    def __repr__(self) -> str:
        return f"t2j({self._function!r}, state=({', '.join(self._names)}))"

    def _is_static(self, key: Key, value: Any) -> bool:
        return not isinstance(value, (jax.Array, Wrapped)) and key not in self._numbers

    def _run(
        self,
        state: State | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rng: jax.Array | None,
        first: "_First | None",
    ):
        stacked = _parts_with_layers(state, self._named)

        def run(attempt: Attempt, given: Any):
            whole, args, kwargs, rng = given
            apart = state = _with_layers_apart(whole, self._named, stacked)
            with torch.enable_grad(), Call(rng, self._last_resort, attempt) as call, ExitStack() as recordings:
                parted = None if state is None else self._parted(state)
                copies = Copies(call, self._names, self._objects, parted, self._numbers, self._dtypes)
                before = {key: place.get() for key, place in copies.places()}
                if first is not None:
                    first.begin(state is None, before, copies, recordings)
                result = run_on_arrays(
                    call, functools.partial(self._function, *copies.objects), args, kwargs, self._stands_for
                )
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
                outgoing = self._outgoing(state, after, call)
                for name in stacked:
                    outgoing[name] = restacked(outgoing[name], whole[name], apart[name])
                results = result, outgoing
                return finished(attempt, results) if attempt.passes else results

        reached = self._function, args, kwargs
        return self._runs.run(run, (state, args, kwargs, rng), bool(stacked), reached)

    def _has_changed(self, key: Key, before: Any, after: Any) -> bool:
        """Whether a Python number has changed, that is not part of the state yet."""
        if key in self._numbers or not isinstance(before, (int, float)):
            return False
        return isinstance(after, torch.Tensor) or before != after

    def _outgoing(self, state: State | None, after: dict[Key, Any], call: Call) -> State:
        arrays = {}
        for key, value in after.items():
            is_tensor = isinstance(value, torch.Tensor)
            if key in self._unused or (not is_tensor and key not in self._numbers):
                continue
            if not is_tensor:
                value = call.lift(torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64))
            if isinstance(value, Sparse):
                raise NotImplementedError(
                    f"{self.__name__} leaves {'.'.join(key)} sparse, whose number of elements changes from step to "
                    "step, which a state cannot; wanted gradients that are gone at the end of the step "
                    "(optimizer.zero_grad() there), and no momentum of sparse ones"
                )
            if is_wrapper(value):
                arrays[key] = jax.tree.map(_strong, leaving(call, value))
                continue
            tensor = call.lift(value)
            self._dtypes[key] = tensor.dtype
            arrays[key] = _strong(call.array_of(tensor))
        return _nested(self._names, self._merged(arrays))

    def _merged(self, arrays: dict[Key, Any]) -> dict[Key, Any]:
        """With one counter for those that are equal.

        Raises:
            _Uneven: some no longer are.
        """
        merged: dict[Key, Any] = {}
        for key, array in arrays.items():
            shared = self._shared.get(key, key)
            if shared in merged and not _is_same(merged[shared], array):
                raise _Uneven(shared, self.__name__)
            merged[shared] = array
        return merged

    def _parted(self, state: State) -> dict[Key, Any]:
        """With a counter for each parameter."""
        given = _flat(state)
        parted = {key: given[shared] for key, shared in self._shared.items() if shared in given}
        merged = set(self._shared.values())
        return {**{key: value for key, value in given.items() if key not in merged}, **parted}


class _Uneven(RuntimeError):
    """Counters that were equal for all parameters are no longer."""

    def __init__(self, shared: Key, name: str):
        super().__init__(
            f"{name} steps some parameters that it did not step in {name}.init, or the other way round, so that "
            f"{'.'.join(shared)} differs between them: call init with arguments like those of this call"
        )
        self.shared = shared


def _equal_counters(values: dict[Key, Any]) -> dict[Key, Key]:
    """The scalars of an optimizer's state that are equal for all parameters, and what stands for each."""
    groups: dict[Key, dict[Key, Any]] = {}
    for (name, path), value in values.items():
        parts = path.split(".", 2)
        if parts[0] == "state" and len(parts) == 3 and isinstance(value, jax.Array) and value.ndim == 0:
            groups.setdefault((name, f"state.*.{parts[2]}"), {})[(name, path)] = value
    equal = [(x, members) for x, members in groups.items() if len({float(v) for v in members.values()}) == 1]
    return {key: shared for shared, members in equal if len(members) > 1 for key in members}


def _is_same(array: Any, other: Any) -> bool:
    if array is other or is_traced(array) or is_traced(other):
        return array is other
    return bool(array == other)


class _First:
    """What the runs of `init` find out."""

    def __init__(self):
        self.values: dict[Key, Any] = {}
        self.changed: set[Key] = set()
        self._made: list[tuple[Optimizer, dict]] = []

    def begin(self, is_first: bool, before: dict[Key, Any], copies: "Copies", recordings: ExitStack) -> None:
        if not is_first:
            return
        self.values = {key: _value_of(x) for key, x in before.items()}
        self._made = [(x, recordings.enter_context(recording(x))) for x in copies.optimizers()]

    def end(self, is_first: bool, before: Any, after: Any, changed: set[Key], copies: "Copies") -> None:
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
            if isinstance(place, Gradient):
                with jax.ensure_compile_time_eval():
                    self.values[key] = jnp.zeros(place.tensor.shape, canonical(place.tensor.dtype))
                continue
            value = initial.get((id(place.owner), place.key))
            if value is not None:
                self.values[key] = _value_of(value)
                if not isinstance(value, torch.Tensor):
                    self.changed.add(key)


def _value_of(value: Any):
    """A Python number, or a new array of the values of a tensor."""
    if is_wrapper(value):
        return wrapped(value, _value_of)
    if not isinstance(value, Torchish):
        return value
    array = value.read() if value.known is None else evaluate(value.known)
    with jax.ensure_compile_time_eval():
        return _strong(jnp.array(array, copy=True))


def _expect_taken(function: Callable, objects: Sequence[Any]) -> None:
    """Expects objects that have a state, and a function that takes them.

    Raises:
        TypeError: there is an array or a tree of these, or the function takes fewer.
    """
    for thing in objects:
        if isinstance(thing, (jax.Array, np.ndarray, torch.Tensor, Mapping)):
            raise TypeError(
                f"t2j got a {type(thing).__name__} in state=; wanted modules, optimizers, schedulers or gradient "
                "scalers. Arrays are arguments of the function, and results"
            )
    parameters = inspect.signature(function).parameters.values()
    taken = sum(x.kind < x.VAR_POSITIONAL for x in parameters)
    if taken < len(objects) and not any(x.kind is x.VAR_POSITIONAL for x in parameters):
        raise TypeError(
            f"t2j got state= with {len(objects)} objects, and a function that takes {taken} arguments by place; wanted "
            "one that takes the objects first, in their order"
        )


def _names_of(function: Callable, count: int) -> list[str]:
    parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind < p.VAR_POSITIONAL]
    return [parameters[i] if i < len(parameters) else str(i) for i in range(count)]


def _flat(state: State) -> dict[Key, Any]:
    try:
        return {(name, path): value for name, part in state.items() for path, value in part.items()}
    except AttributeError:
        raise TypeError(
            f"got a {type(state).__name__} for the state of a function; wanted what its init(*args) or its last call "
            "gave: a dictionary of arrays for each of the objects, by name"
        ) from None


def _nested(names: Sequence[str], arrays: dict[Key, Any]) -> State:
    nested: State = {name: {} for name in names}
    for (name, path), value in arrays.items():
        if isinstance(value, (int, float)):
            value = np.asarray(value, canonical(torch.float64 if isinstance(value, float) else torch.int64))
        nested[name][path] = value if isinstance(value, Wrapped) else jnp.asarray(value)
    return nested


def _strong(array: Any):
    """The array without JAX's mark of a Python number, which would make the next call another."""
    return lax.convert_element_type(array, array.dtype) if array.aval.weak_type else array


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, torch.Tensor, jax.ShapeDtypeStruct))


def _abstract(value: Any) -> jax.ShapeDtypeStruct:
    if isinstance(value, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(value.shape), canonical(value.dtype))
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _tensor(value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = value.detach() if isinstance(value, torch.Tensor) else array_to_tensor(value, gathers=True)
    return tensor.to(dtype=dtype or tensor.dtype, copy=True)


def _unused(traced: Any, count: int, state: State) -> list[Key]:
    """The parts of a state, behind `count` other arguments, that nothing is computed from."""
    jaxpr = traced.jaxpr
    _, used = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    keys = [(path[0].key, path[1].key) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return [key for key, is_used in zip(keys, used[count:], strict=True) if not is_used]


# States with stacked layers: the states of modules, and of optimizers for their parameters.


def _with_layers_stacked(state: State, objects: Mapping[str, Any]) -> dict[str, Any]:
    """A state with the layers of all modules stacked, and with them the moments of optimizers.

    Args:
        objects: what the parts of the state are of.
    """
    found, rows = dict(state), []
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            found[name] = stack_layers(state[name])
            parameters = dict(thing.named_parameters(remove_duplicate=False))
            for names in names_when_stacked(state[name]).values():
                if len(names) > 1 and names[0] in parameters:
                    rows.append([parameters[each] for each in names])
    for name, thing in objects.items():
        if isinstance(thing, Optimizer):
            found[name] = _moments(state[name], thing, rows)
    return found


def _moments(part: Mapping[str, Any], optimizer: Optimizer, rows: Sequence[Sequence[torch.Tensor]]) -> dict[str, Any]:
    """The part of an optimizer, with one entry for those of parameters that are stacked."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    places = {id(p): place for place, p in enumerate(every)}
    found = dict(part)
    for row in rows:
        indices = [places[id(p)] for p in row if id(p) in places]
        word = name_of_row(indices) if len(indices) == len(row) else None
        if word is None:
            continue
        before = f"state.{indices[0]}."
        for moment in [name.removeprefix(before) for name in part if name.startswith(before)]:
            names = [f"state.{place}.{moment}" for place in indices]
            if len({getattr(part.get(name), "shape", None) for name in names}) == 1 and names[-1] in part:
                found[f"state.{word}.{moment}"] = stacked([found.pop(name) for name in names])
    return found


def _parts_with_layers(state: Any, objects: Mapping[str, Any]) -> list[str]:
    """The parts of a state that have entries for several layers."""
    if not isinstance(state, Mapping):
        return []
    return [name for name, thing in objects.items() if has_layers(_of_layers(state.get(name), thing))]


def _with_layers_apart(state: Any, objects: Mapping[str, Any], parts: Sequence[str]) -> Any:
    """A state whose parts with these names are unstacked."""
    apart = {}
    for name in parts:
        of_layers = _of_layers(state[name], objects[name])
        rest = {each: value for each, value in state[name].items() if each not in of_layers}
        apart[name] = {**rest, **unstack_layers(of_layers)}
    return {**state, **apart} if apart else state


def _of_layers(part: Any, thing: Any) -> dict[str, Any]:
    """The parts of a state that may be stacked by layer; ``*`` for an optimizer is one number for all parameters."""
    if not isinstance(part, Mapping):
        return {}
    return {name: value for name, value in part.items() if not isinstance(thing, Optimizer) or "::" in name}
