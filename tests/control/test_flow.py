"""Programs that people write, with conditions and loops on data: some; `scripts.control_flow flow` runs all."""

import pytest

from tests.control.programs import flow, language
from tests.control.programs.table import PROGRAMS

_TODAY: list[str] = []


@pytest.mark.parametrize(
    "name", [name for name in flow.names() if PROGRAMS[name].build().__module__ == language.__name__]
)
def test_flow(name):
    found = flow.run(name)
    assert found.kind not in ("wrong", "error", "torch"), found.text
