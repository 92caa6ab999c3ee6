"""``torch2jax bench``: its table, and its exit codes."""

import json

from .test_cli import here, run

OPTIONS = ("--no-compile", "--seconds", "0.03")


def test_table():
    result = run("bench", here("Net"), "--shape", "4,8", "--grad", *OPTIONS)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    header, *rows = lines[(start := next(i for i, line in enumerate(lines) if line.startswith("backend"))) : start + 3]
    assert header.split("  ")[0] == "backend"
    assert [row.split()[0] for row in rows] == ["PyTorch", "torch2jax"]
    assert "1.00x" in rows[0]


def test_json_and_exit_codes():
    result = run("bench", here("double"), "--shape", "3", "--json", *OPTIONS)
    assert result.exit_code == 1  # it is wrong, so that its times say nothing
    record = json.loads(result.stdout)
    assert not record["agreement"]["agrees"]
    assert record["timings"][1]["seconds"] > 0
    assert "The outputs differ, by 5.0e-01" in run("bench", here("double"), "--shape", "3", *OPTIONS).stdout
    assert run("bench", here("unknown"), "--shape", "3", *OPTIONS).exit_code == 3
    assert run("bench", here("Net"), "--shape", "4,9", *OPTIONS).exit_code == 2
