"""Code sees the dtypes that arrays of 32 bits stand for, where it is told."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import cases, entry
from torch2jax import t2j

WIDE = {
    torch.int32: torch.int64,
    torch.uint32: torch.uint64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def dtypes_of(*args):
    return [x.dtype for x in args]


def seen(function, *arrays, dtypes, **kwargs):
    """The dtypes that a function sees of its arguments."""
    found = []
    t2j(lambda *args, **named: found.append(function(*args, **named)), dtypes=dtypes)(*arrays, **kwargs)
    return found[0]


@pytest.mark.parametrize("array", [jnp.arange(3), np.arange(3, dtype=np.int32)], ids=["jax", "numpy"])
def test_integers_that_are_demanded_to_be_long(array):
    def embedded(ids, table):
        if ids.dtype != torch.long:
            raise ValueError("ids must be long")
        assert (ids + 1).dtype == (ids == 0).long().dtype == torch.int64
        return table[ids]

    with pytest.raises(ValueError, match="long"):
        t2j(embedded)(array, jnp.eye(3))
    run = t2j(embedded, dtypes={torch.int32: torch.int64})
    for call in (run, jax.jit(run), lambda ids, x: jax.vmap(run, (0, None))(ids, x)):
        result = call(array, jnp.eye(3))
        assert result.dtype == jnp.float32
        np.testing.assert_array_equal(result, np.eye(3))
    assert "int64" not in str(jax.make_jaxpr(run)(array, jnp.eye(3)))


INDEXED = (
    "gather",
    "index_copy",
    "index_fill",
    "index_put",
    "put",
    "scatter",
    "take",
    "take_along_dim",
    "tensor_split",
)
INDEXED += ("nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.nll_loss")


@pytest.mark.parametrize("name", INDEXED)
def test_rules_take_int32_for_an_index_where_pytorch_wants_int64(name):
    case = next(x for x in cases(entry(name), torch.float32) if any(t.dtype == torch.int64 for t in x.tensors))
    t2j(case.function)(*map(t2j, case.twins()))


@pytest.mark.parametrize("narrow", WIDE)
def test_each_width(narrow):
    array = t2j(torch.ones(2, dtype=narrow))
    assert seen(dtypes_of, array, {"x": [array]}["x"][0], dtypes=WIDE) == [WIDE[narrow]] * 2
    assert seen(lambda tree: tree["x"][0].dtype, {"x": [array]}, dtypes=WIDE) == WIDE[narrow]
    assert seen(dtypes_of, array, jnp.ones(2, bool), dtypes={}) == [narrow, torch.bool]
    with jax.enable_x64(True):
        assert seen(dtypes_of, jnp.asarray(array), dtypes=WIDE) == [narrow]


def test_arguments_by_name():
    def model(ids, mask, *rest, scale=None):
        return ids.dtype, mask.dtype, *(x.dtype for x in rest), None if scale is None else scale.dtype

    def told(dtypes, *args, **kwargs):
        found = []

        def function(ids, mask, *rest, scale=None):
            found.append(model(ids, mask, *rest, scale=scale))

        t2j(function, dtypes=dtypes)(*args, **kwargs)
        return found[0]

    x, y = jnp.arange(2), jnp.ones(2)
    assert told({"ids": torch.int64}, x, x) == (torch.int64, torch.int32, None)
    assert told({"ids": torch.int64}, ids=x, mask=x) == (torch.int64, torch.int32, None)
    assert told({"rest": torch.int64}, x, x, x, x) == (torch.int32, torch.int32, torch.int64, torch.int64, None)
    assert told({"scale": torch.float64}, x, y, scale=y) == (torch.int32, torch.float32, torch.float64)
    assert told({"ids": torch.int64}, y, y)[0] == torch.float32  # of another kind
    with pytest.raises(ValueError, match=r"'id', which is no parameter .nearest: 'ids'"):
        t2j(model, dtypes={"id": torch.int64})
    t2j(lambda **kwargs: None, dtypes={"id": torch.int64})


def test_a_module_of_doubles_is_computed_in_floats():
    module = torch.nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    state, expected = t2j(module.state_dict()), module(x).detach().numpy()
    run = t2j(module, dtypes={torch.float32: torch.float64})
    for call in (
        run,
        jax.jit(run),
        functools.partial(run, state_dict=state),
        t2j(module.forward, dtypes={"input": torch.float64}),
    ):
        result = call(t2j(x))
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    gradients = jax.grad(lambda state: run(t2j(x), state_dict=state).sum())(state)
    np.testing.assert_allclose(gradients["weight"], np.broadcast_to(x.sum(0), (2, 3)), rtol=1e-5)
    assert gradients["weight"].dtype == jnp.float32


nn = torch.nn
IMAGES, ROWS, STEPS = (2, 3, 6, 6), (4, 6), (2, 5, 6)
DOUBLE = {
    "linear": (nn.Linear(6, 2), ROWS),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2)),
        IMAGES,
    ),
    "norms": (nn.Sequential(nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.BatchNorm1d(6)), ROWS),
    "a recurrent network": (nn.LSTM(6, 3, batch_first=True), STEPS),
    "a transformer": (nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), STEPS),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_modules_of_doubles_take_what_t2j_makes_of_doubles(name):
    module, shape = DOUBLE[name]
    module = copy.deepcopy(module).double().eval()
    x = torch.randn(shape, dtype=torch.float64)
    expected, state = module(x), t2j(module.state_dict())
    asks_itself = isinstance(module, nn.LSTM)
    if asks_itself:
        with pytest.raises(ValueError, match="does not match weight dtype"):
            t2j(module)(t2j(x))
    for dtypes in (WIDE,) if asks_itself else (None, WIDE):
        for options in ({}, {"state_dict": state}):
            result = t2j(module, dtypes=dtypes)(t2j(x), **options)
            for actual, wanted in zip(jax.tree.leaves(result), torch.utils._pytree.tree_leaves(expected), strict=True):
                assert actual.dtype == jnp.float32
                np.testing.assert_allclose(actual, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_what_is_refused_says_how_the_code_sees_64_bits():
    def function(x):
        if x.dtype != torch.float64:
            raise RuntimeError(f"expected dtype torch.float64, got {x.dtype}")

    with pytest.raises(RuntimeError, match="dtype") as wrong:
        t2j(function)(jnp.ones(3))
    notes = "\n".join(wrong.value.__notes__)
    assert "dtypes={torch.float32: torch.float64}" in notes
    assert "jax_enable_x64" in notes


def test_derivatives_and_conditions_of_wide_inputs():
    def function(x):
        return (x * 2).sum() if x.dtype == torch.float64 and x.requires_grad else x.sum()

    run = t2j(function, dtypes=WIDE)
    for grad in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jax.jacfwd):
        np.testing.assert_array_equal(grad(run)(jnp.ones(2)), 2.0)


def test_steps_with_a_state():
    model = torch.nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = t2j(step, state=(model, optimizer), dtypes={"x": torch.float64})
    state = run.init(jnp.ones((3, 2)))
    loss, state = jax.jit(run)(state, jnp.ones((3, 2)))
    assert jax.jit(run)(state, jnp.ones((3, 2)))[0] < loss
    with pytest.raises(ValueError, match="no parameter"):
        t2j(step, state=(model, optimizer), dtypes={"model": torch.float64})


@pytest.mark.parametrize(
    ("dtypes", "error", "message"),
    [
        ([torch.int64], TypeError, "wanted a dictionary"),
        ({jnp.int32: jnp.int64}, TypeError, "wanted PyTorch dtypes"),
        ({torch.int32: torch.float64}, ValueError, "torch.int32: torch.int64"),
        ({torch.float16: torch.float32}, ValueError, "astype"),
        ({"x": torch.float16}, ValueError, "astype"),
    ],
)
def test_other_dtypes_are_refused(dtypes, error, message):
    with pytest.raises(error, match=message):
        t2j(torch.nn.Identity(), dtypes=dtypes)


def test_dtypes_are_about_the_arguments_of_code():
    with pytest.raises(TypeError, match="wanted it with a function or module"):
        t2j(torch.ones(2), dtypes=WIDE)
