"""The leaves that `t2j` and `j2t` take: errors for objects of neither framework, or of the target framework already."""

import difflib
import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch

_OURS = ("state_dict", "return_state_dict")
_OF_BOTH = (numbers.Number, np.generic, np.ndarray, jax.Array, jax.ShapeDtypeStruct, torch.Tensor, torch.Size)


def expect_no_code_of_jax(thing: object) -> None:
    """Refuses functions of JAX, classes instead of their instances, and objects that need code around them.

    Raises:
        TypeError: `t2j` got such a thing.
    """
    if isinstance(thing, torch.optim.Optimizer):
        raise TypeError(
            f"t2j got a {type(thing).__name__}; wanted the function that calls its step(): t2j(step, "
            "state=(model, optimizer))"
        )
    if isinstance(thing, torch.utils.data.DataLoader):
        raise TypeError("t2j got a DataLoader; wanted its batches: t2j(batch) for each of them")
    if isinstance(thing, type) and issubclass(thing, torch.nn.Module):
        raise TypeError(f"t2j got the class {thing.__name__}; wanted a module: t2j({thing.__name__}(...))")
    if isinstance(thing, type) and issubclass(thing, torch.autograd.Function):
        raise TypeError(f"t2j got the class {thing.__name__}; wanted a function: t2j({thing.__name__}.apply)")
    if _is_of(thing, ("jax", "jaxlib")):
        raise TypeError(
            f"t2j got {_name(thing)}, which is JAX's already; wanted PyTorch's. Call it as it is; PyTorch code "
            "calls it through j2t"
        )


def expect_no_code_of_pytorch(thing: object) -> None:
    """Refuses modules, and functions of PyTorch's own.

    Raises:
        TypeError: `j2t` got such a thing.
    """
    if isinstance(thing, torch.nn.Module) or _is_of(thing, ("torch",)):
        raise TypeError(
            f"j2t got {_name(thing)}, which is PyTorch's already; wanted JAX's. Use t2j to convert from PyTorch to JAX"
        )


def expect_no_state_by_another_name(called: Callable, kwargs: Mapping[str, object], names: Collection[str]) -> None:
    """Raises if a module's ``**kwargs`` would swallow a state or random key under a wrong name.

    Args:
        called: the method.
        kwargs: keywords that it got, without those of a translated function.
        names: those of the module's tensors.

    Raises:
        TypeError: a value is a state or a key, or its name is nearly that of one.
    """
    parameters = inspect.signature(called).parameters
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return  # Python refuses them
    for name, value in kwargs.items():
        if name in parameters:
            continue
        meant = next(iter(difflib.get_close_matches(name, _OURS, n=1, cutoff=0.8)), None)
        if isinstance(value, Mapping) and value and all(key in names for key in value):
            meant = "state_dict"
        elif isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            meant = "rng"
        if meant is not None:
            raise TypeError(f"got {name}=, which is no parameter of {called.__qualname__}; did you mean {meant}=?")


def expect_of_pytorch(leaf: object) -> None:
    """Refuses objects that `t2j` cannot translate. Numbers and arrays are the same in JAX.

    Raises:
        TypeError: it is such a thing.
    """
    wanted = "a tensor, a dtype, a module, a function, or a tree of these"
    _expect_of_either(leaf, "t2j", wanted, "t2j(torch.load({!r})), or the module that is to load it")


def expect_of_jax(leaf: object) -> None:
    """Refuses objects that `j2t` cannot convert.

    Raises:
        TypeError: it is such a thing.
    """
    _expect_of_either(leaf, "j2t", "an array, a dtype, a function, or a tree of these", "load it, and give the arrays")


def _expect_of_either(thing: object, name: str, wanted: str, of_file: str) -> None:
    if isinstance(thing, _OF_BOTH):
        return
    if thing is None:
        raise TypeError(f"{name} got None; wanted {wanted}. What should have returned one?")
    if isinstance(thing, (str, os.PathLike)):
        path = os.fspath(thing)
        raise TypeError(f"{name} got {thing!r}; wanted {wanted}. Is it a file? Then {of_file.format(path)}")
    if isinstance(thing, Iterator):
        wanted += f". What it gives, one after the other: {name}(list(...)), or {name}(dict(...)) of names and values"
    raise TypeError(f"{name} got {_name(thing)}; wanted {wanted}")


def _is_of(thing: object, libraries: tuple[str, ...]) -> bool:
    """Returns True if a function is defined by one of these libraries, and does not wrap another one."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, type) or not callable(thing):
        return False
    names = [getattr(thing, "__module__", None)]
    if isinstance(thing, types.FunctionType):  # one that wraps another takes over the name of its module
        names.append(thing.__globals__.get("__name__"))
    elif not isinstance(thing, types.BuiltinFunctionType):
        names.append(type(thing).__module__)
    return all((name or "").partition(".")[0] in libraries for name in names)


def _name(thing: object) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if callable(thing) and hasattr(thing, "__name__") and hasattr(thing, "__module__"):
        return f"{thing.__module__}.{thing.__name__}"
    return f"a {type(thing).__name__}"


def mapped(mapping: Callable, convert: Callable, expect: Callable[[object], None], tree: object) -> Any:
    """A tree with its leaves converted; a tree that is a leaf itself stays as it is, unless `expect` refuses it."""

    def converted(leaf: object) -> object:
        if leaf is not tree:
            return convert(leaf)
        expect(leaf)
        return leaf

    return mapping(converted, tree)


def stays(leaf: object) -> None:
    """Accepts a leaf of neither side, which stays as it is within a tree."""
