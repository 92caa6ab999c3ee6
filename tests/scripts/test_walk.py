"""What of the package runs for common operators and calls is no more than docs/walk.md says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.walk import WALKS

_WALKS = {f"`{name}`" for name in WALKS}
_ROOT = Path(__file__).parents[2]


def _numbers(text: str) -> dict[str, list[int]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: [*map(int, numbers)] for name, *numbers in rows}


@pytest.fixture(scope="module")
def walked() -> str:
    """What the script prints of all walks."""
    # what else a process has imported counts: more of PyTorch is exchanged then
    command = [sys.executable, "-m", "scripts.walk", "--names"]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout


def test_no_more_runs_than_the_table_says(walked):
    got, most = _numbers(walked), _numbers((_ROOT / "docs/walk.md").read_text())
    assert got.keys() == most.keys()
    grown = {name for name in got if any(map(_is_more, got[name], most[name], [name in _WALKS] * 5))}
    assert not grown, {name: (got[name], most[name]) for name in grown}


def _is_more(got: int, most: int, is_whole: bool) -> bool:
    """Whether more runs than may: of an operator not one call, of a whole call what a reader would notice."""
    return got > (most * 1.02 if is_whole else most)


_DESCRIBED = {
    "`x + y`": ["x + y", "x + y, traced"],
    "`y.t()[0].add_(1)`": ["y.t()[0].add_(1)", "y.t()[0].add_(1), traced"],
    "`.backward()`": [".backward(), traced"],
    "`if x.sum() > 0:`": ["if x.sum() > 0, traced"],
}


def _steps(walk: str) -> list[str]:
    """The functions that the page names for a walk, as the script does."""
    text = (_ROOT / "docs/walk.md").read_text().split(f"\n**{walk}**")[1].split("\n**")[0]
    return [":".join(pair) for pair in re.findall(r"`([a-z_/]+\.py)`\s`(\w+)`", text)]


@pytest.mark.parametrize("walk", _DESCRIBED)
def test_walks_are_as_they_are_described(walk, walked):
    parts = [walked.split(f"| `{name}` |")[1].split("| `")[0] for name in _DESCRIBED[walk]]
    called = [line for part in parts for line in part.splitlines() if ".py:" in line]
    steps = _steps(walk)
    assert len(steps) >= 5
    first = {step: called.index(step) if step in called else None for step in steps}
    assert None not in first.values(), first
    assert [*first.values()] == sorted(first.values()), first  # pyright: ignore[reportArgumentType]
