"""Functions that change modules, optimizers, schedulers and scalers, as functions of their state.

A state has the arrays alone. All else that a step depends on is a `Layout`, which is found by the names of the arrays:
dictionaries and lists of the objects, dtypes, and values of Python that no step changes.

Steps change the structure: an optimizer's state is empty before its first step. So `init` traces steps, on shapes, each
from the state that the one before leaves, until a structure is there for the second time (`_follow`).

Which numbers and flags of Python belong to the state, only the steps show: one that changes what counted as a constant
notes that (`_Found`), and `init` begins again with all that was noted so far. After `init`, a step that changes
anything else is refused (`_expect_as_before`), as the next step would not see it.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.interpreters import partial_eval as pe
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...calls.dispatch import Call
from ...calls.logical_dtypes import LogicalDtypes
from ...internals.frames import loop_that_carries
from ...runtime.errors.locations import nearest, user_level
from ...runtime.errors.tracebacks import TellsOfArguments, boundary
from ...runtime.layers import SPARSE
from ...tensors.dtypes import canonical
from ...tensors.known import evaluate
from ...tensors.tensor import Torchish
from ...tensors.traced import is_traced
from ...tensors.trees import flatten
from ...tensors.wrapped import Wrapped, is_wrapper, wrapped
from ...tracing.conditions import FOLLOWING, BranchPolicy
from ...tracing.execution import Execution
from ...tracing.rolling import Rolling
from ...tracing.traces import alone
from ...transforms.hooks import finished
from ...transforms.inputs import UnaskedInputs
from ...transforms.runs import Runs
from ...values.traced_numbers import Number
from ...values.wrapper_subclasses import leaving
from ..layers import restacked
from ..states import StateNames, first_few
from ..translated import run_on_arrays
from .copies import Copies, Layout, expect_apart, sharing, start, write
from .slots import (
    GRADIENT,
    Key,
    State,
    containers,
    differing,
    is_number,
    is_tensor,
    parts_with_layers,
    slots_of,
    stepper_of,
    steppers,
    with_layers_apart,
    with_layers_stacked,
    with_moments_stacked,
)

_MOST_STRUCTURES = 12


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
        last_resort: object = None,
        policy: BranchPolicy = FOLLOWING,
        logical_dtypes: LogicalDtypes | None = None,
        rolling: Rolling | None = None,
    ):
        _expect_taken(function, objects)
        self._logical_dtypes = logical_dtypes
        self._function, self._objects, self._last_resort = function, tuple(objects), last_resort
        self._names = _names_of(function, len(self._objects))
        self._named = dict(zip(self._names, self._objects, strict=True))
        self._runs = Runs(policy, UnaskedInputs(), rolling)
        self._axes = [axis for _, axes in policy.groups for axis in axes]
        self.__name__, self.__doc__ = getattr(function, "__name__", "step"), function.__doc__
        self._forget()

    @boundary
    def init(self, *args: object, rng: jax.Array | None = None, **kwargs: object) -> State:
        """Returns the state for the first step: the objects' present state.

        It traces a few steps to find out which numbers they change, and which structures the state has after them.

        Args:
            args, kwargs: the arguments of a call, without the state. Only their shapes and dtypes matter, so you may
                pass a `jax.ShapeDtypeStruct`. Outside of `jax.shard_map`, pass the arguments of one device:
                collectives then run on a single device.
            rng: as in a call.

        Returns:
            For each object, under the name of its parameter, a dictionary of arrays: parameters and buffers by name,
            the rest by its path in the object. They share no memory with the objects.

        Raises the exceptions of a call, and

            - NotImplementedError: two different tensors of the objects share memory; or the state has another structure
              after each step.
        """
        expect_apart(self._names, self._objects)
        leaves, structure = flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
        arrays = [_abstract(leaves[i]) for i in at]

        def run(given: list, state: State):
            filled = list(leaves)
            for i, array in zip(at, given, strict=True):
                filled[i] = array
            args, kwargs = structure.unflatten(filled)
            result, state = self._run(state, args, kwargs, rng)
            return [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)], state

        self._forget()
        self._asked = _static_parts(args, kwargs)
        with alone(self._axes):
            while True:
                try:
                    state = self._own_state(rng)
                    self._follow(run, arrays, state)
                    break
                except _Found as found:
                    self._noted = _Found()
                    self._kinds |= found.kinds
                    self._flags |= found.flags
                    self._fixed |= found.fixed
                    self._unused |= found.unused
                    self._uneven |= found.uneven
        self._is_ready = True
        if self._left:
            warnings.warn(
                f"{self.__name__} changes {first_few(sorted(self._left))}, and the next step finds what was there "
                "before: of a module, a state has parameters, buffers, numbers, flags and names. If a step needs what "
                "the last one left there, make it a buffer (register_buffer), or keep it in an object of your own in "
                "state=",
                stacklevel=user_level(),
            )
        return state

    def _forget(self) -> None:
        self._is_ready = False
        self._left: set[str] = set()  # attributes of modules that steps change, and the state lacks
        self._steppers = steppers(self._names, self._objects)
        self._layouts: dict[frozenset[Key], Layout] = {}  # by the names of the arrays
        self._kinds: dict[Key, type] = {}  # of Python numbers that change
        self._flags: set[Key] = set()  # of constants that tell structures with the same arrays apart
        self._fixed: set[Key] = set()  # numbers that are constants of the first structure
        self._unused: set[Key] = set()  # gradients that steps leave, and none asks for
        self._uneven: set[Key] = set()  # counters that are not equal for all parameters
        self._expected: frozenset[Key] | None = None  # tensors after a first step whose numbers are known
        self._starts: dict[Key, object] = {}  # numbers of the objects
        self._noted = _Found()  # by the step that is being traced
        self._asked: tuple[object, list[str]] = (
            None,
            [],
        )  # what the code of a step decides by: all of its arguments but arrays
        self._baseline = _constants(self._names, self._objects)

    def _own_state(self, rng: jax.Array | None) -> State:
        """The state of the objects, whose layout is the first."""
        self._layouts = {}
        with torch.enable_grad(), Call(rng, self._last_resort, Execution()) as call:
            copies = Copies(call, self._names, self._objects, None, {}, {}, {})
            self._starts = {key: x for key, slot in copies.slots() if is_number(x := slot.get())}
            return self._leaving(copies, None, self._baseline)

    def _follow(self, run: Callable, arrays: list, state: State) -> None:
        """Traces steps until one leaves a state of a structure that there was before.

        Raises:
            _Found: the structures have to be others.
        """
        shapes, traced = state, []
        used: set[Key] = set()
        while (signature := _signature(shapes)) not in traced:
            if len(traced) == _MOST_STRUCTURES:
                names = sorted(".".join(key) for key in signature ^ traced[-1])
                raise NotImplementedError(
                    f"the state has another structure after each of {len(traced)} steps of {self.__name__}; the last "
                    f"one changes {first_few(names)}. Wanted one that repeats: lists and dictionaries that stop "
                    "growing, as a collections.deque(maxlen=...)"
                )
            layout = self._layouts[signature]
            try:
                step = functools.partial(run)  # another function each time, which JAX has not traced
                jaxpr, (_, after) = jax.make_jaxpr(step, return_shape=True)(arrays, shapes)
            except Exception as error:
                if self._noted:
                    raise self._noted from None
                if not traced:
                    self._expect_first(layout, None, error)
                raise
            if self._noted:
                raise self._noted
            if not traced:
                self._expect_first(layout, self._layouts[_signature(after)])
            traced.append(signature)
            used |= _used(jaxpr, len(arrays), shapes)
            shapes = after
        unused = {key for key in frozenset().union(*traced) - used if key[1].endswith(GRADIENT)}
        if unused and not self._asked[1]:  # no flag of another call lets the code read them
            self._expected = None
            raise _Found(unused=unused)

    def _expect_first(self, layout: Layout, after: Layout | None, error: Exception | None = None) -> None:
        """Expects a first step to lead to the same tensors whether or not its numbers are known.

        Raises:
            _Found: it does not, and so they are constants of the first structure: counters alone, or all of them.
        """
        left = None if after is None else frozenset(after.tensors)
        if self._expected is None:
            self._expected = left
        elif left != self._expected != frozenset(layout.tensors) and layout.numbers:
            counters = {key for key, number in layout.numbers.items() if isinstance(number, int)}
            raise _Found(fixed=counters or set(layout.numbers)) from error

    @boundary
    def __call__(self, state: State, *args: Any, rng: jax.Array | None = None, **kwargs: Any) -> tuple[Any, State]:
        """Runs the function on a state.

        Args:
            state: what `init` or the last call gave, what `stack_layers` makes of that, or that with what
                `torch2jax.stack_layers` makes of a module's part.

        Returns:
            What the function returns, and the state after it. It has what the objects have then: after an optimizer's
            first step, what that step has made.

        Raises:
            RuntimeError: `init` was not called, or `state` is not of a structure that it found.
        """
        if not self._is_ready:
            raise RuntimeError(f"{self!r} was called before {self.__name__}.init(*args), which makes its state")
        if self._unused and _static_parts(args, kwargs) != self._asked:
            raise RuntimeError(
                f"{self.__name__} got arguments of another structure than {self.__name__}.init, with whose "
                "arguments no step reads the gradients of the one before; with others it might. Call init with "
                "arguments like these"
            )
        return self._run(state, args, kwargs, rng)

    def stack_layers(self, state: State) -> State:
        """Returns a state with stacked layers, as in `torch2jax.stack_layers`, so that the layers are one loop.

        The optimizer's values for the parameters of layers, such as their moments, are stacked too:
        ``state.2::6.exp_avg`` belongs to the parameters 2, 8, 14, … of the optimizer.

        Args:
            state: the result of `init` or of a call.
        """
        return with_layers_stacked(state, self._named)

    def load(self, state: State) -> None:
        """Writes a state into the objects themselves, as if you had trained them in PyTorch.

        Raises:
            RuntimeError: `state` has a name that the objects lack, or an array of another shape.
        """
        for thing in self._objects:
            start(thing)
        if not self._is_ready:  # a state like that of the objects needs no init
            self._own_state(None)
        apart = with_layers_apart(state, self._named, parts_with_layers(state, self._named))
        layout, given = self._given(apart)
        with torch.no_grad():
            write(self._names, self._objects, layout, given, self._own(layout, _constants(self._names, self._objects)))

    def __repr__(self) -> str:
        return f"t2j({self._function!r}, state=({', '.join(self._names)}))"

    def _run(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any], rng: jax.Array | None):
        parts, now = parts_with_layers(state, self._named), _constants(self._names, self._objects)

        def run(execution: Execution, given: Any):
            given_state, args, kwargs, rng = given
            apart = with_layers_apart(given_state, self._named, parts)
            with torch.enable_grad(), Call(rng, self._last_resort, execution) as call:
                layout, arrays = self._given(apart)
                copies = Copies(call, self._names, self._objects, layout, arrays, self._own(layout, now), self._starts)
                result = run_on_arrays(
                    call, functools.partial(self._function, *copies.objects), args, kwargs, self._logical_dtypes
                )
                self._expect_unchanged(now)
                outgoing = self._leaving(copies, call, now)
                self._expect_no_loop(given_state, apart, outgoing)
                for name in parts:
                    outgoing[name] = restacked(outgoing[name], given_state[name], apart[name])
                if parts:
                    outgoing = with_moments_stacked(outgoing, given_state, self._named)
                results = result, outgoing
                return finished(execution, results) if execution.passes else results

        reached = self._function, args, kwargs
        return self._runs.run(run, (state, args, kwargs, rng), bool(parts), reached, self._objects)

    # Into a call.

    def _given(self, state: State) -> tuple[Layout, dict[Key, Any]]:
        """The layout of a state, and its arrays by key.

        Raises:
            RuntimeError: none is of its structure.
        """
        given = _flat(state)
        layout = self._layouts.get(frozenset(given))
        if layout is None:
            given = self._untied(given)
            layout = self._layouts.get(frozenset(given))
        if layout is None:
            raise self._of_no_layout(given)
        return layout, {member: given[key] for key, members in layout.members.items() for member in members}

    def _untied(self, given: dict[Key, object]) -> dict[Key, object]:
        """A state with one array for each tensor of a module, where it has equal ones under several names."""
        found = dict(given)
        for name, thing in self._named.items():
            if isinstance(thing, torch.nn.Module):
                names, part = StateNames(thing), {path: x for (each, path), x in given.items() if each == name}
                known = {path: x for path, x in part.items() if path in names.tensors}
                for path, value in names.given(known).items():
                    found[name, names.first(path)] = value
                for path in known:
                    if path != names.first(path):
                        del found[name, path]
        return found

    def _of_no_layout(self, given: Mapping[Key, object]) -> RuntimeError:
        near = min(self._layouts, key=lambda signature: len(signature ^ given.keys()))
        lacks, more = sorted(near - given.keys()), sorted(given.keys() - near)
        if not more:
            return RuntimeError(f"the state lacks {'.'.join(lacks[0])}; make it with init(*args)")
        name, path = more[0]
        what = f"the state has {name}.{path}, which the objects lack{nearest(path, [p for n, p in near if n == name])}"
        if self._is_ready and path.split(".")[0] not in ("state", "param_groups"):
            return RuntimeError(what)
        return RuntimeError(
            f"{what}. It is known after init(*args) of the step that the state is of, with arguments like those of "
            "that step: call that first"
        )

    def _own(self, layout: Layout, now: Mapping[Key, object]) -> dict[Key, Any]:
        """The constants of the objects that were set since `init`, such as learning rates."""
        found = {}
        for key in differing(self._baseline, now) & self._baseline.keys() & now.keys() & layout.constants.keys():
            steady = [x.constants.get(key) for x in self._layouts.values()]
            if key not in self._kinds and all(repr(x) == repr(steady[0]) for x in steady):
                found[key] = now[key]
        return found

    # Out of a call.

    def _leaving(self, copies: Copies, call: Call | None, now: Mapping[Key, object]) -> State:
        """The state that copies hold, whose layout is one of those found, or a new one.

        Args:
            call: None for the user's own objects.
            now: the constants of these.

        Raises:
            _Found: in `init`, the layouts have to be others.
        """
        tensors, numbers, constants, kinds = {}, {}, {}, {}
        memories, aliases = {}, {}
        for key, slot in copies.slots():
            value = slot.get()
            is_found = isinstance(value, Number) or (isinstance(value, Torchish) and self._is_scheduled(key))
            if is_found or (key in self._kinds and (is_number(value) or isinstance(value, bool))):
                if call is None and key in self._fixed:
                    constants[key] = value
                    continue
                numbers[key] = value
                kind = _wider(_kind_of(value), self._kinds.get(key, bool))
                if kind is not self._kinds.get(key):
                    kinds[key] = kind
            elif not is_tensor(value):
                constants[key] = value
            elif key not in self._unused:
                other = memories.setdefault(_memory(value), (key, value))[1]
                if other is value:
                    tensors[key] = value
                elif (other.shape, other.stride()) == (value.shape, value.stride()):
                    aliases[key] = value, other
                else:
                    raise NotImplementedError(sharing(".".join(memories[_memory(value)][0]), ".".join(key)))
        if call is not None and not self._is_ready:
            self._left.update(copies.left_in_modules())
        if call is not None:
            plain = {".".join(key): x for key, x in tensors.items() if isinstance(x, Torchish)}
            kept = functools.partial(containers, self._names, copies.objects)
            call.execution.code.expect_settled(kept, plain, constants.values())
        if kinds:
            self._expect_as_before(set(kinds), _Found(kinds=kinds))
        arrays: dict[Key, object] = {key: self._array_of(key, x, call) for key, x in tensors.items()}
        arrays.update({key: self._number(x, kinds.get(key) or self._kinds[key], call) for key, x in numbers.items()})
        state, members = self._merged(arrays, tensors | numbers, call)
        for key in self._flags & constants.keys():
            state[key[0], f"{key[1]}={constants[key]!r}"] = np.asarray(True)
        self._note(copies, frozenset(state), tensors, numbers, aliases, constants, members, now)
        return _nested(self._names, state)

    def _is_scheduled(self, key: Key) -> bool:
        """Returns True if a scheduler sets the value: it is a number, however it is computed."""
        thing, _, path = stepper_of(key, self._steppers)
        if path.startswith("param_groups."):
            return key in self._starts and any(isinstance(x, LRScheduler) for x in self._steppers.values())
        return isinstance(thing, LRScheduler)

    def _note(
        self,
        copies: Copies,
        signature: frozenset[Key],
        tensors: dict[Key, object],
        numbers: dict[Key, object],
        aliases: dict[Key, object],
        constants: dict[Key, object],
        members: dict[Key, list[Key]],
        now: Mapping[Key, object],
    ) -> None:
        """Notes the layout of a state, or expects it to be as it was for another with the same arrays."""
        layout = self._layouts.get(signature)
        if layout is None:
            steps = {
                key: self._kinds.get(key, float)(0 if isinstance(x, Torchish) else x) for key, x in numbers.items()
            }
            members |= {key: [] for key in signature - members.keys()}
            self._layouts[signature] = copies.layout(tensors, numbers, steps, aliases, constants, members)
            return
        changed = differing({**layout.constants, **self._own(layout, now)}, constants)
        if not changed:
            return
        values = {key: constants[key] if key in constants else layout.constants[key] for key in changed}
        kinds = {key: _kind_of(x) for key, x in values.items() if is_number(x)}
        flags = values.keys() - kinds.keys()
        for key in flags:
            if isinstance(values[key], np.ndarray):
                raise NotImplementedError(
                    f"{self.__name__} changes {'.'.join(key)}, a numpy array, which a state has not; wanted a tensor"
                )
        self._expect_as_before(changed, _Found(kinds=kinds, flags=flags))

    def _expect_as_before(self, keys: set[Key], found: "_Found") -> None:
        """Refuses a change by a step that `init` has not seen; within `init`, notes it.

        Raises:
            RuntimeError: it is a call.
        """
        if not self._is_ready:
            self._noted.add(found)  # an exception would be that of one of several paths
            return
        raise RuntimeError(
            f"{self.__name__} changed {first_few(sorted('.'.join(key) for key in keys))}, which it did not change in "
            f"{self.__name__}.init: call that with arguments like those of this call"
        )

    def _array_of(self, key: Key, value: object, call: Call | None) -> object:
        if call is None:
            return _value_of(value)
        if isinstance(value, SPARSE.classes):
            raise NotImplementedError(
                f"{self.__name__} leaves {'.'.join(key)} sparse, whose number of elements changes from step to "
                "step, which a state cannot; wanted gradients that are gone at the end of the step "
                "(optimizer.zero_grad() there), and no momentum of sparse ones"
            )
        if is_wrapper(value):
            return jax.tree.map(_strong, leaving(call, value))
        return _strong(call.array_of(call.constants.lift(value)))

    def _number(self, value: object, kind: type, call: Call | None) -> Any:
        dtype = {float: torch.float64, int: torch.int64, bool: torch.bool}[kind]
        if call is None:
            return np.asarray(value, canonical(dtype))
        tensor: Any = value if isinstance(value, Torchish) else call.constants.lift(torch.tensor(value, dtype=dtype))
        return _strong(call.array_of(tensor if tensor.dtype == dtype else tensor.to(dtype)))

    def _merged(
        self, arrays: dict[Key, Any], values: Mapping[Key, object], call: Call | None
    ) -> tuple[dict[Key, object], dict[Key, list[Key]]]:
        """The arrays with one for equal counters of an optimizer, and the keys that each one is for.

        Raises:
            _Found: in `init`, some are not equal.
        """
        members: dict[Key, list[Key]] = {}
        for key, array in arrays.items():
            shared = self._shared(key) if getattr(array, "shape", None) == () else None
            members.setdefault(shared or key, []).append(key)
        found: dict[Key, object] = {}
        for shared, keys in list(members.items()):
            first = keys[0]
            if len(keys) > 1 and all(_is_same(values[first], arrays[first], values[x], arrays[x]) for x in keys[1:]):
                found[shared] = arrays[first]
                continue
            if len(keys) > 1:
                if call is None:
                    self._uneven.add(shared)
                else:
                    self._expect_even(shared)
            del members[shared]
            for key in keys:
                found[key], members[key] = arrays[key], [key]
        return found, members

    def _shared(self, key: Key) -> Key | None:
        """The key of the counter that all parameters share; None if there is none."""
        thing, inner, path = stepper_of(key, self._steppers)
        steps = path.split(".", 2)
        if not isinstance(thing, Optimizer) or len(steps) < 3 or steps[0] != "state":
            return None
        shared = (key[0], f"{inner}.state.*.{steps[2]}" if inner else f"state.*.{steps[2]}")
        return shared if steps[1].isdigit() and shared not in self._uneven else None

    def _expect_even(self, shared: Key) -> None:
        if not self._is_ready:
            self._noted.add(_Found(uneven={shared}))
            return
        raise RuntimeError(
            f"{self.__name__} steps some parameters that it did not step in {self.__name__}.init, or the other way "
            f"round, so that {'.'.join(shared)} differs between them: call init with arguments like those of this call"
        )

    def _expect_unchanged(self, before: Mapping[Key, object]) -> None:
        """Refuses a step's change of the user's own objects, of which its arguments are copies.

        Raises:
            RuntimeError: it does, and the copies have not seen it.
        """
        changed = differing(before, _constants(self._names, self._objects))
        if changed:
            raise RuntimeError(
                f"{self.__name__} changes {first_few(sorted('.'.join(key) for key in changed))} of the object itself, "
                "by way of another object that it closes over. Its arguments are copies, and do not see that. Pass the "
                "other object in state= too, or let it change that outside of the step"
            )

    def _expect_no_loop(self, given_state: State, before: State, after: State) -> None:
        """Refuses a state that a loop of JAX's carries, and whose structure a step changes.

        Raises:
            RuntimeError: it does.
        """
        changed = _signature(before) ^ _signature(after)
        if changed and (loop := loop_that_carries(given_state)) is not None:
            names = first_few(sorted(".".join(key) for key in changed))
            raise RuntimeError(
                f"jax.lax.{loop} carries the state of {self.__name__}, and this step changes which arrays it has: "
                f"{names}. Take one step before the loop, result, state = {self.__name__}(state, *args), which makes "
                "what later steps find"
            )


class _Found(Exception):
    """Raised when `init` has found structures of the state that were not known: it makes the state again."""

    def __init__(
        self,
        kinds: Mapping[Key, type] | None = None,
        flags: Iterable[Key] = (),
        fixed: Iterable[Key] = (),
        unused: Iterable[Key] = (),
        uneven: Iterable[Key] = (),
    ):
        super().__init__()
        self.kinds, self.flags, self.fixed = dict(kinds or {}), set(flags), set(fixed)
        self.unused, self.uneven = set(unused), set(uneven)

    def add(self, other: "_Found") -> None:
        self.kinds |= other.kinds
        self.flags |= other.flags
        self.uneven |= other.uneven

    def __bool__(self) -> bool:
        return any((self.kinds, self.flags, self.fixed, self.unused, self.uneven))


def _constants(names: Sequence[str], objects: Sequence[object]) -> dict[Key, object]:
    found = ((key, slot.get()) for key, slot in slots_of(names, objects))
    return {key: value for key, value in found if not is_tensor(value) and not key[1].endswith(GRADIENT)}


def _signature(state: State) -> frozenset[Key]:
    return frozenset(_flat(state))


def _kind_of(value: object) -> type:
    if isinstance(value, torch.Tensor):
        return float if value.is_floating_point() else bool if value.dtype == torch.bool else int
    return float if isinstance(value, (float, np.floating)) else bool if isinstance(value, bool) else int


def _wider(one: type, other: type) -> type:
    return next(kind for kind in (float, int, bool) if kind in (one, other))


def _memory(tensor: object) -> int:
    return id(tensor if is_wrapper(tensor) or not isinstance(tensor, Torchish) else tensor._node.storage)


def _is_same(value: object, array: jax.Array, other: object, other_array: Any) -> bool:
    """Returns True if two scalars are the same, or are known to be equal."""
    if array is other_array:
        return True
    if array.dtype != other_array.dtype:
        return False
    known: list[Any] = [x.known if isinstance(x, Torchish) else x for x in (value, other)]
    if all(isinstance(x, (int, float)) for x in known):
        return bool(known[0] == known[1])
    if all(isinstance(x, Torchish) and x.known is not None for x in (value, other)):
        return bool(np.asarray(evaluate(known[0])) == np.asarray(evaluate(known[1])))
    return not is_traced(array) and not is_traced(other_array) and bool(np.asarray(array) == np.asarray(other_array))


def _value_of(value: Any):
    """A new array of the values of a tensor."""
    if is_wrapper(value):
        return wrapped(value, _value_of)
    array = value.read() if value.known is None else evaluate(value.known)
    with jax.ensure_compile_time_eval():
        return _strong(jnp.array(array, copy=True))


def _expect_taken(function: Callable, objects: Sequence[object]) -> None:
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
    named = list(zip(_names_of(function, len(objects)), objects, strict=True))
    for name, thing in named:
        is_optimizer, is_model = "optim" in name.lower() or name == "opt", name.lower() in ("model", "net", "module")
        if (is_optimizer and isinstance(thing, torch.nn.Module)) or (is_model and isinstance(thing, Optimizer)):
            given = ", ".join(f"{each} is a {type(x).__name__}" for each, x in named)
            raise TypeError(
                f"t2j got the objects in state= in another order than the function takes them: {given}. Wanted them in "
                "the order of its parameters"
            )


def _names_of(function: Callable, count: int) -> list[str]:
    parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind < p.VAR_POSITIONAL]
    return [parameters[i] if i < len(parameters) else str(i) for i in range(count)]


def _flat(state: State) -> dict[Key, object]:
    try:
        return {(name, path): value for name, part in state.items() for path, value in part.items()}
    except AttributeError:
        raise TypeError(
            f"got a {type(state).__name__} for the state of a function; wanted what its init(*args) or its last call "
            "gave: a dictionary of arrays for each of the objects, by name"
        ) from None


def _nested(names: Sequence[str], arrays: dict[Key, object]) -> State:
    nested: State = {name: {} for name in names}
    for (name, path), value in arrays.items():
        nested[name][path] = value if isinstance(value, Wrapped) else jnp.asarray(value)
    return nested


def _static_parts(args: tuple, kwargs: dict) -> tuple[object, list[str]]:
    """The structure of arguments, and their leaves that are no arrays, as text."""
    leaves, structure = flatten((args, kwargs))
    return structure, [repr(leaf) for leaf in leaves if not _is_array(leaf)]


def _strong(array: jax.Array):
    """The array without JAX's mark of a Python number, which would make the next call another."""
    return lax.convert_element_type(array, array.dtype) if array.aval.weak_type else array


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, torch.Tensor, jax.ShapeDtypeStruct))


def _abstract(value: Any) -> jax.ShapeDtypeStruct:
    if isinstance(value, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(value.shape), canonical(value.dtype))
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _used(traced: Any, count: int, state: object) -> set[Key]:
    """The parts of a state, behind `count` other arguments, that something is computed from."""
    jaxpr = traced.jaxpr
    _, used = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    keys = [(path[0].key, path[1].key) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return {key for key, is_used in zip(keys, used[count:], strict=True) if is_used}
