"""Tensors with data-dependent lengths: the functions that make them from a traced size, and padding by such lengths."""

from typing import Any

import torch
import torch.nn.functional as F

from ..internals.tensors import canonicalize_dim
from ..rules.registry import implements_by_length, implements_masked
from ..runtime.errors import TracedValueError
from ..values.lengths import (
    bound_of,
    constant_of,
    expect_capacity,
    hinted_bound,
    is_traced_number,
    range_of_number,
    steps_between,
    tensor_of,
)
from ..values.masked import (
    Mask,
    Masked,
    as_long,
    at_axis,
    axes_of,
    first,
    leads,
    masked,
    packed,
    unknown_dims,
    unmasked_of,
    unnested,
    with_leading,
    with_masks,
)
from .selection_subscripts import sliced

Tensor = torch.Tensor


def bounded(number, what: str) -> tuple[int, Any]:
    """The greatest that a size can be, and the size as an int64 tensor, no less than zero.

    Raises:
        TracedValueError: nothing tells.
    """
    bound, size = bound_of(number), tensor_of(number)
    size = size if range_of_number(number)[0] >= 0 else size.clamp(min=0)
    if bound is not None:
        return bound, size
    hinted = hinted_bound()
    if hinted is None:
        raise TracedValueError(
            f"the size of {what}, of which no bound is seen, as x.clamp(max=100) has one, or said (t2j(bounds=)),"
        )
    return hinted, expect_capacity(size, hinted)


# By a size alone.


def _sized(make, shape, what: str) -> Any:
    """A tensor of a shape in which data decide some sizes.

    Args:
        make: gives a tensor of a shape with the bounds for these sizes.
    """
    sizes, masks = list(shape), {}
    for at, size in enumerate(shape):
        if is_traced_number(size):
            sizes[at], length = bounded(size, what)
            masks[at] = Mask.first(sizes[at], length)
    return masked(make(tuple(sizes)), masks)


def _filled(function, leads: int):
    """A maker of tensors that takes a shape after its first `leads` arguments, in one argument or in several."""
    what = f"torch.{function.__name__}"

    def make(*args, **kwargs):
        rest = ()
        head, args = args[:leads], args[leads:]
        shape = kwargs.pop("size", None)
        if shape is None and isinstance(args[0], (tuple, list)):
            shape, rest = args[0], args[1:]
        elif shape is None:
            shape = args
        return _sized(lambda shape: function(*head, shape, *rest, **kwargs), tuple(shape), what)

    return make


for _function in (torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn):
    _value = 1 if _function is torch.full else None
    implements_by_length(_function, value=_value, takes_tensors=True)(_filled(_function, 0))
for _function in (Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full):
    implements_by_length(_function, value=2 if _function is Tensor.new_full else None)(_filled(_function, 1))
    _of_chosen: Any = lambda self, *args, _function=_function, **kwargs: _function(
        torch.zeros((), dtype=self.dtype), *args, **kwargs
    )
    implements_masked(_function)(_of_chosen)


@implements_by_length(torch.arange, takes_tensors=True)
def arange(start, end=None, step=1, *, dtype=None, **options):
    if end is None:
        start, end = 0, start
    if dtype is None and any(type(x) is float for x in (start, end, step)):
        dtype = torch.get_default_dtype()
    start, end, step = (int(x) if type(x) is float and x.is_integer() else x for x in (start, end, step))
    if type(step) is not int or not all(type(x) is int or _is_integer(x) for x in (start, end)):
        raise TracedValueError("torch.arange to a data-dependent size, by other than whole numbers,")
    if step == 0:
        raise RuntimeError("step must be nonzero")
    count = steps_between(start, end, step)
    if not is_traced_number(count):  # both ends move
        raise TracedValueError("torch.arange between such numbers")
    bound, length = bounded(count, "torch.arange")
    dtype = torch.int64 if dtype is None else dtype
    rows = torch.arange(bound, dtype=dtype, **options)
    rows = rows if step == 1 else rows * step
    begin = tensor_of(start).to(dtype) if is_traced_number(start) else start
    return first(rows + begin if is_traced_number(start) or start else rows, length)


def _is_integer(number) -> bool:
    return is_traced_number(number) and not number.is_floating_point()


@implements_by_length(torch.linspace, takes_tensors=True)
def linspace(start, end, steps, *, dtype=None, **options):
    bound, length = bounded(steps, "torch.linspace")
    dtype = dtype or torch.get_default_dtype()
    index, last = torch.arange(bound, dtype=dtype, **options), (length - 1).clamp(min=1).to(dtype)
    step = (end - start) / last
    ascending, descending = start + index * step, end - (length - 1 - index) * step
    return first(torch.where(index * 2 < length, ascending, descending).to(dtype), length)


@implements_by_length(torch.logspace, takes_tensors=True)
def logspace(start, end, steps, base=10.0, *, dtype=None, **options):
    exponents = linspace(start, end, steps, dtype=dtype, **options)
    return torch.pow(torch.tensor(base, dtype=exponents.dtype), exponents)


_MOST = 2**31 - 1


@implements_by_length(torch.randint)
def randint(*args, low=0, high=None, size=None, dtype=None, **options):
    """Between traced numbers a draw's remainder counts, as PyTorch's own does."""
    bounds = list(args)
    if bounds and isinstance(bounds[-1], (tuple, list)):
        size = bounds.pop()
    low, high = (*bounds, high)[:2] if len(bounds) + (high is not None) > 1 else (low, *bounds, high)[:2]
    shape, dtype = tuple(size), dtype or torch.int64
    if not any(map(is_traced_number, (low, high))):
        return _sized(lambda shape: torch.randint(low, high, shape, dtype=dtype, **options), shape, "torch.randint")
    count = (tensor_of(high) - tensor_of(low)).clamp(min=1)
    drawn = _sized(lambda shape: torch.randint(0, _MOST, shape, **options), shape, "torch.randint")
    return (drawn % count + tensor_of(low)).to(dtype)


@implements_by_length(torch.normal)
def normal(mean, std=1.0, size=None, **options):
    if size is None:
        raise TracedValueError("torch.normal of data-dependent numbers")
    return _sized(lambda shape: torch.normal(mean, std, shape, **options), tuple(size), "torch.normal")


@implements_by_length(torch.randperm, takes_tensors=True)
def randperm(n, **options):
    bound, length = bounded(n, "torch.randperm")
    options.pop("device", None)
    drawn = torch.rand(bound, generator=options.pop("generator", None))
    order = torch.where(torch.arange(bound) < length, drawn, 2.0).argsort()
    return first(order.to(options.get("dtype") or torch.int64), length)


# Of a tensor and a size.


@implements_by_length(F.one_hot)
def one_hot(tensor, num_classes=-1):
    bound, length = bounded(num_classes, "torch.nn.functional.one_hot")
    return at_axis(first(F.one_hot(tensor, bound).movedim(-1, 0), length), tensor.ndim)


@implements_by_length(Tensor.expand)
@implements_masked(Tensor.expand)
def expand(self, *sizes):
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if isinstance(self, Masked):
        return _expand_chosen(self, sizes)
    missing = len(sizes) - self.ndim
    if any(is_traced_number(x) and i >= missing and self.shape[i - missing] != 1 for i, x in enumerate(sizes)):
        raise TracedValueError("Tensor.expand, to a data-dependent size, of a dimension that is not one,")
    return _sized(self.expand, sizes, "Tensor.expand")


def _expand_chosen(self, sizes: tuple) -> Any:
    missing, unknown = len(sizes) - self.ndim, unknown_dims(self)
    hinted = {dim: sizes[missing + dim] for dim in unknown if type(sizes[missing + dim]) is int}
    for dim, size in hinted.items():
        if size != -1:
            return as_long(self, dim, size).expand(sizes)
    new = {
        i: size
        for i, size in enumerate(sizes)
        if i < missing or (i - missing not in unknown and self.sizes[i - missing] == 1)
    }
    for _ in range(missing):
        self = self.unsqueeze(0)
    if not any(map(is_traced_number, new.values())):
        tensor, masks = unnested(self)
        shape = [new.get(i, size) for i, size in enumerate(tensor.shape)]
        shape = [old if size == -1 else size for size, old in zip(shape, tensor.shape, strict=True)]
        return masked(tensor.expand(shape), masks)
    shape = [1 if type(size) is int and size == -1 else new.get(i, 1) for i, size in enumerate(sizes)]
    return torch.where(torch.ones(shape, dtype=torch.bool), self, torch.zeros((), dtype=self.dtype))


@implements_by_length(torch.topk, Tensor.topk)
def topk(input, k, dim=-1, largest=True, sorted=True):
    dim = canonicalize_dim(input.ndim, dim)
    count = input.shape[dim]
    bound = min(count if bound_of(k) is None else bounded(k, "torch.topk")[0], count)
    return torch.return_types.topk([sliced(x, dim, slice(None, k)) for x in input.topk(bound, dim, largest, sorted)])


@implements_by_length(F.pad)
@implements_masked(F.pad)
def pad(input, pad, mode="constant", value=None):
    """Pads each dimension with a data-dependent length by itself, and the others as usual."""
    ndim, unknown = input.ndim, unknown_dims(input)
    found, left = input, [*pad]
    for dim in range(ndim - 1, ndim - 1 - len(pad) // 2, -1):
        at = 2 * (ndim - 1 - dim)
        ends = left[at : at + 2]
        if any(map(is_traced_number, ends)) or (dim in unknown and any(ends)):
            if mode != "constant":
                raise TracedValueError(f"torch.nn.functional.pad(mode={mode!r}) of, or by, a data-dependent size,")
            found = at_axis(_padded(with_leading(found, dim), *ends, 0 if value is None else value), dim)
            left[at : at + 2] = 0, 0
    if not any(left):
        return found
    if is_traced_number(value):
        is_there = F.pad(torch.ones(unmasked_of(found).shape, dtype=torch.bool), _of_axes(found, left))
        return with_masks(torch.where(is_there, F.pad(unmasked_of(found), _of_axes(found, left)), value), found)
    return with_masks(F.pad(unmasked_of(found), _of_axes(found, left), mode, value), found)


def _of_axes(x: Any, pad: list) -> list[int]:
    """The sizes to pad all that there is room for by; along a mask of several dimensions there are none."""
    dims = range(x.ndim - 1, x.ndim - 1 - len(pad) // 2, -1)
    ends = [(pad[2 * i : 2 * i + 2], len(axes_of(x, dim))) for i, dim in enumerate(dims)]
    return [size for both, count in ends for size in (both if count == 1 else [0, 0] * count)]


def _padded(tensor: Any, before: Any, after: Any, value: Any) -> Any:
    """A tensor extended along the first dimension: a plain one, if its length is known.

    Less than none takes elements away.
    """
    chosen = packed(tensor) if leads(tensor) else None
    rows: Any = tensor if chosen is None else chosen.rows
    length = len(rows) if chosen is None else chosen.number
    total = length + before + after
    known = total if type(total) is int else constant_of(total)
    bound, size = (known, None) if known is not None else bounded(total, "torch.nn.functional.pad")
    index = torch.arange(bound) - tensor_of(before)
    return _with_missing(rows, index, tensor_of(length), value, size)


def _with_missing(rows: Any, index: Tensor, length: Tensor, value: Any, size: Tensor | None) -> Any:
    """The rows at some indices, with a value in place of missing ones.

    Args:
        rows: in compact order, of which so many count.
        size: how many places there are; None for all.
    """
    others = [1] * (rows.ndim - 1)
    if isinstance(rows, Masked):
        raise TracedValueError("torch.nn.functional.pad along one of several data-dependent dimensions,")
    filled = torch.full((len(index), *rows.shape[1:]), value, dtype=rows.dtype)
    if len(rows):
        is_there = ((index >= 0) & (index < length)).reshape(-1, *others)
        filled = torch.where(is_there, rows[index.clamp(0, len(rows) - 1)], filled)
    return filled if size is None else first(filled, size)


@implements_masked(torch._C._nn.pad_sequence)
def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    if any(isinstance(x, Masked) and not leads(x) for x in sequences):
        raise TracedValueError("torch.nn.utils.rnn.pad_sequence of a boolean-mask selection along a later dimension")
    held = [packed(x).rows if leads(x) else x for x in sequences]
    lengths = [x.shape[0] for x in sequences]
    longest = max(lengths)
    bound: Any = bound_of(longest) if is_traced_number(longest) else longest
    rows = []
    for each, length in zip(held, lengths, strict=True):
        index = torch.arange(bound)
        if padding_side == "left":
            index = index - (tensor_of(longest) - tensor_of(length))
        rows.append(_with_missing(each, index, tensor_of(length), padding_value, None))
    batch = torch.stack(rows, 1)
    found = first(batch, tensor_of(longest)) if is_traced_number(longest) else batch
    return found.transpose(0, 1) if batch_first else found
