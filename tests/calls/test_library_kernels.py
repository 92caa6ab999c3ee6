"""Operators that `torch.library` got from Python code, by that code."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch2jax import TracedValueError, t2j

X = jnp.array([0.5, -1.0, 2.0])


@torch.library.custom_op("kernels::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x.sin() * scale


scaled_sine.register_autograd(  # not the derivative, to see who is asked
    lambda ctx, grad: (grad * ctx.saved_tensors[0] * 10, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("kernels::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("kernels::closed", mutates_args=())
def closed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("kernels::with_numpy", mutates_args=())
def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


library = torch.library.Library("kernels", "FRAGMENT")
library.define("weighted(Tensor x, Tensor[] ys, *, int n=1) -> Tensor")
library.impl("weighted", lambda x, ys, *, n=1: x.cos() * sum(ys) * n, "CPU")
library.define("both(Tensor x) -> (Tensor, Tensor)")
library.impl("both", lambda x: (x + 1, torch.ops.kernels.weighted(x, [x, x], n=3)), "CompositeImplicitAutograd")
library.define("by_default(Tensor x) -> Tensor")
library.impl("by_default", lambda x: torch.nn.functional.softplus(x))
library.define("plain.chosen(Tensor x) -> Tensor")
library.impl("plain.chosen", lambda x: x * 5, "CompositeExplicitAutograd")
library.define("of_old(Tensor x) -> Tensor")
library.impl("of_old", lambda x: x * 2, "CPU")


class OfOld(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.kernels.of_old(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


library.impl("of_old", lambda x: OfOld.apply(x), "Autograd")


def _weighted_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(inputs[0], *inputs[1])
    ctx.n = keyword_only_inputs["n"]


def _weighted_backward(ctx, grad):
    x, *ys = ctx.saved_tensors
    return -x.sin() * sum(ys) * ctx.n * grad, [x.cos() * ctx.n * grad for _ in ys]


torch.library.register_autograd("kernels::weighted", _weighted_backward, setup_context=_weighted_setup, lib=library)


def test_values():
    def function(x):
        first, second = torch.ops.kernels.both(x)
        return (
            scaled_sine(x),
            scaled_sine(x, 3.0),
            first,
            second,
            torch.ops.kernels.plain(x),
            closed(x),
            torch.ops.kernels.by_default(x),
        )

    expected = function(torch.tensor(np.asarray(X)))
    for run in (t2j(function), jax.jit(t2j(function))):
        for actual, each in zip(run(X), expected, strict=True):
            np.testing.assert_allclose(actual, each, rtol=1e-6)


def test_writes_to_arguments():
    def function(x):
        y = x * 1
        increase(y[1:])
        return y

    np.testing.assert_allclose(jax.jit(t2j(function))(X), X + jnp.array([0, 1, 1]))


def test_derivatives_are_those_registered():
    np.testing.assert_allclose(jax.grad(lambda x: t2j(scaled_sine)(x).sum())(X), X * 10)

    def inside(x):
        x.requires_grad_()
        (torch.ops.kernels.weighted(x, [x * 2, x], n=2).sum() + torch.ops.kernels.of_old(x).sum()).backward()
        return x.grad

    np.testing.assert_allclose(jax.jit(t2j(inside))(X), inside(torch.tensor(np.asarray(X))), rtol=1e-5)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        jax.grad(lambda x: t2j(closed)(x).sum())(X)


@torch.library.custom_op("kernels::sine_with_numpy", mutates_args=("x",))
def sine_with_numpy(x: torch.Tensor) -> None:
    x.copy_(torch.from_numpy(np.sin(x.numpy())))


@torch.library.custom_op("kernels::sine_in_numpy", mutates_args=("x",))
def sine_in_numpy(x: torch.Tensor) -> None:
    array = x.numpy()
    np.sin(array, out=array)


@torch.library.custom_op("kernels::aliased", mutates_args=())
def aliased(x: torch.Tensor) -> torch.Tensor:
    return x[:2]


def test_writes_of_what_numpy_computes():
    def function(x):
        y = x * 1
        version = y._version
        sine_with_numpy(y[1:])
        assert y._version > version
        return y, np.asarray(y.int() * 0)

    expected, zeros = function(torch.tensor(np.asarray(X)))
    result, zeros_here = t2j(function)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert zeros.dtype == zeros_here.dtype
    with pytest.raises(ValueError, match="read-only"):
        t2j(lambda x: sine_in_numpy(x * 1))(X)


def test_results_that_are_arguments():
    with pytest.raises(RuntimeError, match="may not alias any inputs"):
        t2j(aliased)(X)


def test_gradients_that_nobody_asks_for():
    contexts = []

    @torch.library.custom_op("kernels::noting", mutates_args=())
    def noting(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    noting.register_autograd(lambda ctx, grad: 2 * grad, setup_context=lambda ctx, inputs, output: contexts.append(1))

    def function(x):
        contexts.clear()  # it runs again, on a tape
        noting(x)
        with torch.no_grad():
            noting(x.clone().requires_grad_())
        assert not contexts
        x = x.clone().requires_grad_()
        return torch.autograd.grad(noting(x).sum(), x)[0]

    np.testing.assert_allclose(t2j(function)(X), [2, 2, 2])
    assert contexts


def test_a_rule_for_batches():
    called = []

    @torch.library.custom_op("kernels::product", mutates_args=())
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * y.numpy())

    def of_batch(info, in_dims, x, y):
        called.append((info.batch_size, in_dims))
        x, y = (z.unsqueeze(0) if dim is None else z.movedim(dim, 0) for z, dim in zip((x, y), in_dims, strict=True))
        return product(x, y), 0

    product.register_vmap(of_batch)
    library.define("doubled(Tensor x, *, int n=2) -> Tensor")
    library.impl("doubled", lambda x, *, n=2: x * n, "CPU")
    torch.library.register_vmap("kernels::doubled", lambda info, dims, x, *, n=2: (x * n + 1, dims[0]), lib=library)

    def function(x):
        nested = torch.vmap(lambda x: torch.vmap(product, in_dims=(0, None))(x, x[0]))(x)
        doubled = torch.vmap(torch.ops.kernels.doubled, in_dims=1, out_dims=1)(x)
        return torch.vmap(product, in_dims=(0, None))(x, x[0]), nested, doubled, torch.ops.kernels.doubled(x)

    x = torch.arange(6.0).reshape(2, 3)
    expected = function(x)
    before, called[:] = list(called), []
    for actual, each in zip(t2j(function)(x.numpy()), expected, strict=True):
        np.testing.assert_allclose(actual, each)
    assert called[-1] == before[-1]
    inside = t2j(lambda x: torch.vmap(torch.func.grad(lambda x: scaled_sine(x)))(x))
    np.testing.assert_allclose(inside(X), X * 10)


class Noting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_rule_for_a_mode():
    torch.library.register_torch_dispatch(
        closed, Noting, lambda mode, func, types, args, kwargs: func(*args, **kwargs) * 3
    )

    def function(x):
        with Noting():
            return closed(x), with_numpy(x)

    first, second = t2j(function)(X)
    np.testing.assert_allclose(first, (X + 1) * 3)
    np.testing.assert_allclose(second, jnp.sin(X), rtol=1e-6)


def test_operators_that_pytorch_cannot_run_either():
    def placed(device):
        return torch.ops.kernels.placed(device)

    library.define("placed(Device device) -> Tensor")
    library.define("unknown(Tensor x) -> Tensor")
    for function, given in ((placed, "cpu"), (torch.ops.kernels.unknown, X)):
        with pytest.raises(NotImplementedError) as expected:
            function(torch.tensor(np.asarray(given)) if given is X else given)
        with pytest.raises(NotImplementedError) as actual:
            t2j(function)(given)
        assert str(expected.value)[:60] in str(actual.value)


def test_a_kernel_chosen_by_device():
    @torch.library.custom_op("kernels::ones", mutates_args=(), device_types="cpu")
    def ones(device: torch.device) -> torch.Tensor:
        return torch.ones(3)

    np.testing.assert_allclose(t2j(lambda: ones(device="cpu"))(), [1, 1, 1])
    with pytest.raises(RuntimeError, match="does not have a kernel registered for cuda"):
        t2j(lambda: ones("cuda"))()


def test_an_operator_defined_again_while_the_first_is_alive():
    def define(factor):
        @torch.library.custom_op("kernels::again", mutates_args=())
        def again(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        return again

    first = define(2)
    second = define(3)
    del first
    gc.collect()
    np.testing.assert_allclose(t2j(second)(X), X * 3)


def test_batches():
    np.testing.assert_allclose(jax.vmap(t2j(scaled_sine))(jnp.stack([X, X + 1])), 2 * jnp.sin(jnp.stack([X, X + 1])))


def test_a_kernel_that_leaves_pytorch():
    with pytest.raises(TracedValueError) as error:
        jax.jit(t2j(with_numpy))(X)
    (note,) = [note for note in error.value.__notes__ if "kernel" in note]
    assert 'call_torch=["kernels::with_numpy"]' in note
    with pytest.warns(UserWarning, match="kernels::with_numpy"):
        np.testing.assert_allclose(jax.jit(t2j(with_numpy, call_torch=["kernels::with_numpy"]))(X), jnp.sin(X))


def test_operators_defined_in_a_call_that_runs_again():
    def function(x):
        @torch.library.custom_op("kernels::defined_inside", mutates_args=())
        def defined_inside(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        x.requires_grad_()
        (defined_inside(x.detach()) * x).sum().backward()
        return x.grad

    np.testing.assert_allclose(t2j(function)(X), X * 3)


def test_operators_of_a_module_that_is_first_imported_in_a_call(tmp_path, monkeypatch):
    lines = [
        "import torch",
        "@torch.library.custom_op('kernels::imported_late', mutates_args=())",
        "def late(x: torch.Tensor) -> torch.Tensor:",
        "    return x * 2",
    ]
    (tmp_path / "imported_late.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def code(x):
        from imported_late import late

        return late(x) if x.requires_grad else late(x) * 1  # so that the code runs again where JAX differentiates

    for _ in range(2):
        assert jax.eval_shape(t2j(code), jnp.ones(3)).shape == (3,)
        assert jnp.array_equal(jax.jit(t2j(code))(jnp.ones(3)), jnp.full(3, 2.0))
    assert torch.ops.kernels.imported_late(torch.ones(2)).tolist() == [2, 2]
