"""Corners of Python: right, or refused by name."""

import pytest

from tests.control.programs import corners, flow


@pytest.mark.parametrize("name", corners.NAMES)
def test_corners(name):
    found = flow.run(name, limit=5)
    assert found.kind in ("right", "refused"), found.text
