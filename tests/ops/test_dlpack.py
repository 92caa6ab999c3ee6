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
BY_CAPSULE = {
    "to_dlpack": lambda x: torch.from_dlpack(dlpack.to_dlpack(x)),
    "of torch": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "method": lambda x: torch.from_dlpack(x.__dlpack__()),
    "bfloat16": lambda x: torch.from_dlpack(dlpack.to_dlpack(x.bfloat16())),
}


@pytest.mark.parametrize("name", [*SHARING, *BY_CAPSULE])
def test_tensors_by_dlpack(name):
    function = {**SHARING, **BY_CAPSULE}[name]
    x = torch.arange(6.0).reshape(3, 2)
    expected = t2j(function(x))
    got = t2j(function)(t2j(x))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    traced = jax.jit(t2j(function))
    if name in SHARING:
        np.testing.assert_array_equal(traced(t2j(x)), expected)
    else:
        with pytest.raises(TracedValueError):
            traced(t2j(x))


def test_what_dlpack_gives_shares_memory():
    def write(x):
        torch.from_dlpack(x).add_(1)
        return x

    np.testing.assert_array_equal(jax.jit(t2j(write))(jnp.zeros(2)), [1, 1])


BY_NAME = {
    "whole": lambda x: x,
    "offset": lambda x: x[1:],
    "transposed": lambda x: x.t(),
    "of ones": lambda x: x[:, None],
    "bfloat16": lambda x: x.bfloat16(),
    "result": lambda x: x * 2,
}


@pytest.mark.parametrize("part", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize(
    ("make", "read"), [(to_dlpack, torch.asarray), (torch._C._to_dlpack_versioned, torch.from_dlpack)]
)
def test_capsules_by_functions_that_were_imported_by_their_names(part, make, read):
    def function(x):
        capsule = make(part(x))
        shared = read(capsule)
        with pytest.raises(RuntimeError, match="consume"):
            torch.from_dlpack(capsule)
        return shared.mul_(3), x

    x = torch.arange(6.0).reshape(3, 2)
    expected = [t2j(y) for y in function(x.clone())]
    for got in (t2j(function)(t2j(x)), jax.jit(t2j(function))(t2j(x))):
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


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
