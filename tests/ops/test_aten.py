"""ATen operators that have no other home."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64])
@pytest.mark.parametrize("function", [torch.conj_physical, torch.Tensor.conj_physical_])
def test_conj_physical(function, dtype):
    x = torch.tensor([1, 2]).to(dtype) * (1 + 2j if dtype.is_complex else 1)
    compare(t2j(lambda x: function(x.clone()))(t2j(x)), function(x.clone()))


def test_copy_leaves_its_operands_alone():
    x, y = torch.zeros(2, 3), torch.arange(3)
    for got, want in zip(
        t2j(lambda x, y: (torch.ops.aten.copy(x, y), x))(t2j(x), y), (y.expand(2, 3).float(), x), strict=True
    ):
        compare(got, want)


COPIES = {
    "_conj": lambda x: aten._conj_copy(x + 1j),
    "_neg_view": aten._neg_view_copy,
    "_reshape_alias": lambda x: aten._reshape_alias_copy(x, [4, 3], [3, 1]),
    "detach": aten.detach_copy,
    "lift_fresh": aten.lift_fresh_copy,
    "select": lambda x: torch.select_copy(x, 1, 2),
    "slice": lambda x: torch.slice_copy(x, 1, 1, 4, 2),
    "split": lambda x: torch.split_copy(x, 2, 1),
    "view_as_complex": lambda x: torch.view_as_complex_copy(x.reshape(6, 2)),
    "view_as_real": lambda x: torch.view_as_real_copy(x + 1j),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_views(name):
    def function(x):
        results = COPIES[name](x)
        before = [result.resolve_conj().clone() for result in (results if isinstance(results, (list, tuple)) else [results])]
        x.add_(1)
        return before, results

    x = torch.arange(12.0).reshape(3, 4)
    expected = function(x.clone())
    got = t2j(function)(jnp.asarray(x.numpy()))
    for mine, other in zip(jax.tree.leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, other.resolve_conj().resolve_neg())
