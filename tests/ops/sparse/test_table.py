"""Every operation on every layout, as constant, argument, and built inside: values, layouts and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import j2t, t2j

from .table import FACTS, LAYOUTS, OPERATIONS, built, parts_of, served, sparse_of, weighed

X = torch.linspace(-1, 1.5, 18).reshape(6, 3)
WAYS = ("constant", "argument", "built inside")
# These have no derivatives at elements of this matrix, or round.
_ROUGH = {"sqrt", "sparse.mm amax", "round", "to"}


def _program(layout: str, way: str, run):
    """A function of values and x, and of the sparse array where that is an argument; and what it is given."""
    matrix = sparse_of(layout)
    index, values = parts_of(matrix)
    is_coalesced = matrix.layout is torch.sparse_coo and matrix.is_coalesced()
    if way == "constant":
        return lambda x: run(matrix, x), ()
    if way == "argument":
        return run, (t2j(matrix),)

    def inside(values, x):
        return run(built(matrix.layout, is_coalesced, index, values, matrix.shape), x)

    return inside, (jnp.asarray(values),)


def _all(layout: str, names=None):
    return lambda m, x: {name: OPERATIONS[name](m, x) for name in names or served(layout)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values(layout, way):
    program, given = _program(layout, way, _all(layout))
    expected = _all(layout)(sparse_of(layout), X)
    names = [name for name in expected if not (way == "argument" and name in NEEDS_PLACES)]
    for run in (t2j(program), None):
        if run is None:
            if way == "argument":
                program = _program(layout, way, _all(layout, names))[0]
            run = jax.jit(t2j(program))
        found = run(*given, jnp.asarray(X))
        for name in found:
            result, wanted = j2t(found[name]), expected[name]
            assert result.layout is wanted.layout, name
            assert result.dtype is wanted.dtype, name
            if wanted.layout is torch.sparse_coo:
                assert result.is_coalesced() is wanted.is_coalesced(), name
            result, wanted = (x if x.layout is torch.strided else x.to_dense() for x in (result, wanted))
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


# What has to know where the elements are: it is refused where a compiled program is given the indices.
NEEDS_PLACES = {"to_sparse_bsr", "index_select"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_facts(layout):
    matrix = sparse_of(layout)
    found = {}

    def program(m, x):
        found.update({name: ask(m) for name, ask in FACTS.items()})
        found.update({f"constant {name}": ask(matrix) for name, ask in FACTS.items()})
        return x

    jax.jit(t2j(program))(t2j(matrix), jnp.ones(2))
    for name, ask in FACTS.items():
        assert found[name] == found[f"constant {name}"] == ask(matrix), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_from_outside(layout):
    rough = _ROUGH | ({"sign", "abs", "relu"} if layout in ("bsr", "bsc") else set())  # blocks have zeros
    names = [name for name in served(layout) if name not in rough]
    run = _all(layout, names)
    program, (values,) = _program(layout, "built inside", lambda m, x: weighed(run(m, x)))
    found = jax.jit(jax.grad(t2j(program), (0, 1)))(values, jnp.asarray(X))
    expected = _expected(layout, names)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-3)


def _expected(layout: str, names) -> list[np.ndarray]:
    """Central differences of PyTorch's results, which has no derivatives for many of these."""
    matrix = sparse_of(layout)
    index, values = parts_of(matrix)
    is_coalesced = matrix.layout is torch.sparse_coo and matrix.is_coalesced()
    run, step = _all(layout, names), 1e-5
    given = [values.double(), X.double()]
    found = [np.zeros(each.shape) for each in given]
    for place, each in enumerate(given):
        for i in range(each.numel()):
            totals = []
            for sign in (1, -1):
                moved = [x.clone() for x in given]
                moved[place].view(-1)[i] += sign * step
                m = built(matrix.layout, is_coalesced, index, moved[0], matrix.shape)
                totals.append(weighed(run(m, moved[1])))
            found[place].flat[i] = (totals[0] - totals[1]) / (2 * step)
    return found
