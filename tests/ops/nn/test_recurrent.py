"""Recurrent layers and packed sequences; tests of the modules are in ``tests/test_nn_modules.py``."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn.utils import rnn

from tests.ops.database import compare
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


@pytest.mark.parametrize("lengths", [[4, 0], [2, 4], [9, 1]])
def test_bad_lengths_are_refused(lengths):
    def pack(x):
        return torch._pack_padded_sequence(x, torch.tensor(lengths), False)

    with pytest.raises(RuntimeError):
        t2j(pack)(jnp.ones((5, 2, 3)))
