"""The bridge under switches of JAX's that run a program step by step, or look at what each step gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import torch2jax

X = jnp.arange(1.0, 4.0)
CALLS = {
    "eager": lambda f: f(X),
    "jit": lambda f: jax.jit(f)(X),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "second": lambda f: jax.jacobian(jax.grad(lambda x: f(x).sum()))(X),
    "vmap": lambda f: jax.vmap(lambda x: f(x))(jnp.stack([X, 2 * X])),
}
FUNCTION, NAN = torch.log, lambda x: torch.log(-x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("method", ["ffi", "callback"])
@pytest.mark.filterwarnings("ignore:.*was called with")
def test_without_jit(call, method):
    f = torch2jax(FUNCTION, X, method=method)
    expected = CALLS[call](jnp.log)
    with jax.disable_jit():
        np.testing.assert_allclose(CALLS[call](f), expected, rtol=1e-6)


def test_without_arguments():
    f = torch2jax(lambda: torch.full((2,), torch.nan))
    with jax.disable_jit():
        assert jnp.isnan(f()).all()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        f()


@pytest.mark.parametrize("call", ["eager", "grad", "vmap"])
@pytest.mark.filterwarnings("ignore:.*was called with")
def test_numbers_that_jax_looks_for(call):
    good, bad = (torch2jax(f, X) for f in (FUNCTION, NAN))
    expected = CALLS[call](jnp.log)
    with jax.debug_nans(True), jax.debug_infs(True):
        np.testing.assert_allclose(CALLS[call](good), expected, rtol=1e-6)
        if call != "grad":
            with pytest.raises(FloatingPointError, match=r"\(nan\).*" + ("PyTorch" if call == "eager" else "scan")):
                CALLS[call](bad)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"\(inf\).*PyTorch"):
        torch2jax(FUNCTION, X)(0 * X)


def test_switched_on_for_the_process():
    f = torch2jax(FUNCTION, X)
    jax.config.update("jax_disable_jit", True)
    try:
        np.testing.assert_allclose(f(X), jnp.log(X), rtol=1e-6)
    finally:
        jax.config.update("jax_disable_jit", False)
