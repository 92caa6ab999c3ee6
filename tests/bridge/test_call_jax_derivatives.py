"""JAX functions called from PyTorch: autograd, forward mode and `torch.func`."""

import copy
import functools
import gc

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from torch2jax import j2t

FUNCTIONS = {
    "product": (lambda x, y: jnp.sin(x) * y**2, lambda x, y: x.sin() * y**2),
    "matmul": (lambda x, y: jnp.tanh(x @ y.T), lambda x, y: (x @ y.mT).tanh()),
    "sums": (lambda x, y: (x * y).sum() * jnp.exp(-x), lambda x, y: (x * y).sum() * (-x).exp()),
}

TRANSFORMS = {
    "grad": lambda f: grad(lambda x, y: f(x, y).sum()),
    "grad_grad": lambda f: grad(lambda x, y: grad(lambda x: f(x, y).sum())(x).sum(), argnums=1),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": hessian,
    "fwd_fwd": lambda f: jacfwd(jacfwd(f), argnums=1),
    "rev_rev": lambda f: jacrev(jacrev(f), argnums=1),
    "rev_fwd": lambda f: jacrev(jacfwd(f)),
    "jvp": lambda f: lambda x, y: jvp(f, (x, y), (y, x)),
    "vjp": lambda f: lambda x, y: vjp(f, x, y)[1](torch.ones_like(f(x, y))),
    "vmap": lambda f: vmap(f, in_dims=(0, None)),
    "vmap_out": lambda f: vmap(f, in_dims=(None, 1), out_dims=1),
    "vmap_vmap": lambda f: vmap(vmap(f, in_dims=(0, None)), in_dims=(None, 0)),
    "vmap_grad": lambda f: vmap(grad(lambda x, y: f(x, y).sum())),
    "grad_vmap": lambda f: grad(lambda x, y: vmap(f)(x, y).sum()),
    "vmap_jacfwd": lambda f: vmap(jacfwd(f)),
    "jacfwd_vmap": lambda f: jacfwd(vmap(f)),
    "hvp": lambda f: jvp(lambda x: grad(lambda x: f(x, x).sum())(x), (torch.ones(3, 3),), (torch.ones(3, 3),)),
}


def inputs(*shape, dtype=torch.float32, requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, dtype=dtype, generator=generator, requires_grad=requires_grad) for _ in range(2)]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("name", "jit"), [*((name, True) for name in FUNCTIONS), ("product", False)])
def test_gradients_to_second_order_in_both_modes(name, jit, x64):
    function = j2t(FUNCTIONS[name][0], jit=jit)
    arguments = inputs(2, 2 if jit else 1, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(function, arguments, check_forward_ad=True)
    torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * jnp.conj(y) * y,
        lambda x, y: jnp.abs(x * y),
        lambda x, y: (x * y).real + 1j * jnp.exp(x.imag),
        lambda x, y: jnp.exp(x) / y,
    ],
    ids=["conj", "real", "parts", "holomorphic"],
)
def test_complex_gradients_are_pytorchs(function, x64):
    arguments = inputs(2, dtype=torch.complex128, requires_grad=True)
    torch.autograd.gradcheck(j2t(function), arguments, check_forward_ad=True)
    torch.autograd.gradgradcheck(j2t(function), arguments)


def test_complex_gradients_have_pytorchs_sign():
    x, y = inputs(3, dtype=torch.complex64, requires_grad=True)
    gradients = [
        torch.autograd.grad(f(x, y).abs().sum(), (x, y))
        for f in (j2t(lambda x, y: x * x * jnp.conj(y)), lambda x, y: x * x * y.conj())
    ]
    torch.testing.assert_close(*gradients)


def test_third_order():
    x = torch.tensor(0.7, requires_grad=True)
    value = j2t(jnp.sin)(x)
    for expected in (x.cos(), -x.sin(), -x.cos(), x.sin()):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_agree_with_pytorch(name, jit):
    transform = TRANSFORMS[name]
    function, reference = FUNCTIONS["product"]
    arguments = inputs(3, 3)
    found, expected = transform(j2t(function, jit=jit)), transform(reference)
    if callable(found):
        found, expected = found(*arguments), expected(*arguments)
    torch.testing.assert_close(found, expected)


def test_transforms_see_trees_and_closures():
    f = j2t(lambda tree, scale: {"out": tree["a"] * scale, "count": jnp.arange(2)})
    scale = torch.tensor(3.0, requires_grad=True)
    batch = {"a": torch.arange(4.0)}
    result = vmap(lambda tree: f(tree, scale))(batch)
    assert torch.equal(result["count"], torch.tensor([[0, 1]] * 4, dtype=torch.int32))
    result["out"].sum().backward()
    assert scale.grad == 6
    assert torch.equal(grad(lambda tree: f(tree, scale)["out"].sum())(batch)["a"], torch.full((4,), 3.0))


def test_vjp_function_outlives_its_transform():
    x, y = inputs(3)
    _, pull = vjp(j2t(FUNCTIONS["product"][0]), x, y)
    torch.testing.assert_close(pull(torch.ones(3)), vjp(FUNCTIONS["product"][1], x, y)[1](torch.ones(3)))


def test_vmap_draws_as_jax_does():
    f = j2t(lambda x, key: x + jax.random.normal(key, x.shape))
    keys = jax.random.key(0)
    draws = vmap(lambda x: f(x, keys))(torch.zeros(3, 2))
    assert torch.equal(draws[0], draws[1])


def test_forward_mode():
    x, y = inputs(3)
    f = j2t(lambda x, y, n: (jnp.sin(x) * y, n + 1))
    with forward_ad.dual_level():
        result, count = f(forward_ad.make_dual(x, torch.ones(3)), y, torch.arange(3, dtype=torch.int32))
        torch.testing.assert_close(forward_ad.unpack_dual(result).tangent, x.cos() * y)
        assert forward_ad.unpack_dual(count).tangent is None


def test_forward_over_reverse_without_a_graph():
    f = j2t(lambda x: (jnp.sin(x) * x**2).sum())
    x = inputs(3)[0].requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        (gradient,) = torch.autograd.grad(f(dual), dual)
        product = forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(product, hessian(lambda x: (x.sin() * x**2).sum())(x.detach()).sum(0))


def test_batches_of_gradients_are_those_of_torch_func():
    x, _ = inputs(3, requires_grad=True)
    torch.testing.assert_close(torch.func.jacrev(j2t(jnp.sin))(x), x.cos().diag())
    with pytest.raises(RuntimeError, match=r"got a batch of gradients.*wanted torch\.func\.vjp"):
        torch.autograd.grad(j2t(jnp.sin)(x), x, torch.eye(3), is_grads_batched=True)


def test_integers_and_booleans_have_no_derivatives():
    f = j2t(lambda x, n, mask: (jnp.where(mask, x * n, 0), n * 2, mask))
    x, n, mask = torch.ones(3, requires_grad=True), torch.arange(3), torch.tensor([True, False, True])
    y, count, same = f(x, n, mask)
    assert [y.requires_grad, count.requires_grad, same.requires_grad] == [True, False, False]
    y.sum().backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 0.0, 2.0]))
    assert not j2t(lambda n: n * 2)(n).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_keep_half_precision(dtype):
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    j2t(lambda x: (x.astype(jnp.float32) ** 2).sum())(x).backward()
    assert x.grad.dtype == dtype
    assert torch.equal(x.grad, torch.full((3,), 2.0, dtype=dtype))


def test_requires_grad_follows_the_arguments_and_the_mode():
    f = j2t(jnp.add)
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    assert not f(x, x).requires_grad
    assert f(x, y).requires_grad
    assert f(x, y).grad_fn is not None
    with torch.no_grad():
        assert not f(x, y).requires_grad
    with torch.inference_mode():
        assert torch.equal(f(x, y), torch.full((2,), 2.0))


def test_only_what_is_asked_for():
    f = j2t(lambda x, y, z: (x * y, y * z, x.sum()))
    x, y, z = [torch.full((2,), float(i), requires_grad=i != 3) for i in (1, 2, 3)]
    first, second, _ = f(x, y, z)
    (gradient,) = torch.autograd.grad(second.sum(), y, retain_graph=True)
    assert torch.equal(gradient, z)
    (gradient,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
    assert torch.equal(gradient, y.detach())
    (first.sum() + second.sum()).backward()
    assert torch.equal(y.grad, torch.full((2,), 4.0))
    assert z.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_writing_to_an_argument_before_backward_is_pytorchs_error(create_graph):
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = j2t(lambda x: x * x)(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(z.sum(), x, create_graph=create_graph)


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_writing_to_a_result_changes_no_gradient(jit):
    x = torch.tensor([0.1, 0.2], requires_grad=True)
    y = j2t(jnp.exp, jit=jit)(x)
    with torch.no_grad():
        y.zero_()
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    x.grad = None
    j2t(jnp.exp, jit=jit)(x).mul_(3).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach().exp())


def test_writing_to_gradients_is_safe():
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, requires_grad=True)
    f = j2t(lambda x, y: x + y + 0 * KEPT)
    for _ in range(2):
        gradients = torch.autograd.grad(f(x, y), (x, y), torch.ones(3))
        assert [g.tolist() for g in gradients] == [[1, 1, 1], [1, 1, 1]]
        gradients[0].fill_(7)
        assert gradients[1].tolist() == [1, 1, 1]
    given = torch.ones(3)
    (gradient,) = torch.autograd.grad(f(x, y), x, given)
    gradient.fill_(7)
    assert given.tolist() == [1, 1, 1]


KEPT = jnp.ones(3)


def test_the_graph_is_freed_with_backward():
    x = torch.ones(1000, requires_grad=True)
    y = j2t(lambda x: jnp.sin(x) * jnp.cos(x))(x)
    gc.collect()
    before = len(jax.live_arrays())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    gc.collect()
    assert len(jax.live_arrays()) < before
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_saved_tensor_hooks_and_checkpoint():
    x = torch.tensor([0.1, 0.2], requires_grad=True)
    f = j2t(jnp.exp)
    with torch.autograd.graph.save_on_cpu():
        y = f(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    x.grad = None
    torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_backward_computes_as_forward_did():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with jax.enable_x64(True):
        y = j2t(lambda x: x / 3)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert (gradient == torch.ones(3, dtype=torch.float64) / 3).all()


def test_backward_holds_integers_as_forward_did():
    x, n = torch.ones(2, requires_grad=True), torch.tensor([2**40, 3])
    with jax.enable_x64(True):
        y = j2t(lambda x, n: x * (n // 2**38))(x, n)
    y.sum().backward()
    assert x.grad.tolist() == [4, 0]


def test_errors_in_backward_pass_through():
    @jax.custom_vjp
    def f(x):
        return x

    def backward(_, cotangent):
        raise ZeroDivisionError("mine")

    f.defvjp(lambda x: (x, None), backward)
    y = j2t(f)(torch.ones(2, requires_grad=True))
    with pytest.raises(ZeroDivisionError, match="mine"):
        y.sum().backward()


def test_custom_derivatives_are_kept():
    @jax.custom_jvp
    def f(x):
        return jnp.round(x)

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 5))
    x = torch.ones(2, requires_grad=True)
    j2t(f)(x).sum().backward()
    assert x.grad.tolist() == [5, 5]


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterDict({"w": torch.randn(2, 8) / 2, "v": torch.randn(8, 1) / 2})
        self.function = j2t(lambda weights, x: jnp.tanh(x @ weights["w"]) @ weights["v"])

    def forward(self, x):
        return self.function(dict(self.weights), x)


def test_training_with_torch_optim():
    torch.manual_seed(0)
    network, x = Network(), torch.randn(64, 2)
    target = (x[:, :1] * 2 - x[:, 1:]).tanh()
    reference = copy.deepcopy(network)
    reference.function = lambda weights, x: (x @ weights["w"]).tanh() @ weights["v"]
    losses = []
    for model in (network, reference):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.01
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_stateless_modules_and_per_sample_gradients():
    torch.manual_seed(0)
    network, x = Network(), torch.randn(5, 2)
    weights = dict(network.named_parameters())

    def loss(weights, x):
        return functional_call(network, weights, (x,)).square().sum()

    found = vmap(functools.partial(grad(loss), weights))(x)
    for i in range(5):
        expected = torch.autograd.grad(loss(weights, x[i]), list(weights.values()))
        for each, name in zip(expected, weights, strict=True):
            torch.testing.assert_close(found[name][i], each)


def test_jax_gradients_inside():
    x = torch.tensor([0.3, 0.4], requires_grad=True)
    f = j2t(lambda x: jax.vmap(jax.grad(jnp.sin))(x))
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, -x.detach().sin())
