"""Fake quantization, bit for bit, with PyTorch's gradients, straight through."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare_trees
from torch2jax import NoRuleError, j2t, t2j, torch2jax

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=GENERATOR) * 5
TIES = torch.tensor([[0.5, 1.5, 2.5, -0.5], [-1.5, -2.5, 126.5, 127.5], [-128.5, 300.0, -300.0, 0.0]])
SCALES, ZEROS = torch.tensor([0.1, 0.05, 0.07, 0.031]), torch.tensor([3, -5, 0, 100], dtype=torch.int32)
OFFSETS = torch.tensor([3.4, -5.5, 0.0, 100.5])
BOUNDS = (-128, 127)

OF_TENSORS = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0713, 3, *BOUNDS),
    "no zero point": lambda x: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 255),
    "tensors": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[1], z[0], *BOUNDS),
    "of shape 1": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[:1], z[:1], *BOUNDS),
    "mixed": lambda x, s: torch.fake_quantize_per_tensor_affine(x, s[0], 7, 0, 15),
    "channels": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, *BOUNDS),
    "first axis": lambda x, s, z: torch.fake_quantize_per_channel_affine(x.T, s, z, 0, *BOUNDS),
    "float zero points": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.float(), 1, *BOUNDS),
    "operator": lambda x: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.5, 1, *BOUNDS)[0],
    "operator of channels": lambda x, s, z: torch.ops.aten.fake_quantize_per_channel_affine_cachemask(
        x, s, z, 1, *BOUNDS
    )[0],
}


def operands(function, dtype=torch.float32):
    count = function.__code__.co_argcount
    return [torch.cat([X, TIES]).to(dtype), SCALES, ZEROS][:count]


def to_jax(tensors):
    return [t2j(tensor.detach()) for tensor in tensors]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in OF_TENSORS]
    + [(name, dtype) for name in ("numbers", "channels") for dtype in (torch.float16, torch.bfloat16)],
    ids=str,
)
def test_values_and_gradients_are_pytorchs(name, dtype):
    function = OF_TENSORS[name]
    given = operands(function, dtype)
    arrays = to_jax(given)
    x = given[0].requires_grad_()
    wanted = function(*given)
    weights = torch.arange(wanted.numel(), dtype=dtype).reshape(wanted.shape) % 7
    (wanted * weights).sum().backward()

    def weighed(x, *rest):
        result = t2j(function)(x, *rest)
        return (result * t2j(weights)).sum(), result

    assert torch.equal(j2t(t2j(function)(*arrays)), wanted)
    (_, result), gradient = jax.jit(jax.value_and_grad(weighed, has_aux=True))(*arrays)
    assert torch.equal(j2t(result), wanted)
    assert torch.equal(j2t(gradient), x.grad)


def inner_gradient(x, scale, zero_point):
    x = x.detach().requires_grad_()
    result = torch.fake_quantize_per_channel_affine(x, scale, zero_point, 1, *BOUNDS)
    return torch.autograd.grad(result.square().sum(), x)


def test_gradients_taken_inside_and_mapped():
    compare_trees(jax.jit(t2j(inner_gradient))(*to_jax([X, SCALES, ZEROS])), inner_gradient(X, SCALES, ZEROS))

    def quantized(x, scale):
        return torch.fake_quantize_per_tensor_affine(x, scale, torch.tensor(0), *BOUNDS)

    wanted = torch.stack([quantized(x, scale) for x, scale in zip(X.T, SCALES, strict=True)])
    assert torch.equal(j2t(jax.vmap(t2j(quantized))(*to_jax([X.T, SCALES]))), wanted)
    direction = jnp.ones(X.shape)
    tangent = jax.jvp(t2j(OF_TENSORS["numbers"]), (t2j(X),), (direction,))[1]
    assert jnp.array_equal(tangent, jax.grad(lambda x: t2j(OF_TENSORS["numbers"])(x).sum())(t2j(X)))


def test_what_is_no_number_and_what_is_infinite():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    function = OF_TENSORS["numbers"]
    assert torch.equal(j2t(t2j(function)(t2j(x))), function(x))
    by_channel = t2j(lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, *BOUNDS))(t2j(x))
    levels = jnp.array([-128, 127, -128, 127])
    assert jnp.array_equal(by_channel, (levels - t2j(ZEROS)) * t2j(SCALES))  # PyTorch's integers overflow


def test_a_scale_that_is_no_constant_is_refused():
    def through(scale):
        return torch.fake_quantize_per_tensor_affine(torch.ones(3), scale, torch.tensor(0), *BOUNDS)

    def inside(scale):
        return through(scale.detach().clone().requires_grad_() * 2)

    scale = torch.tensor(0.1)
    for call in (lambda: inside(scale), lambda: t2j(inside)(t2j(scale))):
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'scale'"):
            call()
    for transformed in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        with pytest.raises(RuntimeError, match=r"argument 'scale'.*learn it by a torch.autograd.Function"):
            transformed(lambda s: t2j(through)(s).sum())(t2j(scale))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, 2), "quant_min"),
        (lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255), "zero_point"),
        (lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z[:1], 0, 255), "4 elements"),
        (lambda x, s, z: torch.fake_quantize_per_tensor_affine(x.int(), 0.1, 0, 0, 255), "not implemented for 'Int'"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z + 300, 1, 0, 255), "zero_point"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.long(), 1, 0, 255), "Zero-point must be"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.half(), z, 1, 0, 255), "Scale must be"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, -1, *BOUNDS), "axis"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, *BOUNDS), "not consistent with input"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s[:2], z, 1, *BOUNDS), "same dimensions"),
        (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s[None], z, 1, *BOUNDS), "1-D"),
    ],
)
def test_what_pytorch_refuses(call, error):
    given = (X, SCALES, ZEROS)
    for run in (call, t2j(call)):
        with pytest.raises((RuntimeError, NotImplementedError), match=error):
            run(*(given if run is call else to_jax(given)))


def observed(x, on, quantizes, low, high, scale, zero_point, by_row, is_symmetric, bounds):
    result = torch.fused_moving_avg_obs_fake_quant(
        x, on, quantizes, low, high, scale, zero_point, 0.1, *bounds, 0, by_row, is_symmetric
    )
    return result, low, high, scale, zero_point


@pytest.mark.parametrize("bounds", [(0, 255), (-128, 127), (-127, 127)])
@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_ranges_that_are_observed(by_row, is_symmetric, bounds):
    shape = (4,) if by_row else ()
    state = [torch.full(shape, float("inf")), torch.full(shape, -float("inf"))]
    state += [torch.ones(shape or 1), torch.zeros(shape or 1, dtype=torch.int32)]
    ours, options = to_jax(state), (by_row, is_symmetric, bounds)
    run = jax.jit(lambda *args: t2j(observed)(*args, *options))
    for on, quantizes in ((1, 1), (1, 0), (0, 1), (0, 0), (1, 1)):
        x = torch.randn(4, 30, generator=GENERATOR) + on
        switches = [torch.tensor([on]), torch.tensor([quantizes])]
        result, *state = observed(x, *switches, *[each.clone() for each in state], *options)
        compare_trees(run(*to_jax([x, *switches]), *ours), (result, *state))
        ours = to_jax(state)


def test_a_range_that_has_one_sign_or_no_width():
    for low, high in ((0.0, 0.0), (1.0, 2.0), (-2.0, -1.0), (-1e-3, 1e-2), (float("inf"), -float("inf"))):
        for bounds, is_symmetric in itertools.product(((0, 255), (-127, 127)), (False, True)):
            state = [torch.tensor(low), torch.tensor(high), torch.ones(1), torch.zeros(1, dtype=torch.int32)]
            given = [torch.tensor([low, high]), torch.tensor([0]), torch.tensor([1]), *state]
            arrays = to_jax(given)
            wanted = observed(*given, False, is_symmetric, bounds)
            for got, expected in zip(t2j(observed)(*arrays, False, is_symmetric, bounds), wanted, strict=True):
                assert torch.equal(j2t(got), expected), (low, high, bounds, is_symmetric)


def test_float64():
    x = torch.cat([X, TIES]).double() / 3
    with jax.enable_x64(True):
        for name in ("numbers", "tensors", "channels", "float zero points"):
            given = [x, SCALES, ZEROS][: OF_TENSORS[name].__code__.co_argcount]
            assert torch.equal(j2t(t2j(OF_TENSORS[name])(*to_jax(given))), OF_TENSORS[name](*given)), name
        for seed in range(5):
            x = torch.randn(30, generator=torch.Generator().manual_seed(seed))
            state = [x.min(), x.max(), torch.ones(1), torch.zeros(1, dtype=torch.int32)]
            given = [x, torch.tensor([0]), torch.tensor([1]), *state]
            arrays, options = to_jax(given), (False, True, (-127, 127))
            wanted = observed(*given, *options)
            for got, expected in zip(t2j(observed)(*arrays, *options), wanted, strict=True):
                assert torch.equal(j2t(got), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_pytorchs_own_quantized_dtypes_are_refused_with_what_to_use():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3)).eval()
    dynamic = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    x = torch.randn(2, 4)
    for function in (dynamic, lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()):
        for run in (t2j(function), jax.jit(t2j(function))):
            with pytest.raises(NoRuleError, match=r"own quantized dtypes(.|\n)*torchao.*torch2jax\.torch2jax\(model"):
                run(t2j(x))
    np.testing.assert_allclose(jax.jit(torch2jax(dynamic, t2j(x)))(t2j(x)), dynamic(x), rtol=1e-6)
    with pytest.raises(TypeError, match="dequantize"):
        t2j(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))
