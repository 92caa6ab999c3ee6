"""These tests run with conditions and loops that are read from the source."""

import pytest

from torch2jax.branches import switch


@pytest.fixture(autouse=True)
def from_source(monkeypatch):
    monkeypatch.setattr(switch, "is_on", True)
