"""What of the package runs for common operators and calls is no more than docs/walk.md says."""

from pathlib import Path

import pytest

from scripts.walk import OPERATORS, WALKS, measured

_TABLE = Path(__file__).parents[2] / "docs/walk.md"
_ROWS = [line.strip("| ").split(" | ") for line in _TABLE.read_text().splitlines() if line.startswith("| `")]
_MOST = {name.strip("`"): [*map(int, numbers)] for name, *numbers in _ROWS}


@pytest.mark.parametrize("name", [*OPERATORS, *WALKS])
def test_no_more_runs_than_the_table_says(name):
    for kind, walk in measured([name]):
        most = _MOST[kind]
        assert all(got <= bound for got, bound in zip(walk[:5], most, strict=True)), (walk[:5], most, walk.names)
