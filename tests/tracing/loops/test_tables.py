"""Dynamic programs over a table: a loop over its rows with a loop over its columns within."""

import jax
import numpy as np
import pytest
import torch

from tests.tracing.loops.programs import scans
from torch2jax import t2j


def listed(costs):
    n, m = costs.shape
    table = [[costs[i, 0] + costs[0, j] for j in range(m)] for i in range(n)]
    for i in range(1, n):
        for j in range(1, m):
            before = torch.minimum(torch.minimum(table[i - 1][j], table[i][j - 1]), table[i - 1][j - 1])
            table[i][j] = costs[i, j] + before
    return table[-1][-1]


def softly(costs):
    n, m = costs.shape
    table = torch.full((n + 1, m + 1), 1e4)
    table[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            before = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]])
            table[i, j] = costs[i - 1, j - 1] - torch.logsumexp(-before, 0)
    return table[-1, -1]


def row_by_row(costs):
    n, m = costs.shape
    rows = [torch.zeros(m + 1)]
    for i in range(n):
        row = [rows[-1][0] + 1]
        for j in range(m):
            row.append(costs[i, j] + torch.minimum(torch.minimum(rows[-1][j], rows[-1][j + 1]), row[-1]))
        rows.append(torch.stack(row))
    return rows[-1][-1]


def of_computed_rows(costs):
    table, found = costs.cumsum(0), torch.zeros(())
    for i in range(len(costs)):
        row = table[i]
        for j in range(len(row)):
            found = (found + row[j]).sin() * 0.5 + costs[i, j].sin() * 0.1
        table = table * 1.01
    return found


PROGRAMS = {
    "listed": (listed, 5, 6),
    "softly": (softly, 5, 6),
    "row by row": (row_by_row, 7, 7),
    "of computed rows": (of_computed_rows, 6, 40),
}


@pytest.mark.parametrize(("program", "rows", "columns"), PROGRAMS.values(), ids=PROGRAMS)
def test_tables(program, rows, columns):
    costs = torch.rand(rows, columns, generator=torch.Generator().manual_seed(0))
    given = costs.clone().requires_grad_()
    expected = program(given)
    expected.backward()
    found, slopes = jax.jit(jax.value_and_grad(t2j(program, loops="rolled")))(t2j(costs))
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-5)
    assert given.grad is not None
    np.testing.assert_allclose(slopes, given.grad, rtol=1e-4, atol=1e-6)


def test_a_row_of_a_computed_table_is_taken_in_a_loop_with_a_loop_within():
    costs = t2j(torch.rand(6, 40))
    assert scans(t2j(of_computed_rows, loops="rolled"), costs) == [40, 5, 40]
