"""Writes in place: what they write, what they refuse, and tensors that change their shape or memory."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j


def both(function, *tensors, jit: bool = True):
    """What PyTorch gives, and the translation eagerly and jitted."""
    arrays = [t2j(tensor.clone()) for tensor in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = function(*(tensor.clone() for tensor in tensors))
        calls = [t2j(function), jax.jit(t2j(function))] if jit else [t2j(function)]
        return expected, [call(*arrays) for call in calls]


X = torch.arange(12.0).reshape(3, 4)
N = torch.arange(6).reshape(2, 3)
Z = torch.arange(4) * (1 + 2j)

IN_PLACE = {
    "add_": lambda x: x.add_(2, alpha=3),
    "+=": lambda x: x.__iadd__(x.sum(0)),
    "mul_ by itself": lambda x: x.mul_(x),
    "div_": lambda x: x.div_(x + 1),
    "comparison": lambda x: x.gt_(3),
    "copy_ broadcasts": lambda x: x.copy_(x[0].clone()),
    "copy_ casts": lambda x: x.copy_(torch.arange(4)),
    "copy_ to itself": lambda x: x.copy_(x),
    "copy_ of a view": lambda x: x[1].copy_(x[0]),
    "fill_": lambda x: x.fill_(1.5),
    "fill_ with a tensor": lambda x: x.fill_(x[1, 1]),
    "fill_ expanded": lambda x: x[:, :1].expand(3, 4).fill_(7),
    "zero_ expanded": lambda x: x[:1].expand(3, 4).zero_(),
    "zero_": lambda x: x[0].zero_(),
    "mask by itself": lambda x: (mask := x > 5).__setitem__(mask, False) or x.mul_(mask),
    "index_put_ expanded": lambda x: x[:1].expand(3, 4).index_put_((torch.tensor([0, 2]),), X[1:]),
    "index_put_ expanded twice": lambda x: x[0, :1].expand(3, 4).__setitem__([0, 1], 5.0),
    "index_fill_ expanded": lambda x: x[:, :1].expand(3, 4).index_fill_(1, torch.tensor([2]), float("nan")),
    "masked_fill_ expanded": lambda x: x[:1].expand(3, 4).masked_fill_(X == 5, 9.0),
    "mask of what is expanded": lambda x: x[:1].expand(3, 4).__setitem__(X < 0, 9.0),
    "masked_fill_": lambda x: x.masked_fill_(x > 5, -1),
    "clamp_": lambda x: x.clamp_(2, 8),
    "relu(inplace=True)": lambda x: torch.nn.functional.relu(x.sub_(5), inplace=True),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 2]), torch.tensor([1, 1])), torch.tensor(9.0)),
    "mask": lambda x: x.__setitem__(x > 5, 0.0),
    "integers": lambda x: x.__setitem__(([0, 2],), 5.0),
    "transposed": lambda x: x.t().add_(1),
    "addcmul_": lambda x: x.addcmul_(x, x, value=0.5),
    "resize_ smaller": lambda x: x.resize_(2, 2),
    "resize_ same": lambda x: x.resize_((3, 4)),
    "resize_ and fill": lambda x: x.resize_(4, 5).fill_(1),
    "resize_ channels last": lambda x: x.resize_((1, 2, 2, 2), memory_format=torch.channels_last),
    "resize_as_": lambda x: x.resize_as_(torch.empty(3, 2)),
    "set_": lambda x: x.set_(torch.ones(2)),
    "set_ to nothing": lambda x: x.set_(),
    "data": lambda x: setattr(x, "data", torch.ones(5, dtype=torch.int32)),
    "t_": lambda x: x.t_(),
    "squeeze_": lambda x: x.resize_(1, 4, 1).squeeze_(),
    "unsqueeze_": lambda x: x.unsqueeze_(-1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "swapdims_": lambda x: x.swapdims_(0, 1),
    "transpose_": lambda x: x.transpose_(-1, 0),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 3), 2),
    "detach_": lambda x: x.detach_(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name):
    def function(x):
        IN_PLACE[name](x)
        shapes.append((tuple(x.shape), x.stride(), x.storage_offset(), x.dtype))
        return x

    shapes: list = []
    expected, results = both(function, X)
    assert shapes == shapes[:1] * 3
    for got in results:
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda n: n.div_(2), [N]),
        (lambda n: n.add_(1.5), [N]),
        (lambda n, x: n.add_(x[:2, :3]), [N, X]),
        (lambda x: x.mul_(1j), [X]),
        (lambda x, z: x.add_(z), [X, Z]),
        (lambda x: x[0].add_(x), [X]),
        (lambda x: x.copy_(torch.ones(5)), [X]),
        (lambda x: x.add_(torch.ones(5)), [X]),
        (lambda x: x[0].expand(3, 4).add_(1), [X]),
        (lambda x: x[0].expand(3, 4).copy_(x), [X]),
        (lambda x: x[0].expand(3, 4).fill_(x[0, 0]), [X]),
        (lambda x: x[0].expand(3, 4).masked_scatter_(x > 3, x), [X]),
        (lambda x: x[0].expand(3, 4).index_copy_(0, torch.tensor([0]), x[:1]), [X]),
        (lambda x: x.index_put_((torch.tensor([0]),), x[:1]), [X]),
        (lambda x: x.index_add_(0, torch.arange(3), x), [X]),
        (lambda n: n[0].index_copy_(0, n[0], n[0].clone()), [N]),
        (lambda n: n[0].index_fill_(0, n[0], 7), [N]),
        (lambda n: n[0].put_(n[0], n[0].clone()), [N]),
        (lambda x: x.scatter_(0, torch.zeros(3, 4, dtype=torch.int64), x), [X]),
        (lambda x: x.__setitem__(torch.arange(3), x), [X]),
        (lambda m: m[1:].masked_fill_(m[:-1], False), [torch.tensor([True, False, True])]),
        (lambda x: x.view(-1)[1:].add_(x.view(-1)[:-1]), [X]),
        (lambda x: x.t()[:3, :3].contiguous().t_().add_(torch.ones(4)), [X]),
        (lambda x: x.resize_(-1, 2), [X]),
        (lambda x: x.set_(torch.ones(2, dtype=torch.int32)), [X]),
        (lambda x: x.fill_(torch.ones(2)), [X]),
        (lambda x: x[0].detach_(), [X]),
        (lambda x: x.squeeze_(5), [X]),
        (lambda x: x.t_() + x.unsqueeze_(0).t_(), [X]),
        (lambda x: torch.add(x, 1, out=torch.empty(3, 4, dtype=torch.int32)), [X]),
        (lambda x: torch.add(x, x[0].clone(), out=x[0]), [X]),
        (lambda x: torch.sin(x, out=x.view(-1)[1:]), [X]),
    ],
)
def test_refused_as_in_pytorch(function, tensors):
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        both(function, *tensors)
    with pytest.raises(wanted.type):
        t2j(function)(*(t2j(tensor) for tensor in tensors))


def test_what_accumulates_is_not_written_to_what_is_expanded():
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        t2j(lambda x: x.expand(3).index_put_((torch.tensor([0, 1]),), torch.ones(2), accumulate=True))(jnp.ones(1))


def test_writes_that_overlap_themselves_are_refused():
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        t2j(lambda x: x.unfold(0, 2, 1).add_(1))(jnp.ones(4))


OUT = {
    "same shape": lambda x, out: torch.mul(x, 2, out=out.resize_(3, 4)),
    "empty": lambda x, out: torch.mul(x, 2, out=torch.empty(0)),
    "another dtype": lambda x, out: torch.mul(x, 2, out=torch.empty(3, 4, dtype=torch.float64)),
    "a view": lambda x, out: torch.mul(x[0], 2, out=x[1]),
    "strided": lambda x, out: torch.mul(x[0], 2, out=x[0].expand(1, 4)[0]),
    "itself": lambda x, out: torch.mul(x, 2, out=x),
    "permuted": lambda x, out: torch.mul(x.t(), 2, out=torch.empty(0)),
    "two": lambda x, out: torch.max(x, 1, out=(torch.empty(0), torch.empty(0, dtype=torch.int64))),
}


@pytest.mark.parametrize("name", OUT)
def test_out(name):
    def function(x):
        out = torch.empty(0)
        result = OUT[name](x, out)
        return x, result, [part.stride() for part in ((result,) if isinstance(result, torch.Tensor) else result)]

    expected, results = both(function, X, jit=False)
    for got in results:
        for a, b in zip(jax.tree.leaves(tuple(got[1])), expected[1] if name == "two" else [*expected[1]], strict=False):
            np.testing.assert_allclose(a, b)
        np.testing.assert_allclose(got[0], expected[0])
        assert got[2] == expected[2]


def test_out_of_another_shape_is_resized_with_pytorchs_warning():
    def function(x):
        out = torch.ones(2)
        alias = out.view(2)
        returned = torch.add(x, 1, out=out)
        assert returned is out
        return out, alias

    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        out, alias = t2j(function)(t2j(X))
    np.testing.assert_array_equal(out, X + 1)
    np.testing.assert_array_equal(alias, [1, 2])


def test_an_in_place_operator_returns_its_tensor():
    def function(x):
        assert x.add_(1) is x
        assert torch.relu_(x) is x
        assert x.t_() is x
        assert x.resize_(2, 2) is x
        assert x.copy_(torch.ones(2, 2)) is x
        before = x
        x += 1
        assert x is before
        return x

    np.testing.assert_array_equal(t2j(function)(t2j(X)), np.full((2, 2), 2))


def test_data_keeps_the_derivative():
    def function(x):
        y = x * 2
        y.data = torch.full_like(y, 5)
        return y

    value, slope = jax.value_and_grad(lambda x: t2j(function)(x).sum())(jnp.ones(3))
    assert value == 15
    np.testing.assert_array_equal(slope, [2, 2, 2])


LEAVES_REFUSE = {
    "t_": lambda w: w.t_(),
    "squeeze_ of a view": lambda w: w[:1].squeeze_(),
    "unsqueeze_": lambda w: w.unsqueeze_(0),
    "as_strided_": lambda w: w.as_strided_((2,), (1,)),
    "set_": lambda w: w.set_(torch.ones(2)),
    "copy_ of itself": lambda w: w.copy_(w),
    "resize_": lambda w: w.resize_(1, 2),
    "resize_ of a result": lambda w: (w * 2).resize_(1, 2),
    "data of integers": lambda w: setattr(w, "data", torch.arange(3)),
}


@pytest.mark.parametrize("write", LEAVES_REFUSE.values(), ids=LEAVES_REFUSE)
def test_what_a_tensor_that_requires_grad_refuses(write):
    def function(x):
        with pytest.raises(RuntimeError, match=r"requires? grad"):
            write(x.clone().requires_grad_())
        return x

    function(X)
    t2j(function)(t2j(X))


def test_tensors_are_not_swapped():
    with pytest.raises(RuntimeError, match=r"swap_tensors got a tensor with values.*wanted `tensor\.data = other`"):
        t2j(lambda x: torch.utils.swap_tensors(x, torch.ones(3)))(X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("strides", [(1,), (0,)], ids=str)
def test_what_memory_grows_by_shows_where_algorithms_are_deterministic(dtype, strides):
    def function():
        x = torch.empty_strided((3,), strides, dtype=dtype).fill_(0)
        torch.use_deterministic_algorithms(True)
        x.resize_(2, 3)
        torch.use_deterministic_algorithms(False)
        return x

    np.testing.assert_array_equal(t2j(function)(), function())


@pytest.mark.parametrize("jit", [False, True])
def test_out_from_outside_is_returned_itself(jit):
    """So that code which keeps what was returned, as `spectral_norm` does, keeps what it has had."""
    outside = torch.zeros(3, 4)

    def function(x):
        assert torch.add(x, 1, out=outside) is outside
        assert torch.nn.functional.normalize(x, out=outside) is outside
        return outside * 1

    with pytest.warns(UserWarning, match="writes in place to a tensor from outside"):
        got = (jax.jit if jit else lambda f: f)(t2j(function))(t2j(X))
    np.testing.assert_allclose(got, torch.nn.functional.normalize(X), rtol=1e-6)
    assert not outside.any()


@pytest.mark.filterwarnings("ignore:translated code writes in place")
def test_a_module_closed_over_is_left_as_it_was():
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 4))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for translated in (t2j(lambda x: layer(x)), jax.jit(t2j(lambda x: layer(x)))):
        translated(jnp.ones((2, 3)))
    assert all(type(buffer) is torch.Tensor for buffer in layer.buffers())
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    layer(torch.ones(2, 3))
