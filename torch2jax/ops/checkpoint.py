"""Activation checkpointing: what is kept for the backward pass is JAX's to decide, so that the code just runs."""

from torch.utils import checkpoint

from ..seams import exchange
from ..translation import current

_original = checkpoint.CheckpointFunction


class _CheckpointFunction:
    """What ``torch.utils.checkpoint.checkpoint(..., use_reentrant=True)`` applies; its backward would run PyTorch's."""

    @staticmethod
    def apply(run_function, preserve_rng_state, *args):
        if current() is None:
            return _original.apply(run_function, preserve_rng_state, *args)
        return run_function(*args)


exchange(checkpoint, "CheckpointFunction", _CheckpointFunction)
