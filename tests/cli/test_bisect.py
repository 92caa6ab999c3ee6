"""``torch2jax bisect``: what it prints, and its exit codes."""

import json

from .test_cli import here, run


def test_report():
    result = run("bisect", here("double"), "--shape", "3")
    assert result.exit_code == 1
    for text in (
        "0 calls of operators agree",
        "operator",
        "call 1",
        "float32[3]",
        "rel error 5.0e-01",
        "itself is wrong",
    ):
        assert text in result.stdout
    result = run("bisect", here("Net"), "--shape", "4,8", "--train")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "every operator agrees with PyTorch"


def test_json_and_exit_codes():
    record = json.loads(run("bisect", here("double"), "--shape", "3", "--json").stdout)
    assert record["step"]["index"] == 1
    assert not record["agrees"]
    result = run("bisect", here("unknown"), "--shape", "3", "--json")
    assert result.exit_code == 3
    assert "NoRuleError" in json.loads(result.stdout)["verdict"]
    assert run("bisect", here("Net"), "--shape", "4,9").exit_code == 2
