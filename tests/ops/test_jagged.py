"""PyTorch's jagged tensors: what it computes with them, from a list and from offsets that are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import Wrapped, j2t, t2j

torch.manual_seed(0)
PARTS = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(2, 4)]
LINEAR, NORM = torch.nn.Linear(4, 6), torch.nn.LayerNorm(4)


def _jagged(parts=PARTS):
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def _attention(x, **options):
    heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, **options).transpose(1, 2).flatten(-2)


CASES = {
    "elementwise": lambda x: torch.where(x > 0, x * 2 + x.sin(), F.gelu(x)),
    "a number where": lambda x: torch.where(x > 0, x, 0.5) + torch.where(x > 1, 2, x),
    "with a dense one": lambda x: x * torch.arange(4.0),
    "linear": lambda x: LINEAR(x),
    "layer norm": lambda x: NORM(x),
    "product": lambda x: x @ torch.ones(4, 2),
    "shapes": lambda x: torch.cat([x, x.transpose(1, 2).transpose(1, 2)], -1).unflatten(-1, (2, 4)),
    "chunks": lambda x: x.chunk(2, -1),
    "sum": lambda x: x.sum(),
    "sums of rows": lambda x: x.sum(1),
    "means of rows": lambda x: x.mean(1),
    "largest of rows": lambda x: x.amax(1),
    "softmax of rows": lambda x: x.softmax(1),
    "softmax": lambda x: x.softmax(-1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, -1.0),
    "padded further": lambda x: x.to_padded_tensor(0.0, output_size=(3, 7, 4)),
    "attention": _attention,
    "values and offsets": lambda x: (x.values() * 2, x.offsets(), x.size(0), x.is_nested),
}


def _flat(tree):
    leaves = tree if isinstance(tree, (list, tuple)) else [tree]
    for leaf in leaves:
        if isinstance(leaf, Wrapped):
            yield from (leaf._values, leaf._offsets)
        elif isinstance(leaf, torch.Tensor) and leaf.is_nested:
            yield from (leaf.values().detach().numpy(), leaf.offsets().numpy())
        else:
            yield leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else leaf


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # what PyTorch itself uses for attention
@pytest.mark.parametrize("name", CASES)
def test_values(name):
    expected = list(_flat(CASES[name](_jagged())))
    for run in (t2j(CASES[name]), jax.jit(t2j(CASES[name]))):
        for actual, each in zip(_flat(run(t2j(_jagged()))), expected, strict=True):
            assert np.shape(actual) == np.shape(each)
            np.testing.assert_allclose(actual, each, rtol=1e-5, atol=1e-6)


def test_causal_attention():
    expected = torch.cat([_attention(part[None], is_causal=True)[0] for part in PARTS])
    found = jax.jit(t2j(lambda x: _attention(x, is_causal=True).values()))(t2j(_jagged()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_made_within():
    def function(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=5)
        return (_attention(x).softmax(1).sum(1) ** 2).sum() + x.to_padded_tensor(0.0).exp().sum()

    values, offsets = torch.cat(PARTS).requires_grad_(), torch.tensor([0, 3, 8, 10])
    padded = torch.nn.utils.rnn.pad_sequence(values.split([3, 5, 2]), batch_first=True)
    rows = [_attention(part[None])[0].softmax(0).sum(0) for part in values.split([3, 5, 2])]
    expected = (torch.stack(rows) ** 2).sum() + padded.exp().sum()
    expected.backward()
    given = jnp.asarray(values.detach().numpy()), jnp.asarray(offsets.numpy())
    for run in (jax.value_and_grad(t2j(function)), jax.jit(jax.value_and_grad(t2j(function)))):
        found, slope = run(*given)
        np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
        np.testing.assert_allclose(slope, values.grad, rtol=1e-4, atol=1e-5)


def test_from_a_list():
    found = jax.jit(t2j(lambda *parts: (_jagged(list(parts)) * 2).unbind()))(*(jnp.asarray(x.numpy()) for x in PARTS))
    for actual, each in zip(found, PARTS, strict=True):
        np.testing.assert_allclose(actual, 2 * each)


def test_jit_compiles_once_for_lengths():
    traced = []

    @jax.jit
    def function(x):
        traced.append(x)
        return t2j(lambda x: (x * 2).values())(x)

    for ends in ([0, 3, 8, 10], [0, 1, 2, 10]):
        x = torch.nested.nested_tensor_from_jagged(torch.ones(10, 4), torch.tensor(ends))
        function(t2j(x))
    assert len(traced) == 1


def test_two_of_the_same_lengths():
    x = _jagged()
    for run in (t2j(torch.add), jax.jit(t2j(torch.add))):
        np.testing.assert_allclose(run(t2j(x), t2j(x.sin()))._values, (x + x.sin()).values(), rtol=1e-6)
    other = torch.nested.nested_tensor_from_jagged(torch.cat(PARTS), torch.tensor([0, 1, 2, 10]))
    with pytest.raises(RuntimeError, match="shape"):
        t2j(torch.add)(t2j(x), t2j(other))


def test_back_to_pytorch():
    found = j2t(jax.jit(t2j(lambda x: x * 2))(t2j(_jagged())))
    assert found.is_nested
    for actual, each in zip(found.unbind(), PARTS, strict=True):
        assert torch.equal(actual, 2 * each)


@pytest.mark.parametrize("dim", [1, 2])
def test_rows_of_lengths_that_are_not_known(dim):
    def program(x):
        x = x.transpose(1, dim) if dim > 1 else x
        rows = x.unbind()
        return rows, x[1] * 2, torch.stack([row.sum() for row in rows])

    rows, second, sums = jax.jit(t2j(program))(t2j(_jagged()))
    expected = program(_jagged())
    for actual, each in zip([*rows, second], [*expected[0], expected[1]], strict=True):
        assert actual.values.shape[dim - 1] == 5  # the longest
        np.testing.assert_allclose(actual.compact(), each, rtol=1e-6)
    np.testing.assert_allclose(sums, expected[2], rtol=1e-5, atol=1e-6)
    assert [x.shape for x in t2j(lambda x: x.unbind())(t2j(_jagged()))] == [(3, 4), (5, 4), (2, 4)]


def test_gradients_of_rows():
    def program(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=5)
        return sum((row.softmax(0) * (i + 1)).square().sum() for i, row in enumerate(x.unbind()))

    values, offsets = torch.cat(PARTS).requires_grad_(), torch.tensor([0, 3, 8, 10])
    program(values, offsets).backward()
    found = jax.jit(jax.grad(t2j(program)))(jnp.asarray(values.detach().numpy()), jnp.asarray(offsets.numpy()))
    np.testing.assert_allclose(found, values.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.nested.narrow(x, 1, torch.tensor([0, 1, 2]), torch.tensor([2, 3, 1]), layout=torch.jagged),
        lambda x: torch.nested.narrow(x, 1, 0, torch.tensor([2, 3, 1]), layout=torch.jagged),
        lambda x: torch.nested.nested_tensor_from_jagged(
            x.flatten(0, 1), torch.tensor([0, 4, 15]), lengths=torch.tensor([3, 8])
        ),
        lambda x: torch.nested.as_nested_tensor(x, layout=torch.jagged),
        lambda x: torch.nested.as_nested_tensor([x[0, :2], x[1]], layout=torch.jagged),
    ],
)
def test_made_of_a_dense_one(program):
    dense = torch.arange(60.0).reshape(3, 5, 4)
    expected = [*program(dense).unbind(), *program(dense).sin().unbind()]
    for run in (lambda f: f, jax.jit):
        for unbind in (lambda x: [*x.unbind(), *x.sin().unbind()], None):
            found = run(t2j(lambda x, unbind=unbind: unbind(program(x)) if unbind else program(x)))(jnp.asarray(dense))
            found = found if unbind else [*j2t(found).unbind()] * 2
            wanted = expected if unbind else [*program(dense).unbind()] * 2
            for actual, each in zip(found, wanted, strict=True):
                np.testing.assert_allclose(actual, each, rtol=1e-6)


def test_embedding_over_indices():
    embedding = torch.nn.Embedding(5, 3)
    parts = [torch.tensor([1, 2, 0]), torch.tensor([3, 3])]
    function = t2j(embedding)
    found = jax.jit(function)(t2j(torch.nested.nested_tensor(parts, layout=torch.jagged)))
    np.testing.assert_allclose(found._values, embedding(torch.cat(parts)).detach())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "run",
    [
        lambda x: t2j(x),
        lambda x: t2j({"a": x}),
        lambda x: t2j(lambda x: x * 2)(x),
        lambda x: t2j(lambda y: x.to_padded_tensor(0.0) * y)(jnp.ones(3)),
        lambda _: t2j(lambda x: torch.nested.nested_tensor([x]))(jnp.ones((2, 3))),
        lambda _: jax.jit(t2j(lambda x: torch.nested.as_nested_tensor([x, x])))(jnp.ones((2, 3))),
    ],
)
def test_strided_ones_are_refused(run):
    with pytest.raises(TypeError, match=r"wanted a jagged one.*layout=torch\.jagged"):
        run(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))
