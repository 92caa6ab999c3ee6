"""Casts to and from 8 bits with a floating point: every number of 16 bits, and those of 32 bits around a step."""

import jax
import numpy as np
import pytest
import torch

from tests.compiling import known_flags
from torch2jax import t2j

# The flags of tests name other emitters, which round numbers below the smallest normal one otherwise. So does what runs
# one by one, which has these flags.
_EMITTERS = "xla_cpu_use_fusion_emitters"
_AS_USERS_HAVE_IT = {_EMITTERS: True} if _EMITTERS in known_flags() else {}
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
_PATTERNS = torch.arange(65536, dtype=torch.int32).to(torch.int16)
_HALVES = {dtype: _PATTERNS.view(dtype) for dtype in (torch.float16, torch.bfloat16)}
_SINGLES = torch.cat(
    [torch.arange(0, 2**32, 2**16 - 1).to(torch.int32).view(torch.float32)]
    + [torch.nextafter(x.float(), torch.tensor(end)) for x in _HALVES.values() for end in (-np.inf, np.inf)]
)
SOURCES = {
    **{str(dtype): x for dtype, x in _HALVES.items()},
    "float32": _SINGLES,
    "float64": _SINGLES[::7].double(),
    "int32": torch.arange(-70000, 70000, 3, dtype=torch.int32),
    "int8": torch.arange(-128, 128).to(torch.int8),
    "bool": torch.tensor([True, False]),
}


def _values(array) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of what is no number
        return np.asarray(array).astype(np.float64)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("source", SOURCES)
def test_every_number_becomes_pytorchs(source, dtype):
    x = SOURCES[source]
    wanted = _values(t2j(x.to(dtype)))
    compiled = jax.jit(t2j(torch.Tensor.to), static_argnums=1, compiler_options=_AS_USERS_HAVE_IT)
    for run in (compiled, *([] if "fnuz" in str(dtype) else [t2j(torch.Tensor.to)])):
        found = run(t2j(x), dtype)
        assert found.dtype == t2j(x[:1].to(dtype)).dtype
        np.testing.assert_array_equal(_values(found), wanted)
        assert np.array_equal(np.signbit(_values(found)), np.signbit(wanted)) or np.isnan(wanted).any()


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, *FLOAT8], ids=str)
def test_every_number_comes_back(dtype, target):
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    found = jax.jit(t2j(lambda x: x.to(target)), compiler_options=_AS_USERS_HAVE_IT)(t2j(x))
    np.testing.assert_array_equal(_values(found), _values(t2j(x.to(target))))


def test_what_is_written_saturates():
    def function(x):
        copied, part, out = (torch.zeros(4, dtype=torch.float8_e4m3fn) for _ in range(3))
        copied.copy_(x)
        part[1:] = x[1:]
        torch.mul(x, 2, out=out)
        return copied.float(), part.float(), out.float()

    x = torch.tensor([1.0, 500.0, -1e6, np.inf])
    for run in (t2j(function), jax.jit(t2j(function))):
        for found, wanted in zip(run(t2j(x)), function(x), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", FLOAT8[:4], ids=str)
def test_gradients_are_the_identitys_and_saturate(dtype):
    weights = torch.tensor([1.0, -2.0, 1000.0, 0.3, -1e6])

    def function(x):
        return (x.to(dtype).float() * weights).sum()

    x = torch.tensor([0.1, 300.0, 0.0, 1e5, -1e5], requires_grad=True)
    function(x).backward()
    for differentiate in (jax.grad(t2j(function)), jax.jit(jax.grad(t2j(function)))):
        np.testing.assert_array_equal(differentiate(t2j(x.detach())), x.grad)
    rows = jax.vmap(jax.grad(t2j(function)))(t2j(x.detach()[None].repeat(2, 1)))
    np.testing.assert_array_equal(rows, x.grad[None].repeat(2, 1))


def test_jax_computes_what_pytorch_has_no_kernel_for():
    x = torch.tensor([0.5, -1.0, 3.0]).to(torch.float8_e4m3fn)

    def function(x):
        return (x * 2, x.sum(), torch.softmax(x, 0), x < 1)

    for run in (t2j(function), jax.jit(t2j(function))):
        for found, wanted in zip(run(t2j(x)), function(x.float()), strict=True):
            np.testing.assert_allclose(_values(found), wanted, rtol=0.1)
            assert str(found.dtype) == ("bool" if wanted.dtype == torch.bool else "float8_e4m3fn")


MIXED = [
    lambda x, y: x * y,
    lambda x, y: y.clone().add_(x),
    lambda x, y: torch.cat([y, x]),
    lambda x, y: torch.where(y > 0, x, y),
    lambda x, y: x @ y,
]


@pytest.mark.parametrize("function", MIXED)
def test_with_another_dtype_they_are_refused(function):
    y = torch.ones(3)
    x = y.to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError):
        function(x, y)
    with pytest.raises(RuntimeError, match="dtype"):
        t2j(function)(t2j(x), t2j(y))
