"""Embeddings that are summed, averaged, or reduced to their largest."""

import jax
import pytest
import torch
from torch.nn import functional as F

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    weight, index = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 2, 5, 2, 1, 4])
    offsets = torch.tensor([0, 2, 2, 6])

    def bags(weight):
        return F.embedding_bag(index, weight, offsets, mode=mode, include_last_offset=True, padding_idx=5)

    expected = bags(weight)
    actual, pull = jax.vjp(jax.jit(t2j(bags)), t2j(weight.detach()))
    compare(actual, expected)
    cotangent = torch.randn(expected.shape)
    compare(pull(t2j(cotangent))[0], *torch.autograd.grad(expected, weight, cotangent))


INDEX, OFFSETS, WEIGHT = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2]), torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize(
    ("index", "offsets", "options"),
    [
        (INDEX, OFFSETS, {"per_sample_weights": torch.ones(4, dtype=torch.float64)}),
        (INDEX, OFFSETS, {"per_sample_weights": torch.ones(4, dtype=torch.float16)}),
        (INDEX.float(), OFFSETS, {}),
        (INDEX, OFFSETS.float(), {}),
        (INDEX, OFFSETS + 1, {}),
        (INDEX, OFFSETS * 3, {}),
        (INDEX, OFFSETS[:0], {"include_last_offset": True}),
        (INDEX, OFFSETS, {"padding_idx": -6}),
    ],
)
def test_what_pytorch_refuses(index, offsets, options):
    def bags(index, offsets, **options):
        return F.embedding_bag(index, WEIGHT, offsets, mode="sum", **options)

    with pytest.raises(RuntimeError) as wanted:
        bags(index, offsets, **options)
    with pytest.raises(RuntimeError) as got:
        t2j(bags)(*map(t2j, (index, offsets)), **options)
    assert str(got.value).splitlines()[0] == str(wanted.value).splitlines()[0]


def test_offsets_that_decrease():
    with pytest.raises(RuntimeError, match="none below the one before"):
        t2j(F.embedding_bag)(INDEX, WEIGHT, torch.tensor([0, 3, 2]))


def test_indices_and_offsets_of_two_dtypes():
    got = jax.jit(t2j(F.embedding_bag))(t2j(INDEX.short()), t2j(WEIGHT), t2j(OFFSETS))
    compare(got, F.embedding_bag(INDEX.short(), WEIGHT, OFFSETS))


@pytest.mark.parametrize("shapes", [((4, 3, 1), (2,), (2,)), ((4, 3), (2, 1, 1), (2,)), ((4, 3), (2,), (2, 1))])
def test_dimensions_are_looked_at_before_values(shapes):
    weight, index, offsets = (torch.full(shape, 7) for shape in shapes)

    def refused(function):
        with pytest.raises(RuntimeError) as error:
            function(weight.float(), index, offsets)
        return str(error.value).splitlines()[0]

    assert refused(t2j(torch.embedding_bag)) == refused(torch.embedding_bag)
