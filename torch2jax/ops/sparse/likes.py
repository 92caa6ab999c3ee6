"""Tensors of the size and layout of a sparse one."""

import torch

from ...rules.registry import implements_sparse
from ...tensors.sparse_arrays import layout_name
from ...values.sparse import make_sparse, size_of
from .construction import finished
from .declaring import implements_forms

_COO = torch.sparse_coo


def empty_of(like, dtype):
    """A tensor without elements, of the size and layout of another."""
    batch = like.batch_ndim
    shape = list(like.elements.shape)
    shape[batch] = 0
    if like.kind is _COO:
        index = [like.index[0].new_zeros((like.index[0].shape[0], 0))]
    else:
        first, plain = like.index
        index = [torch.zeros_like(first), plain.new_zeros((*plain.shape[:-1], 0))]
    return make_sparse(like.kind, index, torch.zeros(shape, dtype=dtype), size_of(like), True)


@implements_sparse(torch.zeros_like, torch.ops.aten.zeros_like)
def zeros_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    del options
    if layout is not None and layout is not input.kind:
        return torch.zeros(size_of(input), dtype=dtype or input.dtype, layout=layout)
    return finished(empty_of(input, dtype or input.dtype), requires_grad)


@implements_sparse(torch.empty_like, torch.ops.aten.empty_like)
def empty_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    del options
    if layout is not None and layout is not input.kind:
        raise RuntimeError(
            f"empty_like with different sparse layout is not supported (self is {layout_name(input.kind)} but you "
            f"requested {layout_name(layout)})"
        )
    if input.kind is _COO:
        return finished(empty_of(input, dtype or input.dtype), requires_grad)
    return finished(input.of_values(torch.empty_like(input.elements, dtype=dtype)), requires_grad)


def _fills(name: str) -> None:
    """Of compressed layouts PyTorch has these at the places of the elements, of COO it has none."""
    function = getattr(torch, name)

    def rule(input, *, dtype=None, layout=None, requires_grad=False, **options):
        del options
        if input.kind is _COO or layout not in (None, input.kind):
            raise NotImplementedError(f"{name}() is not defined for a tensor of layout {input.kind}")
        return finished(input.of_values(function(input.elements, dtype=dtype)), requires_grad)

    implements_sparse(function, getattr(torch.ops.aten, name))(rule)


_fills("ones_like")
_fills("randn_like")


@implements_forms("new_zeros", "new_empty")
def new_zeros(self, *size, dtype=None, layout=None, requires_grad=False, **options):
    size = options.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return torch.zeros(size, dtype=dtype or self.dtype, layout=layout or self.kind, requires_grad=requires_grad)
