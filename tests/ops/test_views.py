"""Views: their values, geometry and gradients, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.refusals import error_of
from torch2jax import TracedValueError, t2j


def geometry(tensor: torch.Tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor._is_view()


VIEWS = {
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[..., 1],
    "mixed": lambda x: x[0, None, 1:, ..., -1],
    "permute": lambda x: x.permute(2, 0, 1),
    "reshape as view": lambda x: x.permute(2, 0, 1).reshape(4, 6),
    "reshape as copy": lambda x: x.permute(2, 0, 1).reshape(-1),
    "reshape of slice": lambda x: x[:, 1:].reshape(2, 8),
    "flatten": lambda x: x.flatten(1),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 5),
    "as_strided beyond a view": lambda x: x[1, 1].as_strided((2, 3), (12, 4), 1),
    "view(dtype)": lambda x: x.view(torch.int32),
    "view(smaller)": lambda x: x.view(torch.uint8)[..., 4:].view(torch.int16),
    "view(larger)": lambda x: x.view(torch.complex64),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "mT": lambda x: x.mT,
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "chunk": lambda x: x.chunk(2, -1)[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "imag": lambda x: x.view(torch.complex64).imag,
    "imag of conj": lambda x: x.view(torch.complex64).conj().imag,
    "real": lambda x: x.real,
    "elementwise of permuted": lambda x: x.permute(2, 0, 1) + 1,
    "elementwise of two orders": lambda x: x.mT + x.transpose(0, 1).contiguous().transpose(0, 1).mT,
    "clone": lambda x: x.mT.clone(),
    "clone of slice": lambda x: x[:, ::2].clone(),
    "contiguous clone": lambda x: x.mT.clone(memory_format=torch.contiguous_format),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "to channels last": lambda x: x[None].to(memory_format=torch.channels_last).neg(),
    "empty_like": lambda x: torch.zeros_like(x.mT),
    "empty_like channels last": lambda x: torch.zeros_like(x[None], memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", VIEWS)
def test_geometry_is_pytorchs(name):
    view = VIEWS[name]
    x = torch.arange(24.0).reshape(2, 3, 4).clone()
    expected, notes = view(x), []

    def noted(x):
        result = view(x)
        notes.append((geometry(result), result.data_ptr() == x.data_ptr()))
        return result

    for call in (t2j(noted), jax.jit(t2j(noted))):
        np.testing.assert_array_equal(call(t2j(x)), expected.resolve_conj().resolve_neg())
    assert notes == [(geometry(expected), expected.data_ptr() == x.data_ptr())] * 2


def write_nested(x):
    x.view(torch.complex64).conj().imag[0].add_(1)
    return x


def write_diagonal(x):
    x.diagonal(0, 1, 2).mul_(2)
    return x


def write_windows(x):
    x.unfold(2, 2, 2)[..., 0].fill_(7)
    return x


def write_expanded_row(x):
    x.expand(3, 2, 3, 4)[1, 0].add_(1)
    return x


def write_conjugate_of_expanded(x):
    numbers = x.view(torch.complex64)
    numbers[:, :1].expand(2, 5, 2).conj()[:, 3].mul_(1j)
    return x


def write_every_second(x):
    x[..., ::2] = x[..., 1::2]
    return x


def write_bytes(x):
    x.view(torch.uint8)[..., 3].bitwise_or_(128)
    return x


def write_strided(x):
    x[1, 1].as_strided((2, 3), (12, 4), 1).neg_()
    return x


def write_strided_in_memory_order(x):
    y = x.permute(2, 0, 1).clone()
    y.as_strided((5,), (2,), 3).fill_(-1)
    return y


@pytest.mark.parametrize(
    "function",
    [
        write_nested,
        write_diagonal,
        write_windows,
        write_expanded_row,
        write_conjugate_of_expanded,
        write_every_second,
        write_bytes,
        write_strided,
        write_strided_in_memory_order,
    ],
)
def test_writes_reach_the_base(function):
    x = torch.arange(24.0).reshape(2, 3, 4)
    array = t2j(x.clone())
    expected = function(x.clone())
    np.testing.assert_array_equal(t2j(function)(array), expected)
    np.testing.assert_array_equal(jax.jit(t2j(function))(array), expected)
    np.testing.assert_array_equal(jax.vmap(t2j(function))(jnp.stack([array, array]))[1], expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(5, 5),
        lambda x: x.mT.view(-1),
        lambda x: x[::-1],
        lambda x: x[5],
        lambda x: x.select(0, 9),
        lambda x: x.permute(0, 0, 1),
        lambda x: x.permute(0, 1),
        lambda x: x.transpose(0, 7),
        lambda x: x.expand(2, 3, 5),
        lambda x: x.unfold(0, 9, 1),
        lambda x: x.as_strided((30,), (1,)),
        lambda x: x.as_strided((2,), (-1,)),
        lambda x: x.as_strided((2, 2), (1,)),
        lambda x: x.split(-1),
        lambda x: x.split([1, 2, 3], 1),
        lambda x: x[0, 0, 0].unbind(),
        lambda x: x.imag,
        lambda x: x.mT.view(torch.complex64),
        lambda x: torch.view_as_complex(x),
        lambda x: torch.view_as_real(x),
        lambda x: torch.view_as_real(x.view(torch.complex64).conj()),
        lambda x: x.view(torch.complex64).conj().view(torch.float32),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: x.narrow(0, 1, 5),
        lambda x: x.unflatten(1, (2, 2)),
    ],
)
def test_bad_views_raise_what_pytorch_raises(view):
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert isinstance(error_of(t2j(view), t2j(x)), type(error_of(view, x)))


def test_base_of_a_view():
    def function(x):
        row = x[0]
        assert row._base is x
        assert row[1:]._base is x
        assert not x._is_view()
        assert x._base is None
        assert not x.detach()._is_view()
        assert x.real is x
        return x

    function(torch.ones(2, 3))
    t2j(function)(jnp.ones((2, 3)))


def test_as_strided_of_a_view_at_a_traced_index_is_refused():
    def f(x, i):
        return x[i].as_strided((2,), (1,))

    with pytest.raises(TracedValueError, match="storage_offset"):
        jax.jit(t2j(f))(jnp.arange(12.0).reshape(3, 4), 1)


@pytest.mark.parametrize(
    "parts",
    [lambda x: x.chunk(2, -1), lambda x: x.split([1, 3], 1), lambda x: x.unbind(1)],
)
def test_all_parts_are_read_by_one_split(parts):
    def function(x):
        return sum(part.square().sum() for part in parts(x))

    x = jnp.arange(12.0).reshape(3, 4)
    forward = [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(x).eqns]
    backward = [equation.primitive.name for equation in jax.make_jaxpr(jax.grad(t2j(function)))(x).eqns]
    assert forward.count("split") == 1
    assert "slice" not in forward
    assert backward.count("concatenate") == 1
    assert "pad" not in backward


def test_parts_read_after_a_write_are_slices():
    def function(x):
        for row in x:
            row.add_(1)
        return x

    names = [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(jnp.ones((8, 2))).eqns]
    assert names.count("split") == 1
    assert names.count("slice") == 7


def test_parts_of_a_tensor_without_elements():
    def function(x):
        return [*x[:0].chunk(3), *x[:0].split([0, 0]), *x[1:1].view(0, 3).unbind(1)]

    expected = function(torch.ones(3))
    for result, want in zip(t2j(function)(jnp.ones(3)), expected, strict=True):
        assert result.shape == want.shape


@pytest.mark.parametrize("copy", [lambda x: x.clone(), lambda x: x.mT.contiguous()])
def test_copies_without_gradients_have_no_derivative(copy):
    def function(x):
        with torch.no_grad():
            copied = copy(x)
        return (x * copied).sum()

    x = jnp.arange(4.0).reshape(2, 2)
    np.testing.assert_array_equal(jax.grad(t2j(function))(x), copy(torch.arange(4.0).view(2, 2)))


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("options", [{}, {"indexing": "ij"}, {"indexing": "xy"}])
def test_meshgrids_are_views(options):
    def run(x, y):
        first, second = torch.meshgrid(x, y, **options)
        y.mul_(2)
        return first, second, torch.meshgrid([x], **options)[0]

    x, y = torch.arange(3.0), torch.arange(4.0)
    found = jax.jit(t2j(run))(t2j(x), t2j(y))
    for got, want in zip(found, run(x, y.clone()), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [0, 1])
def test_windows_of_a_number(size):
    array = t2j(lambda x: x.unfold(0, size, 1) + 0)(jnp.float32(0.5))
    np.testing.assert_array_equal(array, torch.tensor(0.5).unfold(0, size, 1))
