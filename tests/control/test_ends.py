"""Two paths of a condition whose tensors are not as long: the result has room for the longer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import Padded, t2j
from torch2jax.runtime.errors import BranchError

INPUTS = [
    np.array(x, np.float32) for x in ([3, -1, 5, 2, -4], [-3, -1, -5, -2, -4], [1, 1, 1, 1, 1.5], [3, 4, 5, 6, 7])
]


def any_or_none(x):
    m = x > 2
    if m.any():
        return x[m]
    else:
        return x[:0]


def detections(x):
    m = x > 2
    if m.sum() == 0:
        return {"boxes": torch.empty(0), "labels": torch.empty(0, dtype=torch.int64), "found": False}
    return {"boxes": x[m] * 2, "labels": m.nonzero()[:, 0], "found": True}


def several_paths(x):
    s = x[x > 0]
    if len(s) == 0:
        return s
    if len(s) > 4:
        return torch.cat([s, s])
    return s[:2] if s.sum() > 9 else x


def goes_on(x):
    m = x > 2
    s = (x[m] if m.any() else torch.zeros(1)) * 2 + 1
    return s.cumsum(0), s.sum() / len(s)


def of_images(x):
    found = []
    for y in (x, -x):
        m = y > 2
        found.append(y[m] if m.sum().item() else y.new_zeros(0))
    return torch.cat(found), [len(y) for y in found]


def later(x):
    rows, m = torch.stack([x, x * 2]), x > 2
    return rows[:, m] if m.any() else rows[:1]


def pairs(x):
    s = x[x > 0]
    return s[:, None] * s if len(s) > 1 else torch.zeros(0, 2)


def plain(x):
    return (x[:2], x.sum()) if x.sum() > 0 else (x, x[0])


WAYS = [any_or_none, detections, several_paths, goes_on, of_images, later, pairs, plain]


def _leaves(tree) -> list:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Padded))


def _arrays(tree) -> list:
    return [x.compact() if isinstance(x, Padded) else x for x in _leaves(tree)]


def _floats(tree) -> list:
    arrays = [jnp.asarray(x.values if isinstance(x, Padded) else x) for x in _leaves(tree)]
    return [x for x in arrays if x.dtype.kind == "f"]


@pytest.mark.parametrize(("function", "x64"), [*((each, False) for each in WAYS), (detections, True), (plain, True)])
def test_paths_that_are_not_as_long(function, x64):
    with jax.enable_x64(x64):
        translated = t2j(function)
        compiled = jax.jit(lambda x: (translated(x), jax.grad(lambda x: sum(map(jnp.sum, _floats(translated(x)))))(x)))
        batch = _arrays(jax.jit(jax.vmap(translated))(jnp.stack(INPUTS)))
        for i, x in enumerate(INPUTS):
            leaf = torch.from_numpy(x.copy()).requires_grad_()
            wanted = [torch.as_tensor(each) for each in jax.tree.leaves(function(leaf))]
            total = sum(each.sum() for each in wanted if each.is_floating_point()) + 0 * leaf.sum()
            found, slope = compiled(x)
            for got in (_arrays(found), [each[i] for each in batch]):
                assert [np.shape(one) for one in got] == [each.shape for each in wanted]
                for one, other in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(one, other.detach(), 1e-5, 1e-6)
                    assert one.dtype == jax.dtypes.canonicalize_dtype(str(other.dtype).removeprefix("torch."))
            np.testing.assert_allclose(slope, torch.autograd.grad(total, leaf)[0], 1e-5, 1e-6)


def test_what_is_beyond_a_bound_is_beyond_the_larger():
    def function(x):
        s = x[x > 0]
        if x.sum() > 10:
            return s
        return x

    name = f"test_ends.py:{function.__code__.co_firstlineno + 1}"
    found = jax.jit(t2j(function, bounds={name: 2}))(INPUTS[3])
    assert found.length > found.values.shape[0]
    with pytest.raises(ValueError, match="wanted a greater bound"):
        found.compact()
    np.testing.assert_array_equal(jax.jit(t2j(function, bounds={name: 2}))(INPUTS[1]).compact(), INPUTS[1])


def test_what_is_alike_is_not_padded():
    found = jax.jit(t2j(lambda x: (x[:2], x[x > 2]) if x.sum() > 0 else (x[1:3], x[x < 2])))(INPUTS[0])
    assert found[0].shape == (2,)
    assert found[1].values.shape == (5,)


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (lambda x: x[x > 0] if x.sum() > 0 else x[None], ("Padded(values, length)", "float32[1, 5]")),
        (
            lambda x: x[x > 0] if x.sum() > 0 else torch.zeros(0, dtype=torch.int32),
            ("Padded(values, length)", "int32[0]"),
        ),
        (lambda x: x[:2] if x.sum() > 0 else x[None], ("float32[2]", "float32[1, 5]")),
    ],
)
def test_other_dimensions_and_dtypes_are_refused(function, texts):
    with pytest.raises(BranchError, match="numbers of dimensions and dtypes") as caught:
        jax.jit(t2j(function))(INPUTS[0])
    assert all(text in str(caught.value) for text in texts)


def draws_before_it_ends(x):
    y, found = torch.nn.functional.dropout(x, 0.5), [x]
    if x.sum() > 0:
        found.append(y)
    return torch.stack(found).sum(0)


def test_keys_from_around_the_program_are_the_same_in_all_runs():
    function, key = t2j(draws_before_it_ends), jax.random.key(0)
    x = jnp.asarray([0.5, 2, 1], jnp.float32)
    drawn = t2j(torch.nn.functional.dropout)(x, 0.5, rng=key)
    got = jax.jit(lambda x: function(x, rng=key))
    np.testing.assert_allclose(got(x), x + drawn)
    np.testing.assert_allclose(got(-x), -x)
