"""`j2t`: conversions of functions and values of JAX's to PyTorch's."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, overload

import jax
import numpy as np
import torch

from ..modules.framework_checks import expect_no_code_of_pytorch, expect_of_jax, mapped, stays
from ..runtime.errors.tracebacks import boundary
from ..runtime.layers import SPARSE
from ..runtime.translation import current
from ..tensors.dtypes import dtype_j2t
from ..tensors.interop import array_to_tensor
from ..tensors.trees import is_sparse_array, map_given
from ..tensors.wrapped import Wrapped, tensor_of
from .call_jax import JaxFunction

P = ParamSpec("P")
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
