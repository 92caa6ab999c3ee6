"""Functions of batches with a data-dependent number of examples: unselected examples are computed too."""

from typing import Any

import torch
import torch.nn.functional as F

from ..errors import TracedValueError
from ..rules.registry import implements_selected
from ..values.selected import Chosen, Selected, aligned, compacted, like

Tensor = torch.Tensor


def of_examples(function, chosen: Selected, what: str) -> Any:
    """``function(tensor)`` of a batch of as many examples as were chosen, or a tuple of such."""
    if chosen.mask.ndim > 1:
        chosen = compacted(chosen)
    made = function(chosen.safe())
    found = tuple(like(x, chosen, True) for x in (made if isinstance(made, tuple) else (made,)))
    if any(len(x.rows) != chosen.mask.numel() for x in found):
        raise TracedValueError(f"{what} of a boolean-mask selection")
    return found if isinstance(made, tuple) else found[0]


def _batched(function, ndim: int):
    """A function whose first argument is a batch of examples of `ndim` dimensions, and others none."""
    what = f"torch.{function.__name__}"

    def batched(input, *args, **kwargs):
        is_batch = isinstance(input, Selected) and input.row_ndim == ndim
        if not is_batch or any(isinstance(x, Selected) for x in (*args, *kwargs.values())):
            raise TracedValueError(f"{what} of a boolean-mask selection")
        return of_examples(lambda rows: function(rows, *args, **kwargs), input, what)

    return batched


for _ndim, _functions in enumerate(
    (
        (F.conv1d, F.conv_transpose1d, F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
        (F.conv2d, F.conv_transpose2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
        (F.conv3d, F.conv_transpose3d, F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
    ),
    2,
):
    for _function in _functions:
        implements_selected(_function)(_batched(_function, _ndim))


def _of_any_rank(function):
    what = f"torch.{function.__name__}"

    def batched(input, *args, **kwargs):
        if not isinstance(input, Selected) or any(isinstance(x, Chosen) for x in (*args, *kwargs.values())):
            raise TracedValueError(f"{what} beside a boolean-mask selection")
        return of_examples(lambda rows: function(rows, *args, **kwargs), input, what)

    return batched


for _function in (F.interpolate, F.group_norm, F.instance_norm, F.pixel_shuffle):
    implements_selected(_function)(_of_any_rank(_function))


@implements_selected(F.grid_sample)
def grid_sample(input, grid, *args, **kwargs):
    if not isinstance(input, Selected) or not isinstance(grid, Selected):
        raise TracedValueError("torch.nn.functional.grid_sample of, or by, a boolean-mask selection")
    what = "torch.nn.functional.grid_sample"
    images, grids = aligned([compacted(input), compacted(grid)], what)
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
