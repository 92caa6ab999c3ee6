"""Where sequences repeat themselves."""

import numpy as np
import pytest

from torch2jax.tracing.loops.rolled import Run, longest_run

WORD = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("sequence", "run"),
    [
        ([7, 8, *WORD * 5, 9], Run(2, 8, 5)),
        ([7, *[1] * 20, 8], Run(1, 1, 20)),
        ([*WORD * 5, *WORD[:3]], Run(0, 8, 5)),
        ([*([0] + [1, 2] * 6) * 5], Run(0, 13, 5)),  # a loop in a loop
        ([*WORD * 3, 7], None),
        ([*range(100)], None),
        ([], None),
    ],
)
def test_longest_run(sequence, run):
    assert longest_run(np.asarray(sequence, np.int64), iterations=4, least=16) == run


@pytest.mark.parametrize("seed", range(8))
def test_a_period_among_few_numbers_is_found(seed):
    random = np.random.default_rng(seed)
    period, iterations = int(random.integers(30, 120)), int(random.integers(4, 30))
    around = [random.integers(10, 20, 40), random.integers(10, 20, 40)]
    sequence = np.concatenate([around[0], np.tile(random.integers(0, 4, period), iterations), around[1]])
    found = longest_run(sequence, iterations=4, least=16)
    assert found is not None
    assert (found.period, found.iterations) == (period, iterations)
    assert 40 <= found.start
