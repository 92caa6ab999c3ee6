"""PyTorch inside JAX on a GPU that both see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import torch2jax


def _shared_gpu() -> bool:
    try:
        return torch.cuda.is_available() and bool(jax.devices("cuda"))
    except RuntimeError:
        return False


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _shared_gpu(), reason="needs a GPU that PyTorch and JAX both see"),
]


def on_gpu(array):
    return jax.device_put(array, jax.devices("cuda")[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "int32", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_dtypes(dtype, shape):
    x = on_gpu(jnp.ones(shape, dtype))
    result = torch2jax(lambda t: t.clone(), x)(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(result), np.asarray(x))


def test_no_copies_and_ordered_work():
    seen = []

    def fn(t):  # twenty products that leave a constant matrix as it is
        seen.append((t.data_ptr(), t.device.type))
        mean = torch.full_like(t, 1 / 1000)
        for _ in range(20):
            t = t @ mean
        return t

    x = on_gpu(jnp.ones((1000, 1000)))
    f = torch2jax(fn, x, output_shapes=x.shape, mutates=False)
    np.testing.assert_allclose(f(x), x, rtol=1e-3)
    assert seen[-1] == (x.unsafe_buffer_pointer(), "cuda")
    # XLA's work before and behind it, many times over, without waiting in between
    g = jax.jit(lambda x: f(x + 1) * 2 - f(x * 1))
    results = [g(x) for _ in range(20)]
    for result in results:
        np.testing.assert_allclose(result, jnp.full_like(x, 3), rtol=1e-2)


def test_work_queued_by_pytorch_is_seen():
    weight = torch.zeros(1000, device="cuda")
    f = torch2jax(lambda t: t * weight, on_gpu(jnp.ones(1000)), mutates=False)
    for value in range(1, 10):
        weight.fill_(value)
        np.testing.assert_array_equal(f(on_gpu(jnp.ones(1000))), value)


def test_gradients_and_errors():
    x = on_gpu(jnp.arange(3.0))
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: torch2jax(torch.sin, x)(x).sum()))(x), jnp.cos(x), rtol=1e-5)
    with pytest.raises(jax.errors.JaxRuntimeError, match="ZeroDivisionError"):
        torch2jax(lambda t: t / (1 // 0), x, output_shapes=x.shape)(x).block_until_ready()
    np.testing.assert_allclose(torch2jax(torch.sin, x)(x), jnp.sin(x), rtol=1e-5)
