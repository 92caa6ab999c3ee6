"""Several views of a tensor at once: ``split``, ``unbind``, ``tensor_split``."""

from typing import Any

import numpy as np
import torch

from ..rules.options import Tag
from ..rules.registry import implements_tensors, tag
from ..tensors.dtypes import canonical
from ..tensors.regions import Split, SplitPart
from ..tensors.storage import View
from ..tensors.tensor import Restriction, Torchish
from .shape import axis_of

aten = torch.ops.aten


@implements_tensors(aten.split.Tensor)
def split(self, split_size, dim=0):
    size = self.shape[dim]
    if split_size < 0 or (split_size == 0 and size != 0):
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={split_size}")
    if split_size == 0:
        return [aten.slice(self, dim, 0, 0)]
    return _parts(self, [min(split_size, size - start) for start in range(0, max(size, 1), split_size)], dim)


@implements_tensors(aten.unsafe_split.Tensor)
def unsafe_split(self, split_size, dim=0):
    return _unrestricted(split(self, split_size, dim))


@implements_tensors(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(self, split_sizes, dim=0):
    return _unrestricted(split_with_sizes(self, split_sizes, dim))


def _unrestricted(views: list[Torchish]) -> list[Torchish]:
    """Views that may be written to."""
    for view in views:
        view._restriction = None
    return views


@implements_tensors(aten.split_with_sizes.default)
def split_with_sizes(self, split_sizes, dim=0):
    if any(size < 0 for size in split_sizes):
        raise RuntimeError(f"split_with_sizes expects sizes that are not negative, but got {list(split_sizes)}")
    if sum(split_sizes) != self.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {self.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(split_sizes)}"
        )
    return _parts(self, split_sizes, dim)


def _parts(self, sizes, dim) -> list[Torchish]:
    ends = [int(end) for end in np.cumsum(sizes)]
    views = [aten.slice(self, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return _read_together(self, views, sizes, dim % self.ndim)


def _read_together(base, views: list[Torchish], sizes, dim: int, squeezed: int | None = None) -> list[Torchish]:
    nodes: list[Any] = [view._node for view in views]
    # Without gradients they are views of detached memory, and of a tensor without elements each part is all.
    if len(nodes) > 1 and all(isinstance(node, View) and node.parent is base._node for node in nodes):
        split = Split(base._node, tuple(sizes), dim)
        for index, (view, node) in enumerate(zip(views, nodes, strict=True)):
            view._node = SplitPart(node, split, index, squeezed)
    if torch.is_grad_enabled():
        name = "Unbind" if squeezed is not None else "Split"
        for index, view in enumerate(views):
            view._restriction = Restriction("multiple", name, index)
    return views


@implements_tensors(aten.unbind.int)
def unbind(self, dim=0):
    if self.ndim == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    dim = axis_of(self, dim)
    views = [aten.select(self, dim, index) for index in range(self.shape[dim])]
    return _read_together(self, views, [1] * len(views), dim, squeezed=dim)


@implements_tensors(aten.tensor_split.sections)
def tensor_split_sections(self, sections, dim=0):
    size = self.shape[_axis_to_split(self, dim)]
    if sections <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {sections}")
    least, larger = divmod(size, sections)
    ends = [least * (index + 1) + min(index + 1, larger) for index in range(sections)]
    return tensor_split_indices(self, ends[:-1], dim)


@implements_tensors(aten.tensor_split.indices)
def tensor_split_indices(self, indices, dim=0):
    axis = _axis_to_split(self, dim)
    starts, ends = [0, *indices], [*indices, self.shape[axis]]
    return [aten.slice(self, axis, start, end) for start, end in zip(starts, ends, strict=True)]


@implements_tensors(aten.tensor_split.tensor_indices_or_sections)
def tensor_split(self, tensor_indices_or_sections, dim=0):
    ndim, name = tensor_indices_or_sections.ndim, "tensor_split expected tensor_indices_or_sections to"
    if canonical(tensor_indices_or_sections.dtype) != canonical(torch.int64):
        kind = tensor_indices_or_sections.type().removeprefix("torch.").removesuffix("Tensor")
        raise RuntimeError(f"{name} have dtype of long, but got {kind}")
    if ndim > 1:
        raise RuntimeError(f"{name} be a zero-dimensional or one-dimensional tensor, but got a tensor with {ndim} dims")
    found = tensor_indices_or_sections.tolist()
    return tensor_split_sections(self, found, dim) if ndim == 0 else tensor_split_indices(self, found, dim)


def _axis_to_split(self, dim: int) -> int:
    if self.ndim == 0:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    return axis_of(self, dim)


for _owner in (torch, torch.Tensor):
    tag(_owner.unsafe_split, _owner.unsafe_split_with_sizes, tags=[Tag.VIEW])
