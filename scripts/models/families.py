"""A small model of each family, to be trained: a factory for each, which gives the model and its inputs."""

from collections.abc import Callable

import torch

from scripts.models.building import build_transformers

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


@_family("detection")
def _detection():
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = YolosConfig(image_size=[64, 64], num_detection_tokens=10, num_labels=5, **sizes)
    return YolosForObjectDetection(config), _images(64), {}


@_family("speech")
def _speech():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    of_positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    of_sound = {"conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3)}
    draws = {"apply_spec_augment": False, "layerdrop": 0.0}  # what to hide, and which layers to leave out
    config = Wav2Vec2Config(vocab_size=32, num_feat_extract_layers=3, **sizes, **of_positions, **of_sound, **draws)
    return Wav2Vec2ForCTC(config), (torch.randn(_BATCH, 2000),), {}


def _of_transformers(family: str, name: str, **settings) -> None:
    def make():
        subject = build_transformers(name)
        for setting, value in settings.items():
            setattr(subject.target.config, setting, value)
        return subject.target, (), subject.kwargs

    FAMILIES[family] = make


_of_transformers("causal language model", "LlamaForCausalLM", use_cache=False)
_of_transformers("encoder and decoder", "T5ForConditionalGeneration", use_cache=False)
_of_transformers("encoder", "BertForMaskedLM")
_of_transformers("vision and language", "LlavaForConditionalGeneration", use_cache=False)
_of_transformers("state space", "MambaForCausalLM", use_cache=False)
# PyTorch's grouped product, the default, takes no double precision.
_of_transformers("mixture of experts", "Qwen2MoeForCausalLM", use_cache=False, _experts_implementation="batched_mm")
