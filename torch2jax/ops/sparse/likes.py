"""Tensors of the size and layout of a sparse one."""

import torch

from ...rules.registry import implements_sparse, implements_tensors
from ...tensors.sparse_arrays import layout_name
from ...values.sparse import BLOCKED, COLUMNS, make_sparse, size_of
from .construction import finished
from .declaring import implements_forms
from .places import filled

Tensor = torch.Tensor
_COO = torch.sparse_coo


def empty_of(like, dtype):
    """A tensor without elements, of the size and layout of another."""
    return without_elements(like.kind, size_of(like), like.dense_ndim, like.block, like.index[0].dtype, dtype)


def without_elements(layout, size, dense_ndim: int, block, index_dtype, dtype, count: int = 0):
    """A tensor of a layout that has no elements, or so many zeros that are nowhere yet.

    Args:
        block: the size of a block, of the layouts that have some.
    """
    size = tuple(size)
    first = len(size) - dense_ndim
    if layout is _COO:
        index = [torch.zeros((first, 0), dtype=torch.int64)]
        return make_sparse(_COO, index, torch.zeros((0, *size[first:]), dtype=dtype), size, True)
    batch, rows = size[: first - 2], size[first - 1 if layout in COLUMNS else first - 2]
    if block:
        rows //= block[1 if layout in COLUMNS else 0]
    index = [torch.zeros((*batch, n), dtype=index_dtype) for n in (rows + 1, count)]
    values = torch.zeros((*batch, count, *block, *size[first:]), dtype=dtype)
    return make_sparse(layout, index, values, size, True)


def _in_another_layout(like, layout, dtype):
    """A tensor without elements, of the size of another."""
    if layout is torch.strided:
        return torch.zeros(size_of(like), dtype=dtype)
    block = like.block if layout in BLOCKED else ()
    if layout is not _COO and (like.sparse_ndim != 2 or (layout in BLOCKED and not block)):
        raise RuntimeError(
            f"zeros_like(): a tensor of layout {like.kind}, sparse_dim={like.sparse_ndim} has no counterpart of layout "
            f"{layout}"
        )
    dense_ndim = like.dense_ndim
    return without_elements(layout, size_of(like), dense_ndim, block, like.index[0].dtype, dtype)


def _expect_no_memory_format(like, layout, options) -> None:
    if like.kind is _COO and layout in (None, _COO) and options.get("memory_format") is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")


@implements_sparse(torch.zeros_like, torch.ops.aten.zeros_like)
def zeros_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    _expect_no_memory_format(input, layout, options)
    if layout is not None and layout is not input.kind:
        return finished(_in_another_layout(input, layout, dtype or input.dtype), requires_grad)
    return finished(empty_of(input, dtype or input.dtype), requires_grad)


@implements_sparse(torch.empty_like, torch.ops.aten.empty_like)
def empty_like(input, *, dtype=None, layout=None, requires_grad=False, **options):
    _expect_no_memory_format(input, layout, options)
    if layout is not None and layout is not input.kind:
        raise RuntimeError(
            f"empty_like with different sparse layout is not supported (self is {layout_name(input.kind)} but you "
            f"requested {layout_name(layout)})"
        )
    if input.kind is _COO:
        return finished(empty_of(input, dtype or input.dtype), requires_grad)
    return finished(input.of_values(torch.empty_like(input.elements, dtype=dtype)), requires_grad)


def _fills(name: str) -> None:
    """Of compressed layouts PyTorch has these at the places of the elements, of COO only as a strided tensor."""
    function = getattr(torch, name)

    def rule(input, *args, dtype=None, layout=None, requires_grad=False, **options):
        if layout is torch.strided and input.kind is _COO:
            like = torch.empty(size_of(input), dtype=dtype or input.dtype)
            return function(like, *args, requires_grad=requires_grad, **options)
        if input.kind is _COO or layout not in (None, input.kind):
            raise NotImplementedError(f"{name}() is not defined for a tensor of layout {input.kind}")
        elements = function(input.elements, *args, dtype=dtype, **options)
        return finished(filled(input, elements), requires_grad)

    implements_sparse(function, getattr(torch.ops.aten, name))(rule)


for _name in ("full_like", "ones_like", "rand_like", "randn_like"):
    _fills(_name)


@implements_forms("new_zeros", "new_empty")
def new_zeros(self, *size, dtype=None, layout=None, requires_grad=False, **options):
    size = options.pop("size", size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    return torch.zeros(size, dtype=dtype or self.dtype, layout=layout or self.kind, requires_grad=requires_grad)


@implements_sparse(torch.zeros, torch.empty)
def zeros(*size, out, requires_grad=False, **options):
    """With ``out=``, which nothing else gives a sparse tensor for."""
    return finished(
        out.become(torch.zeros(*size, **{**options, "layout": out.kind, "dtype": out.dtype})), requires_grad
    )


@implements_tensors(torch.ops.aten._sparse_compressed_tensor_with_dims)
def sparse_compressed_tensor_with_dims(
    nnz, dense_dim, size, blocksize, index_dtype, *, dtype=None, layout=None, device=None, pin_memory=False
):
    del device, pin_memory
    dtype = dtype or torch.get_default_dtype()
    return without_elements(layout, size, dense_dim, tuple(blocksize), index_dtype, dtype, nnz)


@implements_sparse(Tensor.new)
def new(self, *given, device=None):
    """The legacy constructor: of a size, or of indices, values and perhaps a size."""
    del device
    if self.kind is not _COO:
        raise RuntimeError(f"Tensor.new() is not defined for a tensor of layout {self.kind}")
    if given and isinstance(given[0], torch.Tensor):
        return torch.sparse_coo_tensor(*given, dtype=self.dtype)
    size = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given or (0,)
    return torch.zeros(size, dtype=self.dtype, layout=_COO)
