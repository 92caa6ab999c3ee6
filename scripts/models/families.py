"""A small model of each family, to be trained: a factory for each, which gives the model and its inputs."""

from collections.abc import Callable

import torch

from torch2jax.cli.hub import build_transformers

__all__ = ["FAMILIES"]

_BATCH = 2
FAMILIES: dict[str, Callable[[], tuple[torch.nn.Module, tuple, dict]]] = {}


def _family(name: str) -> Callable:
    def add(factory: Callable) -> Callable:
        FAMILIES[name] = factory
        return factory

    return add


def _images(size: int, channels: int = 3) -> tuple[torch.Tensor]:
    return (torch.randn(_BATCH, channels, size, size),)


@_family("classifier with batch norm")
def _classifier():
    from torchvision.models import ResNet
    from torchvision.models.resnet import BasicBlock

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10), _images(64), {}


@_family("segmentation")
def _segmentation():
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5), _images(64), {}


@_family("vision transformer")
def _vision_transformer():
    import timm

    return timm.create_model("test_vit"), _images(160), {}


@_family("convolutional network")
def _convolutional():
    import timm

    return timm.create_model("test_convnext"), _images(64), {}


@_family("diffusion, UNet")
def _unet():
    from scripts.models import diffusion

    model, inputs = diffusion.UNet2DModel()
    return model, inputs, {}


@_family("diffusion, transformer")
def _diffusion_transformer():
    from scripts.models import diffusion

    model, inputs = diffusion.SD3Transformer2DModel()
    return model, (), inputs


def _of_transformers(family: str, name: str, **settings) -> None:
    def make():
        subject = build_transformers(name)
        for setting, value in settings.items():
            setattr(subject.target.config, setting, value)
        return subject.target, (), subject.kwargs

    FAMILIES[family] = make


_of_transformers("detection", "YolosForObjectDetection")
_of_transformers("causal language model", "LlamaForCausalLM", use_cache=False)
_of_transformers("encoder and decoder", "T5ForConditionalGeneration", use_cache=False)
_of_transformers("encoder", "BertForMaskedLM")
# Which draws what to hide, and layers to leave out.
_of_transformers("speech", "Wav2Vec2ForCTC", apply_spec_augment=False, layerdrop=0.0)
_of_transformers("vision and language", "LlavaForConditionalGeneration", use_cache=False)
_of_transformers("state space", "MambaForCausalLM", use_cache=False)
# PyTorch's grouped product, the default, takes no double precision.
_of_transformers("mixture of experts", "Qwen2MoeForCausalLM", use_cache=False, _experts_implementation="batched_mm")
