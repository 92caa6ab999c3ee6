"""Views of what a mask chose in rows of other sizes, under jit: elements fill them, or every result tells."""

import jax
import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from jax.experimental import checkify

from tests.ops.test_lengths import X, check, check_each, check_gradients, each_of
from torch2jax import Padded, TracedValueError, t2j

FOUR = X[:, 1] > X[:, 1].sort().values[3]
MASKS = {"four": FOUR, "none": FOUR & False, "all": FOUR | True}
ODD = torch.arange(8) < 3
VIEWS = {
    "rows": lambda x, m: (x[m].view(-1, 2), x[m][:, 0].view(-1, 2), x[m].view(-1, 2, 2).sum(0)),
    "parts": lambda x, m: (x[m][:, 0].view(2, -1), x[m].view(2, -1, 3), x[m].view(2, 2, -1)),
    "of other tensors": lambda x, m: (
        *(x[m].sort(0).values.view(-1, 4), x[: m.sum()].view(4, -1), x[m][:, None].expand(-1, 2, -1).reshape(-1, 4)),
        *(x.T[:, m].reshape(-1, 2), torch.where(m)[0].view(2, -1), (x > 0)[m].view(-1, 2)),
    ),
    "by number": lambda x, m: (
        *(x[m].view(len(x[m]) // 2, 6), x[m].view(x[m].numel() // 4, 4), x[m].view(m.sum().item() // 2, 2, 3)),
        *(x[m].view(2, len(x[m]) // 2, 3), x[m].reshape(4, x[m].numel() // 4)),
    ),
    "unflattened": lambda x, m: (x[m].unflatten(0, (-1, 2)), x[m][:, 0].unflatten(0, (2, -1))),
    "certain": lambda x, m: (x[m].repeat(2, 1).view(-1, 2, 3), torch.cat([x[m], x[m]]).view(2, -1), x[m].view(-1, 1)),
}
KNOWN = {
    "known": lambda x, m: (x[m].view(2, 2, 3), x[m].view(12), x[m][:, 0].sort().values.view(4, 1), x[m].reshape(3, 4)),
}


def written(x, m):
    y, z = x[m], x[m].sort(0).values
    rows, parts, whole = y.view(-1, 2), y[:, 0].contiguous().view(2, -1), z.view(2, -1)
    rows.mul_(2)
    rows[0] = 9
    parts.add_(1)
    y.sub_(1)
    whole.neg_()
    z[:1].zero_()
    return y, rows, parts, whole, z


def known_and_written(x, m):
    y = x[m]
    whole = y.view(2, 2, 3)
    whole[0] = 1
    y.add_(1)
    return y, whole


FUNCTIONS = VIEWS | {"written": lambda x, m: written(torch.cat([x, x]), torch.cat([m, FOUR]))}
of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all))


@pytest.mark.parametrize("mask", MASKS)
def test_values(mask):
    check_each(compiled(t2j(X), t2j(MASKS[mask])), of_all(X.clone(), MASKS[mask]))


def test_of_known_size():
    functions = each_of(KNOWN | {"written": known_and_written})
    check_each(jax.jit(t2j(functions))(t2j(X), t2j(FOUR)), functions(X.clone(), FOUR))
    with pytest.raises(RuntimeError, match=r"shape '\[5, 5\]' is invalid for input of at most 24 elements"):
        jax.jit(t2j(lambda x, m: x[m].view(5, 5)))(t2j(X), t2j(FOUR))


def test_gradients():
    check_gradients(of_all, ("rows", "by number", "written"), MASKS)
    check_gradients(each_of(KNOWN), ("known",), {"four": FOUR})


def test_mapped():
    masks = torch.stack([FOUR, FOUR.roll(1)])
    found = jax.jit(jax.vmap(lambda m: t2j(of_all)(t2j(X), m, ("rows", "parts"))))(t2j(masks))
    for i, mask in enumerate(masks):
        wanted = of_all(X, mask, ("rows", "parts"))
        check_each(jax.tree.map(lambda x: x[i], found), wanted)  # noqa: B023


@pytest.mark.parametrize("name", [name for name in (VIEWS | KNOWN) if name != "certain"])
def test_every_result_tells_of_what_is_not_filled(name):
    function = (VIEWS | KNOWN)[name]
    with pytest.raises(RuntimeError):
        function(X, ODD)
    found = jax.jit(t2j(function))(t2j(X), t2j(ODD))
    for value in jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, Padded)):
        if isinstance(value, Padded):
            with pytest.raises(ValueError, match="or elements that do not fill the shape of a view"):
                value.compact()
            value = value.values
        missing = {"f": np.isnan, "i": lambda x: x == np.iinfo(x.dtype).min, "b": lambda x: x}[value.dtype.kind]
        assert missing(np.asarray(value)).all()
    checked = jax.jit(checkify.checkify(t2j(function, checks="checkify")))
    assert "is invalid for as many elements as data decide" in checked(t2j(X), t2j(ODD))[0].get()


def test_what_is_certain_is_not_in_doubt():
    check(jax.jit(t2j(VIEWS["certain"]))(t2j(X), t2j(ODD)), VIEWS["certain"](X, ODD), "certain")


def pairs(x):
    return x[x > 0].view(-1, 2).sum()


def in_a_loop(x):
    total = x.sum() * 0
    while total < 3:
        total = total + pairs(x) + 1
    return total


def in_a_function(x):
    return torch.utils.checkpoint.checkpoint(pairs, x, use_reentrant=False)


def in_a_branch(x):
    return torch.cond(x.sum() > 0, pairs, torch.sum, (x,))


def behind_a_question(x):
    return pairs(x) if x.sum() > 0 else x.sum()


@pytest.mark.parametrize("function", [in_a_loop, in_a_function, in_a_branch, behind_a_question])
def test_in_traces_of_their_own(function):
    compiled = jax.jit(jax.value_and_grad(t2j(function, max_steps=4)))
    even, odd = torch.tensor([1.0, -1.0, 2.0, -0.5]), torch.tensor([1.0, 0.5, 2.0, -0.5])
    value, slope = compiled(t2j(even))
    leaf = even.clone().requires_grad_()
    wanted = function(leaf)
    np.testing.assert_allclose(value, wanted.item(), 1e-6)
    np.testing.assert_allclose(slope, torch.autograd.grad(wanted, leaf)[0], 1e-6)
    assert np.isnan(compiled(t2j(odd))[0])


def test_with_other_strides():
    with pytest.raises(
        TracedValueError, match=r"a view of shape \[3, 4\] of a boolean-mask selection with other strides"
    ):
        jax.jit(t2j(lambda x, m: x[m].T.reshape(3, 4)))(t2j(X), t2j(FOUR))
