"""Tensors that wrap others by PyTorch's protocol: into calls and out of them, as pytrees, in states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from torch2jax import Wrapped, j2t, t2j


def assert_close(actual, expected):
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().numpy()
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def _plain(x):
    return x.dequantize() if isinstance(x, Scaled) else x


class Scaled(torch.Tensor):
    """Small integers and what they are multiplied by."""

    @staticmethod
    def __new__(cls, codes, scale, note):
        return torch.Tensor._make_wrapper_subclass(  # pyright: ignore
            cls, codes.shape, dtype=scale.dtype, device=codes.device
        )

    def __init__(self, codes, scale, note):
        self.codes, self.scale, self.note = codes, scale, note

    @classmethod
    def of(cls, x):
        scale = x.detach().abs().amax(-1, keepdim=True) / 127
        return cls((x.detach() / scale).round().to(torch.int8), scale, {"bits": [8]})

    def dequantize(self):
        return self.codes.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], self.note

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].codes), func(args[0].scale), args[0].note)
        if func is torch.ops.aten.t.default:
            return _Transposed(args[0])
        if func is torch.ops.aten.copy_.default:
            args[0].codes.copy_(args[1].codes)
            args[0].scale.copy_(args[1].scale)
            return args[0]
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))


class Pair(torch.Tensor):
    """Two tensors of one shape, which may wrap others; each function is of both."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)  # pyright: ignore

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        parts = [func(*_part(args, name), **_part(kwargs, name)) for name in ("first", "second")]
        is_tensor = isinstance(parts[0], torch.Tensor)
        return cls(*parts) if is_tensor else parts[0]


def _part(tree, name):
    return tree_map(lambda x: getattr(x, name) if isinstance(x, Pair) else x, tree)


class _Transposed(Scaled):
    """What a product takes of a weight."""

    @staticmethod
    def __new__(cls, whole):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape[::-1], dtype=whole.dtype)  # pyright: ignore

    def __init__(self, whole):
        self.whole = whole

    def __tensor_flatten__(self):
        return ["whole"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["whole"])

    def dequantize(self):
        return self.whole.dequantize().t()


class Meters(torch.Tensor):
    """Has a say by ``__torch_function__`` alone: products are doubled."""

    @staticmethod
    def __new__(cls, inner, unit):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # pyright: ignore

    def __init__(self, inner, unit):
        self.inner, self.unit = inner, unit

    def __tensor_flatten__(self):
        return ["inner"], self.unit

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["inner"], context)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            return 2 * func(args[0], args[1].inner, *args[2:])
        if func in (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__):
            left, right = (x.inner if isinstance(x, Meters) else x for x in args)
            return Meters(left * right, args[0].unit)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].inner), args[0].unit)
        if func is torch.ops.aten.copy_.default:
            args[0].inner.copy_(args[1].inner)
            return args[0]
        raise NotImplementedError(func)


@dataclasses.dataclass
class Unit:
    name: str
    powers: list


def _model(kind, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    for i in (0, 2):
        model[i].weight = torch.nn.Parameter(kind(model[i].weight.detach()), requires_grad=False)
    return model


KINDS = {
    "dispatch": Scaled.of,
    "function": lambda x: Meters(x, Unit("m", [1])),
    "nested": lambda x: Meters(Scaled.of(x), Unit("m", [2])),
}
INPUT = torch.tensor([[0.5, -1.0, 2.0, 0.25], [1.0, 3.0, -0.5, 0.0]])
X = jnp.asarray(INPUT.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_a_module(kind):
    model = _model(KINDS[kind])
    expected, function, state = model(INPUT), t2j(model), t2j(model.state_dict())
    assert_close(function(X), expected)
    assert_close(function(X, state_dict=state), expected)
    assert_close(jax.jit(function)(X, state_dict=state), expected)
    assert isinstance(state["0.weight"], Wrapped)
    again = _model(KINDS[kind], seed=1)
    again.load_state_dict(j2t(state))
    assert type(again[0].weight) is type(model[0].weight)
    assert torch.equal(again(INPUT), expected)


def test_states_are_split_and_given_back():
    model = _model(Scaled.of)
    function = t2j(model)
    params, buffers = function.split()
    assert set(params) == {"0.bias", "2.bias"}
    assert set(buffers) == {"0.weight", "2.weight"}
    result, left = jax.jit(function, static_argnames="return_state_dict")(
        X, state_dict=params | buffers, return_state_dict=True
    )
    assert_close(result, model(INPUT))
    assert jax.tree.structure(left) == jax.tree.structure(params | buffers)
    zeros = jax.tree.map(jnp.zeros_like, left)
    function.load(zeros)
    assert type(model[0].weight) is Scaled
    assert not model(INPUT).any()


def test_arrays_by_name_are_a_state():
    model = _model(lambda x: Meters(Scaled.of(x), Unit("m", [2])))
    flat = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(t2j(model.state_dict()))[0]:
        flat[path[0].key + "".join(map(str, path[1:]))] = leaf
    assert "0.weight.inner.codes" in flat
    flat["0.weight.inner.scale"] *= 0
    flat["2.weight.inner.scale"] *= 0
    expected = 2 * model[2].bias.detach().expand(2, 2)
    assert_close(jax.jit(t2j(model))(X, state_dict=flat), expected)


def test_a_state_that_lacks_an_inner_array():
    with pytest.raises(RuntimeError, match=r"lacks '0\.weight\.scale', and has other arrays of '0\.weight'"):
        t2j(_model(Scaled.of))(X, state_dict={"0.weight.codes": jnp.zeros((3, 4), jnp.int8)})


def test_files_and_shardings(tmp_path):
    flax = pytest.importorskip("safetensors.flax")
    model = _model(Scaled.of)
    state, function = dict(t2j(model.state_dict())), t2j(model)
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    flax.save_file({path[0].key + "".join(map(str, path[1:])): leaf for path, leaf in leaves}, tmp_path / "weights")
    assert_close(function(X, state_dict=flax.load_file(tmp_path / "weights")), model(INPUT))
    everywhere = jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), jax.sharding.PartitionSpec())
    placed = jax.device_put(state, everywhere)
    assert placed["0.weight"].codes.sharding == everywhere
    assert_close(jax.jit(function)(X, state_dict=placed), model(INPUT))


def test_arguments_and_results():
    given = Pair(torch.arange(3.0), -torch.arange(3.0))

    def function(pair, x):
        return {"sum": pair + x, "of": torch.exp(pair).second, "softplus": torch.nn.functional.softplus(pair)}

    expected, y = function(given, torch.ones(3)), jnp.ones(3)
    for run in (t2j(function), jax.jit(t2j(function))):
        found = run(t2j(given), y)
        assert isinstance(found["sum"], Wrapped)
        assert found["sum"].kind is Pair
        assert_close(found["sum"].first, expected["sum"].first)
        assert_close(found["softplus"].second, expected["softplus"].second)
        assert_close(found["of"], expected["of"])
    assert_close(t2j(function)(given, y)["sum"].second, expected["sum"].second)
    back = j2t(found["sum"])
    assert type(back) is Pair
    assert torch.equal(back.first, expected["sum"].first)


def test_those_within_others():
    given = Pair(Scaled.of(INPUT), Scaled.of(2 * INPUT))
    arrays = t2j(given)
    assert len(jax.tree.leaves(arrays)) == 4
    assert arrays.first.codes.dtype == jnp.int8
    found = jax.jit(t2j(lambda pair: pair * 3))(arrays)
    assert_close(found.second, (given * 3).second)
    assert type(j2t(arrays).second) is Scaled


def test_jit_compiles_once():
    traced = []

    @jax.jit
    def function(x):
        traced.append(x)
        return t2j(lambda x: x * 2)(x)

    for note in ([8], [8], [4]):
        function(t2j(Scaled(torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 1), {"bits": note})))
    assert len(traced) == 2


def test_donated_and_mapped():
    given = t2j(Pair(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)))
    expected = 2 * given.first
    function = t2j(lambda pair: pair * 2)
    mapped = jax.vmap(function)(given)
    assert_close(mapped.first, expected)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), given, given)
    assert_close(jax.vmap(lambda x: t2j(lambda s: (s + 1).first.sum())(x))(stacked), jnp.full(2, 21.0))
    found = jax.jit(function, donate_argnums=0)(given)
    assert given.first.is_deleted()
    assert_close(found.first, expected)


def test_derivatives():
    def loss(pair, x):
        return ((pair * x).first ** 2).sum() + (pair * x).second.sum()

    given, x = Pair(torch.arange(3.0), torch.ones(3)), jnp.array([1.0, 2.0, 3.0])
    for run in (jax.grad(t2j(loss), (0, 1)), jax.jit(jax.grad(t2j(loss), (0, 1)))):
        slope, of_x = run(t2j(given), x)
        assert_close(slope.first, 2 * jnp.arange(3.0) * x**2)
        assert_close(slope.second, x)
        assert_close(of_x, 2 * jnp.arange(3.0) ** 2 * x + 1)
    model = _model(Scaled.of)
    state = t2j(model.state_dict())
    slope = jax.grad(lambda x: t2j(model)(x, state_dict=state).sum())(X)
    given = INPUT.clone().requires_grad_()
    model(given).sum().backward()
    assert_close(slope, given.grad)


def test_what_is_not_static():
    with pytest.raises(TypeError, match="gave a Tensor within its context"):
        t2j(Scaled(torch.ones(2, dtype=torch.int8), torch.ones(1), {"bits": torch.ones(3)}))
    with pytest.raises(TypeError, match="bytearray within its context, which cannot be hashed"):
        t2j(Scaled(torch.ones(2, dtype=torch.int8), torch.ones(1), bytearray(b"x")))


def test_arrays_of_other_shapes():
    given = t2j(Scaled(torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 1), None))
    rows = jax.vmap(t2j(lambda x: x.sum()), in_axes=(given.replaced({"codes": 0, "scale": 0}),))(given)
    np.testing.assert_array_equal(rows, [3, 3])


class Detaching(Pair):
    """Detaches what it computes with, as code below autograd may."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(func(args[0].first), func(args[0].second))
        args = tree_map(lambda x: x.first.detach() if isinstance(x, Pair) else x, args)
        return func(*args, **(kwargs or {}))


def test_detach_below_autograd():
    def through(x):
        return (Detaching(x, x) * 3).sum()

    def cut(x):
        return (Detaching(x, x).detach() * 3).sum() + x.sum()

    x = jnp.arange(3.0)
    for run in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(run(jax.grad(t2j(through)))(x), jnp.full(3, 3.0))
        np.testing.assert_array_equal(run(jax.grad(t2j(cut)))(x), jnp.ones(3))


class _Rounding(Scaled):
    """Rounds what is multiplied with it, below autograd."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.t.default:
            return args[0].turned(func)
        if func is torch.ops.aten.detach.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        given = [x.dequantize() if isinstance(x, Scaled) else (x * 8).round() / 8 for x in args]
        return func(*given, **(kwargs or {}))

    def turned(self, func):
        return type(self)(func(self.codes), func(self.scale), self.note)


class _Stepping(_Rounding):
    """Looks values up, which is no rounding by name."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return super().__torch_dispatch__(func, types, args, kwargs)
        levels = torch.linspace(-2, 2, 17)
        given = [x.dequantize() if isinstance(x, Scaled) else levels[torch.bucketize(x, levels[1:])] for x in args]
        return func(*given, **(kwargs or {}))


PRODUCTS = {
    "mm": lambda x, w: x @ w,
    "linear": lambda x, w: torch.nn.functional.linear(x[None].tanh(), w).sin(),
    "mul": lambda x, w: x * w,
    "twice": lambda x, w: ((x @ w).relu() @ w) * x,
    "atan2": lambda x, w: torch.atan2(x, w),
}


@pytest.mark.parametrize("kind", [_Rounding, _Stepping])
@pytest.mark.parametrize("f", PRODUCTS.values(), ids=PRODUCTS)
def test_what_a_dispatch_rounds_has_the_derivative_of_the_operator(f, kind):
    weight, x = kind.of(torch.rand(3, 3) + 0.1), torch.randn(3, 3, requires_grad=True)
    expected = f(x, weight)
    factor = torch.randn_like(expected)
    (slope,) = torch.autograd.grad((expected * factor).sum(), x)
    arrays, array = t2j(weight), t2j(x.detach())

    def inside(x, weight):
        x = x.clone().requires_grad_()
        return torch.autograd.grad((f(x, weight) * factor).sum(), x)[0]

    for run in (lambda g: g, jax.jit):
        assert_close(run(t2j(f))(array, arrays), expected)
        outside = jax.grad(lambda x, weight: (t2j(f)(x, weight) * t2j(factor)).sum())
        assert_close(run(outside)(array, arrays), slope)
        assert_close(run(t2j(inside))(array, arrays), slope)
        both = run(jax.vmap(outside, (0, None)))(jnp.stack([array, array]), arrays)
        assert_close(both[1], slope)


def test_second_derivatives_of_what_a_dispatch_rounds():
    weight, x = _Rounding.of(torch.rand(3, 3)), torch.randn(3, 3, requires_grad=True)

    def penalty(x, weight):
        return (torch.autograd.grad((x @ weight).square().sum(), x, create_graph=True)[0] ** 2).sum()

    (expected,) = torch.autograd.grad(penalty(x, weight), x)
    arrays, array = t2j(weight), t2j(x.detach())

    def inside(x, weight):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(penalty(x, weight), x)[0]

    outside = jax.grad(lambda x: (jax.grad(lambda x: (t2j(torch.mm)(x, arrays) ** 2).sum())(x) ** 2).sum())
    np.testing.assert_allclose(jax.jit(t2j(inside))(array, arrays), expected, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(outside)(array), expected, rtol=1e-4)


class _Trained(torch.nn.Module):
    """A layer whose weight wraps others and requires grad, beside one of low rank."""

    def __init__(self, of_weight=lambda weight: weight):
        super().__init__()
        self.layer, self.of_weight = torch.nn.Linear(4, 3), of_weight
        self.layer.weight = torch.nn.Parameter(Scaled.of(self.layer.weight.detach()))
        self.down = torch.nn.Linear(4, 2, bias=False)
        self.up = torch.nn.Linear(2, 3, bias=False)

    def gradients(self, x, is_twice=True):
        weight = self.of_weight(self.layer.weight)
        low = self.up(self.down(x))
        for factor in (1.0, 2.0)[: 1 + is_twice]:
            loss = (torch.nn.functional.linear(factor * x, weight, self.layer.bias) + low).square().mean()
            loss.backward(retain_graph=True)
        return [p.grad for p in self.parameters()]


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
def test_backward_gives_the_gradient_of_the_whole(shape):
    model = _Trained()
    x = torch.randn(shape)
    expected = [gradient.clone() for gradient in model.gradients(x)]
    model.zero_grad()
    for run in (t2j(model.gradients), jax.jit(t2j(model.gradients))):
        for found, wanted in zip(run(t2j(x)), expected, strict=True):
            assert_close(found, wanted)
    assert all(p.grad is None for p in model.parameters())


def test_backward_of_a_frozen_weight_that_wraps_others():
    model = _Trained()
    model.layer.weight.requires_grad_(False)
    expected = [None if p is None else p.clone() for p in model.gradients(INPUT)]
    model.zero_grad()
    found = jax.jit(t2j(model.gradients))(X)
    assert [x is None for x in found] == [x is None for x in expected] == [True, False, False, False]
    for array, wanted in zip(found[1:], expected[1:], strict=True):
        assert_close(array, wanted)


NOT_LINEAR = {
    "exp": torch.exp,
    "of_two": lambda w: w * w.sigmoid(),
    "view": lambda w: w.t().square().t(),
    "tuple": lambda w: torch.var_mean(w, 1, keepdim=True)[0] * w,
}


@pytest.mark.parametrize("of_weight", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_backward_of_what_is_not_linear_in_it(of_weight):
    model = _Trained(of_weight)
    expected = [gradient.clone() for gradient in model.gradients(INPUT)]
    model.zero_grad()
    for run in (t2j(model.gradients), jax.jit(t2j(model.gradients))):
        for found, wanted in zip(run(X), expected, strict=True):
            assert_close(found, wanted)


def test_backward_of_a_weight_from_outside():
    layer = _Trained().layer
    with pytest.raises(NotImplementedError, match="from outside of the call"):
        t2j(lambda x: layer(x).sum().backward() or x)(X)
    assert layer.weight.grad is None


def _spec(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def test_orbax_saves_and_shards_them(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    model = torch.nn.Linear(4, 8)
    model.weight = torch.nn.Parameter(Scaled.of(model.weight.detach()), requires_grad=False)
    state, function = dict(t2j(model.state_dict())), t2j(model)
    rows = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
    placed = jax.device_put(state, rows)
    assert placed["weight"].codes.sharding == rows
    assert len(placed["weight"].codes.addressable_shards) == 2
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", placed)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", jax.tree.map(_spec, placed))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for given in (placed, restored):
        assert_close(jax.jit(function)(X, state_dict=given), model(INPUT))
    back = j2t(jax.device_put(restored["weight"], jax.devices()[0]))
    assert type(back) is Scaled
    assert torch.equal(back.codes, model.weight.codes)
    found = jax.jit(lambda state, x: (function(x, state_dict=state), state), donate_argnums=0)(restored, X)
    assert restored["weight"].codes.is_deleted()
    assert_close(found[0], model(INPUT))
