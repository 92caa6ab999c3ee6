"""JAX functions as PyTorch functions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
import torch

from ..internals.dispatch import EnableTorchFunction
from ..internals.modules import disable_dynamo
from ..rules.array_rule import InnerRule
from ..tracebacks import boundary
from ..translation import current
from .differentiable import check_dtypes, run_program, widened
from .program import Arguments, JaxProgram, Template, take_apart, take_out_arrays

P = ParamSpec("P")
R = TypeVar("R")


class JaxFunction(Generic[P, R]):
    """A JAX function as a function of tensors; see `torch2jax.j2t`.

    Args:
        function: the JAX function. Within a translated call it is called on the arrays themselves, and its operations
            become part of the graph.
        jit: compile it, once for each signature. Without, it runs operation by operation, and may ask for values.
    """

    def __init__(self, function: Callable, *, jit: bool = True):
        self.function, self.jit = function, jit
        self._programs: dict = {}
        functools.update_wrapper(self, function, updated=())

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...
    @boundary
    def __call__(self, *args, **kwargs) -> Any:
        if torch.compiler.is_compiling():
            return _outside_graph(self, args, kwargs)
        return self._run(args, kwargs)

    def __repr__(self) -> str:
        return f"j2t({self.function!r})"

    def __reduce__(self):
        return functools.partial(JaxFunction, jit=self.jit), (self.function,)

    def __deepcopy__(self, memo: dict[int, Any]):
        return self  # as functions are

    def __get__(self, instance: object, owner: type | None = None):
        return self if instance is None else functools.partial(self, instance)

    def _run(self, args: tuple, kwargs: dict):
        arguments = take_apart(args, kwargs)
        if current() is None:
            return self._run_program(arguments)
        function = _FlatFunction(self.function, arguments.template)
        rule = InnerRule(functools.partial(function, arguments.constants), getattr(self, "__name__", "j2t"))
        return function.restore(rule(tuple(arguments.tensors), {}))

    def _run_program(self, arguments: Arguments):
        dtypes = tuple([tensor.dtype for tensor in arguments.tensors])
        x64: bool = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
        check_dtypes(dtypes, x64)
        program, function = self._program_for(arguments, x64)
        results = run_program(program, arguments.constants, arguments.tensors)
        return function.restore([widened(result, dtypes) for result in results])

    def _program_for(self, arguments: Arguments, x64: bool) -> "tuple[JaxProgram, _FlatFunction]":
        if not self.jit:  # nothing to keep, and what is not an array in the result may depend on values
            return self._new_program(arguments, x64)
        key = (arguments.signature, x64)
        try:
            found = self._programs.get(key)
        except TypeError as error:
            raise TypeError(
                f"{self!r} got an argument that is not a tensor or array and cannot be hashed ({error}); wanted a "
                "hashable one, because its value decides which program runs. Pass a tensor, give its type "
                "__hash__ and __eq__, or use j2t(function, jit=False)"
            ) from error
        return found or self._programs.setdefault(key, self._new_program(arguments, x64))

    def _new_program(self, arguments: Arguments, x64: bool) -> "tuple[JaxProgram, _FlatFunction]":
        function = _FlatFunction(self.function, arguments.template)
        return JaxProgram(function, jit=self.jit, x64=x64), function


@disable_dynamo
def _outside_graph(function: JaxFunction, args: tuple, kwargs: dict):
    return function._run(args, kwargs)


class _FlatFunction:
    """A function of trees as one of the arrays in them, which remembers the rest of its result."""

    def __init__(self, function: Callable, template: Template):
        self._function, self._template = function, template
        self._result: Template | None = None

    def __call__(self, constants: tuple, *arrays: Any) -> list:
        args, kwargs = self._template.fill(arrays, constants)
        with EnableTorchFunction():  # off while a rule's body runs; this one may translate PyTorch code
            result = self._function(*args, **kwargs)
        self._result, found = take_out_arrays(result)
        return found

    def restore(self, results: Sequence[Any]) -> Any:
        """The result of the last call or trace, with `results` in place of arrays."""
        return self._result.fill(results)  # pyright: ignore[reportOptionalMemberAccess]
