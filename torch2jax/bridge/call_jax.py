"""JAX functions as PyTorch functions."""

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
import torch

from ..internals.dispatch import EnableTorchFunction
from ..internals.modules import disable_dynamo
from ..rules.array_rule import InnerRule
from ..runtime.caches import Cache
from ..runtime.errors.hints import explain_function_of_jax
from ..runtime.errors.tracebacks import boundary
from ..runtime.layers import BRIDGE
from ..runtime.translation import current
from ..tensors.dtypes import has_doubles
from ..values.item import Item
from .differentiable import check_dtypes, run_program, widened
from .program import Arguments, JaxProgram, Template, kept_programs, take_apart, take_out_arrays

P = ParamSpec("P")
R = TypeVar("R")

_OPERANDS = (frozenset((int, float)), frozenset((float,)), frozenset())
"""The Python numbers that are traced: the first of these with which the function can be traced."""


@BRIDGE.has
class JaxFunction(Generic[P, R]):
    """A JAX function as a function of tensors; see `torch2jax.j2t`.

    Args:
        function: the JAX function. Within a translated call it is called on the arrays themselves, and its operations
            become part of the graph.
        jit: compile it, once for each signature. Without, it runs operation by operation, and may ask for values.
    """

    def __init__(self, function: Callable, *, jit: bool = True):
        self.function, self.jit = function, jit
        self._programs = _programs_of(function) if jit else kept_programs()
        functools.update_wrapper(self, function, updated=())

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: object, **kwargs: object) -> R: ...
    @boundary
    def __call__(self, *args, **kwargs) -> Any:
        if torch.compiler.is_compiling():
            return _outside_graph(self, args, kwargs)
        return self._run(args, kwargs)

    def __repr__(self) -> str:
        return f"j2t({self.function!r})"

    def __reduce__(self):
        return functools.partial(JaxFunction, jit=self.jit), (self.function,)

    def __deepcopy__(self, memo: dict[int, object]):
        return self  # as functions are

    def __get__(self, instance: object, owner: type | None = None):
        return self if instance is None else functools.partial(self, instance)

    def cache_size(self) -> int:
        """The number of compiled programs that are kept for the function: at most 128, those that were used last.

        All `j2t` of one function share them.
        """
        return sum(found is not None for found in self._programs.values())

    def clear_cache(self) -> None:
        """Forgets the compiled programs of the function."""
        self._programs.clear()

    def _run(self, args: tuple, kwargs: dict):
        if current() is None:
            return self._run_program(args, kwargs)
        arguments = take_apart(args, kwargs)
        tensors = [tensor.tensor() if type(tensor) is Item else tensor for tensor in arguments.tensors]
        function = _FlatFunction(lambda: self.function, arguments.template)
        rule = InnerRule(functools.partial(function, arguments.constants), getattr(self, "__name__", "j2t"))
        return function.restore(rule(tuple(tensors), {}))

    def _run_program(self, args: tuple, kwargs: dict):
        x64 = has_doubles()
        for operands in _OPERANDS if self.jit else _OPERANDS[-1:]:
            arguments = take_apart(args, kwargs, operands)
            dtypes = tuple([tensor.dtype for tensor in arguments.tensors])
            check_dtypes(dtypes, x64)
            found = self._program_for(arguments, x64)
            if found is not None:
                break
        assert found is not None  # the last time no number is an operand
        program, function = found
        results = run_program(program, arguments.constants, arguments.tensors, self.function)
        return function.restore([widened(result, dtypes) for result in results])

    def _program_for(self, arguments: Arguments, x64: bool) -> "tuple[JaxProgram, _FlatFunction] | None":
        """The program for a call's arguments; None if numbers among them cannot be operands."""
        if not self.jit:  # nothing to keep, and what is not an array in the result may depend on values
            return self._new_program(arguments, x64)
        try:
            hash(arguments.signature)
        except TypeError as error:
            raise TypeError(
                f"{self!r} got an argument that is not a tensor or array and cannot be hashed ({error}); wanted a "
                "hashable one, because its value decides which program runs. Pass a tensor, give its type "
                "__hash__ and __eq__, or use j2t(function, jit=False)"
            ) from error
        return self._programs.obtain(arguments.signature, lambda: self._new_program(arguments, x64))

    def _new_program(self, arguments: Arguments, x64: bool) -> "tuple[JaxProgram, _FlatFunction] | None":
        function = _FlatFunction(_weakly(self.function), arguments.template, is_compiled=self.jit)
        program = JaxProgram(function, jit=self.jit, x64=x64)
        fits = not arguments.has_numbers or program.takes_numbers(arguments.constants, arguments.tensors)
        return (program, function) if fits else None


@disable_dynamo
def _outside_graph(function: JaxFunction, args: tuple, kwargs: dict):
    return function._run(args, kwargs)


_SHARED: dict[tuple, Cache] = {}
_FUNCTIONS = (types.FunctionType, type(jax.jit(take_apart)))


def _programs_of(function: Callable) -> Cache:
    """The programs of a function, which all `j2t` of it share, as all `jax.jit` do, while the function is there.

    Programs refer to it weakly: they are freed with it. A call that may be differentiated keeps it alive.
    """
    if isinstance(function, types.MethodType):
        owner, key = function.__self__, (id(function.__self__), function.__func__)
    elif isinstance(function, _FUNCTIONS):
        owner, key = function, (id(function),)
    else:  # an object of a class of the user's
        return kept_programs()
    found = _SHARED.get(key)
    if found is None:
        try:
            weakref.finalize(owner, _SHARED.pop, key, None).atexit = False
        except TypeError:  # an object without weak references
            return kept_programs()
        found = _SHARED.setdefault(key, kept_programs())
    return found


def _weakly(function: object) -> Callable[[], object]:
    """A weak reference to a function of whichever kind."""
    if isinstance(function, types.MethodType):
        owner, called = _weakly(function.__self__), function.__func__
        return lambda: types.MethodType(called, owner())
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


class _FlatFunction:
    """A function of trees as one of the arrays in them, which remembers the rest of its result.

    Args:
        function: gives the function.
        is_compiled: `j2t` compiles it, rather than that it runs as part of translated code, or operation by operation.
    """

    def __init__(self, function: Callable[[], Any], template: Template, *, is_compiled: bool = False):
        self._function, self._template, self._is_compiled = function, template, is_compiled
        self._result: Template | None = None

    def __call__(self, constants: tuple, *arrays: Any) -> list:
        args, kwargs = self._template.fill(arrays, constants)
        with EnableTorchFunction():  # off while a rule's body runs; this one may translate PyTorch code
            try:
                result = self._function()(*args, **kwargs)
            except TypeError as error:
                explain_function_of_jax(error, is_compiled=self._is_compiled)
                raise
        self._result, found = take_out_arrays(result)
        return found

    def restore(self, results: Sequence[Any]) -> Any:
        """The result of the last call or trace, with `results` in place of arrays."""
        return self._result.fill(results)  # pyright: ignore[reportOptionalMemberAccess]
