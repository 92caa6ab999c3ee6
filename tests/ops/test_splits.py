"""Several views of a tensor at once."""

import time

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

X = torch.arange(20.0).reshape(4, 5)


@pytest.mark.parametrize("sections", [1, 3, 5, 7, (1,), (2, 4), (3, 1), (), (0, 9), (-2,)], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_tensor_split(sections, as_tensor):
    def split(x):
        return x.tensor_split(torch.tensor(sections, dtype=torch.int64) if as_tensor else sections, dim=-1)

    expected = split(X)
    for call in (t2j(split), jax.jit(t2j(split))):
        parts = call(X.numpy())
        assert [part.shape for part in parts] == [tuple(part.shape) for part in expected]
        for part, wanted in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.tensor_split(0),
        lambda x: x.tensor_split(torch.tensor(-1)),
        lambda x: x[0, 0].tensor_split(2),
        lambda x: x.tensor_split(2, 3),
        lambda x: x.tensor_split(torch.tensor(1.5)),
        lambda x: x.tensor_split(torch.tensor([[1]])),
    ],
)
def test_tensor_split_refuses_what_pytorch_refuses(split):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        split(X)
    with pytest.raises(expected.type) as got:
        t2j(split)(X.numpy())
    assert str(expected.value).partition("(")[0] in str(got.value)


def test_iterating_compiles_one_program_for_all_rows():
    def total(x):
        parts = [float(row) for row in x]
        x.add_(1)
        return parts, [float(row) for row in x.reshape(-1, 2).unbind(1)[0]]

    x = torch.arange(2000.0)
    begin = time.process_time()
    for got, wanted in zip(t2j(total)(x.numpy()), total(x), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert time.process_time() - begin < 20  # as one program that gives all of them it took minutes


@pytest.mark.parametrize("split", [lambda x: x.unsafe_split(1), lambda x: x.unsafe_split_with_sizes((1, 3))])
def test_parts_that_may_be_written_to(split):
    def written(x):
        x = x.clone().requires_grad_()
        first, second, *_ = split(x * 2)
        first.mul_(second[:1])
        return first, *torch.autograd.grad(first.sum(), x)

    for part, wanted in zip(t2j(written)(X.numpy()), written(X), strict=True):
        np.testing.assert_array_equal(part, wanted.detach())
