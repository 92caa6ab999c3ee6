"""What of the package runs for common operators and calls is no more than docs/walk.md says."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _numbers(text: str) -> dict[str, list[int]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: [*map(int, numbers)] for name, *numbers in rows}


def test_no_more_runs_than_the_table_says():
    # what else a process has imported counts: more of PyTorch is exchanged then
    command = [sys.executable, "-m", "scripts.walk"]
    found = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    got, most = _numbers(found.stdout), _numbers((_ROOT / "docs/walk.md").read_text())
    assert got.keys() == most.keys()
    assert {name for name in got if any(x > bound for x, bound in zip(got[name], most[name], strict=True))} == set()
