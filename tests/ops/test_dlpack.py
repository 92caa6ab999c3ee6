"""DLPack, and the buffer protocol."""

import array

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import dlpack
from torch.utils.dlpack import to_dlpack

from torch2jax import TracedValueError, t2j

SHARING = {
    "from_dlpack": torch.from_dlpack,
    "of the module": dlpack.from_dlpack,
    "copy": lambda x: torch.from_dlpack(x, copy=True),
    "view": lambda x: torch.from_dlpack(x[1:]),
}


@pytest.mark.parametrize("function", SHARING.values(), ids=SHARING)
def test_tensors_by_dlpack(function):
    x = torch.arange(6.0).reshape(3, 2)
    expected = t2j(function(x))
    for run in (t2j(function), jax.jit(t2j(function))):
        got = run(t2j(x))
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_what_dlpack_gives_shares_memory():
    def write(x):
        torch.from_dlpack(x).add_(1)
        return x

    np.testing.assert_array_equal(jax.jit(t2j(write))(jnp.zeros(2)), [1, 1])


@pytest.mark.parametrize("make", [to_dlpack, dlpack.to_dlpack, torch._C._to_dlpack_versioned])
def test_capsules_of_a_calls_tensors_are_refused(make):
    """Also where code has the function by a name of its own, so that PyTorch makes a capsule of no memory."""
    for run in (t2j, lambda function: jax.jit(t2j(function))):
        with pytest.raises(RuntimeError, match=r"hand the tensor itself to torch\.from_dlpack"):
            run(lambda x: torch.from_dlpack(make(x)))(jnp.ones(2))


def test_other_libraries_read_known_values():
    def function(x):
        return torch.tensor(np.from_dlpack(torch.ones(2)).sum()) + torch.from_dlpack(torch.ones(2).__dlpack__()) * x

    np.testing.assert_array_equal(jax.jit(t2j(function))(jnp.ones(2)), [3, 3])
    with pytest.raises(TracedValueError):
        jax.jit(t2j(lambda x: torch.from_dlpack(x.__dlpack__())))(jnp.ones(2))


def test_gradients_do_not_leave_by_dlpack():
    with pytest.raises(BufferError):
        t2j(lambda x: torch.from_dlpack(x.requires_grad_()))(jnp.ones(2))


BUFFERS = {
    "numpy": lambda: torch.from_dlpack(np.arange(4)),
    "frombuffer": lambda: torch.frombuffer(bytearray(b"abcdefgh"), dtype=torch.uint8, offset=2, count=3),
    "array": lambda: torch.frombuffer(array.array("f", [1, 2]), dtype=torch.float32) * 2,
    "asarray of bytes": lambda: torch.asarray(bytearray(b"abc"), dtype=torch.uint8),
    "asarray of numbers": lambda: torch.asarray(array.array("f", [1, 2])),
    "asarray of numpy": lambda: torch.asarray(np.float32(2)),
    "as_tensor": lambda: torch.as_tensor(memoryview(b"ab")),
}


@pytest.mark.parametrize("function", BUFFERS.values(), ids=BUFFERS)
def test_buffers(function):
    with jax.enable_x64(True):
        expected = t2j(function())
        for got in (t2j(function)(), jax.jit(t2j(function))()):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("obj", [[1, 2], 3.5, torch.ones(2)], ids=["list", "number", "dtype"])
def test_asarray_that_may_not_copy(obj):
    for function in (torch.asarray, t2j(torch.asarray)):
        with pytest.raises(ValueError, match="can't alias"):
            function(obj, dtype=torch.float64, copy=False)
