"""A UNet of diffusers."""

import pytest
import torch

from .agreement import assert_agrees

diffusers = pytest.importorskip("diffusers")


def test_unet():
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    assert_agrees(
        model,
        torch.randn(2, 4, 16, 16),
        torch.tensor([3, 500]),
        torch.randn(2, 7, 32),
        tolerance=1e-4,
        gradient_tolerance=2e-3,
        eager=False,
    )
