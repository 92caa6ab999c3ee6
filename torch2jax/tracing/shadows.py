"""Shadows of tensor subclasses: plain tensors that carry the derivative of the whole.

A tensor that wraps others has no array of its own that JAX could differentiate. Its *shadow* is a tensor of zeros of
its shape, which stands for what would be added to it. The shadow of a leaf that requires grad is a leaf; that of a
result has the derivatives that the operator, or the autograd function, has for the whole.

In PyTorch no derivative leads through the inner tensors of such a result. So these are `cut`: a derivative that leads
there is an error. Code below autograd, which computes the result of an operator, reads them as they are (`uncut`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import torch
from jax import lax

from ..runtime.translation import Call
from ..tensors.interop import is_dense
from ..tensors.tensor import Torchish, wrap
from ..tensors.traced import is_traced
from ..tensors.wrapped import is_of_call, is_wrapper, tensor_of, wrapped
from .primitives import apart_from, once

_SHADOW, _UNCUT = "_torch2jax_shadow", "_torch2jax_uncut"
_READ = (
    "got a derivative through an inner tensor of a {kind} that a __torch_dispatch__ or a torch.autograd.Function gave: "
    "PyTorch has one for the whole tensor alone. Wanted a function of the whole tensor, or detach() of the inner one"
)
_INNER = (
    "got a derivative with respect to the inner tensors of a {kind}, through {name}.apply: the backward of a "
    "torch.autograd.Function has the gradient of the whole tensor alone. Wanted loss.backward() within the translated "
    "code, which leaves that gradient at the parameter, or jax.grad with respect to other arrays"
)
_JAGGED = (
    "got a derivative through {name}.apply, which gave a jagged tensor; wanted a torch.autograd.Function of tensors of "
    "values: torch.nested.nested_tensor_from_jagged({name}.apply(x.values()), x.offsets())"
)
_OUTSIDE = (
    "got a tensor that wraps others and requires grad, from outside of the call, or in an operator that writes or "
    "whose class lacks __tensor_flatten__; its derivative is taken. Wanted a module that is given to t2j, or a tensor "
    "that does not require grad"
)


def zeros_of(call: Call, wrapper: Any, **options: Any) -> Torchish:
    """Zeros of the shape and the dtype that a tensor has as a whole."""
    with call.inside():
        made: Any = torch.zeros(tuple(wrapper.shape), dtype=wrapper.dtype, **options)
    return made


def shadow_of(call: Call, wrapper: Any) -> Any:
    """The shadow of a tensor that wraps others, of this run of the code; None if it requires no grad."""
    execution, shadow = vars(wrapper).get(_SHADOW, (None, None))
    shadow = shadow if execution is call.execution else None
    if shadow is None and wrapper.is_leaf and wrapper.requires_grad:
        shadow = zeros_of(call, wrapper, requires_grad=True)
        if not is_of_call(wrapper):  # the user's object, which is only read
            return without_derivative(zeros_of(call, wrapper), shadow)
        with call.inside():
            shadow.register_post_accumulate_grad_hook(lambda shadow: _give(wrapper, shadow))
        give_shadow(call, wrapper, shadow)
    return shadow


def give_shadow(call: Call, wrapper: object, shadow: torch.Tensor) -> None:
    """Sets a plain tensor that carries the derivatives of a wrapper, in this run of the code."""
    setattr(wrapper, _SHADOW, (call.execution, shadow))


def _give(wrapper: Any, shadow: torch.Tensor) -> None:
    """Moves the gradient of a shadow to the wrapper, as its gradient or a part of it."""
    gradient, shadow.grad = shadow.grad, None
    wrapper.grad = gradient if wrapper.grad is None else wrapper.grad + gradient


def cut(call: Call, wrapper: object, shadow: Torchish) -> object:
    """A tensor like a wrapper, with the derivatives of a shadow.

    To derive through its inner tensors is an error where the shadow has a derivative.
    """
    message, source = _READ.format(kind=type(wrapper).__name__), shadow.read()

    def marked(array: jax.Array) -> jax.Array:
        return once(array, [source], message, NotImplementedError) if array.dtype.kind not in "biu" else array

    inner = _changed(call, wrapper, lax.stop_gradient)
    found = _changed(call, inner, marked)
    for each in (inner, found):
        give_shadow(call, each, shadow)
    setattr(found, _UNCUT, inner)
    return found


def _changed(call: Call, wrapper: object, change: Callable[[jax.Array], jax.Array]) -> object:
    """A tensor like one that wraps others, with changed arrays."""

    def changed(inner: torch.Tensor) -> Torchish:
        x = call.constants.lift(inner)
        return wrap(change(x.read()), x.dtype, strides=x.stride() if is_dense(x) else None)

    return tensor_of(wrapped(wrapper, changed), lambda inner: inner)


def uncut(value: object) -> object:
    """A tensor that wraps others as code below autograd reads it; any other value itself."""
    return vars(value).get(_UNCUT, value) if isinstance(value, torch.Tensor) and is_wrapper(value) else value


def without_derivative(value: torch.Tensor, *shadows: torch.Tensor) -> Torchish:
    """A tensor that raises an error if a derivative for the shadows is taken."""
    operands: Any = (value, *shadows)
    array, *others = [x.read() for x in operands]
    made = wrap(apart_from(array, others, _OUTSIDE, NotImplementedError), value.dtype)
    made.descend(operands, "without_derivative")
    return made


def inner_arrays(wrappers: Iterable[object]) -> list[jax.Array]:
    """The traced arrays with derivatives inside of tensors that wrap others."""
    arrays = (
        x.read() for wrapper in wrappers for x in _inner_of(wrapper) if isinstance(x, Torchish) and _is_derived(x)
    )
    return [array for array in arrays if is_traced(array)]


def _is_derived(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _inner_of(wrapper: Any) -> list[object]:
    inner = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
    return [each for x in inner for each in (_inner_of(x) if is_wrapper(x) else [x])]


def sealed(call: Call, wrapper: object, arrays: Iterable[jax.Array], name: str) -> Any:
    """A jagged result of an autograd function, without a shadow: a derivative for its arguments is an error."""
    sources = [array for array in arrays if is_traced(array)]

    def seal(array: jax.Array) -> jax.Array:
        return once(array, sources, _JAGGED.format(name=name), NotImplementedError)

    return _changed(call, wrapper, lambda array: array if array.dtype.kind in "biu" else seal(lax.stop_gradient(array)))


def apart_from_inner(array: jax.Array, wrappers: Iterable[object], name: str) -> jax.Array:
    """A result of an autograd function: a derivative for inner tensors of its arguments is an error.

    Args:
        wrappers: the arguments that wrap others.
        name: the function's.
    """
    for wrapper in wrappers:
        message = _INNER.format(kind=type(wrapper).__name__, name=name)
        array = apart_from(array, inner_arrays([wrapper]), message, NotImplementedError)
    return array
