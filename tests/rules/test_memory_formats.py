"""Memory formats: the strides of results that are no pointwise function of their operands."""

import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

X = torch.arange(2 * 4 * 6 * 6.0).view(2, 4, 6, 6)
W = torch.ones(4, 4, 3, 3)
VOLUME = torch.ones(2, 4, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d)
LAST = X.contiguous(memory_format=torch.channels_last)


def _gradient(x):
    return torch.autograd.grad((x * x).sum(), x)[0]


CASES = {
    "contiguous": lambda: F.interpolate(X, scale_factor=2, mode="bilinear"),
    "interpolated": lambda: F.interpolate(LAST, scale_factor=2, mode="bilinear"),
    "nearest": lambda: F.interpolate(LAST, scale_factor=2),
    "with gaps": lambda: F.interpolate(LAST[:, :, ::2, 1:], size=(5, 5), mode="bicubic"),
    "bytes": lambda: F.interpolate(LAST.byte(), size=(5, 5), mode="bicubic", antialias=True),
    "one channel": lambda: F.max_pool2d(LAST[:, :1], 2),
    "one pixel": lambda: F.adaptive_avg_pool2d(LAST, 1),
    "indices": lambda: F.max_pool2d(LAST, 2, return_indices=True)[1],
    "adaptive": lambda: F.adaptive_max_pool2d(LAST, 3),
    "volume": lambda: F.max_pool3d(VOLUME, 2),
    "one volume": lambda: F.max_pool3d(VOLUME[0], 2),
    "one volume's indices": lambda: F.max_pool3d(VOLUME[0], 2, return_indices=True)[1],
    "one volume with gaps": lambda: F.max_pool3d(VOLUME[0, :, ::2], 2),
    "one contiguous volume": lambda: F.max_pool3d(VOLUME[0].contiguous(), 2),
    "volume, averaged": lambda: F.avg_pool3d(VOLUME, 2),
    "convolved": lambda: F.conv2d(LAST, W),
    "by its weight": lambda: F.conv2d(X, W.contiguous(memory_format=torch.channels_last)),
    "convolved volume": lambda: F.conv3d(VOLUME, torch.ones(4, 4, 3, 3, 3)),
    "volume of float64": lambda: F.conv3d(VOLUME.double(), torch.ones(4, 4, 3, 3, 3).double()),
    "padded": lambda: F.pad(LAST, (1, 1)),
    "circular": lambda: F.pad(LAST, (1, 1, 1, 1), mode="circular"),
    "normalized": lambda: F.batch_norm(LAST, torch.zeros(4), torch.ones(4)),
    "group": lambda: F.group_norm(LAST, 2),
    "sorted": lambda: torch.sort(LAST, 1)[0],
    "sorted indices": lambda: torch.sort(LAST.mT, stable=True)[1],
    "sorted with gaps": lambda: torch.msort(LAST[..., ::2]),
    "argsorted": lambda: torch.argsort(LAST, 2),
    "joined": lambda: torch.cat([LAST, LAST], 1),
    "joined with others": lambda: torch.cat([LAST, X], 1),
    "prelu": lambda: F.prelu(LAST.transpose(2, 3), torch.ones(4)),
    "gradient with gaps": lambda: _gradient(LAST[:, :, ::2].detach().requires_grad_()),
}


@pytest.mark.parametrize("name", CASES)
def test_strides_are_pytorchs(name):
    strides = []
    t2j(lambda: strides.append(CASES[name]().stride()))()
    assert strides[-1] == CASES[name]().stride()
