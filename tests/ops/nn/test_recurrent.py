"""Recurrent layers and packed sequences; tests of the modules are in ``tests/modules/test_nn_modules.py``."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn.utils import rnn

from tests.ops.database import compare, compare_trees
from torch2jax import t2j


def test_a_layer_is_one_projection_of_all_steps_and_one_scan():
    layer = torch.nn.LSTM(3, 4)
    state = t2j(layer.state_dict())
    jaxpr = jax.make_jaxpr(lambda state, x: t2j(layer)(x, state_dict=state)[0])(state, jnp.ones((5, 2, 3)))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count("dot_general") == 1
    assert names.count("scan") == 1
    (scan,) = (equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    inner = [equation.primitive.name for equation in scan.params["jaxpr"].eqns]
    assert inner.count("dot_general") == 1
    assert "transpose" not in inner


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding(batch_first):
    def there_and_back(x):
        packed = rnn.pack_padded_sequence(x, [4, 2, 1], batch_first)
        padded, lengths = rnn.pad_packed_sequence(packed, batch_first, padding_value=-1.0, total_length=6)
        return packed.data, packed.batch_sizes, padded, lengths

    x = torch.randn((3, 5, 2) if batch_first else (5, 3, 2))
    for got, want in zip(jax.jit(t2j(there_and_back))(t2j(x)), there_and_back(x), strict=True):
        compare(got, want)


class _Packed(torch.nn.Module):
    """A layer over sequences of known lengths that are not in order."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        packed = rnn.pack_padded_sequence(x, [2, 5, 3], batch_first=True, enforce_sorted=False)
        output, state = self.layer(packed)
        padded, lengths = rnn.pad_packed_sequence(output, batch_first=True, padding_value=-1.0)
        return padded, lengths, state


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_on_packed_sequences(kind, bidirectional):
    torch.manual_seed(0)
    model = _Packed(getattr(torch.nn, kind)(3, 4, 2, bidirectional=bidirectional))
    x = torch.randn(3, 5, 3, requires_grad=True)
    expected = model(x)
    cotangent = torch.randn_like(expected[0])
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(expected[0], [x, *parameters.values()], cotangent)

    def loss(x, parameters):
        results = t2j(model)(x, state_dict=parameters)
        return jnp.vdot(t2j(cotangent), results[0]), results

    given = t2j(x), {name: t2j(parameter) for name, parameter in parameters.items()}
    (of_x, of_parameters), results = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(*given)
    compare_trees(results, expected)
    for got, want in zip([of_x, *(of_parameters[name] for name in parameters)], gradients, strict=True):
        compare(got, want)


SEQUENCES = [torch.randn(length, 3, generator=torch.Generator().manual_seed(length)) for length in (5, 3, 2)]


@pytest.mark.parametrize(
    "function",
    [
        lambda *x: rnn.pad_sequence(x),
        lambda *x: rnn.pad_sequence(x, batch_first=True, padding_value=-1.0, padding_side="left"),
        lambda x, *rest: rnn.pad_sequence([x.to(torch.int32), *rest]),
        lambda *x: rnn.unpad_sequence(rnn.pad_sequence(x), torch.tensor([5, 3, 2])),
        lambda *x: tuple(rnn.pack_sequence(x)),
        lambda *x: tuple(rnn.pack_sequence(x[::-1], enforce_sorted=False)),
        lambda *x: rnn.unpack_sequence(rnn.pack_sequence(x)),
    ],
)
def test_lists_of_sequences(function):
    compare_trees(jax.jit(t2j(function))(*map(t2j, SEQUENCES)), function(*SEQUENCES))


@pytest.mark.parametrize("sequences", [[], [torch.ones(2, 3), torch.ones(1, 2)], [torch.tensor(1.0)]])
def test_bad_lists_are_refused(sequences):
    for pad in (rnn.pad_sequence, t2j(rnn.pad_sequence)):
        with pytest.raises(RuntimeError):
            pad(sequences)


@pytest.mark.parametrize("lengths", [[4, 0], [2, 4], [9, 1]])
def test_bad_lengths_are_refused(lengths):
    def pack(x):
        return torch._pack_padded_sequence(x, torch.tensor(lengths), False)

    with pytest.raises(RuntimeError):
        t2j(pack)(jnp.ones((5, 2, 3)))


@pytest.mark.parametrize(
    ("cell", "states"),
    [
        (torch.nn.RNNCell, [(1, 4)]),
        (torch.nn.GRUCell, [(1, 4)]),
        (torch.nn.GRUCell, [(2, 5)]),
        (torch.nn.LSTMCell, [(1, 4), (2, 4)]),
        (torch.nn.LSTMCell, [(2, 4), (1, 4)]),
        (torch.nn.LSTMCell, [(2, 4), (2, 5)]),
    ],
)
def test_states_of_cells_do_not_broadcast(cell, states):
    layer = cell(3, 4)
    states = tuple(torch.zeros(state) for state in states)

    def step(x):
        return layer(x, states if cell is torch.nn.LSTMCell else states[0])

    with pytest.raises(RuntimeError) as expected:
        step(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match=str(expected.value)):
        t2j(step)(jnp.zeros((2, 3)))
