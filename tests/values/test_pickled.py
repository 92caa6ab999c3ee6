"""Copies of tensors and modules within a call, pickles and files that it writes and reads."""

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


@RUNS
def test_memory_is_shared_as_before_and_with_nothing_else(run):
    def function(x):
        y = x * 1
        whole, part = copy.deepcopy([y, y[1:3]])
        part.add_(10)
        copy.copy(y).add_(100)
        return whole, part, y

    for actual, expected in zip(run(t2j(function))(X), function(torch.arange(4.0)), strict=True):
        np.testing.assert_array_equal(actual, expected)


@RUNS
def test_copies_of_parameters(run):
    constant = nn.Parameter(torch.ones(4))

    def function(x):
        weight = nn.Parameter(x * 2)
        weight.note = "kept"
        twin = copy.copy(weight)
        assert isinstance(twin, nn.Parameter)
        assert twin.note == "kept"
        (twin * x).sum().backward()
        assert isinstance(copy.copy(constant), nn.Parameter)
        assert copy.copy(constant.detach().to_sparse()).is_sparse
        return copy.copy(constant) * weight.grad

    np.testing.assert_array_equal(run(t2j(function))(X), X)


LAYER = nn.Linear(4, 4)
THINGS = (lambda x: {"x": x}, lambda x: torch.ones(3), lambda x: LAYER.state_dict(), lambda x: x.to_sparse())


@RUNS
@pytest.mark.parametrize("things", THINGS)
def test_files_of_tensors_of_a_call(run, things):
    with pytest.raises(RuntimeError, match=r"torch.save got a tensor.*return it from the call"):
        run(t2j(lambda x: torch.save(things(x), io.BytesIO()) and x))(X)


@RUNS
def test_pickles_of_tensors_of_a_call(run):
    kept = []

    def function(x):
        y = x * 2
        kept.append(pickle.dumps({"y": y, "part": y[1:], "sparse": y.to_sparse()}))
        copied = pickle.loads(kept[-1])
        copied["part"].add_(1)
        return copied["y"] + y, copied["part"], copied["sparse"].to_dense()

    for actual, expected in zip(run(t2j(function))(X), (X * 4, X[1:] * 2 + 1, X * 2), strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(RuntimeError, match=r"loaded outside of that call.*return it from the call"):
        pickle.loads(kept[-1])
    with pytest.raises(RuntimeError, match=r"requires grad was pickled.*copy.deepcopy"):
        run(t2j(lambda x: pickle.dumps(LAYER) and x))(X)


class Pickling(nn.Module):
    """A module that copies itself by a pickle, as e3nn's do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.arange(4.0))

    def __getstate__(self):
        return {"pickle": pickle.dumps(self.__dict__)}

    def __setstate__(self, state):
        self.__dict__.update(pickle.loads(state["pickle"]))

    def forward(self, x):
        return x * self.scale


def test_modules_that_copy_themselves_by_pickles():
    gradient = jax.grad(lambda scale: t2j(Pickling())(X, state_dict={"scale": scale}).sum())(X)
    np.testing.assert_array_equal(gradient, X)


@RUNS
def test_files_that_a_call_reads(run, tmp_path):
    weight, matrix = nn.Parameter(torch.arange(4.0)), torch.eye(4).to_sparse()
    torch.save({"weight": weight, "part": weight.detach()[1:], "matrix": matrix}, tmp_path / "in.pt")

    def function(x):
        state = torch.load(tmp_path / "in.pt")
        state["part"].mul_(2)
        assert isinstance(state["weight"], nn.Parameter)
        assert state["weight"].tolist() == [0, 2, 4, 6]
        return state["matrix"] @ (x * state["weight"])[:, None]

    np.testing.assert_array_equal(run(t2j(function))(X)[:, 0], X * X * 2)


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
