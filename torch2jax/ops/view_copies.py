"""Copied views: ``permute_copy`` and the like, each as its view."""

import torch

from ..rules.registry import implements_tensors

aten = torch.ops.aten

_VIEWS = (
    *(aten.alias.default, aten.as_strided.default, aten.detach.default, aten.diagonal.default, aten.expand.default),
    *(aten.permute.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.unbind.int),
    *(aten.unfold.default, aten.unsqueeze.default, aten.view.default, aten.view.dtype),
    *(aten.view_as_complex.default, aten.view_as_real.default),
)


def _copied(view: torch.Tensor) -> torch.Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _rule_of_copy(view) -> None:
    def rule(*args, **kwargs):
        views = view(*args, **kwargs)
        return _copied(views) if isinstance(views, torch.Tensor) else [_copied(part) for part in views]

    packet = getattr(aten, view.overloadpacket.__name__ + "_copy")
    implements_tensors(getattr(packet, view._overloadname))(rule)


for _view in _VIEWS:
    _rule_of_copy(_view)
