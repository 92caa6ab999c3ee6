"""What programs of parts may destroy."""

import jax
import jax.numpy as jnp
import numpy as np

from torch2jax.calls.compiled.reordered import DonatedArrays
from torch2jax.tensors.array_buffer import ArrayBuffer
from torch2jax.tensors.storage import Storage


def first_to_one(given):
    return jax.jit(lambda x: x.at[0].set(1), donate_argnums=0)(given)


def test_arrays_of_others_are_copied_and_those_of_numpy_left_alone_by_jax():
    for array in (jnp.zeros((4, 16)), np.zeros((4, 16), np.float32)):
        given = DonatedArrays().given(Storage(ArrayBuffer(array, None)), array, alone=0)
        assert first_to_one(given)[0, 0] == 1
        assert not np.asarray(array).any()


def test_numpy_arrays_are_not_copied_beforehand():
    array = np.zeros(4, np.float32)
    assert DonatedArrays().given(Storage(ArrayBuffer(array, None)), array, alone=0) is array
