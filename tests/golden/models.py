"""Models in small: their graphs, their gradients, and the steps of `generate`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn

from torch2jax import t2j
from torch2jax.tools.models import define_vision_operators

from .program import Graph, Program, of_jax, of_module, of_step

__all__ = ["generating", "models", "models_gradients"]

define_vision_operators()  # before a library imports torchvision beside a CPU build of PyTorch


def _transformer(name: str) -> tuple[nn.Module, tuple, dict]:
    from tests.models import test_transformers as models

    model, inputs = getattr(models, name)()
    return model, (), inputs


def _vision(name: str) -> tuple[nn.Module, tuple, dict]:
    from tests.models import test_torchvision as models

    return models.build(getattr(models, name)), (torch.ones(2, 3, 32, 32),), {}


def _unet() -> tuple[nn.Module, tuple, dict]:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return model, (torch.ones(2, 4, 8, 8), torch.tensor([3, 500]), torch.ones(2, 7, 8)), {}


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(9, 4), nn.LSTM(4, 8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


_MODELS: dict[str, Callable[[], tuple[nn.Module, tuple, dict]]] = {
    "MLP": lambda: (_perceptron(), (torch.ones(4, 8),), {}),
    "ResNet": lambda: _vision("resnet18"),
    "ViT": lambda: _vision("vit"),
    "ConvNeXt": lambda: _vision("convnext"),
    "BERT": lambda: _transformer("bert"),
    "GPT-2": lambda: _transformer("gpt2"),
    "Llama": lambda: _transformer("llama"),
    "T5": lambda: _transformer("t5"),
    "UNet": _unet,
    "LSTM": lambda: (_Recurrent(), (torch.ones(2, 5, dtype=torch.int64),), {}),
    "batch norm and dropout": lambda: (_dropping(), (torch.ones(4, 8),), {}),
}
_TRAINED = ("MLP", "LSTM", "batch norm and dropout")


@functools.cache
def _built(name: str) -> tuple[nn.Module, tuple, dict]:
    return _MODELS[name]()


def _of(name: str, train: bool = False, by: bool = False) -> Graph:
    model, args, kwargs = _built(name)
    for module in model.modules():  # random numbers have their own programs
        if isinstance(module, nn.Dropout) and name not in _TRAINED:
            module.p = 0.0
    return of_module(model, *args, train=train, by=by, **kwargs)()


def models() -> dict[str, Program]:
    programs = {name: functools.partial(_of, name) for name in _MODELS}
    return programs | {"batch norm and dropout, in training": lambda: _of("batch norm and dropout", True)}


def models_gradients() -> dict[str, Program]:
    """Of the sum of their results for all parameters; and one training step."""
    programs: dict[str, Program] = {
        name: functools.partial(_of, name, name in _TRAINED or name == "ResNet", True) for name in _MODELS
    }
    return programs | {"a training step": _training_step()}


def _train_step(model: Any, optimizer: Any, scheduler: Any, x: Any, y: Any) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss


def _training_step() -> Program:
    model = _perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return of_step(_train_step, (model, optimizer, scheduler), jnp.ones((4, 8)), jnp.zeros(4, int))


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _step() -> Graph:
    """One more token, with a static cache that goes in and comes out."""
    import transformers

    model = _llama()
    cache = t2j(transformers.StaticCache(config=model.config, max_cache_len=8))
    state, prompt, token = t2j(dict(model.named_parameters())), jnp.ones((1, 4), int), jnp.ones((1, 1), int)

    def call(params, tokens, cache):
        output = t2j(model)(tokens, past_key_values=cache, state_dict=params)
        return output.logits, output.past_key_values

    _, cache = jax.eval_shape(call, state, prompt, cache)
    return of_jax(call, state, token, cache)()


def _part() -> Graph:
    """The program that ``compile=[""]`` makes of a step."""
    from .program import of_part

    options = {"max_new_tokens": 3, "cache_implementation": "static", "do_sample": False, "pad_token_id": 0}
    return of_part(_llama().generate, jnp.ones((1, 4), int), part=[""], **options)()


def _whole() -> Graph:
    """`generate` under `jit`, until the sequence has ended."""
    model = _llama()
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    generate, mask = t2j(model.generate), torch.ones(1, 4, dtype=torch.int64)
    state = t2j(dict(model.named_parameters()))
    call = lambda params, prompt: generate(prompt, attention_mask=mask, state_dict=params, **options)
    return of_jax(call, state, jnp.ones((1, 4), int))()


def generating() -> dict[str, Program]:
    return {"a step": _step, "a compiled step": _part, "all of it": _whole}
