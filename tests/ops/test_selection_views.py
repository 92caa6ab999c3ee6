"""Who sees what is written, under jit, where data decide lengths: parts are views, what is chosen anew is a copy."""

import jax
import numpy as np
import pytest
import torch

from tests.ops.test_lengths import MASKS, X, check_each, check_gradients, each_of
from torch2jax import TracedValueError, t2j

FUNCTIONS = {}


def program(function):
    FUNCTIONS[function.__name__] = function
    return function


@program
def whole_written_after_parts(x, m):
    y = torch.cat([x[m], x])
    parts = y[:2], y[-2:], y[:2][:, 0], y[1::2], y[-1], y[0, 1], y[len(y) - 1]
    y.mul_(2)
    return parts


@program
def parts_written(x, m):
    y = torch.cat([x[m], x])
    y[:2].add_(1)
    y[:-1, 0].neg_()
    y[:-1].T[1].mul_(3)
    y[-2:][1].sub_(1)
    y[-1].mul_(2)
    y[0][1].add_(5)
    return y


@program
def parts_of_parts(x, m):
    y = x[m][x[m][:, 1] > -5]
    first, second = y[:2], y[:2][1:]
    second.zero_()
    first.add_(1)
    z = x[m].sort(0).values
    z[:2].mul_(3)
    z[1:].mul_(2)
    return y, first, second, z


@program
def split(x, m):
    y = torch.cat([x[m], x])
    a, b = y.split([len(x[m]), len(x)])
    a.mul_(2)
    b.add_(1)
    y.sub_(3)
    return a, b, y


@program
def cut_by_number(x, m):
    x, n = x.clone(), m.sum().item()
    front, rest = x[:n], x[n:]
    front[:, 0].add_(1)
    rest[:1].add_(1)
    x.mul_(2)
    return front, rest, x


@program
def chosen_anew(x, m):
    y = x[m]
    by_mask, by_places, by_list = y[y[:, 1] > 0], y[torch.where(y[:, 1] > 0)[0]], y[:, [1, 0]]
    by_mask.mul_(2)
    by_places.add_(1)
    y.sub_(3)
    by_list.neg_()
    return y, by_mask, by_places, by_list


@program
def other_shapes(x, m):
    y = torch.stack([x[m], x[m]])
    z = y.view(-1, 3)
    z.mul_(2)
    flat = x[m].view(-1)
    flat.add_(1)
    w = x[m]
    w.T.mul_(2)
    w[None].reshape(-1, 3).add_(1)
    return y, z, flat, w


@program
def places_written(x, m):
    i, j = torch.where(x > 0)
    i.mul_(2)
    i.add_(1)
    k = (x[m] > 0).nonzero(as_tuple=True)
    k[0].add_(5)
    return i, j, k


@program
def no_longer_harmless(x, m):
    y = x[torch.where(m)[0]] * 0
    part = y[:1]
    y.add_(2)
    return y.log(), part


of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all))


@pytest.mark.parametrize("mask", MASKS)
def test_values(mask):
    check_each(compiled(t2j(X), t2j(MASKS[mask])), of_all(X.clone(), MASKS[mask]))


def test_gradients():
    check_gradients(of_all, ("whole_written_after_parts", "parts_of_parts", "no_longer_harmless"))


def test_a_shape_that_may_be_a_copy():
    def flat(x, m):
        y = x[m].T.reshape(-1)
        return y.mul_(2)

    with pytest.raises(TracedValueError, match="writing to a part of a boolean-mask selection, which others see"):
        jax.jit(t2j(flat))(t2j(X), t2j(MASKS["some"]))


def test_an_element_that_there_is_not():
    function = jax.jit(t2j(lambda x, m: (x[m][2], x[m].long()[2].shape, x[m][2].zero_())))
    found = function(t2j(X), t2j(MASKS["none"]))
    assert np.isnan(found[0]).all()
    assert found[1] == (3,)
