"""Errors about quantized, sparse and nested tensors: what was got, what to do, and nothing of how PyTorch is made."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

ROWS = [torch.ones(2, 3), torch.ones(4, 3)]
JAGGED = torch.nested.nested_tensor(ROWS, layout=torch.jagged)
COO = torch.eye(3).to_sparse()
with warnings.catch_warnings(action="ignore"):  # prototypes, says PyTorch
    STRIDED = torch.nested.nested_tensor(ROWS)
    CSR = COO.to_sparse_csr()
    QUANTIZED = torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8)
X = torch.ones(3, 3)


class Holding(torch.nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return self.matrix @ x


REFUSED = {
    "a quantized argument": (lambda: t2j(lambda q: q.dequantize())(QUANTIZED), "int_repr"),
    "a quantized constant": (lambda: t2j(lambda x: x @ QUANTIZED)(X), "int_repr"),
    "a quantized state": (lambda: t2j(Holding(QUANTIZED).state_dict()), "int_repr"),
    "a quantized result": (lambda: t2j(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))(X), "torchao"),
    "a cast": (lambda: t2j(lambda x: x.to(torch.qint8))(X), "int_repr"),
    "a strided nested constant": (lambda: t2j(lambda x: STRIDED @ x)(X), "layout=torch.jagged"),
    "a strided nested argument": (lambda: t2j(lambda n: n * 2)(STRIDED), "layout=torch.jagged"),
    "lstm of jagged": (lambda: t2j(torch.nn.LSTM(3, 3, batch_first=True))(JAGGED), "to_padded_tensor"),
    "a ragged size": (lambda: t2j(lambda n: n.shape[1] + 1)(JAGGED), "offsets().diff()"),
    "jagged to numpy": (lambda: t2j(lambda n: n.numpy())(JAGGED), "x.values().numpy()"),
    "a sum of jagged": (lambda: t2j(lambda n: n.sum(0))(JAGGED), "unbind()"),
    "cat of jagged": (lambda: t2j(lambda n: torch.cat([n, n], 1))(JAGGED), "unbind()"),
    "cos of sparse": (lambda: t2j(torch.cos)(COO), "to_dense()"),
    "a mask of sparse": (lambda: t2j(lambda m: m[m.to_dense() > 0])(CSR), "to_dense()"),
    "sparse and dense": (lambda: t2j(lambda m, x: torch.cat([m, x]))(COO, X), "to_sparse()"),
    "convolution of sparse": (lambda: t2j(lambda m: F.conv1d(m[None], torch.ones(3, 3, 1)))(COO), "to_dense()"),
    "strides of sparse": (lambda: t2j(lambda m: m.stride())(CSR), "to_dense()"),
    "numpy of sparse": (lambda: jax.jit(t2j(lambda m: m.numpy()))(t2j(COO)), "to_dense()"),
    "a dense array": (lambda: t2j(Holding(COO))(X, state_dict={"matrix": jnp.ones((3, 3))}), "wanted a sparse array"),
}
INSIDE = re.compile(r"SymInt|[Ii]nternal error|INTERNAL|\.cpp|Impl\b|file an issue|empty_strided|NoneType|ArrayImpl")


@pytest.mark.parametrize(("refused", "advice"), REFUSED.values(), ids=REFUSED)
def test_errors_say_what_to_do(refused, advice):
    with warnings.catch_warnings(action="ignore"), pytest.raises(Exception) as caught:  # noqa: PT011
        refused()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert advice in text
    assert not INSIDE.search(text)


def test_a_sparse_array_stands_for_a_dense_parameter():
    layer = torch.nn.Linear(3, 3)
    weight = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    state = {"weight": t2j(weight.to_sparse())}
    expected = F.linear(X, weight, layer.bias).detach()
    np.testing.assert_allclose(jax.jit(t2j(layer))(t2j(X), state_dict=state), expected, rtol=1e-5)
