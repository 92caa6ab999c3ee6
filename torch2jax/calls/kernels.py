"""Operators of ``torch.library`` by their own kernels, where these are written in Python."""

import weakref
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from ..errors import NoRuleError, TracedValueError
from ..seams import stands_in
from ..translation import current

__all__ = ["Kernels", "has_kernel"]

# In the order of PyTorch's dispatcher. JAX batches and places, so that kernels for that are not asked.
_ABOVE = ("AutogradCPU", "Autograd", "AutogradCUDA")
_BELOW = (
    "",  # means the next
    "CompositeImplicitAutograd",
    "CPU",
    "CompositeExplicitAutograd",
    "CUDA",
    "CompositeExplicitAutogradNonFunctional",
)
_NAMESPACES = frozenset(("aten", "prim", "prims", "profiler", "higher_order"))


def has_kernel(operator: OpOverload | HigherOrderOperator) -> bool:
    """Whether an operator, of a library of somebody else's, has a kernel that Python code registered."""
    if isinstance(operator, HigherOrderOperator):
        return bool(_kernels_of(operator))
    return operator.namespace not in _NAMESPACES and next(_keys(operator, (*_ABOVE, *_BELOW)), None) is not None


def _keys(operator: OpOverload, keys: tuple[str, ...]) -> Iterator[str]:
    name = operator.name().replace("::", "/")
    registered = torch.library._impls  # pyright: ignore[reportAttributeAccessIssue]
    return (key for key in keys if f"{name}/{key}" in registered)


def _kernels_of(operator: HigherOrderOperator) -> list[Callable]:
    """What an operator on functions may run, in the order of PyTorch's dispatcher."""
    keys = [getattr(torch._C.DispatchKey, key) for key in (*_ABOVE, *_BELOW) if key]
    return [operator.py_kernels[key] for key in keys if key in operator.py_kernels]


class Kernels:
    """The kernels that a call is running, and the libraries that its code makes."""

    def __init__(self):
        self._above: list[OpOverload] = []
        self._higher: list[tuple] = []
        self.libraries: weakref.WeakSet[torch.library.Library] = weakref.WeakSet()  # they end with their last user

    def undo(self) -> None:
        """Forgets the operators that the code has defined, since it is to run again and define them again."""
        for library in list(self.libraries):
            library._destroy()

    def run_higher(self, operator: HigherOrderOperator, args: tuple, kwargs: dict) -> Any:
        """Runs the kernel of an operator on functions; called within that, the operator runs the next one."""
        given = (operator, *args)
        depth = sum(len(x) == len(given) and all(map(is_, x, given)) for x in self._higher)
        kernels = _kernels_of(operator)
        if depth == len(kernels):
            raise NoRuleError(f"torch.ops.higher_order.{operator.name()}")
        self._higher.append(given)
        try:
            with current().inside():
                return kernels[depth](*args, **kwargs)
        finally:
            self._higher.pop()

    def run(self, operator: OpOverload, args: tuple, kwargs: dict) -> Any:
        """Runs the kernel of an operator that PyTorch would: its derivative's, which runs the other, if there is one.

        Raises:
            TracedValueError: it asks for values that are traced.
        """
        above = None if operator in self._above else next(_keys(operator, _ABOVE), None)
        if above is None:
            return self.run_below(operator, args, kwargs)
        self._above.append(operator)
        try:
            return _run(operator, above, args, kwargs)
        finally:
            self._above.pop()

    def run_below(self, operator: OpOverload, args: tuple, kwargs: dict) -> Any:
        """Runs the kernel of an operator that computes its values."""
        key = next(_keys(operator, _BELOW), None)
        if key is None:
            return current().run_missing(operator, args, kwargs)
        return _run(operator, key, args, kwargs)


def _run(operator: OpOverload, key: str, args: tuple, kwargs: dict) -> Any:
    # Not through `operator._op_dk`, which asks again whether the call is overridden.
    runtime_key = key if key in ("CUDA", "AutogradCUDA") else "AutogradCPU" if key in _ABOVE else "CPU"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, runtime_key))
    try:
        with current().inside():
            return operator._handle.redispatch_boxed(keys, *args, **kwargs)  # pyright: ignore
    except TracedValueError as error:
        name = operator.name()
        note = (
            f"The Python kernel of {name} asks for it. Where it leaves PyTorch, as with numpy(), run the operator in "
            f'PyTorch: t2j(..., call_torch=["{name}"]), or torch2jax(fn, *examples) of the function that calls it.'
        )
        if note not in getattr(error, "__notes__", ()):  # the kernel runs within that of the derivative
            error.add_note(note)
        raise


@stands_in(OpOverload, "redispatch")
def _redispatch(operator, keyset, *args, **kwargs):
    del keyset  # what is registered with torch.library.register_autograd goes on so
    return current().kernels.run_below(operator, args, kwargs)


@stands_in(torch._C, "_any_requires_grad")
def _any_requires_grad(*args, **kwargs):
    return True  # JAX may ask for the derivative


_begin_library = torch.library.Library.__init__


@stands_in(torch.library.Library, "__init__")
def _make_library(library, *args, **kwargs):
    _begin_library(library, *args, **kwargs)
    current().kernels.libraries.add(library)
