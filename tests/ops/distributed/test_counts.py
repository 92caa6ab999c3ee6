"""Translated programs have the operations and collectives of those by hand; `benchmarks.distributed` lists them."""

import pytest

from benchmarks.distributed import ROWS, counts
from torch2jax import t2j


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("name", ROWS)
def test_operations_and_collectives(name):
    row = ROWS[name]
    for has_gradient in (False, True):
        found, wanted = counts(t2j(row.program), row, has_gradient), counts(row.by_hand, row, has_gradient)
        assert found.collectives == wanted.collectives
        assert found.operations <= 1.05 * wanted.operations
