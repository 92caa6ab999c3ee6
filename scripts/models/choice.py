"""Which models there are: a spec for each, as `torch2jax check` takes them."""

import importlib
import re
from collections.abc import Iterator

from torch2jax.tools.models import define_vision_operators

__all__ = ["specs"]

# Words in names that tell small models, the smallest first.
_SMALL = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "xx",
    "xs",
    "tiny",
    "t",
    "mini",
    "small",
    "s",
    "lite",
    "b",
    "base",
)


def specs() -> Iterator[str]:
    """A model of each family of torchvision, file of timm and model type of transformers, and what diffusers has.

    A library that is not installed has none.
    """
    define_vision_operators()
    for library, found in (("torchvision", _torchvision), ("timm", _timm), ("transformers", _transformers)):
        if _installed(library):
            yield from (f"{library}:{name}" for name in found())
    if _installed("diffusers"):
        from scripts.models import diffusion

        yield from (f"{diffusion.__name__}:{name}" for name in diffusion.names())


def _installed(library: str) -> bool:
    try:
        importlib.import_module(library)
    except ModuleNotFoundError:
        return False
    return True


def _torchvision() -> list[str]:
    from torchvision import models

    families: dict[str, list[str]] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__
        if ".quantization." not in module:  # quantized tensors are not translated
            families.setdefault(module, []).append(name)
    return [_smallest(names) for names in families.values()]


def _timm() -> list[str]:
    import timm

    files = (timm.list_models(module=module) for module in timm.list_modules())
    return [_smallest(names) for names in files if names]


def _transformers() -> list[str]:
    import transformers

    return list(transformers.CONFIG_MAPPING.keys())


def _smallest(names: list[str]) -> str:
    """The model whose name promises the fewest parameters: by its words, or else by its numbers."""

    def rank(name: str) -> tuple:
        words = [_SMALL.index(word) for word in name.split("_") if word in _SMALL]
        return min(words, default=len(_SMALL)), [int(number) for number in re.findall(r"\d+", name)], name

    return min(names, key=rank)
