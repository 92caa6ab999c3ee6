"""Tensors and modules in pickles and files, within a call and across its end."""

import copy
import io
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import t2j

X = jnp.arange(4.0)
RUNS = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


def again(thing):
    return pickle.loads(pickle.dumps(thing))


def through_file(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@RUNS
@pytest.mark.parametrize("copied", [again, through_file, copy.deepcopy])
def test_memory_is_shared_as_before_and_with_nothing_else(run, copied):
    def function(x):
        y = x * 1
        whole, part = copied([y, y[1:3]])
        part.add_(10)
        y.add_(100)
        return whole, part, y

    for actual, expected in zip(run(t2j(function))(X), function(torch.arange(4.0)), strict=True):
        np.testing.assert_array_equal(actual, expected)


@RUNS
def test_modules(run):
    def function(x):
        layer = nn.Linear(4, 4)
        with torch.no_grad():
            layer.weight.copy_(x.expand(4, 4))
            layer.bias.zero_()
        layer.weight.note = "kept"
        other = again(layer)
        assert other.weight.note == "kept"
        assert isinstance(other.weight, nn.Parameter)
        other(x).sum().backward()
        assert layer.weight.grad is None
        fresh = nn.Linear(4, 4)
        fresh.load_state_dict(through_file(layer.state_dict()))
        return other(x), fresh(x), other.weight.grad

    first, second, gradient = run(t2j(function))(X, rng=jax.random.key(0))
    np.testing.assert_allclose(first, [14.0] * 4)
    np.testing.assert_allclose(second, first)
    np.testing.assert_allclose(gradient, jnp.tile(X, (4, 1)))


def test_no_gradient_goes_through_a_file():
    assert (jax.grad(lambda x: t2j(lambda x: again(x).sum() + 0 * x.sum())(x))(X) == 0).all()


def test_files_of_known_values_are_pytorchs(tmp_path):
    torch.save({"weight": torch.arange(4.0)}, tmp_path / "in.pt")

    def function(x):
        state = torch.load(tmp_path / "in.pt")
        state["weight"].mul_(2)
        torch.save(x + 1, tmp_path / "out.pt")
        return x * state["weight"]

    np.testing.assert_array_equal(t2j(function)(X), X * X * 2)
    np.testing.assert_array_equal(torch.load(tmp_path / "out.pt"), X + 1)


def test_traced_values_end_with_the_call():
    kept = []
    jax.jit(t2j(lambda x: kept.append(pickle.dumps(x)) or x))(X)
    for load in (lambda: pickle.loads(kept[0]), lambda: t2j(lambda x: pickle.loads(kept[0]))(X)):
        with pytest.raises(RuntimeError, match="outside of that call"):
            load()


def test_pruning_and_parametrizations():
    from torch.nn.utils import parametrizations, prune

    def function(x):
        layer = parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
        twin = copy.deepcopy(layer)
        prune.l1_unstructured(pruned := nn.Linear(4, 4), "weight", amount=0.5)
        kept = (pruned.weight != 0).sum()
        prune.remove(pruned, "weight")
        return layer(x) - twin(x), kept, pruned(x)

    difference, kept, _ = t2j(function)(X, rng=jax.random.key(0))
    np.testing.assert_array_equal(difference, 0)
    assert kept == 8


@RUNS
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("copied", [again, through_file])
@pytest.mark.parametrize("layout", ["coo", "csr", "bsr"])
def test_sparse_tensors(run, copied, layout):
    def function(x):
        dense = torch.outer(x, torch.tensor([0.0, 1, 0, 2]))
        indices = torch.tensor([[1, 2, 3], [1, 3, 1]])
        matrix = torch.sparse_coo_tensor(indices, dense[tuple(indices)], (4, 4)).coalesce()
        matrix = {"coo": matrix, "csr": matrix.to_sparse_csr()}.get(layout, matrix)
        matrix = matrix.to_sparse_bsr((2, 2)) if layout == "bsr" else matrix
        found = copied([matrix])[0]
        assert found.layout is matrix.layout
        assert layout != "coo" or found.is_coalesced()
        matrix.mul_(2)
        return found.to_dense()

    expected = function(torch.tensor([0.0, 1, 2, 3]))
    np.testing.assert_array_equal(run(t2j(function))(X), expected)
    assert through_file(torch.eye(2).to_sparse()).is_sparse  # checks what was read before, but nothing of the call
