"""The README is right: its Python runs, and its commands name what there is."""

import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    return [shlex.split(part) for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")]


def test_python_blocks_run():
    assert len(blocks("python")) >= 7
    namespace: dict = {"__name__": "readme"}
    for block in blocks("python"):
        start = README[: README.index(block)].count("\n")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile("\n" * start + block, "README.md", "exec"), namespace)


def test_example_is_short():
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 10


def test_commands_install_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [
        name
        for command in commands()
        for group in re.findall(r"\.\[(.*?)\]", " ".join(command))
        for name in group.split(",")
    ]
    assert asked
    assert set(asked) <= set(extras)
    assert (ROOT / "constraints.txt").is_file()


def test_ci_runs_the_test_command():
    (tests,) = [command for command in commands() if command[0].endswith("pytest")]
    assert " ".join(["pytest", *tests[1:]]) in (ROOT / ".ci/run").read_text()


@pytest.mark.models
@pytest.mark.slow
def test_main_job_command_agrees():
    (check,) = [command for command in commands() if command[0].endswith("torch2jax")]
    done = subprocess.run([sys.executable, "-m", "torch2jax", *check[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
