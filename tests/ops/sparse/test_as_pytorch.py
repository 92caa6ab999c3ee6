"""What PyTorch gives for a sparse tensor, or refuses: the same within a call, with the same words."""

import re

import pytest
import torch

from torch2jax import t2j

INDEX = torch.tensor([[0, 1, 1], [2, 0, 0]])
CROW, COL = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 2])
BSR = torch.sparse_bsr


def _twice(**options):
    """A matrix with an index that comes twice."""
    return torch.sparse_coo_tensor(INDEX, torch.tensor([0.3, 0.4, 0.5]), (2, 3), **options)


def _coo():
    return _twice().coalesce()


def _csr():
    return torch.eye(3).to_sparse_csr()


def _blocks(**options):
    return torch.sparse_compressed_tensor(
        torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2, 1, 2), layout=BSR, **options
    )


def _checked(crow, col, values, size):
    return torch.sparse_csr_tensor(crow, col, values, size, check_invariants=True)


def _gradient_of_copy():
    """Of a matrix with an index that comes twice, for a gradient with the same indices."""
    source = _twice(requires_grad=True)
    target = _coo().copy_(source)
    (target * 2).backward(source.detach().clone())
    return source.grad.to_dense()


CODE = {
    **{
        f"{name} of what is not coalesced": lambda name=name: getattr(_twice(), name)()
        for name in (
            "abs_",
            "arcsin_",
            "asin_",
            "deg2rad_",
            "floor_",
            "log1p_",
            "nan_to_num_",
            "relu_",
            "sin_",
            "sqrt_",
            "neg_",
        )
    },
    "in place": lambda: _coo().sin_(),
    "a size alone": lambda: torch.sparse_coo_tensor(size=(2, 3)),
    "a clone of what is said not to be coalesced": lambda: (
        torch.zeros(2, 3, layout=torch.sparse_coo)._coalesced_(False).clone().is_coalesced()
    ),
    "norm, p": lambda: _twice().norm(p=1),
    "full_like CSR": lambda: torch.full_like(_csr(), 2.5),
    "full_like, strided": lambda: torch.full_like(_coo(), 2.5, layout=torch.strided),
    "ones_like, strided": lambda: torch.ones_like(_coo(), layout=torch.strided),
    "spdiags, offsets": lambda: torch.sparse.spdiags(torch.ones(2, 3), torch.tensor([[1, 2], [0, 3]]), (3, 3)),
    "spdiags, diagonals": lambda: torch.sparse.spdiags(torch.ones(3, 2, 3), torch.tensor([0, 1, 2]), (4, 4)),
    "spdiags, shape": lambda: torch.sparse.spdiags(torch.ones(1, 3), torch.tensor([0]), (3, 2, 3)),
    "spdiags, twice": lambda: torch.sparse.spdiags(torch.ones(2, 5), torch.tensor([0, 0]), (5, 5)),
    "blocks that do not fit": lambda: _blocks(size=(2, 5), check_invariants=True),
    "no rows": lambda: _checked(torch.tensor(0), COL, torch.ones(4), (2, 3)),
    "too many rows": lambda: _checked(CROW, COL, torch.ones(4), (3, 3)),
    "a short size": lambda: _checked(CROW, COL, torch.ones(4), (2,)),
    "too few values": lambda: _checked(CROW, COL, torch.ones(3), (2, 3)),
    "indices of two dtypes": lambda: _checked(CROW, COL.int(), torch.ones(4), (2, 3)),
    "a gradient with an index twice": _gradient_of_copy,
}


def _outcome(function) -> tuple[object, list]:
    """What a test can compare of what it gives or raises: facts, and numbers."""
    try:
        result = function()
    except Exception as error:
        return (type(error), re.sub(r"\s+", " ", str(error)).strip()), []
    if not isinstance(result, torch.Tensor):
        return result, []
    facts = result.layout, result.dtype, tuple(result.shape), result.requires_grad
    if result.layout is not torch.strided:
        facts += result._nnz(), result.layout is torch.sparse_coo and result.is_coalesced()
    return facts, result.detach().to_dense().flatten().tolist()


@pytest.mark.parametrize("name", CODE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_pytorch_gives(name):
    outcomes = []

    def translated():
        outcomes.append(_outcome(CODE[name]))
        return torch.zeros(())

    t2j(translated)()
    assert outcomes == [(_outcome(CODE[name])[0], pytest.approx(_outcome(CODE[name])[1], nan_ok=True))]
