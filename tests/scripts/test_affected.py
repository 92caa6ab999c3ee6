"""What runs for a change: the tests that run what has changed, the most specific first, within so many seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.affected import ALWAYS, Map, changed_functions, chosen, compact
from scripts.records import records

ROOT = Path(__file__).parents[2]
_SOURCE = """\
LIMIT = 3


class Thing:
    def method(self):
        return [1]

    @property
    def size(self):
        def inner():
            return 2
        return inner()


async def later():
    pass
"""


def test_lines_belong_to_functions():
    assert changed_functions(_SOURCE, [6]) == {"Thing.method"}
    assert changed_functions(_SOURCE, [8, 11, 16]) == {"Thing.size", "later"}
    assert changed_functions(_SOURCE, [1]) == {""}
    assert changed_functions(_SOURCE, [2, 3, 14, 99]) == set()  # lines without text


RAN = [
    ("tests/ops/test_fft.py", ["torch2jax/ops/fft.py:fft2", "torch2jax/calls/some.py:run"]),
    (
        "tests/ops/test_graphs.py",
        ["torch2jax/ops/fft.py:fft2", "torch2jax/ops/nn/loss.py:a", "torch2jax/calls/some.py:run"],
    ),
    ("tests/ops/test_views.py", ["torch2jax/calls/some.py:run"]),
]


def test_the_most_specific_tests_are_first():
    known = Map(compact(RAN, {}))
    assert known.tests_of("torch2jax/ops/fft.py", "fft2") == (2, ["tests/ops/test_fft.py", "tests/ops/test_graphs.py"])
    assert known.tests_of("torch2jax/calls/some.py", "run")[1][0] == "tests/ops/test_views.py"
    assert known.tests_of("torch2jax/ops/fft.py", "new") == known.tests_of("torch2jax/ops/fft.py", "fft2")
    assert known.tests_of("torch2jax/ops/new.py", "new") == (0, [])


def test_each_change_has_a_test_before_another_has_two():
    changed = {"torch2jax/calls/some.py": {"run"}, "torch2jax/ops/fft.py": {"fft2"}}
    tests, left = chosen(changed, Map(compact(RAN, {})), {"tests/ops/test_views.py": 50}, budget=3)
    assert tests == [*ALWAYS, "tests/ops/test_fft.py"]
    assert left == {"torch2jax/calls/some.py": 1}


def test_what_the_map_does_not_know_goes_by_names():
    tests, _ = chosen({"torch2jax/ops/fft.py": {"fft2"}, "scripts/watched.py": {"each"}}, None, {})
    assert {"tests/ops/test_fft.py", "tests/scripts/test_watched.py"} <= set(tests)
    tests, _ = chosen({"docs/sparse.md": set(), "tests/tracing/loops/programs.py": {""}}, None, {})
    assert "tests/test_readme.py::test_python_blocks_run[sparse.md]" in tests
    assert "tests/tracing/loops/test_loops.py" in tests


def test_of_a_test_file_what_has_changed_runs():
    file = "tests/scripts/test_affected.py"
    tests, _ = chosen({file: {"test_lines_belong_to_functions", "test_gone"}}, None, {})
    assert tests == [*ALWAYS, f"{file}::test_lines_belong_to_functions"]
    tests, _ = chosen({file: {"test_lines_belong_to_functions", ""}}, None, {})
    assert tests == [*ALWAYS, file]


@pytest.mark.slow("imports the package in a process of its own")
def test_functions_that_a_test_runs_are_recorded(tmp_path):
    path, test = tmp_path / "functions.jsonl", tmp_path / "test_it.py"
    test.write_text(
        "from torch2jax.runtime.errors.locations import nearest\n\n\ndef test_it():\n    nearest('a', ['b'])\n"
    )
    options = ["-p", "scripts.touched", "--touched", str(path), "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *options, str(test)], cwd=ROOT, check=True)
    ((unit, names),) = records(path)
    assert unit == "test_it.py"
    assert "torch2jax/runtime/errors/locations.py:nearest" in names
