"""`scripts.control_flow`: a program that ends its process, or never ends, costs only itself."""

import sys

import pytest

from scripts import control_flow

CHILD = f"""#!{sys.executable}
import json, os, sys, time

for name in json.load(sys.stdin):
    if name == "crash":
        os.abort()
    if name == "hang":
        time.sleep(60)
    if name == "gauge":
        raise KeyError("of the gauge")
    print(json.dumps([name, "right", "", 0.5, None]), flush=True)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    path = tmp_path / "child"
    path.write_text(CHILD)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(control_flow, "GRACE", 3.0)


@pytest.mark.usefixtures("child")
def test_the_rest_runs_after_a_crash_and_a_hang():
    said = []
    found = control_flow.rows("flow", ["a", "crash", "b", "hang", "c"], 0.2, said.append)
    assert [row[:2] for row in found] == [
        ("a", "right"),
        ("crash", "error"),
        ("b", "right"),
        ("hang", "late"),
        ("c", "right"),
    ]
    assert "ended with -6" in found[1][2]
    assert said == found


@pytest.mark.usefixtures("child")
def test_an_exception_of_the_gauge_is_not_an_outcome():
    with pytest.raises(RuntimeError, match="of the gauge"):
        control_flow.rows("flow", ["a", "gauge"], 0.2)


def test_table():
    rows = [
        ("loops 1", "right", "", 0.5, None),
        ("loops 2", "wrong", "", 1.5, None),
        ("mixed 1", "right", "", 0.1, None),
    ]
    lines = list(control_flow.table(rows, lambda name: name.split()[0]))
    assert lines[2:] == [
        "| loops | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 1.50 | 1.50 | 1.50 |",
        "| mixed | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0.10 | 0.10 | 0.10 |",
        "| all | 3 | 2 | 0 | 1 | 0 | 0 | 0 | 0.50 | 1.50 | 1.50 |",
    ]


def test_page():
    said = "jit: BranchError: y is a float at /some/where/of.py:12 in f, not | a list. Ways out: none"
    rows = [("brent", "right", "", 0.5, (0.25, 1, 2)), ("ten_ifs", "refused", said, 1.5, None)]
    lines = list(control_flow.page(rows, {"brent": "Solvers", "ten_ifs": "Python"}.__getitem__))
    assert lines[1] == "1 right, 1 refused, of 2."
    assert lines[2].startswith("\n## Solvers\n")
    assert lines[3] == "| brent | right | 0.25 | 1 | 2 |"
    assert lines[5] == r"| ten ifs | refused: y is a float at of.py:12 in f, not \| a list |  |  |  |"
