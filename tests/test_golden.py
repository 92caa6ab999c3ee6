"""The graphs of some thousand small programs and of models are those of the golden files.

How much of the package's own code runs for an operator is in docs/walk.md, which tests/scripts/test_walk.py compares.
"""

import jax
import pytest

from tests.golden import files

LINES = 150


@pytest.mark.parametrize("room", files.ROOMS)
@pytest.mark.slow("traces all steps of a generation")
def test_graphs(room):
    stored = files.stored(room).partition("\n")[0]
    if stored != files.versions(room):
        pytest.skip(f"the graphs are those of {stored or 'no version'}, and here is {files.versions(room)}")
    if files.ROOMS[room] == "meshes" and len(jax.devices()) < 8:
        pytest.skip("needs eight devices")
    lines = files.difference(room, files.room_text(room))
    if lines:
        left_out = f"\n... and {len(lines) - LINES} more lines" if len(lines) > LINES else ""
        pytest.fail(
            f"{room}.txt has other graphs:\n" + "\n".join(lines[:LINES]) + left_out + "\nIf they are what an expert "
            f"would write, `python -m tests.golden {room}` writes them",
            pytrace=False,
        )
