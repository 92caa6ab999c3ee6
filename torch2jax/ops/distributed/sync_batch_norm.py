"""`torch.nn.SyncBatchNorm`: statistics over all devices. PyTorch has kernels for GPUs only."""

import torch

from ...calls.call import current
from ...rules.registry import implements_tensors
from .groups import default_group, expect_group
from .operations import all_reduced

__all__: list[str] = []


@implements_tensors(torch.nn.SyncBatchNorm)
def _sync_batch_norm(module, input):
    if not module.training or (module.process_group is None and default_group() is None):
        return module(input)  # as BatchNorm does
    module._check_input_dim(input)
    group = expect_group(module.process_group)
    dims = [0, *range(2, input.ndim)]
    shape = [1, -1, *[1] * (input.ndim - 2)]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    mean = all_reduced(wide.mean(dims), "avg", group)
    centred = wide - mean.view(shape)
    variance = all_reduced(centred.square().mean(dims), "avg", group)
    if module.track_running_stats:
        _track(module, mean, variance, input.numel() // input.shape[1] * group.size())
    result = centred * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        result = result * module.weight.view(shape) + module.bias.view(shape)
    return result.to(input.dtype)


def _track(module: torch.nn.SyncBatchNorm, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    """Moves the running statistics towards those of a batch of so many elements a channel."""
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # the average of all batches
        momentum = 1 / current().lift(module.num_batches_tracked).to(mean.dtype)
    unbiased = variance * (count / (count - 1))
    with torch.no_grad():
        for running, found in ((module.running_mean, mean), (module.running_var, unbiased)):
            assert running is not None  # since it is tracked
            running.copy_(running + momentum * (found.to(running.dtype) - running))
