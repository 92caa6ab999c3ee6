"""Writes to sparse tensors, which others see that share their values, as in PyTorch."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import t2j


def _coo(values):
    return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), values, (3,), is_coalesced=True)


def _csr(values):
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), values, (2, 2))


def _bsr(values):
    return torch.sparse_bsr_tensor(torch.tensor([0, 1]), torch.tensor([0]), values.reshape(1, 1, 2), (1, 2))


MAKERS = {"coo": _coo, "csr": _csr, "bsr": _bsr}
WRITES = {
    "mul_": lambda m: m.mul_(2),
    "div_": lambda m: m.div_(2),
    "neg_": lambda m: m.neg_(),
    "sin_": lambda m: m.sin_(),
    "add_": lambda m: m.add_(m.clone()),
    "copy_": lambda m: m.copy_(m.clone() * 3),
    "of a detached one": lambda m: m.detach().neg_(),
    "of a transposed one": lambda m: m.t().neg_(),
    "of values": lambda m: (m._values() if m.layout is torch.sparse_coo else m.values()).mul_(5),
}
REFUSED = {("csr", "div_"), ("bsr", "div_"), ("bsr", "add_")}
"""What PyTorch has no kernel for."""


@pytest.mark.parametrize(("layout", "write"), [(x, y) for x in MAKERS for y in WRITES if (x, y) not in REFUSED])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_all_that_share_values_see_a_write(layout, write):
    def program(values):
        values = values.clone()
        matrix = MAKERS[layout](values)
        WRITES[write](matrix)
        return values, matrix.to_dense()

    expected = program(torch.tensor([1.5, 0.5]))
    for run in (t2j(program), jax.jit(t2j(program))):
        for found, wanted in zip(run(jnp.array([1.5, 0.5])), expected, strict=True):
            torch.testing.assert_close(torch.tensor(found.tolist()), wanted)


def test_gradients_of_a_write_to_shared_values():
    def program(values):
        scaled = values * 2
        matrix = _csr(scaled)
        matrix.t().mul_(3)
        return (scaled * matrix.to_dense().diagonal()).sum()  # 36 times the squares of values

    gradient = jax.jit(jax.grad(t2j(program)))(jnp.array([1.5, 0.5]))
    assert gradient.tolist() == [108, 36]


def test_the_version_counts_writes():
    versions = []

    def program(values):
        for make in (_coo, _csr):
            matrix = make(values.clone())
            before = matrix._version
            matrix.mul_(2)
            versions.append(matrix._version > before)
        return values

    t2j(program)(jnp.array([1.5, 0.5]))
    assert versions == [True, True]


def test_a_clone_keeps_its_places():
    def program(values):
        matrix = _csr(values.clone())
        matrix.clone().copy_(torch.sparse_csr_tensor(torch.tensor([0, 0, 2]), torch.tensor([0, 1]), values, (2, 2)))
        other = matrix.clone().copy_(matrix.to_dense().flip(0).to_sparse_csr())
        return matrix.to_dense(), other.to_dense(), torch.ops.aten.clone(_coo(values), memory_format=None).to_dense()

    given = torch.tensor([1.5, 0.5])
    for found, wanted in zip(t2j(program)(jnp.array(given.tolist())), program(given), strict=True):
        torch.testing.assert_close(torch.tensor(found.tolist()), wanted)
