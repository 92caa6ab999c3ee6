"""The inputs of a call that JAX differentiates: the answers to `requires_grad`, `is_leaf`, `grad_fn` and so on.

PyTorch's code may ask its inputs, and go another way where they require grad. A call begins without an answer. The
first query that JAX's derivative decides abandons the run, by `NeedsInputs`, and the code runs again as
`run_with_inputs`: what is seen to be differentiated requires grad, by itself as a leaf does. Where JAX traces a program
that it may differentiate later, the call is one equation of that, with the program of a run whose inputs require no
grad; each derivative runs the code anew (`retrace.py`). Code that does not ask has the graph that it had.

So does code without hooks on gradients. The first hook on a gradient that JAX takes abandons the run, by `NeedsHooks`:
then the way back is a run that makes backward passes of its own (`hooks.py`).
"""

import contextvars
import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from ..runtime.errors.unwinding import Unwind
from ..runtime.translation import this_call
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from ..tracing.execution import Inputs, Pass
from ..tracing.primitives import Undecided, undecided
from ..tracing.scope import closed_over
from ..tracing.traces import (
    Bookmark,
    current_trace,
    is_differentiated,
    is_float,
    is_from_outside,
    may_differentiate,
    program_of,
)
from .retrace import Code, NeedsHooks, run_anew


class NeedsInputs(Unwind):
    """The code asks a question whose answer depends on the inputs that JAX differentiates."""


class NeedsArray(Unwind):
    """The code uses an array from around the call, which JAX may differentiate too."""

    def __init__(self, array: jax.Array):
        super().__init__()
        self.array = array


class RunKnowledge:
    """Facts about some code that one run finds, for later runs."""

    has_hooks = False
    """True if it has hooks on gradients that JAX takes."""


class UnaskedInputs(Inputs):
    """The inputs of a first run, which has nothing about them: the first question ends it."""

    def ask(self, tensor: Torchish) -> None:
        """Called before code is told that a tensor requires no grad.

        Raises:
            NeedsInputs: it may do so, in a derivative.
        """
        if _may_depend(tensor) and may_differentiate(this_call().top_level[0]):
            raise NeedsInputs

    def expect_hook(self, tensor: Torchish | None, hooks: object) -> None:
        """Called before code registers hooks on the gradient of a tensor, or of a node.

        Raises:
            NeedsInputs, NeedsHooks: that gradient may be JAX's.
            NeedsArray: it is, and a hook uses an array from around the call.
        """
        del hooks
        if (tensor is None or _may_depend(tensor)) and may_differentiate(this_call().top_level[0]):
            raise NeedsInputs


def _may_depend(tensor: Torchish) -> bool:
    """Returns True if a tensor that requires no grad may have a derivative in JAX."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return False
    # Outside of a program JAX drops derivatives of zero at once, as that of a rounded number.
    return not this_call().stages or (tensor._node.storage.differentiable and tensor.known is None)


class _KnownInputs(Inputs):
    """Knows of arrays whether they are differentiated.

    Args:
        around: what the runs have in the place of arrays from around the code, by the ids of these; None if they may
            use any.
        is_last: whether derivatives that JAX takes later do not run the code anew.
        required: arrays that are differentiated, though that is not seen.
        tracks_hooks: whether a hook on a gradient that JAX takes abandons the run.
    """

    def __init__(
        self,
        around: dict[int, Any] | None,
        is_last: bool,
        required: Sequence = (),
        passes: Sequence[Pass] = (),
        tracks_hooks: bool = True,
    ):
        self._around, self._is_last, self._program = around, is_last, program_of(current_trace())
        self._required, self.passes, self._tracks_hooks = required, tuple(passes), tracks_hooks
        self.is_forwards = not tracks_hooks and not passes
        self._entered: dict[int, Any] = {}
        self._undecided = Undecided()
        self._sees_derivatives = False

    def begin(self) -> None:
        self._entered.clear()  # what another run has made of them may be of another trace

    def entering(self, array: jax.Array) -> jax.Array:
        if not is_traced(array):
            return array
        self._sees_derivatives = self._sees_derivatives or is_differentiated(array)
        if id(array) not in self._entered:
            self._entered[id(array)] = array, self._found(array)
        return self._entered[id(array)][1]

    def _found(self, array: jax.Array) -> object:
        if self._around is not None:
            if id(array) in self._around:
                array = self._around[id(array)]
            elif is_from_outside(array, self._program):
                raise NeedsArray(array)
        if not self._is_last or self._program is None or not is_float(array) or self._is_differentiated(array):
            return array
        return undecided(array, self._undecided)

    def is_differentiated(self, array: jax.Array) -> bool:
        return is_float(array) and self._is_differentiated(array)

    def _is_differentiated(self, array: jax.Array) -> bool:
        return is_differentiated(array) or any(array is other for other in self._required)

    def ask(self, tensor: Torchish) -> None:
        if _may_depend(tensor):
            self._undecided.is_queried = True

    def expect_hook(self, tensor: Torchish | None, hooks: object) -> None:
        if self._around is not None:  # another run calls the hooks, when the arrays around the call may be gone
            for array in closed_over(hooks, kind=Tracer):
                if id(array) not in self._around and is_from_outside(array, self._program):
                    raise NeedsArray(array)
        if not self._tracks_hooks or self._required or not self._sees_derivatives:
            return
        if tensor is None or program_of(current_trace()) is not self._program or is_tensor_differentiated(tensor):
            raise NeedsHooks


def is_tensor_differentiated(tensor: Torchish) -> bool:
    """Returns True if JAX visibly differentiates with respect to an input that a tensor depends on."""
    tape = this_call().tape
    array = tensor.buffer.array
    return is_differentiated(array if tape is None else tape.primal(array))


def ask(tensor: Torchish) -> None:
    """Called before code is told that a tensor requires no grad.

    Raises:
        NeedsInputs: JAX may differentiate it; `run_with_inputs` catches that.
    """
    inputs = this_call().execution.inputs
    if inputs is not None:
        inputs.ask(tensor)


def requires_grad(tensor: Torchish) -> bool:
    """Answers code's question whether a tensor requires grad.

    Raises:
        NeedsInputs: JAX may differentiate it; `run_with_inputs` catches that.
    """
    if tensor.history is not None:
        return True
    ask(tensor)
    return False


def run_with_inputs(run: Callable[[Inputs, Any], Any], given: tuple[object, ...], known: RunKnowledge) -> Any:
    """Runs the code, knowing the inputs that JAX differentiates, and returns its result.

    Args:
        run: gives a tree of arrays and other things for a tree like `given`. It can run again and again.
        given: a tree with arrays from outside; the code may use others too.
        known: what is known of the code.
    """
    if program_of(current_trace()) is None and not known.has_hooks:  # what JAX differentiates is seen
        bookmark = Bookmark()
        try:
            return run(_KnownInputs(None, is_last=True), given)
        except NeedsHooks:
            known.has_hooks = True
        bookmark.return_to()
    around: list = []
    while True:
        bookmark = Bookmark()
        code = _TranslatedCode(run, given, around, known)
        try:
            return code.result()
        except NeedsArray as need:
            around.append(need.array)
        finally:
            code.end.is_over = True
        bookmark.return_to()


class _TreeOfRun(NamedTuple):
    """The tree of a run's results, without the arrays."""

    structure: Any
    static: list
    """The leaves, with `_ARRAY` in place of arrays."""

    @property
    def positions(self) -> list[bool]:
        return [leaf is _ARRAY for leaf in self.static]


_ARRAY = object()


class _CodesEnd:
    """Facts about the end of some code."""

    found: _TreeOfRun | None = None
    is_over = False
    """True if the call that ran it first is over, and it runs again."""


class _Back(NamedTuple):
    """As `Pass`, of a function of arrays."""

    positions: Sequence[int]
    has_cotangent: Sequence[bool]


class _TranslatedCode(Code):
    """Code as a function of arrays.

    Args:
        run, given, known: as those of `run_with_inputs`.
        around: the arrays that it uses besides.
    """

    def __init__(self, run: Callable[[Inputs, Any], Any], given: tuple[object, ...], around: list, known: RunKnowledge):
        self._run, self._around, self._known = run, list(around), known
        self._required: tuple[int, ...] = ()
        self._passes: tuple[_Back, ...] = ()
        self._tracks_hooks = True
        leaves, self._structure = flatten(given)
        self._static = [_ARRAY if is_traced(leaf) else leaf for leaf in leaves]
        self._arrays: list = [leaf for leaf in leaves if is_traced(leaf)] + self._around
        self._count = len(self._arrays)
        self._context = contextvars.copy_context()
        self.end = _CodesEnd()

    @property
    def has_hooks(self) -> bool:
        return self._known.has_hooks

    def requiring(self, positions: Sequence[int]) -> "_TranslatedCode":
        return self._but(_required=tuple(sorted({*self._required, *positions})))

    def without_hooks(self) -> "_TranslatedCode":
        return self._but(_tracks_hooks=False)

    def back(self, positions: Sequence[int], has_cotangent: Sequence[bool]) -> "_TranslatedCode":
        return self._but(_passes=(*self._passes, _Back(positions, has_cotangent)))

    def _but(self, **changed: object) -> "_TranslatedCode":
        code = copy.copy(self)
        vars(code).update(changed)
        return code

    def result(self) -> object:
        """The tree that the code returns."""
        arrays, self._arrays = self._arrays, []
        results = iter(run_anew(self, arrays))
        structure, static = self.end.found  # pyright: ignore[reportGeneralTypeIssues]
        return structure.unflatten([next(results) if leaf is _ARRAY else leaf for leaf in static])

    def __call__(self, *arrays: jax.Array, is_last: bool) -> list:
        rest, cotangents = iter(arrays[: self._count]), iter(arrays[self._count :])
        given = self._structure.unflatten([next(rest) if leaf is _ARRAY else leaf for leaf in self._static])
        around = {id(outside): array for outside, array in zip(self._around, rest, strict=True)}
        passes = [
            Pass([arrays[i] for i in positions], [next(cotangents) if x else None for x in has_cotangent])
            for positions, has_cotangent in self._passes
        ]
        inputs = _KnownInputs(around, is_last, [arrays[i] for i in self._required], passes, self._tracks_hooks)
        is_over = inputs.is_over = self.end.is_over
        try:
            tree = self._context.copy().run(self._run, inputs, given) if is_over else self._run(inputs, given)
        except NeedsHooks:
            self._known.has_hooks = True
            raise
        except NeedsArray as need:
            if not is_over:
                raise
            raise NotImplementedError(
                "code that tests requires_grad of its inputs, or has hooks on gradients, uses an array from "
                f"outside the call, but only while JAX differentiates, or in a hook: {need.array}; wanted that "
                "array as an argument"
            ) from None
        if passes:
            return tree
        leaves, structure = flatten(tree)
        is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]
        self._note(_TreeOfRun(structure, [_ARRAY if x else leaf for x, leaf in zip(is_array, leaves, strict=True)]))
        return [leaf for x, leaf in zip(is_array, leaves, strict=True) if x]

    def _note(self, end: _TreeOfRun) -> None:
        before = self.end.found
        if before is None:
            self.end.found = end
        elif before.structure != end.structure or before.positions != end.positions:
            raise TypeError(
                "code that tests requires_grad of its inputs returns another structure if they require it: got "
                f"{end.structure}, and {before.structure} if they do not; wanted the same"
            )
