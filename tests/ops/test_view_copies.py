"""Views that are copied."""

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j
from torch2jax.ops.aten import _VIEWS

X = torch.arange(24.0).reshape(2, 1, 12)
ARGUMENTS = {
    "as_strided": ((2, 3), (1, 4), 1),
    "expand": ((5, 2, 3, 12),),
    "permute": ((2, 0, 1),),
    "select.int": (2, 3),
    "slice.Tensor": (2, 1, 9, 3),
    "split.Tensor": (5, 2),
    "split_with_sizes": ([1, 11], 2),
    "squeeze.dim": (1,),
    "squeeze.dims": ([1, 2],),
    "t": (),
    "transpose.int": (0, 2),
    "unbind.int": (0,),
    "unfold": (2, 3, 2),
    "unsqueeze": (1,),
    "view": ((4, 6),),
    "view.dtype": (torch.int32,),
}
INPUTS = {"t": X[:, 0], "view_as_complex": X.reshape(12, 2), "view_as_real": X * 1j}


@pytest.mark.parametrize("view", _VIEWS, ids=str)
def test_copies_of_views(view):
    name = str(view).removeprefix("aten.").removesuffix(".default")
    copy = getattr(getattr(torch.ops.aten, view.overloadpacket.__name__ + "_copy"), view._overloadname)
    x = INPUTS.get(name, X)

    def copied(x):
        result = copy(x, *ARGUMENTS.get(name, ()))
        parts = [result] if isinstance(result, torch.Tensor) else result
        questions.append([(part.stride(), part._is_view(), part.dtype) for part in parts])
        x.zero_()
        return [torch.zeros(()).copy_(part) if part.ndim == 0 else part for part in parts]

    questions = []
    expected = copied(x.clone())
    for got, wanted in zip(jax.jit(t2j(copied))(x.numpy()), expected, strict=True):
        np.testing.assert_array_equal(got, wanted.resolve_conj())
    assert questions[0] == questions[1]


def test_out_of_a_copied_view():
    def copied(x):
        out = [torch.empty(2, 1, 5), torch.empty(2, 1, 7)]
        torch.split_with_sizes_copy(x, [5, 7], 2, out=out)
        return out, torch.permute_copy(x, (2, 0, 1), out=torch.empty(12, 2, 1))

    for got, wanted in zip(jax.tree.leaves(t2j(copied)(X.numpy())), jax.tree.leaves(copied(X)), strict=True):
        np.testing.assert_array_equal(got, wanted)
