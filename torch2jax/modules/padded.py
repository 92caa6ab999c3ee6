"""Arguments and results of calls whose length data decide: padded arrays outside, selections within."""

from typing import Any

import numpy as np
import torch
from jax import lax

from ..calls.dispatch import Call
from ..tensors.padded import Padded
from ..tensors.traced import is_traced
from ..values.masked import Mask, Masked, in_compact_order, masked, unnested, zeroed
from ..values.masked_functions import refuse_length


def refusal(chosen: Masked) -> Exception:
    """The error of code that needs the array of a selection, which has none."""
    return refuse_length(chosen)


def entering(call: Call, padded: Padded) -> torch.Tensor:
    """The call's tensor for a padded array: a selection where the length is traced."""
    if not any(map(is_traced, padded.lengths.values())):
        return call.constants.lift(padded.compact())
    with call.inside():
        values = call.constants.lift(padded.values)
        masks = {}
        for axis, length in padded.lengths.items():
            masks[axis] = Mask.first(values.shape[axis], call.constants.given(length, torch.int64))
        return masked(values, masks)


def leaving(call: Call, chosen: Masked) -> Padded:
    """The padded array that a selection leaves a call as."""
    with call.inside():
        values, masks = unnested(in_compact_order(chosen), zeroed)
        lengths = [mask.length for mask in masks.values()]
        if (fits := _fits(call)) is not None:
            values, fits = expected_to_fit(call, values), call.constants.lift(fits)
            capacities = [values.shape[axis] for axis in masks]
            lengths = [
                torch.where(fits, length, capacity + 1) for length, capacity in zip(lengths, capacities, strict=True)
            ]
    values, *lengths = [call.array_of(call.constants.lift(x)) for x in (values, *lengths)]
    return Padded.of(values, dict(zip(masks, lengths, strict=True)))


def expected_to_fit(call: Call, value: object) -> Any:
    """A result, which is nan, as are its derivatives, where data decide more than was said.

    What cannot be nan is what JAX's gathers give for what is not there: the least integer, the greatest if unsigned.
    """
    fits = _fits(call)
    if fits is None or not isinstance(value, torch.Tensor):
        return value
    with call.inside():
        if value.is_floating_point() or value.is_complex():
            return value * call.constants.lift(lax.select(fits, np.float32(1), np.float32(np.nan))).to(value.dtype)
        return torch.where(call.constants.lift(fits), value, _nothing(value.dtype))


def _fits(call: Call) -> Any:
    """The traced bool that says if all that data decide fits its bounds; None if nothing is in doubt."""
    fits = call.execution.fits
    return None if fits is None or not is_traced(fits.read()) else fits.read()


def _nothing(dtype: torch.dtype) -> int | bool:
    """The integer returned for a missing one."""
    if dtype == torch.bool:
        return True
    info = torch.iinfo(dtype)
    return info.max if info.min == 0 else info.min
