"""What a rule does around its body: operands to arrays, promotion, dtypes of the results, writes in place.

The body of an `ArrayRule` takes jax arrays where PyTorch takes tensors and gives jax arrays. A `TensorRule` gets the
tensors themselves; it is for functions that are about storages, metadata or Python values.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import torch
from jax import lax
from torch._prims_common import compute_elementwise_output_strides

from .dtypes import canonical, held_number, logical
from .errors import TracedValueError, user_location
from .inline import call_inlined
from .interop import is_dense
from .promotion import Promotion, promoted
from .regions import overlaps_itself
from .storage import Deferred, Held, evaluate, evaluating, is_traced, known_result, values_only
from .tensor import Torchish, geometry, resize, wrap
from .translation import current

__all__ = [
    "ArrayRule",
    "DtypeSpec",
    "InPlace",
    "MetadataRule",
    "PromoteSpec",
    "Reflected",
    "TensorRule",
    "WithFlag",
    "write_in_place",
    "write_out",
]

# Keywords of every factory function that mean nothing to JAX.
_PLACEMENT = ("device", "layout", "pin_memory", "requires_grad", "memory_format", "names", "non_blocking")
# numpy's spellings, which PyTorch's argument parser takes everywhere.
_ALIASES = {"axis": "dim", "keepdims": "keepdim", "self": "input", "x1": "input", "x2": "other"}

PromoteSpec = Promotion | Callable[[dict], Promotion] | None
ChannelsLast = tuple[Literal["prefer", "follow"], int] | None
DtypeSpec = torch.dtype | tuple | Callable[..., Any] | None


class TensorRule:
    """A rule on tensors: its body has the signature of the PyTorch function."""

    def __init__(self, body: Callable, name: str):
        self.body, self.name = body, name

    def __call__(self, args: tuple, kwargs: dict):
        with current().inside():
            return self.body(*args, **kwargs)


class MetadataRule:
    """A function that PyTorch itself answers, since it needs no values: ``x.shape``, ``x.stride()``."""

    def __init__(self, function: Callable, name: str):
        self.function, self.name = function, name

    def __call__(self, args: tuple, kwargs: dict):
        tensor = args[0] if args else kwargs["input"]
        if not isinstance(tensor, Torchish):
            args = (current().standing_for(tensor), *args[1:])
        return geometry(self.function, *args, **kwargs)


class ArrayRule:
    """A rule on arrays.

    Args:
        body: has the parameters of the PyTorch function by its documented names; arrays stand for tensors.
        name: the function's name.
        promote: promotes all positional parameters of `body` (the operands) to a common dtype and broadcasts them;
            keyword-only parameters are not operands. A function of these gives the kind where they decide it.
        unpromoted: how many of the first operands are broadcast, but keep their dtype (the condition of a where).
        dtype: the PyTorch dtype of the result (one, a tuple of one for each, None in it where the operands decide,
            or a function of the call's arguments that gives one of these). By default the operands decide.
        concrete: the body needs values, not traced arrays, since the shape of its result depends on them.
        random: the body takes a JAX key before its other arguments.
        channels_last: the body can take its first operand, of the given rank, with its channels last, and gives
            results of that rank likewise, when called with ``channels_last=True``: always with ``("prefer", rank)``,
            if the operand is held so with ``("follow", rank)``.
        prepare: gives the ``(args, kwargs)`` for the body from the call's. It has the body's parameters and sees the
            tensors themselves: their strides, their known values.
    """

    def __init__(
        self,
        body: Callable,
        name: str,
        *,
        promote: PromoteSpec = None,
        unpromoted: int = 0,
        dtype: DtypeSpec = None,
        concrete: bool = False,
        random: bool = False,
        channels_last: ChannelsLast = None,
        prepare: Callable[..., tuple[tuple, dict]] | None = None,
    ):
        self.body, self.name, self.prepare = body, name, prepare
        self.promote, self.unpromoted, self.dtype = promote, unpromoted, dtype
        self.concrete, self.random, self.channels_last = concrete, random, channels_last
        parameters = list(inspect.signature(body).parameters.values())[1 if random else 0 :]
        self.parameters = {p.name for p in parameters}
        self.open = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
        self.positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        self.result_type = getattr(torch.return_types, name, None)

    def __call__(self, args: tuple, kwargs: dict):
        with torch._C.DisableTorchFunction():
            kwargs, out, device = self._keywords(kwargs)
            if self.prepare is not None:
                args, kwargs = self.prepare(*args, **kwargs)
            if self.promote is None:
                result = self._apply(args, kwargs, device)
            else:
                result = self._apply_elementwise(args, kwargs)
            return result if out is None else write_out(result, out, (*args, *kwargs.values()))

    def _keywords(self, kwargs: dict):
        if not kwargs:
            return kwargs, None, None
        kwargs = {
            (_ALIASES.get(key, key) if key not in self.parameters else key): value for key, value in kwargs.items()
        }
        out, device = kwargs.pop("out", None), kwargs.get("device")
        for key in _PLACEMENT:
            if key not in self.parameters:
                kwargs.pop(key, None)
        return kwargs, out, None if device is None else torch.device(device)

    def _apply(self, args, kwargs, device):
        tensors: list[Torchish] = []
        layout = self._layout(args) if self.channels_last else None
        if layout is None:
            arrays, array_kwargs = _arrays(args, tensors), _arrays(kwargs, tensors)
        else:
            tensors.append(_lift(args[0]))
            arrays = (tensors[0].held.arranged(layout), *_arrays(args[1:], tensors))
            array_kwargs = {**_arrays(kwargs, tensors), "channels_last": True}
        if self.random:
            key = current().next_key(kwargs.get("generator"))
            array_kwargs.pop("generator", None)
            arrays, args = (key, *arrays), (None if is_traced(key) else key, *args)
        if self.concrete and any(is_traced(tensor.held.array) for tensor in tensors):
            result = self._run_concrete(args, kwargs)
        else:
            result = self._run(self.body, arrays, array_kwargs, tensors)
        dtype = self.dtype
        if callable(dtype) and not isinstance(dtype, torch.dtype):
            dtype = dtype(*(args[1:] if self.random else args), **kwargs)
        # When nothing is traced, or a traced input is an operand, there is no need to look for known values.
        known = _Known(self.body, args, kwargs, tensors, self.random and is_traced(arrays[0]))
        return self._wrap_all(result, dtype, known, tensors, device, layout=layout)

    def _layout(self, args) -> tuple[int, ...] | None:
        """The channels-last order for the first operand, if the body is to take it so."""
        when, rank = self.channels_last  # pyright: ignore[reportGeneralTypeIssues]
        if not args or not isinstance(args[0], torch.Tensor) or args[0].ndim != rank:
            return None
        layout = (0, *range(2, rank), 1)
        return layout if when == "prefer" or _lift(args[0])._node.layout == layout else None

    def _run(self, body, args, kwargs, tensors):
        if any(is_traced(tensor.held.array) for tensor in tensors):
            with jax.named_scope(self.name):
                return call_inlined(body, args, kwargs)
        return body(*args, **kwargs)

    def _run_concrete(self, args, kwargs):
        args, kwargs = _knowns(args), _knowns(kwargs)
        if _UNKNOWN in jax.tree.leaves((args, kwargs), is_leaf=lambda x: x is _UNKNOWN):
            raise TracedValueError(f"torch.{self.name}")
        with evaluating():
            return self.body(*_evaluate_tree(args), **_evaluate_tree(kwargs))

    def _apply_elementwise(self, args, kwargs):
        operands = list(args)
        if kwargs:
            kwargs = dict(kwargs)
            for name in self.positional[len(operands) :]:
                if name not in kwargs:
                    break
                operands.append(kwargs.pop(name))
        tensors: list[Torchish] = []
        for i, operand in enumerate(operands):
            if isinstance(operand, (torch.Tensor, jax.Array, np.ndarray)):
                operands[i] = _lift(operand)
                tensors.append(operands[i])
            elif isinstance(operand, np.generic):
                operands[i] = operand.item()
        kind = self.promote if isinstance(self.promote, Promotion) else self.promote(kwargs)  # pyright: ignore
        compute, result_dtype = promoted(kind, operands[self.unpromoted :])
        if self.dtype is not None:
            result_dtype = self.dtype(*args, **kwargs) if callable(self.dtype) else self.dtype
        shape = _common_shape(tensors)
        dtypes = (canonical(compute), canonical(result_dtype))
        layout = _common_layout(tensors, shape)
        result = self._run(
            self._pointwise(shape, dtypes, kwargs, layout),
            [_in_layout(x, shape, layout) for x in operands],
            {},
            tensors,
        )
        known = _Known(self._pointwise(shape, dtypes, kwargs), operands, {}, tensors, False)
        return self._wrap_all(result, result_dtype, known, tensors, None, shape, layout)

    def _pointwise(self, shape, dtypes, kwargs, layout=None):
        """The body with casts and broadcasts around it, on operands held in `layout`."""
        if layout is not None:
            shape = tuple(shape[dim] for dim in layout)
        return functools.partial(_elementwise, self.body, shape, self.unpromoted, dtypes, kwargs)

    def _wrap_all(self, result, dtype, known, tensors, device, shape=None, layout=None):
        if isinstance(result, (tuple, list)):
            dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * len(result)
            parts = [
                self._wrap(part, each, known.part(i), tensors, device, shape, layout)
                for i, (part, each) in enumerate(zip(result, dtypes, strict=True))
            ]
            if isinstance(result, list):
                return parts
            return self.result_type(parts) if self.result_type else tuple(parts)
        return self._wrap(result, dtype, known, tensors, device, shape, layout)

    def _wrap(self, array, dtype, known, tensors, device, shape, layout):
        if array is None:
            return None
        if dtype is None:
            dtype = logical(array.dtype, tuple(tensor.dtype for tensor in tensors))
        elif array.dtype != canonical(dtype):
            array = lax.convert_element_type(array, canonical(dtype))
        grad = torch.is_grad_enabled()
        differentiable = dtype.is_floating_point or dtype.is_complex
        known_value = known.find() if is_traced(array) else None
        if not grad and differentiable and any(operand._node.storage.differentiable for operand in tensors):
            array = lax.stop_gradient(array)
        strides = _strides(tensors, shape) if shape is not None else None
        if layout is not None and array.ndim != len(layout):
            layout = None
        tensor = wrap(array, dtype, known_value, layout=layout, strides=strides)
        if not grad:
            tensor._node.storage.differentiable = False
        if device is None:
            for operand in tensors:
                if operand._label.type != "cpu":
                    tensor._label = operand._label
                    break
        else:
            tensor._label = device
        tensor._wants_grad = grad and differentiable and any(operand._wants_grad for operand in tensors)
        return tensor


def _common_shape(tensors) -> tuple[int, ...]:
    shape = tensors[0].shape
    if all(tensor.shape == shape for tensor in tensors):
        return tuple(shape)
    try:
        return np.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    except ValueError:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise RuntimeError(
            f"got operands of shapes {shapes}, which do not broadcast: sizes must be equal or 1 in every dimension, "
            "counted from the last"
        ) from None


def _common_layout(tensors, shape) -> tuple[int, ...] | None:
    """The layout in which all operands of the full shape are held, if there is one."""
    layout = None
    for tensor in tensors:
        if tensor.shape == shape:
            own = tensor._node.layout
            if own is None or layout not in (None, own):
                return None
            layout = own
    return layout


def _in_layout(operand, shape, layout):
    """An operand's array, with its dimensions in the order of the result's layout."""
    if not isinstance(operand, torch.Tensor):
        return operand
    if layout is None or operand.ndim == 0:
        return operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    if operand.shape == shape:
        return operand.held.array  # pyright: ignore[reportAttributeAccessIssue]
    array = operand.read()  # pyright: ignore[reportAttributeAccessIssue]
    expanded = lax.expand_dims(array, range(len(shape) - array.ndim))
    return lax.transpose(expanded, layout)


class _Known:
    """Finds, only when asked, what is known of a result."""

    __slots__ = ("_args", "_body", "_index", "_kwargs", "_random", "_tensors")

    def __init__(self, body, args, kwargs, tensors, random, index=None):
        self._body, self._args, self._kwargs = body, args, kwargs
        self._tensors, self._random, self._index = tensors, random, index

    def part(self, index: int) -> "_Known":
        return _Known(self._body, self._args, self._kwargs, self._tensors, self._random, index)

    def find(self):
        if self._random:
            return None
        knowns = [tensor.known for tensor in self._tensors]
        if any(known is None for known in knowns):
            return None
        body = self._body if self._index is None else functools.partial(_part, self._body, self._index)
        depth = 1 + max((known.depth for known in knowns if isinstance(known, Deferred)), default=0)
        return Deferred(body, _knowns(self._args), _knowns(self._kwargs), depth)


def _part(body, index, *args, **kwargs):
    return body(*args, **kwargs)[index]


class _Unknown:
    pass


_UNKNOWN = _Unknown()


def _lift(value) -> Torchish:
    return current().lift(value)


def _map(fn, value):
    """Maps the tensors in an argument; PyTorch's signatures hold them at most in lists."""
    if isinstance(value, (torch.Tensor, jax.Array, np.ndarray)):
        return fn(_lift(value))
    if isinstance(value, (list, tuple)):
        mapped = [_map(fn, item) for item in value]
        return mapped if isinstance(value, list) else tuple(mapped)
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    return value


def _arrays(value, tensors: list):
    """`value` with arrays for tensors, which are gathered in `tensors`."""

    def read(tensor: Torchish):
        tensors.append(tensor)
        return tensor.read()

    return _map(read, value)


def _knowns(value):
    def known(tensor: Torchish):
        known = tensor.known
        return _UNKNOWN if known is None else known

    return _map(known, value)


def _evaluate_tree(value):
    if isinstance(value, (list, tuple)):
        return type(value)(_evaluate_tree(item) for item in value)
    if isinstance(value, dict):
        return {key: _evaluate_tree(item) for key, item in value.items()}
    return evaluate(value)


def _elementwise(body, shape, unpromoted, dtypes, kwargs, *operands):
    """Casts and broadcasts the operands, calls the body, casts what it gives."""
    compute, result_dtype = dtypes
    cast = [_operand(x, shape, None if i < unpromoted else compute) for i, x in enumerate(operands)]
    result = body(*cast, **kwargs)
    if isinstance(result, (tuple, list)):
        return type(result)(_cast(part, result_dtype) for part in result)
    return _cast(result, result_dtype)


def _operand(value, shape, dtype):
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (jax.Array, np.ndarray)):
        return held_number(value, dtype)
    if dtype is not None:
        value = _cast(value, dtype)
    if value.shape == shape or value.ndim == 0:
        return value
    return lax.broadcast_in_dim(value, shape, range(len(shape) - value.ndim, len(shape)))


def _cast(array, dtype):
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def _strides(tensors, shape):
    """The strides PyTorch gives an elementwise result: those of its operands where they agree; None if contiguous."""
    if all(tensor.shape == shape and tensor.is_contiguous() for tensor in tensors):
        return None
    return _elementwise_strides(tuple((tuple(t.shape), t.stride()) for t in tensors), shape)


_WITH_OPERANDS = {1: torch.neg, 2: torch.add, 3: torch.addcmul}


@functools.lru_cache(maxsize=4096)
def _elementwise_strides(operands, shape):
    with torch._C._DisableTorchDispatch():
        examples = [torch.empty_strided(*operand, device="meta") for operand in operands]
        if len(examples) in _WITH_OPERANDS:
            strides = _WITH_OPERANDS[len(examples)](*examples).stride()
        else:
            strides = compute_elementwise_output_strides(*(example.expand(shape) for example in examples))
        return None if strides == torch.empty(shape, device="meta").stride() else strides


class Reflected:
    """The operator form with its operands swapped: ``__radd__`` of ``add``."""

    def __init__(self, rule):
        self.rule, self.name = rule, rule.name

    def __call__(self, args: tuple, kwargs: dict):
        this, other = args
        return self.rule((other, this), kwargs)


class InPlace:
    """The form that writes its result into its first operand: ``add_``, ``+=``, ``relu(x, inplace=True)``."""

    def __init__(self, rule):
        self.rule, self.name = rule, rule.name + "_"

    def __call__(self, args: tuple, kwargs: dict):
        target = args[0] if args else kwargs.get("input", kwargs.get("self"))
        return write_in_place(target, self.rule(args, kwargs), (*args[1:], *kwargs.values()))


class WithFlag:
    """A function with an ``inplace`` argument, which chooses between the two forms."""

    def __init__(self, rule, position: int):
        self.rule, self.name, self.position = rule, rule.name, position
        self._in_place = InPlace(rule)

    def __call__(self, args: tuple, kwargs: dict):
        inplace = kwargs.get("inplace", False)
        if "inplace" in kwargs:
            kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        if len(args) > self.position:
            inplace = args[self.position]
            args = args[: self.position] + args[self.position + 1 :]
        return (self._in_place if inplace else self.rule)(args, kwargs)


def write_in_place(target: torch.Tensor, value: Torchish, operands=(), *, fills: bool = False) -> Torchish:
    """Writes `value` into `target` and returns `target`, with PyTorch's checks.

    Args:
        target: the tensor; everything on its memory sees the write.
        value: of the same shape, and of a dtype that casts to that of `target`.
        operands: what `value` was computed from; arguments that are no tensors are passed over.
        fills: all of `value` is one number, so that it does not matter whether `target` overlaps itself.

    Raises:
        RuntimeError: `target` overlaps itself or an operand, has another shape, or cannot hold the values' dtype.
    """
    with torch._C.DisableTorchFunction():
        tensor = _lift(target)
        if value.shape != tensor.shape:
            raise RuntimeError(
                f"output with shape {list(tensor.shape)} doesn't match the broadcast shape {list(value.shape)}"
            )
        _check_cast(value, tensor)
        if not fills:
            _check_overlap(tensor, operands)
        _store(tensor, value)
        return tensor


def _check_cast(value: torch.Tensor, target: torch.Tensor) -> None:
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {_type_name(value.dtype)} can't be cast to the desired output type {_type_name(target.dtype)}"
        )


def _store(tensor: Torchish, value: Torchish) -> None:
    storage = tensor._node.storage
    if storage.memory.foreign:
        storage.memory.foreign = False
        warnings.warn(
            f"translated code writes in place to a tensor from outside the call, at {user_location()}. The write is "
            "seen inside the call and never outside; return the new value, or pass the tensor through state_dict.",
            stacklevel=2,
        )
    dtype = canonical(tensor.dtype)
    (array, layout), known = value.held, value.known
    if array.dtype != dtype:
        cast = functools.partial(_cast, dtype=dtype)
        array = cast(array)
        known = known_result(array, cast, (known,), {}, [known])
    if torch.is_grad_enabled():
        tensor._wants_grad = tensor._wants_grad or value._wants_grad
        tensor.write(Held(array, layout), known)
        return
    differentiable = storage.differentiable  # a write without gradients changes nothing about derivatives
    if differentiable:
        array, known = values_only(tensor.held.arranged(layout), array), None  # known values have no derivatives
    elif value._node.storage.differentiable:
        array = lax.stop_gradient(array)
    tensor.write(Held(array, layout), known)
    storage.differentiable = differentiable


def _type_name(dtype: torch.dtype) -> str:
    names = {"int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}
    names |= {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16"}
    names |= {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}
    short = str(dtype).removeprefix("torch.")
    return names.get(short, short)


def _check_overlap(target: Torchish, operands) -> None:
    if target._node.overlaps and overlaps_itself(tuple(target.shape), target.stride()):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    for operand in operands:
        if isinstance(operand, Torchish) and operand is not target and _overlap_partly(target, operand):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _overlap_partly(a: Torchish, b: Torchish) -> bool:
    # As PyTorch: only dense tensors are compared, and the same region is no partial overlap.
    if a._node.storage.memory is not b._node.storage.memory or a.numel() == 0 or b.numel() == 0:
        return False
    if not (is_dense(a) and is_dense(b)):
        return False
    first, second = a.storage_offset() * a.element_size(), b.storage_offset() * b.element_size()
    first_end, second_end = first + a.numel() * a.element_size(), second + b.numel() * b.element_size()
    if (first, first_end) == (second, second_end):
        return a.stride() != b.stride()
    return first < second_end and second < first_end


def write_out(result, out, operands=()):
    """Writes what a rule gave into the ``out=`` argument, which takes its shape, and returns that."""
    if isinstance(result, (tuple, list)):
        for part, target in zip(result, out, strict=True):
            _write_one_out(part, target, operands)
        return type(result)(out) if hasattr(type(result), "n_fields") else out
    return _write_one_out(result, out, operands)


def _write_one_out(result: Torchish, out: torch.Tensor, operands):
    target = _lift(out)
    _check_cast(result, target)
    _check_overlap(target, operands)
    if target.shape != result.shape:
        _resize_out(target, result, operands)
    _store(target, result)
    return target


def _resize_out(target: Torchish, result: Torchish, operands) -> None:
    if any(target is operand for operand in operands):
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}"
        )
    if target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(target.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. This behavior is deprecated, and in a future "
            "PyTorch release outputs will not be resized unless they have zero elements. You can explicitly reuse an "
            "out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
            stacklevel=2,
        )
    resize(target, result.shape, result.stride())
