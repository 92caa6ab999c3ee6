"""`j2t`: conversions of functions and values of JAX's to PyTorch's."""

import functools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
import numpy as np
import torch

from ..internals.dispatch import EnableTorchFunction
from ..internals.modules import disable_dynamo
from ..modules.framework_checks import expect_no_code_of_pytorch, expect_of_jax, mapped, stays
from ..rules.array_rule import InnerRule
from ..runtime.caches import Cache
from ..runtime.errors.hints import explain_function_of_jax
from ..runtime.errors.tracebacks import boundary
from ..runtime.layers import BRIDGE, SPARSE
from ..runtime.translation import current
from ..tensors.dtypes import dtype_j2t, has_doubles
from ..tensors.interop import array_to_tensor
from ..tensors.trees import is_sparse_array, map_given
from ..tensors.wrapped import Wrapped, tensor_of
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


K = TypeVar("K")


class _Unknown:
    """A type that no function returns. For a type checker, a result of unknown type may be even this."""


@overload
def j2t(thing: jax.Array | np.ndarray, *, copy: bool = True) -> torch.Tensor: ...
@overload
def j2t(thing: np.dtype | type[np.generic]) -> torch.dtype: ...
@overload
def j2t(thing: Callable[P, _Unknown], *, jit: bool = True) -> JaxFunction[P, Any]: ...
@overload
def j2t(thing: Callable[P, jax.Array], *, jit: bool = True) -> JaxFunction[P, torch.Tensor]: ...
@overload
def j2t(thing: Callable[P, object], *, jit: bool = True) -> JaxFunction[P, Any]: ...
@overload
def j2t(thing: Mapping[K, jax.Array], *, copy: bool = True) -> dict[K, torch.Tensor]: ...
@overload
def j2t(thing: list[jax.Array], *, copy: bool = True) -> list[torch.Tensor]: ...
@overload
def j2t(thing: tuple[jax.Array, ...], *, copy: bool = True) -> tuple[torch.Tensor, ...]: ...
@overload
def j2t(thing: Any, *, copy: bool = True, jit: bool = True) -> Any: ...
@boundary
def j2t(thing: Any, *, copy: bool = True, jit: bool = True) -> Any:
    """Converts arrays to tensors, and JAX functions to PyTorch functions.

    Args:
        thing: one of

            - an array, also a sparse one: returns a tensor of the same values. Inside a translated call, traced arrays
              become tensors too.
            - a dtype: returns PyTorch's dtype of that name.
            - a function: returns a function of tensors, which `torch.autograd` and `torch.func` differentiate and batch
              to any depth, through JAX. Its arguments and results are trees with tensors in place of JAX's arrays.
              Tensors and arrays are traced, other leaves are static. Results have their own memory, and JAX's dtypes,
              except that int32 results computed from an int64 argument are returned as int64. Inside a translated
              call, `thing` itself is called.
            - any tree of these; other leaves stay unchanged.
        copy: for arrays: whether tensors get their own memory. With False they share the arrays' memory, which JAX
            assumes never to change: clone such a tensor before you write to it.
        jit: whether to compile the function, once for each signature: the structure, shapes, dtypes and static leaves
            of its arguments. With False it runs operation by operation, and its Python code can read values.

    Raises:
        TypeError: an array is traced, or has a dtype that PyTorch lacks.
        ValueError: an array is sharded over several devices.
        RuntimeError: an array was deleted or donated.

    The returned function raises the exceptions of `thing`, and

        - TypeError: a tensor is float64 or complex128 while ``jax_enable_x64`` is off; sparse, quantized or nested; or
          has a dtype that the other library lacks; or a static argument is not hashable.
        - OverflowError: an int64 tensor on the CPU has a value beyond 32 bits while ``jax_enable_x64`` is off.
        - RuntimeError: in the backward pass, an argument has been written to since the call (PyTorch's own error).

    Example:
        >>> import jax, torch
        >>> from torch2jax import j2t
        >>> j2t(jax.numpy.arange(3.0))
        tensor([0., 1., 2.])
        >>> decay = j2t(lambda t, rate: jax.numpy.exp(-rate * t))
        >>> rate = torch.tensor(0.5, requires_grad=True)
        >>> decay(torch.zeros(3), rate).sum().backward()
        >>> rate.grad
        tensor(-0.)
    """
    expect_no_code_of_pytorch(thing)
    return _to_torch(thing, expect_of_jax, copy=copy, jit=jit)


def _to_torch(thing: Any, expect: Callable[[Any], None], *, copy: bool, jit: bool) -> Any:
    """As `j2t`; `expect` refuses objects of neither side that are no trees."""
    if isinstance(thing, (jax.Array, np.ndarray)):
        call = current()
        return array_to_tensor(thing, copy=copy) if call is None else call.constants.lift(thing)
    if isinstance(thing, Wrapped):
        return tensor_of(thing, functools.partial(_to_torch, expect=expect, copy=copy, jit=jit))
    if isinstance(thing, np.dtype) or (isinstance(thing, type) and issubclass(thing, np.generic)):
        return dtype_j2t(thing)
    if isinstance(thing, type(jax.numpy.float32)):
        return dtype_j2t(thing)
    if callable(thing) and not isinstance(thing, type):
        return JaxFunction(thing, jit=jit)
    if is_sparse_array(thing):
        return SPARSE.sparse_array_to_tensor(thing, copy=copy) if current() is None else SPARSE.given_sparse(thing)
    return mapped(map_given, functools.partial(_to_torch, expect=stays, copy=copy, jit=jit), expect, thing)
