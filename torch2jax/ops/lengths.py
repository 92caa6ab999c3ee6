"""Tensors that are as long as data decide: what makes them, from a size that is traced."""

from typing import Any

import torch

from ..errors import TracedValueError
from ..internals.promotion import canonicalize_dim
from ..rules.registry import implements_by_length, implements_selected
from ..values.lengths import bound_of, is_traced_number, range_of_number, tensor_of
from ..values.selected import Selected, first, like
from .selection_subscripts import part

Tensor = torch.Tensor


def bounded(number, what: str) -> int:
    """The greatest that a size can be.

    Raises:
        TracedValueError: nothing tells.
    """
    bound = bound_of(number)
    if bound is None:
        raise TracedValueError(
            f"the size of {what}, of which no bound is seen, as x.clamp(max=100) has one, or said (t2j(bounds=)),"
        )
    return bound


def _size(number):
    """A size as an int64 tensor, no less than zero."""
    size = tensor_of(number)
    return size if range_of_number(number)[0] >= 0 else size.clamp(min=0)


# By a size alone.


def _leading(shape, what: str) -> tuple[int, Any]:
    """The bound of a shape's first size, which data decide, and that size; others are numbers that are known."""
    if any(map(is_traced_number, shape[1:])) or not is_traced_number(shape[0]):
        raise TracedValueError(f"{what}, in a dimension behind the first,")
    return bounded(shape[0], what), _size(shape[0])


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
        bound, length = _leading(tuple(shape), what)
        return first(function(*head, (bound, *shape[1:]), *rest, **kwargs), length)

    return make


for _function in (torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn):
    implements_by_length(_function, value=1 if _function is torch.full else None)(_filled(_function, 0))
for _function in (Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full):
    implements_by_length(_function, value=2 if _function is Tensor.new_full else None)(_filled(_function, 1))
    implements_selected(_function)(
        lambda self, *args, _function=_function, **kwargs: _function(torch.zeros((), dtype=self.dtype), *args, **kwargs)
    )


@implements_by_length(torch.arange)
def arange(start, end=None, step=1, **options):
    if end is None:
        start, end = 0, start
    if type(step) is not int or step != 1 or not all(type(x) is int or is_traced_number(x) for x in (start, end)):
        raise TracedValueError("torch.arange, by a step other than one, to what data decide,")
    count = end - start
    if not is_traced_number(count):  # both ends move
        raise TracedValueError("torch.arange between such numbers")
    bound = bounded(count, "torch.arange")
    rows = torch.arange(bound, **options)
    begin = tensor_of(start).to(rows.dtype) if is_traced_number(start) else start
    return first(rows + begin if is_traced_number(start) or start else rows, _size(count))


@implements_by_length(torch.randperm)
def randperm(n, **options):
    bound, length = bounded(n, "torch.randperm"), _size(n)
    options.pop("device", None)
    drawn = torch.rand(bound, generator=options.pop("generator", None))
    order = torch.where(torch.arange(bound) < length, drawn, 2.0).argsort()
    return first(order.to(options.get("dtype") or torch.int64), length)


# Of a tensor and a size.


@implements_by_length(Tensor.expand)
def expand(self, *sizes):
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    bound, length = _leading(sizes, "Tensor.expand")
    return first(self.expand(bound, *sizes[1:]), length)


@implements_selected(Tensor.expand)
def expand_of_chosen(self, *sizes):
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if len(sizes) != self.ndim or any(map(is_traced_number, sizes[1:])):
        raise TracedValueError(f"expanding to {list(sizes)} what a boolean mask chose")
    of_row = self.rows.shape[self.mask.ndim :]
    sizes = [old if new == -1 else new for old, new in zip(of_row, sizes[1:], strict=True)]
    return like(self.rows.expand(*self.mask.shape, *sizes), self, self.is_safe)


@implements_by_length(Tensor.expand_as)
@implements_selected(Tensor.expand_as)
def expand_as(self, other):
    return self.expand(*other.shape)


@implements_by_length(torch.topk, Tensor.topk)
def topk(input, k, dim=-1, largest=True, sorted=True):
    dim = canonicalize_dim(input.ndim, dim)
    if dim:
        raise TracedValueError("torch.topk, along a later dimension, of as many as data decide,")
    bound = min(bounded(k, "torch.topk"), len(input))
    values, indices = input.topk(bound, 0, largest, sorted)
    return torch.return_types.topk([part(_all(x), None, k) for x in (values, indices)])


def _all(rows) -> Selected:
    return first(rows, torch.tensor(len(rows)))
