"""Other sizes of sparse tensors, in place."""

import torch

from ...rules.registry import implements_sparse
from ...values.sparse import COLUMNS, Sparse, make_sparse, size_of
from .declaring import forms_of
from .likes import without_elements
from .places import room

Tensor = torch.Tensor
_COO = torch.sparse_coo


def _resized_coo(tensor: Sparse, size: tuple[int, ...], sparse_dim: int, dense_dim: int) -> Sparse:
    """The tensor, which keeps its elements, of another size.

    Raises:
        RuntimeError: the size has not so many dimensions, or is too small for the elements.
    """
    if sparse_dim + dense_dim != len(size):
        raise RuntimeError(
            f"'len(size) == sparse_dim + dense_dim' is not satisfied: len(size) = {len(size)}, sparse_dim = "
            f"{sparse_dim}, dense_dim = {dense_dim}"
        )
    if not room(tensor):
        return tensor.become(without_elements(_COO, size, dense_dim, (), torch.int64, tensor.dtype))
    old, split = tuple(size_of(tensor)), tensor.sparse_ndim
    for what, before, after in (("sparse", split, sparse_dim), ("dense", tensor.dense_ndim, dense_dim)):
        if before != after:
            raise RuntimeError(
                f"changing the number of {what} dimensions (from {before} to {after}) on a non-empty sparse tensor is "
                "not supported: make a tensor of its indices and values, or clear it by sparse_resize_and_clear_()"
            )
    for what, before, after in (("sparse", old[:split], size[:split]), ("dense", old[split:], size[split:])):
        if any(new < had for had, new in zip(before, after, strict=True)):
            raise RuntimeError(
                f"shrinking the size of {what} dimensions (from {list(before)} to {list(after)}) on a non-empty sparse "
                "tensor is not supported: make a tensor of its indices and values, or clear it by "
                "sparse_resize_and_clear_()"
            )
    elements = tensor.elements
    if old[split:] != size[split:]:
        elements = elements.clone().resize_(elements.shape[0], *size[split:])
    return tensor.become(make_sparse(_COO, tensor.index, elements, size, tensor.coalesced, tensor.length))


@implements_sparse(*forms_of("sparse_resize_"))
def sparse_resize_(self, size, sparse_dim, dense_dim):
    _expect_coo(self, "sparse_resize_")
    return _resized_coo(self, tuple(size), sparse_dim, dense_dim)


@implements_sparse(*forms_of("sparse_resize_and_clear_"))
def sparse_resize_and_clear_(self, size, sparse_dim, dense_dim):
    _expect_coo(self, "sparse_resize_and_clear_")
    self.become(without_elements(_COO, size_of(self), self.dense_ndim, (), torch.int64, self.dtype))
    return _resized_coo(self, tuple(size), sparse_dim, dense_dim)


def _expect_coo(tensor: Sparse, name: str) -> None:
    if tensor.kind is not _COO:
        raise NotImplementedError(f"{name}() takes a tensor of layout torch.sparse_coo, but got {tensor.kind}")


@implements_sparse(Tensor.resize_, torch.ops.aten.resize_)
def resize_(self, *size, memory_format=None):
    """Of a compressed layout: more rows without elements, or room for more columns.

    PyTorch makes other tensors smaller, too, whose indices are wrong then.
    """
    size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    if self.kind is _COO:
        raise NotImplementedError("resize_() of a COO tensor: call sparse_resize_(size, sparse_dim, dense_dim)")
    if memory_format not in (None, torch.contiguous_format):
        raise RuntimeError("resize_(): a tensor of a sparse layout has no memory format")
    if len(size) < 2:
        raise RuntimeError(f"torch.resize_: Only batched sparse CSR matrices are supported, but got size {list(size)}")
    old, batch = tuple(size_of(self)), self.batch_ndim
    if size[batch + 1 : batch + 2] and size[batch + 1] < old[batch + 1]:
        raise RuntimeError(
            "torch.resize_: Resizing columns of sparse CSR tensors to a smaller value is not supported. The original "
            f"number of columns is {old[batch + 1]} while the requested new number of columns is {size[batch + 1]}."
        )
    is_same = len(size) == len(old) and size[:batch] == old[:batch] and size[batch + 2 :] == old[batch + 2 :]
    if not is_same or size[batch] < old[batch] or self.block:
        raise RuntimeError(
            f"resize_() of a tensor of layout {self.kind} from {list(old)} to {list(size)} is not supported: rows and "
            "columns can be added"
        )
    compressed, plain = self.index
    added = (size[batch + (self.kind in COLUMNS)]) - (old[batch + (self.kind in COLUMNS)])
    if added:
        compressed = torch.cat([compressed, compressed[..., -1:].expand(*compressed.shape[:-1], added)], -1)
    return self.become(make_sparse(self.kind, [compressed, plain], self.elements, size, True, self.length))


@implements_sparse(*forms_of("resize_as_"))
def resize_as_(self, the_template, *, memory_format=None):
    if not isinstance(self, Sparse):
        return self.resize_(size_of(the_template), memory_format=memory_format)
    if self.kind is _COO and isinstance(the_template, Sparse):
        return resize_as_sparse_(self, the_template)
    return resize_(self, *size_of(the_template), memory_format=memory_format)


@implements_sparse(*forms_of("resize_as_sparse_"))
def resize_as_sparse_(self, the_template):
    if self.kind is not the_template.kind:
        raise RuntimeError(
            f"resize_as_sparse_: expected layouts to be the same, but got {self.kind} and {the_template.kind}"
        )
    if self.kind is _COO:
        size = tuple(size_of(the_template))
        return _resized_coo(self, size, the_template.sparse_ndim, the_template.dense_ndim)
    index = [x.clone() for x in the_template.index]
    elements = torch.zeros(the_template.elements.shape, dtype=self.dtype)
    return self.become(make_sparse(self.kind, index, elements, size_of(the_template), True, the_template.length))
