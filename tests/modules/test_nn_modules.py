"""`torch.nn` modules translated: outputs, gradients, new buffers equal PyTorch's, jitted, and some eager."""

import copy
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import rnn
from torch.utils import _pytree as pytree

from torch2jax import t2j

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of slow paths and padded copies
RTOL, ATOL = 2e-4, 2e-5
EAGER = 6  # one module in so many runs operation by operation as well, which compiles each by itself


class PackedRecurrence(nn.Module):
    """A recurrent layer over sequences of several lengths."""

    def __init__(self, layer: nn.RNNBase, lengths, enforce_sorted: bool):
        super().__init__()
        self.layer, self.lengths, self.enforce_sorted = layer, lengths, enforce_sorted

    def forward(self, x):
        packed = rnn.pack_padded_sequence(x, torch.tensor(self.lengths), True, self.enforce_sorted)
        output, hidden = self.layer(packed)
        padded, lengths = rnn.pad_packed_sequence(output, batch_first=True, padding_value=0.5, total_length=7)
        return padded, hidden, lengths


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x, **masks):
        return self.attention(x, x, x, **masks)


class CausalEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(len(x)), is_causal=True)


def _x(*shape) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _running(norm):
    """A norm whose statistics are not those it starts with."""
    with torch.no_grad():
        for buffer in norm.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return norm


PADDING = torch.tensor([[False, False, True], [False, True, True]])

MODULES = {
    "linear": (lambda: nn.Linear(4, 3), (_x(2, 5, 4),)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (_x(4),)),
    "bilinear": (lambda: nn.Bilinear(4, 3, 2), (_x(5, 4), _x(5, 3))),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (_x(2, 4, 9),)),
    "conv1d circular": (lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (_x(2, 4, 9),)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), dilation=(1, 2), padding=1), (_x(2, 4, 7, 6),)),
    "conv2d same": (lambda: nn.Conv2d(4, 4, 4, padding="same", groups=4), (_x(2, 4, 7, 6),)),
    "conv2d unbatched": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), (_x(4, 7, 6),)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (_x(2, 2, 4, 5, 4),)),
    "conv transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2, padding=1), (_x(2, 4, 5),)),
    "conv transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2),
        (_x(2, 4, 5, 4),),
    ),
    "conv transpose3d": (lambda: nn.ConvTranspose3d(2, 4, 2, stride=2, groups=2), (_x(1, 2, 3, 3, 2),)),
    "batch norm 1d": (lambda: _running(nn.BatchNorm1d(4)), (_x(6, 4),)),
    "batch norm 1d of sequences": (lambda: _running(nn.BatchNorm1d(4)), (_x(3, 4, 5),)),
    "batch norm 2d": (lambda: _running(nn.BatchNorm2d(4, momentum=0.3)), (_x(3, 4, 5, 2),)),
    "batch norm 2d after a convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), _running(nn.BatchNorm2d(4)), nn.ReLU(), nn.MaxPool2d(2)),
        (_x(3, 2, 8, 8),),
    ),
    "batch norm 3d": (lambda: _running(nn.BatchNorm3d(2)), (_x(3, 2, 2, 3, 2),)),
    "batch norm without statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (_x(3, 4, 5, 2),)),
    "batch norm without affine": (lambda: nn.BatchNorm2d(4, affine=False), (_x(3, 4, 5, 2),)),
    "layer norm": (lambda: _running(nn.LayerNorm((3, 4))), (_x(2, 3, 4),)),
    "layer norm without bias": (lambda: _running(nn.LayerNorm(4, bias=False)), (_x(2, 3, 4),)),
    "rms norm": (lambda: _running(nn.RMSNorm(4)), (_x(2, 3, 4),)),
    "group norm": (lambda: _running(nn.GroupNorm(2, 4)), (_x(2, 4, 3, 3),)),
    "group norm after a convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), _running(nn.GroupNorm(2, 4))),
        (_x(2, 2, 5, 5),),
    ),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(4), (_x(2, 4, 5),)),
    "instance norm 2d": (lambda: _running(nn.InstanceNorm2d(4, True, True, True)), (_x(2, 4, 3, 5),)),
    "instance norm 3d": (lambda: _running(nn.InstanceNorm3d(2, affine=True)), (_x(2, 2, 3, 2, 2),)),
    "local response norm": (lambda: nn.LocalResponseNorm(3), (_x(2, 6, 3, 3),)),
    "embedding": (lambda: nn.Embedding(7, 4, padding_idx=2), (torch.tensor([[1, 2], [6, 1]]),)),
    "embedding bag": (lambda: nn.EmbeddingBag(7, 4), (torch.tensor([[1, 2], [6, 1]]),)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True), (_x(2, 5, 3),)),
    "lstm bidirectional": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), (_x(5, 2, 3),)),
    "lstm with states": (lambda: nn.LSTM(3, 4), (_x(5, 2, 3), (_x(1, 2, 4), _x(1, 2, 4)))),
    "lstm projected": (lambda: nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True), (_x(5, 2, 3),)),
    "lstm unbatched without bias": (lambda: nn.LSTM(3, 4, bias=False), (_x(5, 3),)),
    "lstm packed": (lambda: PackedRecurrence(nn.LSTM(3, 4, 2, bidirectional=True), [5, 4, 2], True), (_x(3, 6, 3),)),
    "gru": (lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True), (_x(2, 5, 3),)),
    "gru packed": (lambda: PackedRecurrence(nn.GRU(3, 4, bidirectional=True), [2, 5, 4], False), (_x(3, 6, 3),)),
    "rnn": (lambda: nn.RNN(3, 4, 2, bidirectional=True), (_x(5, 2, 3),)),
    "rnn relu": (lambda: nn.RNN(3, 4, nonlinearity="relu"), (_x(5, 2, 3), _x(1, 2, 4))),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), (_x(2, 3),)),
    "gru cell": (lambda: nn.GRUCell(3, 4), (_x(2, 3), _x(2, 4))),
    "rnn cell": (lambda: nn.RNNCell(3, 4, nonlinearity="relu"), (_x(2, 3),)),
    "self attention": (lambda: SelfAttention(batch_first=True), (_x(2, 3, 8),)),
    "self attention padded": (
        lambda: SelfAttention(batch_first=True),
        (_x(2, 3, 8),),
        {"key_padding_mask": PADDING, "need_weights": False},
    ),
    "self attention masked": (
        SelfAttention,
        (_x(3, 2, 8),),
        {"attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1), "key_padding_mask": PADDING},
    ),
    "self attention with float masks": (
        SelfAttention,
        (_x(3, 2, 8),),
        {"attn_mask": _x(4, 3, 3), "key_padding_mask": _x(2, 3), "need_weights": False},
    ),
    "self attention unbatched": (SelfAttention, (_x(3, 8),)),
    "self attention with added keys": (lambda: SelfAttention(add_bias_kv=True, add_zero_attn=True), (_x(3, 2, 8),)),
    "cross attention": (lambda: nn.MultiheadAttention(8, 2, bias=False), (_x(3, 2, 8), _x(4, 2, 8), _x(4, 2, 8))),
    "cross attention of other sizes": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True),
        (_x(2, 3, 8), _x(2, 4, 6), _x(2, 4, 5)),
        {"average_attn_weights": False},
    ),
    "transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0), (_x(4, 2, 8), _x(3, 2, 8))),
    "transformer encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True), 2),
        (_x(2, 3, 8),),
        {"src_key_padding_mask": PADDING},
    ),
    "transformer encoder causal": (CausalEncoder, (_x(4, 2, 8),)),
    "transformer decoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 1, nn.LayerNorm(8)),
        (_x(3, 2, 8), _x(4, 2, 8)),
    ),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d((2, 3))),
        (_x(1, 2, 7, 8),),
    ),
}


def _close(actual, expected, what: str) -> None:
    np.testing.assert_allclose(np.asarray(actual), expected.detach().numpy(), RTOL, ATOL, err_msg=what)


def _floats(tree) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _expected(module, inputs, options, cotangents=None):
    """PyTorch's outputs, gradients of parameters and inputs, and buffers."""
    module = copy.deepcopy(module)
    inputs = pytree.tree_map(lambda x: x.clone().requires_grad_() if x.is_floating_point() else x, inputs)
    outputs = [x for x in pytree.tree_leaves(module(*inputs, **options)) if x is not None]
    wanted = dict(module.named_parameters())
    leaves = _floats(inputs)
    floats = [x for x in outputs if x.is_floating_point()]
    cotangents = [torch.sin(torch.arange(x.numel()) + 1.0).reshape(x.shape) for x in floats]
    grads = torch.autograd.grad(floats, [*wanted.values(), *leaves], cotangents, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, [*wanted.values(), *leaves], strict=True)]
    by_name = dict(zip(wanted, grads, strict=False))
    return outputs, by_name, grads[len(wanted) :], dict(module.named_buffers()), cotangents


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name, mode):
    build, inputs, *options = MODULES[name]
    options = options[0] if options else {}
    torch.manual_seed(0)
    module = build().train(mode == "train")
    outputs, parameter_grads, input_grads, buffers, cotangents = _expected(module, inputs, options)
    before = {key: value.clone() for key, value in module.state_dict().items()}

    call, state, given = t2j(module), t2j(module.state_dict()), t2j(inputs)
    array_options = t2j({key: value for key, value in options.items() if isinstance(value, torch.Tensor)})
    plain = {key: value for key, value in options.items() if not isinstance(value, torch.Tensor)}
    floats = {key: value for key, value in state.items() if key in parameter_grads}

    def run(floats, inputs):
        result, new = call(*inputs, **array_options, **plain, state_dict={**state, **floats}, return_state_dict=True)
        return [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)], new

    def loss(floats, inputs):
        results, new = run(floats, inputs)
        parts = [x for x in results if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.vdot(x, t2j(c)) for x, c in zip(parts, cotangents, strict=True)), (results, new)

    eager = mode == "eval" and zlib.crc32(name.encode()) % EAGER == 0
    jitted = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True, has_aux=True))
    (got_parameters, got_inputs), under_jit = jitted(floats, given)
    for results, new in (under_jit, run(floats, given)) if eager else (under_jit,):
        assert len(results) == len(outputs)
        for i, (result, output) in enumerate(zip(results, outputs, strict=True)):
            _close(result, output, f"output {i}")
        for key, buffer in buffers.items():
            _close(new[key], buffer, f"new buffer {key}")
    for key, grad in parameter_grads.items():
        _close(got_parameters[key], grad, f"gradient of {key}")
    got_inputs = [x for x in jax.tree.leaves(got_inputs) if jnp.issubdtype(x.dtype, jnp.floating)]
    for i, (got, grad) in enumerate(zip(got_inputs, input_grads, strict=True)):
        _close(got, grad, f"gradient of input {i}")
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} of the user's module was written"


def test_dropout_between_recurrent_layers():
    module = nn.LSTM(3, 64, 2, dropout=0.5).train()
    call, state, x = t2j(module), t2j(module.state_dict()), t2j(_x(4, 2, 3))
    first, _ = call(x, state_dict=state, rng=jax.random.key(0))
    again, _ = call(x, state_dict=state, rng=jax.random.key(0))
    other, _ = call(x, state_dict=state, rng=jax.random.key(1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    with pytest.raises(RuntimeError, match="needs a key"):
        call(x, state_dict=state)


def test_lengths_must_be_known_under_jit():
    module = PackedRecurrence(nn.GRU(3, 4), [3, 2], True)
    jax.jit(t2j(module))(t2j(_x(2, 3, 3)))

    def pack(x, lengths):
        return rnn.pack_padded_sequence(x, lengths, batch_first=True).data

    with pytest.raises(TypeError, match="traced"):
        jax.jit(t2j(pack))(t2j(_x(2, 3, 3)), jnp.array([3, 2]))
