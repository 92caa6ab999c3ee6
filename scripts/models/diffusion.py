"""Models and schedulers of diffusers, small, with inputs: a factory for each."""

import inspect
from collections.abc import Callable

import torch

__all__ = ["names"]

_BATCH, _STEPS = 1, 4
# Schedulers that draw noise at every step, so that there is nothing to compare.
_RANDOM = ("Ancestral", "CMStochastic", "DDPM", "LCM", "RePaint", "SASolver", "SCM", "SDE", "Sde", "TCD", "UnCLIP")
_factories: dict[str, Callable] = {}


def names() -> list[str]:
    """The classes of which there is a model."""
    return [*_factories, *_schedulers()]


def __getattr__(name: str) -> Callable:
    if name in _factories:
        return _factories[name]
    if name in _schedulers():
        return lambda: _sampler(name)
    raise AttributeError(name)


def _model(function: Callable) -> Callable:
    def make():
        import diffusers

        return function(diffusers)

    _factories[function.__name__] = make
    return make


def _schedulers() -> list[str]:
    """Schedulers whose steps take a model's output, a time and a sample, and draw nothing."""
    from diffusers import schedulers

    found = []
    for name in dir(schedulers):
        scheduler = getattr(schedulers, name)
        if not (isinstance(scheduler, type) and issubclass(scheduler, schedulers.SchedulerMixin)):
            continue
        if not (hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step")):
            continue
        step = list(inspect.signature(scheduler.step).parameters)
        if step[1:4] == ["model_output", "timestep", "sample"] and not any(word in name for word in _RANDOM):
            found.append(name)
    return found


class _Sampler(torch.nn.Module):
    """A few steps of a scheduler from a sample, with a linear function of it as the network."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler = scheduler
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, sample):
        self.scheduler.set_timesteps(_STEPS)
        sample = sample * getattr(self.scheduler, "init_noise_sigma", 1.0)
        for time in self.scheduler.timesteps:
            scaled = sample
            if hasattr(self.scheduler, "scale_model_input"):
                scaled = self.scheduler.scale_model_input(sample, time)
            sample = self.scheduler.step(scaled * self.scale, time, sample).prev_sample
        return sample


def _sampler(name: str):
    import diffusers

    return _Sampler(getattr(diffusers, name)()), (torch.randn(_BATCH, 3, 8, 8),)


def _image(channels: int, size: int = 16) -> torch.Tensor:
    return torch.randn(_BATCH, channels, size, size)


def _time() -> torch.Tensor:
    return torch.tensor([10] * _BATCH)


def _words(size: int, length: int = 5) -> torch.Tensor:
    return torch.randn(_BATCH, length, size)


_UNET = {"sample_size": 16, "layers_per_block": 1, "block_out_channels": (32, 64), "norm_num_groups": 8}


@_model
def UNet2DModel(diffusers):
    model = diffusers.UNet2DModel(
        in_channels=3,
        out_channels=3,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **_UNET,
    )
    return model, (_image(3), _time())


@_model
def UNet2DConditionModel(diffusers):
    model = diffusers.UNet2DConditionModel(
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **_UNET,
    )
    return model, (_image(4), _time(), _words(32))


@_model
def UNet3DConditionModel(diffusers):
    model = diffusers.UNet3DConditionModel(
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        **_UNET,
    )
    return model, (torch.randn(_BATCH, 4, 3, 16, 16), _time(), _words(32))


@_model
def UNet1DModel(diffusers):
    model = diffusers.UNet1DModel(
        sample_size=64,
        in_channels=14,
        out_channels=14,
        block_out_channels=(16, 32),
        down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D",),
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        use_timestep_embedding=True,
        flip_sin_to_cos=False,
        freq_shift=1.0,
        norm_num_groups=8,
        layers_per_block=1,
        act_fn="mish",
    )
    return model, (torch.randn(_BATCH, 14, 64), _time())


@_model
def ControlNetModel(diffusers):
    model = diffusers.ControlNetModel(
        cross_attention_dim=32,
        attention_head_dim=8,
        layers_per_block=1,
        block_out_channels=(32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        conditioning_embedding_out_channels=(16, 32),
    )
    inputs = {"sample": _image(4), "timestep": _time(), "encoder_hidden_states": _words(32)}
    return model, {**inputs, "controlnet_cond": _image(3, 32)}


@_model
def AutoencoderKL(diffusers):
    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    return model, (_image(3, 32),)


@_model
def AutoencoderTiny(diffusers):
    sizes = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16)}
    blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return diffusers.AutoencoderTiny(**sizes, **blocks), (_image(3, 32),)


@_model
def VQModel(diffusers):
    model = diffusers.VQModel(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        num_vq_embeddings=32,
    )
    return model, (_image(3, 32),)


@_model
def DiTTransformer2DModel(diffusers):
    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
    model = diffusers.DiTTransformer2DModel(sample_size=8, num_embeds_ada_norm=100, out_channels=8, **heads)
    return model, {"hidden_states": _image(4, 8), "timestep": _time(), "class_labels": torch.tensor([3])}


@_model
def PixArtTransformer2DModel(diffusers):
    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
    model = diffusers.PixArtTransformer2DModel(
        sample_size=8, cross_attention_dim=32, caption_channels=32, use_additional_conditions=False, **heads
    )
    inputs = {"hidden_states": _image(4, 8), "encoder_hidden_states": _words(32), "timestep": _time()}
    return model, {**inputs, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}


@_model
def SD3Transformer2DModel(diffusers):
    model = diffusers.SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=8,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=64,
    )
    inputs = {"hidden_states": _image(4), "encoder_hidden_states": _words(32), "timestep": _time()}
    return model, {**inputs, "pooled_projections": torch.randn(_BATCH, 64)}


@_model
def FluxTransformer2DModel(diffusers):
    model = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        num_attention_heads=2,
        attention_head_dim=16,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    inputs = {"hidden_states": _words(4, 16), "encoder_hidden_states": _words(32), "timestep": torch.tensor([1.0])}
    places = {"img_ids": torch.randn(16, 3), "txt_ids": torch.randn(5, 3)}
    return model, {**inputs, **places, "pooled_projections": torch.randn(_BATCH, 32)}


@_model
def PriorTransformer(diffusers):
    heads = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
    model = diffusers.PriorTransformer(embedding_dim=8, num_embeddings=7, additional_embeddings=4, **heads)
    inputs = {"hidden_states": torch.randn(_BATCH, 8), "timestep": _time()}
    return model, {**inputs, "proj_embedding": torch.randn(_BATCH, 8), "encoder_hidden_states": _words(8, 7)}


@_model
def CogVideoXTransformer3DModel(diffusers):
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=8,
        num_layers=2,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=8,
    )
    inputs = {"hidden_states": torch.randn(_BATCH, 1, 4, 8, 8), "timestep": _time()}
    return model, {**inputs, "encoder_hidden_states": _words(8, 8)}


@_model
def LTXVideoTransformer3DModel(diffusers):
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=16,
    )
    inputs = {"hidden_states": _words(4, 2 * 4 * 4), "encoder_hidden_states": _words(16), "timestep": _time()}
    mask = {"encoder_attention_mask": torch.ones(_BATCH, 5, dtype=torch.bool)}
    return model, {**inputs, **mask, "num_frames": 2, "height": 4, "width": 4}


@_model
def SanaTransformer2DModel(diffusers):
    model = diffusers.SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=4,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=8,
    )
    return model, {"hidden_states": _image(4, 8), "encoder_hidden_states": _words(8), "timestep": _time()}


@_model
def AutoencoderKLTemporalDecoder(diffusers):
    model = diffusers.AutoencoderKLTemporalDecoder(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, layers_per_block=1
    )
    return model, {"sample": torch.randn(2, 3, 16, 16), "num_frames": 2}


@_model
def WanTransformer3DModel(diffusers):
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=64,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )
    inputs = {"hidden_states": torch.randn(_BATCH, 4, 2, 8, 8), "timestep": _time()}
    return model, {**inputs, "encoder_hidden_states": _words(16)}
