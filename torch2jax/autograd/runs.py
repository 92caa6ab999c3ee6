"""The runs of a function: each finds out what the next must know, until one reaches the end.

A call begins without a tape, without knowledge of its inputs, and as plain Python. What needs one of them abandons the
run, and the function runs again with it, from then on at once; a condition on a traced value lets it run again,
converted (`control/driver.py`). So code that asks for none of it pays nothing.

Each run finds what Python's objects from outside hold as the first one did. A module is copied for each run. Other
objects are the user's own: they are looked at before the first run, and set back before each later one. The last run
leaves them as they are then, as any function that JAX traces does.

Not looked into are PyTorch's modules, classes, objects and functions of libraries, functions of other files that global
names lead to, and containers of many items.
"""

import dis
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jax import lax

from ..abandoning import Abandoned, NeedsLengths, NeedsNumbers
from ..control.path import Fork, Path
from ..control.policy import BranchPolicy
from ..errors import SourceLine, is_library
from ..tensors.derived import NeedsClasses
from ..tensors.ended import end, keep, made_by_call
from ..tensors.history import NeedsTape, Node, Source
from ..tensors.objects import codec_of, has_attributes, named_by
from ..tensors.physical import PhysicalArray
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from ..tracebacks import name_place
from ..tracing.rolling import Rolling
from ..tracing.traces import Bookmark, RareCollections, current_trace, is_transforming
from ..translation import calls_of_thread, current, this_call
from .foreseen import foreseen_depth
from .inputs import Inputs, NeedsInputs, Pass, RunKnowledge, told

_MANY = 2**12  # items of one container: as of a data set, which nobody changes
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]
_NOTHING: Any = object()


class OuterState:
    """What the leaves of a tree lead to, before the first run.

    Of functions that is what they close over, name or are methods of, and the globals that they assign to. It may live
    as long as a derivative that runs the code again, and so it keeps no arrays of the tree.
    """

    def __init__(self, roots: Any):
        self._roots, self._is_noted = roots, False
        self._objects: list[tuple[Any, Any, Any, Sequence]] = []
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._random: tuple = ()
        """The states of Python's random numbers and of NumPy's."""
        self._known: set[int] = set()
        """The ids of all these."""

    def begin(self) -> None:
        """Is called before each run: notes all of it the first time, and lets it be like that from then on."""
        if self._is_noted:
            self._restore()
        else:
            self._note(flatten(self._roots)[0])
            self._roots, self._is_noted = None, True
            self._random = random.getstate(), np.random.get_state()  # noqa: NPY002 - which users' code draws from
            self._known = {
                id(value) for value, *_ in (*self._objects, *self._classes, *self._arrays, *self._globals.values())
            }

    def has(self, value: Any) -> bool:
        """Whether an object is one of those that each run finds as they were."""
        if isinstance(value, torch.nn.Module) or value is getattr(random.seed, "__self__", None):
            return True  # which the call puts back, as the generator of the module's functions
        return id(value) in self._known

    def _note(self, leaves: list) -> None:
        seen, pending = set(), [*leaves]
        while pending:
            value = pending.pop()
            if isinstance(value, type) and not is_of_library(value) and id(value) not in seen:
                seen.add(id(value))
                plain = {name: x for name, x in vars(value).items() if _is_plain_attribute(name, x)}
                self._classes.append((value, plain))
                pending.extend(plain.values())
                continue
            if type(value) is np.ndarray and value.size <= _MANY and value.flags.writeable and id(value) not in seen:
                seen.add(id(value))
                self._arrays.append((value, value.copy()))
                continue
            codec: Any = codec_of(type(value))
            if codec is None or id(value) in seen or _is_left_out(value):
                continue
            seen.add(id(value))
            head, items = codec.open(value)
            items = list(items)
            if len(items) > _MANY:
                continue
            if codec.fill is not None:
                self._objects.append((value, codec, head, items))
            pending.extend(items)
            if has_attributes(type(value)):
                pending.append(type(value))
            for function in _functions_of(value):
                self._note_stored(function)
                pending.extend(_named_by(function))

    def _note_stored(self, function: types.FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        if _STORES_GLOBAL in code.co_code[::2]:
            for name in {step.argval for step in dis.get_instructions(code) if step.opcode == _STORES_GLOBAL}:
                self._globals[id(names), name] = names, names.get(name, _NOTHING)

    def _restore(self) -> None:
        """Lets all of it be as it was."""
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002
        for value, codec, head, items in self._objects:
            head_now, items_now = codec.open(value)
            if head_now != head or any(x is not y for x, y in zip(items, items_now, strict=False)):
                codec.fill(value, head, items)
        for array, values in self._arrays:
            array[...] = values
        for kind, plain in self._classes:
            now = {name: x for name, x in vars(kind).items() if _is_plain_attribute(name, x)}
            for name in now.keys() - plain.keys():
                delattr(kind, name)
            for name, x in plain.items():
                if now.get(name, _NOTHING) is not x:
                    setattr(kind, name, x)
        for (_, name), (names, value) in self._globals.items():
            if value is _NOTHING:
                names.pop(name, None)
            else:
                names[name] = value


def _is_plain_attribute(name: str, value: Any) -> bool:
    """Whether an attribute of a class is data."""
    return not name.startswith("__") and not hasattr(type(value), "__get__")


def _is_left_out(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        return True
    if kind is types.FunctionType:
        return is_library(value.__code__.co_filename)
    return has_attributes(kind) and is_of_library(kind)


def is_of_library(kind: type) -> bool:
    return is_library(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """A function itself, or the methods of an object."""
    if type(value) is types.FunctionType:
        yield value
    elif has_attributes(type(value)):
        methods = [x for kind in type(value).__mro__ if not is_of_library(kind) for x in vars(kind).values()]
        yield from (x for x in methods if type(x) is types.FunctionType)


def _named_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function has global names for, but functions of other files."""
    names = function.__globals__
    values = (names.get(name) for name in named_by(function.__code__))
    yield from (x for x in values if type(x) is not types.FunctionType or x.__globals__ is names)


T = TypeVar("T")


class Attempt:
    """One of the runs of a function.

    Args:
        depth: how deep a tape it keeps.
        left: the tensors that began to require grad by themselves in the run before, which was abandoned: the code may
            have put them aside, and find them there.
        path: how conditions on traced values are answered.
        constants: copies of tensors from outside, and the arrays of these, that runs have in common.
        inputs: what it knows of its arrays from outside; None where nobody is to be told more.
        heeds_lengths: whether ``len`` and the like take data-dependent lengths from the beginning.
        asked: the modules in which functions of Python's take numbers that data decide from the beginning, by their
            dictionaries, and whether ``float`` and ``int`` do, too.
        converts: whether its code is converted.
    """

    def __init__(
        self,
        depth: int = 0,
        left: Iterable[Torchish] = (),
        path: Path | None = None,
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] | None = None,
        inputs: Inputs | None = None,
        heeds_lengths: bool = False,
        asked: list[tuple[dict[str, Any], bool]] | None = None,
        converts: bool = False,
    ):
        self.converts = converts
        self.depth, self.left, self.constants, self.inputs = depth, list(left), constants, inputs
        self.heeds_lengths = heeds_lengths
        self.asked = [] if asked is None else asked
        self.fits: Torchish | None = None
        """Whether all that data decide fits; a bool, which is written to like any other tensor, so that a loop carries
        it, and a checkpoint or branch gives it. Only where lengths are heeded from the beginning."""
        self.path = path or Path(BranchPolicy(max_paths=1), None)
        self.left_pytorch: SourceLine | None = None
        """Where code first took values of floating point out of PyTorch, as numpy's arrays or Python's lists."""
        self._begun: weakref.WeakSet[Source] | None = None
        self.given: list[tuple[Any, Torchish, Source]] = []
        """What it goes back to, if it is one that runs backward: arrays, and the tensors and histories of these."""
        self.ends: list[tuple[Any, Node | None]] = []
        """What it goes back from then: arrays that leave the call, and their histories."""

    @property
    def begun(self) -> "weakref.WeakSet[Source]":
        """Where histories began."""
        if self._begun is None:
            self._begun = weakref.WeakSet()
        return self._begun

    @property
    def passes(self) -> "tuple[Pass, ...]":
        """The backward passes that it runs in the place of JAX."""
        return () if self.inputs is None else self.inputs.passes

    def entering(self, array: Any) -> Any:
        """What the run has in the place of an array from outside."""
        return array if self.inputs is None else self.inputs.entering(array)

    def is_differentiated(self, array: Any) -> bool:
        """Whether the run knows that JAX differentiates what it has in the place of an array from outside."""
        return self.inputs is not None and self.inputs.is_differentiated(array)

    def expect_to_fit(self, fits: Any, text: str) -> None:
        """Lets results of the call tell where a traced bool is false.

        Args:
            fits: whether what data decide fits, as an array.
            text: what is said where it does not and somebody checks that.

        Raises:
            BaseException: to `Runs`, where lengths are not heeded from the beginning.
        """
        if self.fits is None:
            raise NeedsLengths
        self.path.policy.check(fits, text)
        storage: Any = self.fits._node.storage
        storage.write(PhysicalArray(lax.bitwise_and(storage.read(), fits), None), None)

    def expect_hook(self, hooks: Any, tensor: Torchish | None = None) -> None:
        """Is called before hooks on the gradient of a tensor, or of a node, are registered.

        Raises:
            BaseException: to `Runs`, the gradient may be JAX's.
            NotImplementedError: it is one of `torch.func`.
        """
        call = this_call()
        if current_trace() is not call.outermost[0] and any(level.takes_gradients for level in call.transformations):
            raise NotImplementedError(
                "got a hook on a gradient in a function that torch.func differentiates, which would not call the "
                "hook; wanted torch.autograd.grad, which calls hooks, or a torch.autograd.Function whose "
                "backward does what the hook does"
            )
        if self.inputs is not None:
            self.inputs.expect_hook(tensor, hooks)

    def note_given(self, array: Any, tensor: Torchish) -> None:
        """Notes what stands for an array that is differentiated, and requires grad by itself."""
        if self.passes and self.is_differentiated(array) and isinstance(tensor.history, Source):
            self.given.append((array, tensor, tensor.history))

    def note_end(self, array: Any, tensor: Torchish) -> None:
        """Notes which array of a tensor leaves the call."""
        if self.passes:
            self.ends.append((array, tensor.history))

    def begin(self) -> None:
        """Lets what the abandoned run left begin a history in this one."""
        if self.heeds_lengths:
            self.fits = wrap(np.array(True), torch.bool)  # pyright: ignore[reportArgumentType] - no value that JAX traces
        for tensor in self.left:
            tensor.start_history()

    def abandon(self) -> None:
        """Takes from the tensors of this run what it alone knows of their derivatives; traced ones end with it."""
        tape, self.left = this_call().tape, []
        for source in self.begun:
            tensor = source.variable
            if tensor is None:  # its storage lives on in others, as one that was made of it without gradients
                continue
            storage = tensor._node.storage
            if storage.is_lost:  # it was made in a branch, which has ended
                continue
            array, layout = storage.physical
            values = array if tape is None else tape.primal(array)
            if storage.history is source and not is_traced(values):
                storage.history = None
                storage.write(PhysicalArray(values, layout), None, in_place_of_itself=True)
                tensor._gradient = None
                self.left.append(tensor)


class Runs:
    """The runs of a function, whose first ones find out how deep a tape it needs, and what it asks.

    Args:
        policy: how conditions on traced values are answered.
        inputs: what the first runs know of the arrays from outside.
        rolling: finds the loops of what runs leave; None if they stay unrolled.
    """

    def __init__(self, policy: BranchPolicy, inputs: Inputs | None = None, rolling: Rolling | None = None):
        self._policy, self._inputs, self._rolling = policy, inputs, rolling
        self._depth, self._asks, self._known = 0, False, RunKnowledge()
        self._is_first = True
        self._heeds_lengths = False
        self._asked: list[tuple[dict[str, Any], bool]] = []
        self._says_of_places = policy.branches is not None or policy.bounds is not None

    def run(
        self,
        body: Callable[[Attempt, Any], T],
        given: Any = (),
        has_layers: bool = False,
        reached: tuple = (),
        code: tuple = (),
    ) -> T:
        """Calls `body` with a tape of some depth, again with a deeper one if that turns out to be needed.

        Where it asks for a traced value it is called for each way that the answers lead, and where it asks which inputs
        are differentiated, for each derivative.

        Args:
            given: a tree with the arrays from outside, which `body` gets, or others in their places.
            has_layers: whether layers are stacked in the tree, which are to be a loop.
            reached: the user's objects that the code can reach: each run finds them as they were before the first.
            code: others that have some of the code.
        """
        if current() is not None:  # the whole outer call has to run again
            return body(Attempt(), given)
        if self._is_first:
            self._is_first, self._depth = False, foreseen_depth((*reached, *code))
        outer = OuterState(reached)
        run = functools.partial(self._rolled, body, has_layers, outer)
        around, calls_of_thread.made = calls_of_thread.made, {}
        try:
            if not self._asks:
                bookmark = Bookmark()
                try:
                    result = run(self._inputs, given)
                    if self._says_of_places:
                        self._policy.warn_of_misses()
                    return result
                except NeedsInputs:
                    self._asks = True
                bookmark.return_to()
            result = told(run, given, self._known)
            if self._says_of_places:
                self._policy.warn_of_misses()
            return result
        except Exception as error:
            name_place(error)
            raise
        finally:
            left = []
            for reference in calls_of_thread.made.values():  # here, for a function would be a Python call of its own
                tensor = reference()
                if tensor is not None:
                    left.append(tensor)
            calls_of_thread.made = around
            if left:
                end(left)

    def _rolled(
        self,
        body: Callable[[Attempt, Any], T],
        has_layers: bool,
        outer: OuterState,
        inputs: Inputs | None,
        given: Any,
    ) -> T:
        if not is_transforming():
            return self._attempts(body, None, inputs, given)
        run = functools.partial(self._attempts, body, outer, inputs)
        with RareCollections():
            if self._rolling is None:
                return run(given)
            return self._rolling.run(run, given, inputs is self._inputs, has_layers)

    def _attempts(
        self, body: Callable[[Attempt, Any], T], outer: OuterState | None, inputs: Inputs | None, given: Any
    ) -> T:
        left: list[Torchish] = []
        constants: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

        def attempt(path: Path, converts: bool = False) -> T:
            nonlocal left
            copies = constants if path.is_one_of_several else None
            attempt = Attempt(self._depth, left, path, copies, inputs, self._heeds_lengths, self._asked, converts)
            if inputs is not None:
                inputs.begin()
            if outer is not None:
                outer.begin()
            is_last = not path.is_one_of_several
            try:
                return body(attempt, given)
            except Abandoned:
                is_last = False
                raise
            finally:
                left = attempt.left
                path.end()
                if not is_last:
                    keep(made_by_call(), set(map(id, left)))

        while True:
            bookmark = Bookmark()
            path = Path(self._policy, current_trace())
            try:
                try:
                    result = attempt(path)
                    if not path.is_abandoned:
                        return result
                except Fork:
                    pass
                bookmark.return_to()
                from ..control.driver import converted_run  # which other calls need not import

                return converted_run(attempt, self._policy, None if outer is None else outer.has)
            except (NeedsClasses, NeedsNumbers):  # which from now on they do, or are given
                pass
            except NeedsLengths:
                self._heeds_lengths = True
            except NeedsTape as need:
                if need.depth <= self._depth:
                    raise
                self._depth = need.depth
            bookmark.return_to()
