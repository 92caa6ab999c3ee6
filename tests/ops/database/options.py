"""Every option of the constructors of PyTorch's modules, one at a time, as cases of modules that train.

A module is built as PyTorch's database of modules builds it first, or as `OTHERS` does; then one keyword of its
constructor gets another value. What the constructor or the forward pass refuses in PyTorch is no case.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.common_modules import module_db

from .modules import ModuleCase
from .outcome import Refused, quiet, refusing

__all__ = ["Option", "options"]


class Option(NamedTuple):
    """A module with one keyword of its constructor set, ready to be built."""

    module: str
    keyword: str
    value: str
    build: Callable[[], ModuleCase]

    @property
    def name(self) -> str:
        return f"{self.module}({self.keyword}={self.value})" if self.keyword else f"{self.module}()"


class Recipe(NamedTuple):
    """How to build a module, and what to call it with."""

    cls: Callable[..., nn.Module]
    args: tuple
    kwargs: dict
    inputs: tuple
    named: dict


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def _other(cls: Callable, *inputs: Any, args: tuple = (), **kwargs: Any) -> Callable[[], Recipe]:
    """A recipe whose inputs are drawn when it is used: tuples of sizes stand for tensors."""

    def make() -> Recipe:
        given = tuple(_x(*x) if isinstance(x, tuple) else x() if callable(x) else x for x in inputs)
        return Recipe(cls, args, kwargs, given, {})

    return make


def _unpooled(pool: Callable, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = pool(torch.randn(shape), 2, return_indices=True)
    return values.requires_grad_(), indices


class _Unpool(nn.Module):
    """An unpooling of what a pooling of the same options gave."""

    def __init__(self, cls, pool, shape, **kwargs):
        super().__init__()
        self.unpool = cls(2, **kwargs)
        self.register_buffer("indices", _unpooled(pool, shape)[1])

    def forward(self, values):
        return self.unpool(values, self.indices)


class _OfACopy(nn.Module):
    """A module that writes to what it is given, of a copy: PyTorch refuses to write to what requires grad by itself."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*(x.clone() for x in inputs))


def _classes() -> torch.Tensor:
    return torch.tensor([1, 0, 5, 2])


def _convolution(cls: Callable, dimensions: int, **kwargs: Any) -> Callable[[], Recipe]:
    return _other(cls, (2, 4, *[7] * dimensions), args=(4, 4, 3), **kwargs)


# Modules that PyTorch's database lacks, or builds so that few options apply.
OTHERS: dict[str, Callable[[], Recipe]] = {
    "nn.Conv1d": _convolution(nn.Conv1d, 1),
    "nn.Conv2d": _convolution(nn.Conv2d, 2),
    "nn.Conv3d": _convolution(nn.Conv3d, 3),
    "nn.ConvTranspose1d": _convolution(nn.ConvTranspose1d, 1, stride=2),
    "nn.ConvTranspose2d": _convolution(nn.ConvTranspose2d, 2, stride=2),
    "nn.ConvTranspose3d": _convolution(nn.ConvTranspose3d, 3, stride=2),
    "nn.CrossEntropyLoss": _other(nn.CrossEntropyLoss, (4, 10), _classes),
    "nn.NLLLoss": _other(nn.NLLLoss, (4, 10), _classes),
    "nn.MultiMarginLoss": _other(nn.MultiMarginLoss, (4, 10), _classes),
    "nn.FractionalMaxPool2d": _other(nn.FractionalMaxPool2d, (2, 3, 7, 7), args=(2,), output_ratio=0.6),
    "nn.FractionalMaxPool3d": _other(nn.FractionalMaxPool3d, (2, 3, 7, 7, 7), args=(2,), output_ratio=0.6),
    "nn.GLU": _other(nn.GLU, (4, 6)),
    "nn.MaxPool1d": _other(nn.MaxPool1d, (2, 3, 7), args=(3,)),
    "nn.PReLU": _other(nn.PReLU, (3, 2, 4)),
    "nn.TransformerEncoder": _other(
        lambda **kwargs: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, **kwargs),
        (3, 2, 8),
    ),
    "nn.AdaptiveLogSoftmaxWithLoss": _other(nn.AdaptiveLogSoftmaxWithLoss, (4, 8), _classes, args=(8, 12, [3, 7])),
    "nn.AlphaDropout": _other(nn.AlphaDropout, (4, 5)),
    "nn.ChannelShuffle": _other(nn.ChannelShuffle, (2, 4, 3, 3), args=(2,)),
    "nn.CosineSimilarity": _other(nn.CosineSimilarity, (4, 5), (4, 5)),
    "nn.CrossMapLRN2d": _other(nn.CrossMapLRN2d, (2, 4, 3, 3), args=(3,)),
    "nn.Dropout": _other(nn.Dropout, (4, 5)),
    "nn.Dropout1d": _other(nn.Dropout1d, (2, 4, 5)),
    "nn.Dropout2d": _other(nn.Dropout2d, (2, 4, 3, 3)),
    "nn.Dropout3d": _other(nn.Dropout3d, (2, 4, 3, 3, 3)),
    "nn.EmbeddingBag": _other(nn.EmbeddingBag, lambda: torch.tensor([[1, 2], [0, 3], [3, 1]]), args=(5, 4)),
    "nn.FeatureAlphaDropout": _other(nn.FeatureAlphaDropout, (2, 4, 5)),
    "nn.Flatten": _other(nn.Flatten, (2, 3, 4)),
    "nn.Fold": _other(nn.Fold, (2, 12, 9), args=((4, 4), 2)),
    "nn.Hardsigmoid": _other(nn.Hardsigmoid, (4, 5)),
    "nn.Identity": _other(nn.Identity, (4, 5)),
    "nn.LazyBatchNorm1d": _other(nn.LazyBatchNorm1d, (4, 3, 5)),
    "nn.LazyBatchNorm2d": _other(nn.LazyBatchNorm2d, (4, 3, 2, 2)),
    "nn.LazyBatchNorm3d": _other(nn.LazyBatchNorm3d, (4, 3, 2, 2, 2)),
    "nn.LazyInstanceNorm1d": _other(nn.LazyInstanceNorm1d, (4, 3, 5)),
    "nn.LazyInstanceNorm2d": _other(nn.LazyInstanceNorm2d, (4, 3, 3, 3)),
    "nn.LazyInstanceNorm3d": _other(nn.LazyInstanceNorm3d, (4, 3, 2, 2, 2)),
    "nn.LazyLinear": _other(nn.LazyLinear, (4, 5), args=(3,)),
    "nn.MaxUnpool1d": _other(_Unpool, (2, 3, 4), args=(nn.MaxUnpool1d, F.max_pool1d, (2, 3, 8))),
    "nn.MaxUnpool2d": _other(_Unpool, (2, 3, 2, 2), args=(nn.MaxUnpool2d, F.max_pool2d, (2, 3, 4, 4))),
    "nn.MaxUnpool3d": _other(_Unpool, (2, 3, 2, 2, 2), args=(nn.MaxUnpool3d, F.max_pool3d, (2, 3, 4, 4, 4))),
    "nn.NLLLoss2d": _other(nn.NLLLoss2d, (2, 6, 2, 2), lambda: torch.tensor([[[1, 0], [5, 2]]] * 2)),
    "nn.PairwiseDistance": _other(nn.PairwiseDistance, (4, 5), (4, 5)),
    "nn.PixelShuffle": _other(nn.PixelShuffle, (2, 8, 3, 3), args=(2,)),
    "nn.PixelUnshuffle": _other(nn.PixelUnshuffle, (2, 3, 4, 4), args=(2,)),
    "nn.RReLU": _other(nn.RReLU, (4, 5)),
    "nn.SyncBatchNorm": _other(nn.SyncBatchNorm, (4, 3, 5), args=(3,)),
    "nn.TransformerDecoder": _other(
        lambda **kwargs: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2, **kwargs),
        (3, 2, 8),
        (4, 2, 8),
    ),
    "nn.TripletMarginLoss": _other(nn.TripletMarginLoss, (4, 5), (4, 5), (4, 5)),
    "nn.TripletMarginWithDistanceLoss": _other(nn.TripletMarginWithDistanceLoss, (4, 5), (4, 5), (4, 5)),
    "nn.Unflatten": _other(nn.Unflatten, (2, 6), args=(1, (2, 3))),
    "nn.Unfold": _other(nn.Unfold, (2, 3, 4, 4), args=(2,)),
    "nn.Upsample": _other(nn.Upsample, (2, 3, 4, 4), scale_factor=2),
    "nn.UpsamplingBilinear2d": _other(nn.UpsamplingBilinear2d, (2, 3, 4, 4), scale_factor=2),
    "nn.UpsamplingNearest2d": _other(nn.UpsamplingNearest2d, (2, 3, 4, 4), scale_factor=2),
}


# The values that a keyword is given, where its default does not tell.
VALUES: dict[str, tuple] = {
    "activation": ("gelu", "relu", F.gelu, torch.tanh),
    "approximate": ("tanh",),
    "blank": (0,),
    "ceil_mode": (True,),
    "dilation": (2,),
    "distance_function": (F.pairwise_distance, lambda a, b: (a - b).abs().sum(-1)),
    "div_value": (2.0,),
    "divisor_override": (3,),
    "dtype": (),
    "device": (),
    "ignore_index": (1, -1),
    "max_norm": (1.0,),
    "mode": ("sum", "mean", "max", "nearest-exact", "bilinear", "bicubic"),
    "momentum": (None, 0.0, 0.3, 1.0),
    "nonlinearity": ("tanh", "relu"),
    "norm_type": (1.0, 3.0),
    "output_padding": (1,),
    "padding": (1, "same"),
    "padding_idx": (0, -1),
    "padding_mode": ("zeros", "reflect", "replicate", "circular"),
    "pos_weight": (torch.tensor(2.0),),
    "proj_size": (1,),
    "reduce": (True, False),
    "reduction": ("none", "mean", "sum"),
    "scale_factor": (2, 1.5),
    "size_average": (True, False),
    "stride": (1, 2),
    "eps": (1e-3,),
    "layer_norm_eps": (1e-3,),
    "margin": (0.0, 0.5, 2.0),
    "p": (0.0, 0.5, 1, 2),
    "dropout": (0.0, 0.5, 1.0),
    "weight": (torch.tensor([0.5]), torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0, 0.1, 0.7, 0.9, 1.0, 1.2])),
    "norm": (nn.LayerNorm(8),),
    "num_layers": (2, 3),
    "nhead": (2,),
    "num_encoder_layers": (1,),
    "num_decoder_layers": (1,),
    "d_model": (),
    "dim_feedforward": (16,),
    "output_ratio": (0.5,),
    "start_dim": (0,),
    "end_dim": (1,),
    "dim": (0, 1, -1),
}
# These decide what the forward pass takes, so that nothing else could be kept: `OTHERS` and the database set them.
_FIXED = ("_weight", "_random_samples", "custom_encoder", "custom_decoder", "kdim", "vdim", "output_size", "size")


def _recipes() -> Iterator[tuple[str, Callable[[], Recipe]]]:
    for info in module_db:
        if info.name in OTHERS:
            continue

        def make(info=info) -> Recipe:
            inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
            each = next(x for x in inputs if x.forward_input is not None)
            built, given = each.constructor_input, each.forward_input
            return Recipe(info.module_cls, built.args, built.kwargs, given.args, given.kwargs)

        yield info.name, make
    yield from OTHERS.items()


def _values(parameter: inspect.Parameter) -> tuple:
    default = parameter.default
    if parameter.name in _FIXED or default is parameter.empty:
        return ()
    if parameter.name in VALUES:
        values = VALUES[parameter.name]
    elif isinstance(default, bool):
        values = (not default,)
    elif isinstance(default, int):
        values = (default + 1,)
    elif isinstance(default, float):
        values = (0.0, 2 * default + 0.1, 1.0)
    else:
        values = ()
    return tuple(value for value in values if repr(value) != repr(default))


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor{list(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    return getattr(value, "__name__", repr(value))


def options() -> Iterator[Option]:
    """All options of all modules, and each module as it is."""
    for name, make in _recipes():
        yield Option(name, "", "", functools.partial(_built, name, make, {}))
        for parameter in inspect.signature(getattr(nn, name.removeprefix("nn."))).parameters.values():
            for value in _values(parameter):
                build = functools.partial(_built, name, make, {parameter.name: value})
                yield Option(name, parameter.name, _shown(value), build)


def _built(name: str, make: Callable[[], Recipe], changed: dict) -> ModuleCase:
    """The case of a module, with some keywords of its constructor changed.

    Raises:
        Refused: PyTorch does not build it.
    """
    torch.manual_seed(0)
    with quiet():
        recipe = make()
        try:
            module = recipe.cls(*recipe.args, **{**recipe.kwargs, **changed})
        except TypeError:  # the keyword is given by its position
            given = inspect.signature(recipe.cls).bind(*recipe.args, **recipe.kwargs).arguments
            module = refusing(recipe.cls, **{**given, **changed})
        except Exception as error:
            raise Refused(repr(error)) from error
        if changed.get("inplace"):
            module = _OfACopy(module)
        module.train()
        if any(map(nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
            refusing(module, *recipe.inputs, **recipe.named)
    return ModuleCase(name, module, recipe.inputs, recipe.named)
