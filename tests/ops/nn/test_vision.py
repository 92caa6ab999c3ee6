"""Interpolation, grids, padding and pixel shuffling."""

import re

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import t2j

LANCZOS = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"), reason="this PyTorch has no Lanczos interpolation"
)


@pytest.mark.parametrize("how", [{"size": 1}, {"size": (14, 3)}, {"scale_factor": 1.3}, {"scale_factor": (0.4, 1.04)}])
@pytest.mark.parametrize(
    ("mode", "align_corners", "antialias"),
    [
        ("nearest", None, False),
        ("nearest-exact", None, False),
        ("bilinear", True, False),
        ("bilinear", False, False),
        ("bicubic", True, False),
        ("bicubic", False, False),
        ("bilinear", False, True),
        ("bilinear", True, True),
        ("bicubic", False, True),
        pytest.param("lanczos", False, True, marks=LANCZOS),
    ],
)
def test_interpolate(mode, align_corners, antialias, how):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 9)

    def resize(x):
        return F.interpolate(x, mode=mode, align_corners=align_corners, antialias=antialias, **how)

    compare(t2j(resize)(t2j(x)), resize(x))


def test_interpolate_graphs():
    x = jnp.ones((1, 2, 4, 4))
    doubled = str(jax.make_jaxpr(t2j(lambda x: F.interpolate(x, scale_factor=2)))(x))
    halved = str(jax.make_jaxpr(t2j(lambda x: F.interpolate(x, scale_factor=0.5)))(x))
    smooth = str(jax.make_jaxpr(t2j(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")))(x))
    assert not any("gather" in graph for graph in (doubled, halved, smooth))


@pytest.mark.parametrize(
    ("widths", "mode"),
    [((1, -1, -2, 3), "constant"), ((-1, 2), "reflect"), ((2, -1, -1, 2), "replicate"), ((-1, 2), "circular")],
)
def test_negative_padding(widths, mode):
    x = torch.arange(60.0).reshape(3, 4, 5)
    compare(t2j(lambda x: F.pad(x, widths, mode))(t2j(x)), F.pad(x, widths, mode))


def test_pad_in_channels_last_order():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)

    def program(x):
        x = F.conv2d(x, weight)
        return F.interpolate(F.pad(x, (1, 2, 3, 0)), scale_factor=2), F.pad(x, (1, 1, 2, 0), mode="reflect")

    for actual, expected in zip(t2j(program)(t2j(x)), program(x), strict=True):
        compare(actual, expected)


@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid(align_corners):
    theta = torch.tensor([[[1.0, 0.5, 0.1], [-0.3, 2.0, 0.0]]])

    def grid(theta):
        return F.affine_grid(theta, (1, 3, 4, 5), align_corners)

    compare(t2j(grid)(t2j(theta)), grid(theta))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.pad(x, (1,)), RuntimeError, "must be even"),
        (lambda x: F.pad(x, (-3, -3)), RuntimeError, "negative output size"),
        (lambda x: F.pad(x, (9, 0), "reflect"), RuntimeError, "too large"),
        (lambda x: F.pad(x, (1, 0), "mirror"), NotImplementedError, "Unrecognised padding mode"),
        (lambda x: F.pad(x[:, :0], (1, 0), "replicate"), RuntimeError, "2D or 3D .* other non-zero dimensions"),
        (lambda x: F.pad(x[..., :0], (1, 0), "reflect"), RuntimeError, "2D or 3D .* other non-zero dimensions"),
        (lambda x: torch._C._nn.replication_pad2d(x, [1, 1]), RuntimeError, "padding size is expected to be 4"),
        (lambda x: torch._C._nn.reflection_pad1d(x, []), RuntimeError, "padding size is expected to be 2"),
        (lambda x: F.interpolate(x, size=0), RuntimeError, "greater than 0"),
        (lambda x: F.interpolate(x, size=3, mode="bilinear"), NotImplementedError, "needs 4D input"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        t2j(call)(jnp.ones((2, 3, 5)))


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((1, 2, 2), (1, 1, 1, 2)),
        ((1, 1, 2, 2), (1, 1, 1, 1, 3)),
        ((1, 1, 2, 2), (2, 1, 1, 2)),
        ((1, 1, 2, 2), (1, 1, 1, 3)),
        ((1, 1, 0, 2), (1, 1, 1, 2)),
    ],
)
def test_grids_that_do_not_fit(size, grid):
    def sample(x):
        return torch.nn.functional.grid_sample(x, torch.zeros(grid), align_corners=False)

    with pytest.raises(RuntimeError) as expected:
        sample(torch.zeros(size))
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
        t2j(sample)(jnp.zeros(size))
