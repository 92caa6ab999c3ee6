"""Which inputs of a call JAX differentiates: what `requires_grad` of them is, and `is_leaf`, `grad_fn`, and so on.

PyTorch's code may ask its inputs, and go another way where they require grad. A call begins without an answer. The
first question that JAX's derivative decides abandons the run, by `NeedsInputs`, and the code runs again as `told`:
what is seen to be differentiated requires grad, by itself as a leaf does. Where JAX traces a program that it may
differentiate later, the call is one equation of that, with the program of a run whose inputs require no grad; each
derivative runs the code anew (`anew.py`). Code that does not ask has the graph that it had.
"""

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..tensors.trees import flatten
from ..translation import current
from .anew import run_anew
from .marks import Undecided, undecided
from .traces import Bookmark, current_trace, is_differentiated, is_from_around, may_differentiate, program_of

__all__ = ["Inputs", "NeedsArray", "NeedsInputs", "ask", "requires_grad", "told"]


class NeedsInputs(BaseException):
    """The code asks what depends on which inputs JAX differentiates.

    No `Exception`, since code that handles these must not take it for one.
    """


class NeedsArray(BaseException):
    """The code uses an array from around the call, which JAX may differentiate too.

    No `Exception`, since code that handles these must not take it for one.
    """

    def __init__(self, array: Any):
        super().__init__()
        self.array = array


class Inputs:
    """What runs know of the arrays that they get from outside; this knows nothing yet."""

    def begin(self) -> None:
        """Is called when a run begins."""

    def entering(self, array: Any) -> Any:
        """What the run has in the place of an array from outside."""
        return array

    def is_differentiated(self, array: Any) -> bool:
        """Whether JAX differentiates what the run has in the place of an array from outside."""
        del array
        return False

    def ask(self, tensor: Torchish) -> None:
        """Is called before the answer is that a tensor requires no grad.

        Raises:
            NeedsInputs: it may do so, in a derivative.
        """
        if _may_depend(tensor) and may_differentiate(current().outermost[0]):
            raise NeedsInputs


def _may_depend(tensor: Torchish) -> bool:
    """Whether a tensor that requires no grad may have a derivative to JAX."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return False
    # Outside of a program JAX drops derivatives of zero at once, as that of a rounded number.
    return not current().stages or (tensor._node.storage.differentiable and tensor.known is None)


class _Told(Inputs):
    """Knows of arrays whether they are differentiated.

    Args:
        around: what the runs have in the place of arrays from around the code, by the ids of these; None if they may
            use any.
        is_last: whether derivatives that JAX takes later do not run the code anew.
    """

    def __init__(self, around: dict[int, Any] | None, is_last: bool):
        self._around, self._is_last, self._program = around, is_last, program_of(current_trace())
        self._entered: dict[int, Any] = {}
        self._undecided = Undecided()

    def begin(self) -> None:
        self._entered.clear()  # what another run has made of them may be of another trace

    def entering(self, array: Any) -> Any:
        if not is_traced(array):
            return array
        if id(array) not in self._entered:
            self._entered[id(array)] = array, self._found(array)
        return self._entered[id(array)][1]

    def _found(self, array: Any) -> Any:
        if self._around is not None:
            if id(array) in self._around:
                array = self._around[id(array)]
            elif is_from_around(array, self._program):
                raise NeedsArray(array)
        if not self._is_last or self._program is None or not _is_float(array) or is_differentiated(array):
            return array
        return undecided(array, self._undecided)

    def is_differentiated(self, array: Any) -> bool:
        return _is_float(array) and is_differentiated(array)

    def ask(self, tensor: Torchish) -> None:
        if _may_depend(tensor):
            self._undecided.is_asked = True


def _is_float(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)


def ask(tensor: Torchish) -> None:
    """Is called before code is told that a tensor requires no grad.

    Raises:
        BaseException: to `told`.
    """
    inputs = current().attempt.inputs
    if inputs is not None:
        inputs.ask(tensor)


def requires_grad(tensor: Torchish) -> bool:
    """Whether a tensor requires grad, where code asks.

    Raises:
        BaseException: to `told`.
    """
    if tensor.history is not None:
        return True
    ask(tensor)
    return False


def told(run: Callable[[Inputs, Any], Any], given: Any) -> Any:
    """What code gives that knows which inputs are differentiated.

    Args:
        run: gives a tree of arrays and other things for a tree like `given`. It can run again and again.
        given: a tree with arrays from outside; the code may use others too.
    """
    if program_of(current_trace()) is None:  # what JAX differentiates is seen
        return run(_Told(None, is_last=True), given)
    around: list = []
    while True:
        bookmark = Bookmark()
        code = _Code(run, given, around)
        try:
            return code.result()
        except NeedsArray as need:
            around.append(need.array)
        finally:
            code.is_over = True
        bookmark.return_to()


class _End(NamedTuple):
    """What a run gave, without the arrays."""

    structure: Any
    static: list
    """The leaves that are no arrays; `_ARRAY` in the places of these."""

    @property
    def places(self) -> list[bool]:
        return [leaf is _ARRAY for leaf in self.static]


_ARRAY = object()


class _Code:
    """Code as a function of arrays.

    Args:
        run, given: as those of `told`.
        around: the arrays that it uses besides.
    """

    def __init__(self, run: Callable[[Inputs, Any], Any], given: Any, around: list):
        self._run, self._around = run, list(around)
        leaves, self._structure = flatten(given)
        self._static = [_ARRAY if is_traced(leaf) else leaf for leaf in leaves]
        self._arrays: list | None = [leaf for leaf in leaves if is_traced(leaf)] + self._around
        self._end: _End | None = None
        self._context = contextvars.copy_context()
        self.is_over = False

    def result(self) -> Any:
        """The tree that the code gives."""
        arrays, self._arrays = self._arrays, None
        results = iter(run_anew(self, arrays))  # pyright: ignore[reportArgumentType]
        structure, static = self._end  # pyright: ignore[reportGeneralTypeIssues]
        return structure.unflatten([next(results) if leaf is _ARRAY else leaf for leaf in static])

    def __call__(self, *arrays, is_last: bool) -> list:
        rest = iter(arrays)
        given = self._structure.unflatten([next(rest) if leaf is _ARRAY else leaf for leaf in self._static])
        around = {id(outside): array for outside, array in zip(self._around, rest, strict=True)}
        inputs = _Told(around, is_last)
        try:
            tree = self._context.copy().run(self._run, inputs, given) if self.is_over else self._run(inputs, given)
        except NeedsArray as need:
            if not self.is_over:
                raise
            raise NotImplementedError(
                "code that asks whether its inputs require grad uses an array from around the call only where they do: "
                f"{need.array}; wanted that array as an argument"
            ) from None
        leaves, structure = flatten(tree)
        is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]
        self._note(_End(structure, [_ARRAY if x else leaf for x, leaf in zip(is_array, leaves, strict=True)]))
        return [leaf for x, leaf in zip(is_array, leaves, strict=True) if x]

    def _note(self, end: _End) -> None:
        before = self._end
        if before is None:
            self._end = end
        elif before.structure != end.structure or before.places != end.places:
            raise TypeError(
                "code that asks whether its inputs require grad gives results of another structure where they do: "
                f"got {end.structure}, and {before.structure} where they do not; wanted the same"
            )
