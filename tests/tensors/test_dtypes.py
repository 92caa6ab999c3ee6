"""PyTorch's dtypes and JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import dtype_j2t, dtype_t2j, j2t, t2j
from torch2jax.tensors import dtypes

WITH_TYPES = {
    "creation": lambda x: torch.zeros(2, dtype=complex),
    "new": lambda x: x.new_ones(2, dtype=bool),
    "like": lambda x: torch.ones_like(x, dtype=int),
    "tensor": lambda x: torch.tensor([1], dtype=float),
    "random": lambda x: torch.zeros_like(torch.randn(2, dtype=float)),
    "reduction": lambda x: x.sum(dtype=float),
    "functional": lambda x: torch.nn.functional.softmax(x, 0, dtype=float),
    "to": lambda x: x.to(int),
    "to by keyword": lambda x: x.to(dtype=complex),
    "view": lambda x: x.view(dtype=int),
}


@pytest.mark.parametrize("function", WITH_TYPES.values(), ids=WITH_TYPES)
def test_python_types_are_dtypes(function):
    x = torch.arange(3.0, dtype=torch.float64)
    with jax.enable_x64(True):
        expected, got = function(x), t2j(function)(x.numpy(), rng=jax.random.key(0))
        assert str(got.dtype) == str(expected.dtype).removeprefix("torch.")
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", list(map(str, dtypes._TO_JAX)))
def test_names_do_not_narrow(name, x64):
    dtype = getattr(torch, name.removeprefix("torch."))
    scalar_type = getattr(jnp, name.removeprefix("torch."))
    with jax.enable_x64(x64):
        assert t2j(dtype) == scalar_type
        assert t2j({"a": [dtype]})["a"][0] == scalar_type
        assert j2t(t2j(dtype)) is dtype
        assert j2t(scalar_type) is dtype


def test_other_types_are_refused():
    with pytest.raises(TypeError):
        torch.ones(2).sum(dtype=str)  # pyright: ignore
    with pytest.raises(TypeError):
        t2j(lambda x: x.sum(dtype=str))(np.ones(2))


def test_the_common_dtype_knows_the_default_of_the_call():
    def code():
        torch.set_default_dtype(torch.float64)
        try:
            kinds = [torch.result_type(torch.tensor(1), 1.0), torch.result_type(1j, torch.tensor([1]))]
        finally:
            torch.set_default_dtype(torch.float32)
        return [str(kind) for kind in (*kinds, torch.result_type(torch.tensor([1]), 1.0))]

    assert t2j(code)() == code() == ["torch.float64", "torch.complex128", "torch.float32"]


@pytest.mark.parametrize(
    ("function", "of", "out"),
    [
        (torch.neg, torch.float32, torch.float64),
        (torch.ceil, torch.int64, torch.float32),
        (torch.sign, torch.float32, torch.int32),
        (torch.signbit, torch.float32, torch.float64),
    ],
)
def test_results_are_not_cast_into_out(function, of, out):
    def code():
        return function(torch.ones(2, dtype=of), out=torch.empty(0, dtype=out))

    for call in (code, t2j(code)):
        with pytest.raises(RuntimeError):
            call()


def test_numbers_that_scale():
    ones = torch.ones(2, dtype=torch.int64)
    for call in (lambda f: f(), lambda f: t2j(f)()):
        with pytest.raises(RuntimeError, match="Boolean alpha only supported"):
            call(lambda: torch.add(1, 1, alpha=True))
        with pytest.raises(RuntimeError, match="alpha must not be a floating point number"):
            call(lambda: torch.add(ones, ones, alpha=1.0))
        with pytest.raises(RuntimeError, match=r"^Integer division.+is no longer supported.+"):
            call(lambda: torch.addcdiv(ones, ones, ones))
        np.testing.assert_array_equal(call(lambda: torch.addcmul(ones, ones, ones, value=2.5)), [3, 3])


@pytest.mark.parametrize("dtype", [jnp.float32, np.float32, np.dtype("float32"), "float32", torch.float32])
def test_dtypes_of_either_side_are_taken(dtype):
    assert dtype_t2j(dtype) == np.float32
    assert dtype_j2t(dtype) == torch.float32


@pytest.mark.parametrize("dtype", [None, "floating", 3, torch.qint8])
def test_what_is_no_dtype_is_refused(dtype):
    with pytest.raises(TypeError):
        dtype_t2j(dtype)
