"""Activation checkpointing: what is kept for the backward pass is JAX's to decide, so that the code just runs."""

from torch.utils import checkpoint

from ..seams import applies


@applies(checkpoint, "CheckpointFunction")  # where use_reentrant=True; its backward would run PyTorch's
def _run(run_function, preserve_rng_state, *args):
    return run_function(*args)
