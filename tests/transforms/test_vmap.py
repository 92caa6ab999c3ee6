"""`torch.vmap` within translated code, against PyTorch's own, and as JAX's of the translated function."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from tests.transforms.test_func import agree, operations
from torch2jax import TracedValueError, t2j

X = torch.linspace(-1, 2, 24).reshape(2, 3, 4)
Y = torch.linspace(0.5, 1.5, 3)
W = torch.linspace(-1, 1, 8).reshape(4, 2)


def tree(d):
    return {"sum": d["a"] + d["b"][0], "both": (d["a"].sum(), d["b"][1])}


def writes(x):
    def inner(x, row):
        x.mul_(2)
        x[0] = row
        buffer = x.new_zeros(3)
        buffer.copy_(x[:, 0])
        buffer[1:].add_(x[1:, 1])
        return buffer, x

    result, same = vmap(inner, in_dims=(0, None))(x, torch.ones(4))
    same.add_(1)
    return result, same, x


def views(x):
    turned = vmap(lambda x: x.t()[0])(x)
    turned.add_(1)
    rest = vmap(lambda x: x[1:], in_dims=1, out_dims=1)(x)
    rest.mul_(2)
    nested = vmap(vmap(lambda x: x.diagonal(), in_dims=0), in_dims=2)(x.unsqueeze(0).expand(3, 2, 3, 4)[:2].clone())
    ones = vmap(vmap(lambda x: x.exp_()), in_dims=2)(x)
    return turned, rest, nested, ones, x, ones.shape


def outer_buffer(x):
    buffer = torch.zeros(4)

    def inner(x):
        buffer.add_(1)  # the same for all examples
        return x + buffer

    return vmap(inner)(x), buffer


def loops(x):
    def inner(x):
        mask = torch.ones(3, dtype=torch.bool)
        for i in torch.arange(2):
            if mask.all():
                x = x + i
        return x, mask.nonzero().sum()

    return vmap(inner)(x)


def unbatched(x):
    kept = torch.arange(3.0)
    a, b, c = vmap(lambda x: (kept, x * 2, kept.sum()), out_dims=(None, 1, 0))(x)
    return a, b, c


CASES = {
    "one": (vmap(torch.sin), X),
    "in_dims and out_dims": (vmap(lambda x, y: x * y, in_dims=(1, None), out_dims=-1), X, X[:, 0]),
    "negative": (vmap(lambda x: x.sum(0), in_dims=-1, out_dims=-1), X),
    "trees": (vmap(tree, in_dims=({"a": 1, "b": [None, 2]},)), {"a": X, "b": [X[:, 0], X[:, :, :3]]}),
    "out_dims of a tree": (vmap(tree, in_dims=(0,), out_dims={"sum": 1, "both": (0, 2)}), {"a": X, "b": [X, X]}),
    "keywords": (lambda x, y: vmap(lambda x, *, k: x.sum() * k)(x, k=y), X, Y),
    "results that are the same for all": (unbatched, X),
    "nested": (vmap(vmap(lambda x, w: x @ w, in_dims=(0, None)), in_dims=(0, None)), X, W),
    "nested in other dimensions": (vmap(vmap(lambda x: x.cumsum(0), 0, 1), 1, 1), X),
    "product of matrices": (vmap(torch.mm), X, X.mT),
    "product with one matrix": (vmap(torch.matmul, in_dims=(0, None)), X, W),
    "chunks": (vmap(lambda x: x.exp(), in_dims=2, out_dims=1, chunk_size=3), X),
    "nothing": (vmap(lambda x: x * 2), torch.zeros(0, 3)),
    "integers": (vmap(lambda x: (x > 1).long().argmax(-1)), X),
    "complex": (vmap(lambda x: torch.complex(x, x * 2).conj() * 1j), X),
    "writes": (writes, X),
    "views": (views, X),
    "a buffer from outside": (outer_buffer, X),
    "known values": (loops, X),
    "indices": (vmap(lambda x, i: x[i], in_dims=(0, 0)), X, torch.tensor([2, 0])),
    "mask": (vmap(lambda x: torch.where(x > 0, x, x.new_zeros(())).masked_fill(x < -0.5, 7.0)), X),
    "grad": (vmap(grad(lambda x: (x**3).sum())), X),
    "a convolution": (
        lambda x: vmap(lambda x: nn.functional.conv1d(x[None], torch.ones(2, 3, 2))[0])(x),
        X,
    ),
    "normalization": (vmap(lambda x: nn.functional.layer_norm(x, (4,))), X),
    "softmax": (vmap(lambda x: x.softmax(0), in_dims=1, out_dims=1), X),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    agree(*CASES[name])


@pytest.mark.parametrize("in_dims", [0, 1, 2])
@pytest.mark.parametrize("out_dims", [0, 1])
def test_it_is_jax_s_and_so_is_its_graph(in_dims, out_dims):
    def inner(x):
        return x.sin() @ x.cos().t()

    x = jnp.asarray(X)
    ours, theirs = t2j(vmap(inner, in_dims, out_dims)), jax.vmap(t2j(inner), in_dims, out_dims)
    assert operations(ours, x) == operations(theirs, x)
    np.testing.assert_array_equal(ours(x), theirs(x))


def test_nothing_is_moved_where_the_dimension_stays():
    for dim in (0, 1, 2):
        assert operations(t2j(vmap(torch.sin, dim, dim)), jnp.asarray(X)) == ["sin"]


def test_transformed_from_outside():
    ours = t2j(vmap(lambda x, w: (x @ w).tanh().sum(), in_dims=(0, None)))
    theirs = vmap(lambda x, w: (x @ w).tanh().sum(), in_dims=(0, None))
    gradient = jax.grad(lambda x, w: (ours(x, w) ** 2).sum())(jnp.asarray(X), jnp.asarray(W))
    np.testing.assert_allclose(gradient, grad(lambda x: (theirs(x, W) ** 2).sum())(X), rtol=1e-5)
    more = jax.vmap(ours, in_axes=(1, None))(jnp.asarray(X), jnp.asarray(W))
    np.testing.assert_allclose(more, vmap(theirs, in_dims=(1, None))(X, W), rtol=1e-5)


def test_an_example_says_what_pytorch_says():
    seen = []

    def look(x):
        seen.append((tuple(x.shape), x.stride(), x.dtype, x.requires_grad, x.is_contiguous()))
        return x

    def run(x):
        vmap(look)(x.double())
        vmap(vmap(look))(x.long())
        for base in (x, x[1:], x[:, ::2].expand(2, 2, 4), x.permute(2, 0, 1), x[:, :, :0], x.mT.unsqueeze(1)):
            for dim in range(base.ndim):
                vmap(look, in_dims=dim)(base)
        vmap(vmap(look, in_dims=1), in_dims=1)(x)

    run(X)
    count = len(seen)
    t2j(run)(jnp.asarray(X))
    assert seen[:count] == seen[count:]


@pytest.mark.parametrize("part", [lambda x: x.reshape(-1), lambda x: x.contiguous(), lambda x: x.t(), lambda x: x[1:]])
@pytest.mark.parametrize("in_dim", [0, 1, 2])
def test_what_is_written_is_a_view_of_an_example_where_it_is_one_in_pytorch(part, in_dim):
    def run(x):
        def of_one(x):
            part(x).mul_(3)
            return x.sum(0)

        return vmap(of_one, in_dims=in_dim)(x), x

    agree(run, X)


def of_outer(of_one):
    """A function of a batch of `of_one`, which gets a tensor from outside that requires grad too."""

    def function(y):
        x = torch.arange(3.0).requires_grad_()
        return of_one(x, y)

    return function


def hooked_within(x, y):
    def of_one(v):
        product = x * y
        product.register_hook(lambda gradient: gradient * 10)
        return torch.autograd.grad([product.sin()], [x], [v])[0]

    return vmap(of_one)(torch.eye(3))


def same_for_all(x, y):
    results = vmap(lambda v: (((x * y) * v).sum(), (x * y).floor(), x * y), out_dims=(0, 0, None))(torch.eye(3))
    return torch.autograd.grad(sum(result.sum() for result in results), x)[0]


def same_for_all_within_jvp(x, y):
    value, tangent = torch.func.jvp(lambda v: (v * x).sum() * y, (y,), (torch.ones(3),))
    _, zero = torch.func.jvp(lambda v: (x * 2).floor(), (y,), (torch.ones(3),))
    return torch.autograd.grad((value + tangent).sum(), x)[0], zero


GRADIENTS = {
    "of what came before": lambda x, y: vmap(lambda v, z=x * y: torch.autograd.grad([z], [x], [v])[0])(torch.eye(3)),
    "of what is the same for all": lambda x, y: vmap(lambda v: torch.autograd.grad([x * y], [x], [v])[0])(torch.eye(3)),
    "with a hook": hooked_within,
    "of results that are the same for all": same_for_all,
    "of results that are constant": same_for_all_within_jvp,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_what_requires_grad_outside(name):
    agree(of_outer(GRADIENTS[name]), Y)


KEY = jax.random.key(3)


def draws(randomness):
    return t2j(vmap(lambda x: x[0, 0] * 0 + torch.rand(2), randomness=randomness))(jnp.asarray(X), rng=KEY)


def test_the_same_for_each_example():
    same = draws("same")
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(same[0], t2j(lambda: torch.rand(2))(rng=KEY))


def test_different_for_each_example():
    different = draws("different")
    assert len(np.unique(different)) == different.size
    np.testing.assert_array_equal(different, draws("different"))


def test_different_draws_are_those_of_a_batch():
    def of_a_batch():
        return torch.rand(2, 3), torch.randn(2, 3, 4), torch.bernoulli(X.sigmoid())

    def of_each(x):
        return vmap(
            lambda x: (torch.rand(3), torch.randn_like(x), torch.bernoulli(x.sigmoid())), randomness="different"
        )(x)

    ours = jax.jit(t2j(of_each))(jnp.asarray(X), rng=KEY)
    jax.tree.map(np.testing.assert_array_equal, ours, t2j(of_a_batch)(rng=KEY))


def test_what_is_drawn_from_a_known_key_differs_too():
    def drawn(x):
        torch.manual_seed(0)
        return vmap(lambda x: torch.rand(3), randomness="different")(x)

    assert len(np.unique(jax.jit(t2j(drawn))(jnp.ones(4)))) == 12


def test_different_in_every_level_that_wants_it():
    def drawn(outer, inner):
        one = vmap(lambda x: torch.rand(()), randomness=inner)
        return t2j(vmap(one, randomness=outer))(jnp.ones((2, 3)), rng=KEY)

    assert len(np.unique(drawn("different", "different"))) == 6
    assert len(np.unique(drawn("same", "same"))) == 1
    outer, inner = drawn("different", "same"), drawn("same", "different")
    assert [len(np.unique(outer)), len(np.unique(outer[0]))] == [2, 1]
    assert [len(np.unique(inner)), len(np.unique(inner[:, 0]))] == [3, 1]


def test_dropout_of_each_example():
    dropped = t2j(vmap(lambda x: nn.functional.dropout(x, 0.5), randomness="different"))(jnp.ones((4, 64)), rng=KEY)
    assert len(np.unique(dropped, axis=0)) == 4
    assert set(np.unique(dropped)) == {0.0, 2.0}


def test_chunks_with_the_same_randomness():
    same = t2j(vmap(lambda x: torch.rand(2), randomness="same", chunk_size=1))(jnp.ones((3, 1)), rng=KEY)
    assert len(np.unique(same)) == 2


def test_a_generator_gives_each_example_its_own():
    def drawn(x):
        generator = torch.Generator().manual_seed(0)
        return vmap(lambda x: torch.rand((), generator=generator), randomness="different")(x)

    assert len(np.unique(t2j(drawn)(jnp.ones(5)))) == 5


def test_modules_of_the_caller_are_seen_as_they_are():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    params = dict(net.named_parameters())

    def each(x):
        return vmap(lambda x: functional_call(net, params, (x,)).sum())(x)

    agree(each, X)


def test_what_autograd_batches_gradients_with():
    def run(x):
        some = torch._vmap_internals._vmap(lambda x: (x * 2, None), allow_none_pass_through=True)(x)
        return some[0], some[1] is None, torch._vmap_internals._vmap(torch.sin, 1, 1)(x)

    doubled, is_none, sine = t2j(run)(jnp.asarray(X))
    assert is_none
    np.testing.assert_array_equal(doubled, X * 2)
    np.testing.assert_allclose(sine, X.sin(), rtol=1e-6)


def test_the_older_vmap_that_was_imported_before_is_refused():
    older = torch._vmap_internals._vmap
    with pytest.raises(NotImplementedError, match=r"wanted torch\.vmap"):
        t2j(lambda x: older(torch.sin)(x))(jnp.ones(3))


def captured(x):
    buffer = torch.zeros(3, 4)
    return vmap(lambda x: buffer.copy_(x))(x)


def captured_part(x):
    buffer = torch.zeros(2)

    def inner(x):
        buffer[0] = x.sum()
        return x

    return vmap(inner)(x)


def captured_draw(x):
    buffer = torch.zeros(3)
    return vmap(lambda x: buffer.normal_(), randomness="different")(x)


def set_data(x):
    x.data = torch.ones(3, 4)
    return x


ERRORS = {
    "random": (vmap(lambda x: x + torch.rand(())), RuntimeError, "random operation while in randomness error mode"),
    "a captured tensor": (captured, RuntimeError, "inplace arithmetic"),
    "part of a captured tensor": (captured_part, RuntimeError, "inplace arithmetic"),
    "the same of different parameters": (
        vmap(lambda x: torch.bernoulli(x.sigmoid()), randomness="same"),
        RuntimeError,
        "same randomness with a batched tensor input",
    ),
    "different numbers in one tensor": (captured_draw, RuntimeError, "different inplace randomness on an unbatched"),
    "item": (vmap(lambda x: x.sum().item()), RuntimeError, r"item\(\) on a Tensor"),
    "control flow": (vmap(lambda x: x if x.sum() > 0 else -x), RuntimeError, "data-dependent control flow"),
    "nonzero": (vmap(torch.nonzero), RuntimeError, "dynamic shape. Attempted to vmap over aten::nonzero"),
    "where": (vmap(torch.where), RuntimeError, "dynamic shape. Attempted to vmap over aten::where"),
    "before its elements": (
        lambda x: vmap(lambda x: x.as_strided((3,), (1,), 0))(x[1]),
        RuntimeError,
        "inside of vmap",
    ),
    "its data": (vmap(lambda x: x.data), RuntimeError, "accessing `data` under vmap"),
    "data given": (vmap(set_data), RuntimeError, "mutating directly with `.data` under vmap"),
    "out_dims": (vmap(torch.sin, out_dims=3), IndexError, r"range of \[-3, 2\], but got 3"),
    "in_dims": (vmap(torch.sin, in_dims=3), ValueError, "in_dim=3 for some input"),
    "sizes": (lambda x: vmap(torch.add)(x, x[0]), ValueError, "to have the same size in the mapped dimension"),
    "no tensor": (lambda x: vmap(torch.add)(x, 1), ValueError, "vmap over non-Tensor arguments"),
    "no batch": (vmap(torch.sin, in_dims=None), ValueError, "Expected `in_dims` to be|expected `in_dims` to be"),
    "a result that is no tensor": (vmap(lambda x: 3), ValueError, "must only return Tensors"),
    "a batched result": (vmap(torch.sin, out_dims=None), ValueError, "BatchedTensor when out_dim is None"),
    "randomness": (lambda x: vmap(torch.sin, randomness="other")(x), RuntimeError, "Only allowed values for"),
    "chunk_size": (lambda x: vmap(torch.sin, chunk_size=0)(x), ValueError, "greater than 0"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name):
    function, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        function(X.clone())
    with pytest.raises(kind, match=message):
        t2j(function)(jnp.asarray(X), rng=KEY)


def test_a_view_of_all_of_an_example_is_a_view():
    def run(x):
        squeezed = vmap(torch.squeeze)(x)
        return squeezed._base is x, squeezed.data_ptr() == x.data_ptr(), vmap(lambda x: x)(x)._base is None

    found = []
    t2j(lambda: found.append(run(torch.ones(3))))()
    assert found == [run(torch.ones(3))]


def test_what_lies_between_the_elements_of_an_example_is_not_to_be_had():
    for between in (vmap(lambda x: x.as_strided((8,), (1,)), 1), grad(lambda x: x.as_strided((5,), (1,)).sum())):
        with pytest.raises(RuntimeError, match="not supported inside of vmap and of derivatives"):
            t2j(lambda x: between(x[..., ::2]))(jnp.asarray(X))  # noqa: B023


def test_a_value_of_each_example_is_a_traced_value():
    with pytest.raises(TracedValueError):
        t2j(vmap(lambda x: x.sum().tolist()))(jnp.asarray(X))


def test_a_parameter_that_is_first_met_within_a_batch_is_the_same_outside():
    weight = torch.nn.Parameter(torch.tensor(2.0))

    def function(x):
        (vmap(lambda x: x * weight)(x).sum() + (x * weight).sum()).backward()
        return weight.grad

    for run in (t2j(function), jax.jit(t2j(function))):
        assert run(jnp.ones(3)) == 6


def test_one_answer_for_all_examples():
    def checked(x):
        def of_one(row):
            every, some = torch.ops.aten._is_all_true(row > 0), torch.ops.aten._is_any_true(row > 2)
            return row + (1 if every else 2) + (3 if some else 4)

        return torch.vmap(torch.vmap(of_one))(x)

    for x in (torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0], [1.0, -1.0, 1.0]])):
        np.testing.assert_array_equal(t2j(checked)(t2j(x)), checked(x).numpy())


VIEWS_OF_EXAMPLES = {
    "written": lambda x: x.neg_(),
    "select": lambda x: x[1],
    "slice": lambda x: x[..., 1::2],
    "transpose": lambda x: x.transpose(0, 1),
    "diagonal": lambda x: x.diagonal(),
    "flatten": lambda x: x.reshape(-1),  # a copy, where no view of all says it
    "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (x.stride(0), x.stride(1)), x.storage_offset() + x.stride(1)),
    "resized as_strided": lambda x: x[1:].as_strided((2, x.shape[1]), (0, x.stride(1))),
}


@pytest.mark.parametrize("view", VIEWS_OF_EXAMPLES.values(), ids=VIEWS_OF_EXAMPLES.keys())
def test_views_of_examples_lie_where_they_are(view):
    def run():
        found = []
        for in_dim, out_dim in itertools.product((0, 1, 2), (0, 1)):
            x = torch.arange(60.0).reshape(3, 4, 5)
            for base in (x, x[:, ::2], x.permute(2, 0, 1)):
                result = torch.vmap(view, in_dim, out_dim)(base)
                before = result.numpy().copy()
                is_view = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
                x.mul_(2)
                geometry = (is_view, result.stride(), result.storage_offset()) if is_view else is_view
                found.append((geometry, before, result.numpy().copy(), result.clone().numpy()))
        return found

    results = []
    t2j(lambda: results.extend(run()))()
    for (where, *values), (wanted, *expected) in zip(results, run(), strict=True):
        assert where == wanted
        for value, other in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(("in_dim", "out_dim"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_examples_viewed_as_complex_numbers(in_dim, out_dim):
    def run():
        x = torch.arange(48.0).reshape(3, 4, 4)
        for base in (x, x[:, ::2], x[1:]):
            result = torch.vmap(torch.view_as_complex, in_dim, out_dim)(base.unflatten(-1, (-1, 2)))
            result.mul_(1j)
            yield x.clone().numpy(), result.clone().numpy(), result.stride(), result.storage_offset()

    found = []
    t2j(lambda: found.extend(run()))()
    for got, wanted in zip(found, run(), strict=True):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.unsqueeze_(2).squeeze_(2),
        lambda x: x.swapaxes_(0, 1).mul_(2),
        lambda x: x.t_().sin(),
    ],
)
@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (2, 1)])
def test_examples_that_change_their_shape(change, dims):
    def changed(x):
        return torch.vmap(change, *dims)(x.clone())

    x = torch.arange(24.0).view(2, 3, 4)
    want = changed(x)
    for translated in (t2j(changed), jax.jit(t2j(changed))):
        np.testing.assert_allclose(translated(t2j(x)), want.numpy(), 1e-6)


def test_a_write_after_a_change_of_shape_is_the_arguments():
    def written(x):
        torch.vmap(lambda row: row.unsqueeze_(0).mul_(2))(x)
        return x

    np.testing.assert_allclose(t2j(written)(t2j(torch.ones(2, 3))), 2 * np.ones((2, 3)))
