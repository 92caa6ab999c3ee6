"""The runner of the tests: shares of their files, what is left to the night, and the last line."""

import ast
from pathlib import Path

import pytest

from scripts import tests
from scripts.tests import Outcomes, shares
from tests.durations import names_of, nightly

ROOT = Path(__file__).parents[2]


def test_shares_take_as_long_as_each_other_and_keep_folders_together():
    seconds = {"tests/ops/test_a.py": 60, "tests/ops/test_b.py": 40, "tests/cli/test_c.py": 80, "tests/test_d.py": 15}
    assert shares(["tests/test_d.py", *reversed(seconds)], 2, seconds) == [
        ["tests/ops/test_b.py", "tests/ops/test_a.py"],
        ["tests/cli/test_c.py", "tests/test_d.py", "tests/test_d.py"],
    ]
    assert shares(["tests/test_d.py"], 2, seconds) == [["tests/test_d.py"]]


def test_the_last_line_counts_outcomes():
    found = Outcomes()
    for name in ("a", "b"):
        found.add({"name": f"tests/test_x.py::{name}", "outcome": "passed", "seconds": 0.75})
    assert str(found) == "2 passed, 0 failed"
    found.add({"name": "tests/test_x.py::c", "outcome": "skipped", "seconds": 0.0})
    assert str(found) == "2 passed, 0 failed, 1 skipped"
    assert found.by_file() == {"tests/test_x.py": 2}


_CONFTEST = """\
from tests.durations import Durations

def pytest_addoption(parser):
    parser.addoption("--record-outcomes")

def pytest_configure(config):
    config.pluginmanager.register(Durations(False, config.getoption("--record-outcomes")))
"""


def test_processes_that_end_badly_fail(tmp_path, capfd):
    (tmp_path / "conftest.py").write_text(_CONFTEST)  # this project's takes long to import what it needs
    bad, good = tmp_path / "test_bad.py", tmp_path / "test_good.py"
    bad.write_text("import os\n\n\ndef test_bad():\n    os._exit(0)\n")
    good.write_text("def test_good():\n    pass\n\n\ndef test_wrong():\n    assert 1 == 2\n")
    options = ["--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    code, outcomes = tests.run([[str(bad)], [str(good)]], options)
    assert code != 0
    assert str(outcomes) == "1 passed, 2 failed"
    assert "assert 1 == 2" in capfd.readouterr().out


def test_a_list_names_tests_with_and_without_their_parameters_and_files():
    file = "tests/ops/test_a.py"
    assert names_of(f"{file}::TestB::test_c[x::y]") == {
        f"{file}::TestB::test_c[x::y]",
        f"{file}::TestB::test_c",
        f"{file}::TestB",
        file,
    }


@pytest.mark.parametrize("name", nightly())
def test_what_is_left_to_the_night_is_there(name):
    file, _, rest = name.partition("::")
    functions = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")}
    assert not rest or set(rest.partition("[")[0].split("::")) <= functions
