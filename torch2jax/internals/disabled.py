"""Functions that PyTorch's compiler leaves alone: the first call of any imports the compiler, which takes a second."""

import contextlib
import functools
import gc
import sys
import types
from collections.abc import Iterator

import torch

__all__ = ["DISABLED", "compiler_not_imported"]

DISABLED = "__dynamo_disable"
"""The attribute of a function in which PyTorch keeps what it calls instead, once the compiler is imported."""

_code = torch._disable_dynamo(lambda: None).__code__  # which all of them share, and no other function has
_cell = _code.co_freevars.index("fn")


@contextlib.contextmanager
def compiler_not_imported() -> Iterator[None]:
    """A context in which PyTorch's functions of that kind call themselves, unless the compiler is there already.

    Most of its kernels for meta tensors are such functions. While there is no compiler, nothing compiles them.
    """
    functions = () if "torch._dynamo" in sys.modules else _functions()
    changed = [function for function in functions if DISABLED not in vars(function)]
    try:
        for function in changed:
            setattr(function, DISABLED, function)
        yield
    finally:
        for function in changed:
            if vars(function).get(DISABLED) is function:  # another thread may have been here
                delattr(function, DISABLED)


@functools.cache
def _functions() -> tuple[types.FunctionType, ...]:
    disabled = (found for found in gc.get_referrers(_code) if type(found) is types.FunctionType)
    functions = (found.__closure__[_cell].cell_contents for found in disabled if found.__closure__)
    return tuple(x for x in functions if type(x) is types.FunctionType and x.__module__.startswith("torch."))
