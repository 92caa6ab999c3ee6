"""Subscripts of JAX's tensors around parts: what has been made once is made again."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.calls.dispatch import Call
from torch2jax.runtime import caches

from .test_host_tensors import Module, compare

SHAPE = (3, 4, 5)
SUBSCRIPTS = [
    0,
    -1,
    (slice(None), -1),
    (..., 2),
    (slice(1, None), None, slice(None, None, 2)),
    (None, 1, slice(-2, None)),
    (1, 2, 3),
    slice(2, 2),
    ...,
    (),
    (True, 1),
    ([0, 2], 1),
    (torch.tensor([2, 0]), slice(1, 3)),
]


@pytest.mark.parametrize("index", SUBSCRIPTS, ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_views_are_the_same_each_time(index, grad):
    def code(part, x):
        found = []
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                large = part(x)
                view = large[index]
                found += [view.shape, view.stride(), view.storage_offset(), view.clone()]
                if view.data_ptr() == large.data_ptr() and view._base is not None:
                    view.mul_(2)  # and so is what it shows
                found.append(large)
        return found

    compare(Module(code, lambda x: x * 2), torch.arange(60.0).reshape(SHAPE))


def test_the_second_view_is_made_without_pytorch(monkeypatch):
    asked = []
    run = Call.run_compiled

    def noting(self, function, *args):
        asked.append(function)
        return run(self, function, *args)

    monkeypatch.setattr(Call, "run_compiled", noting)
    caches.clear()

    def code(part, x):
        total = 0.0
        for i in range(4):
            total += part(x)[:, -1].sum().item() + part(x)[0, i].sum().item()
        return part(x), total

    x = np.arange(60, dtype=np.float32).reshape(SHAPE)
    _, total = t2j(Module(code, lambda x: x * 1), compile=["part"])(jnp.array(x))
    assert total == sum(x[:, -1].sum() + x[0, i].sum() for i in range(4))
    assert len([function for function in asked if function is torch.Tensor.__getitem__]) == 5


@pytest.mark.parametrize("index", [3, (0, 4), (0, 0, 0, 0), "a"])
def test_what_is_not_there(index):
    def code(part, x):
        return part(x)[index]

    for _ in range(2):
        with pytest.raises((IndexError, TypeError)) as expected:
            code(lambda x: x, torch.zeros(SHAPE))
        with pytest.raises(expected.type):
            t2j(Module(code), compile=["part"])(jnp.zeros(SHAPE))
