"""Functions of batches with a data-dependent number of examples: unselected examples are computed too."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..rules.registry import implements_chosen, implements_selected
from ..values.selected import Chosen, Selected, aligned, like, packed
from ..values.selected_at_axis import ndim_of, over_padded, unknown_dims

Tensor = torch.Tensor


def of_examples(function, chosen: Selected, what: str) -> Any:
    """``function(tensor)`` of a batch with the selection's number of examples, or a tuple of such results."""
    if chosen.mask.ndim > 1:
        chosen = packed(chosen)
    made = function(chosen.safe())
    found = tuple(like(x, chosen, True) for x in (made if isinstance(made, tuple) else (made,)))
    if any(len(x.rows) != chosen.mask.numel() for x in found):
        raise TracedValueError(f"{what} of a boolean-mask selection")
    return found if isinstance(made, tuple) else found[0]


def _along_last(function, count: Callable[[int], int]):
    """A function of one tensor that acts along its last dimensions, which data do not decide.

    Args:
        count: how many these are, for a tensor of so many dimensions.
    """
    what = f"torch.{function.__name__}"

    def along_last(input, *args, **kwargs):
        if not isinstance(input, Chosen) or any(isinstance(x, Chosen) for x in (*args, *kwargs.values())):
            raise TracedValueError(f"{what} beside a boolean-mask selection")
        ndim = ndim_of(input)
        if max(unknown_dims(input)) >= ndim - count(ndim):
            raise TracedValueError(f"{what} along a dimension of a boolean-mask selection whose length data decide")
        return over_padded(lambda x: function(x, *args, **kwargs), input)

    return along_last


_OF_IMAGES = {F.pixel_shuffle: 3, F.pixel_unshuffle: 3}
for _size in (1, 2, 3):
    for _name in ("conv", "conv_transpose"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d")] = _size + 1
    for _name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d")] = _size
    for _name in ("max_pool", "adaptive_max_pool"):
        _OF_IMAGES[getattr(F, f"{_name}{_size}d_with_indices")] = _size
for _function, _count in _OF_IMAGES.items():
    implements_chosen(_function)(_along_last(_function, lambda ndim, _count=_count: _count))
implements_chosen(F.interpolate)(_along_last(F.interpolate, lambda ndim: ndim - 2))
for _function in (F.group_norm, F.instance_norm):
    implements_chosen(_function)(_along_last(_function, lambda ndim: ndim - 1))


@implements_selected(F.grid_sample)
def grid_sample(input, grid, *args, **kwargs):
    if not isinstance(input, Selected) or not isinstance(grid, Selected):
        raise TracedValueError("torch.nn.functional.grid_sample of, or by, a boolean-mask selection")
    what = "torch.nn.functional.grid_sample"
    images, grids = aligned([packed(input), packed(grid)], what)
    return of_examples(lambda rows: F.grid_sample(rows, grids.safe(), *args, **kwargs), images, what)


@implements_selected(F.batch_norm)
def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if training:
        raise TracedValueError("torch.nn.functional.batch_norm, in training, of a boolean-mask selection")
    return of_examples(
        lambda rows: F.batch_norm(rows, running_mean, running_var, weight, bias, False, momentum, eps),
        input,
        "torch.nn.functional.batch_norm",
    )


# Torchvision's, of regions of interest: each is one.


def _of_regions(name: str):
    def of_regions(input, rois, *args):
        if isinstance(input, Selected):
            raise TracedValueError(f"torchvision.ops.{name} of images that a boolean mask selected")
        operator = getattr(torch.ops.torchvision, name)
        return of_examples(lambda rois: operator(input, rois, *args), rois, f"torchvision.ops.{name}")

    return of_regions


for _name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
    implements_selected(f"torchvision::{_name}")(_of_regions(_name))
