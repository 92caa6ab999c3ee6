"""A few of PyTorch's own samples of operators of sparse tensors; ``python -m tests.ops.sparse.database`` runs all."""

import pytest

from .database import LAYOUTS, operators, run, samples

REFUSED = {"randn_like"}  # random elements


@pytest.mark.parametrize("op", [op for op in operators() if op.name not in REFUSED], ids=lambda op: op.name)
def test_first_samples(op):
    results = [run(op, sample, layout) for layout in LAYOUTS for sample in samples(op, layout, 2)]
    assert not [result.error for result in results if result is not None and result.error]
