"""What each command prints fits a narrow terminal and a wide one, whole; with ``--json`` it is one object."""

import json
from pathlib import Path

import pytest

from torch2jax import tools
from torch2jax_cli.app import app

from .test_bench import OPTIONS
from .test_cli import SHAPE, here, run

NET = (here("Net"), *SHAPE)
COMMANDS = {
    "check": NET,
    "bisect": NET,
    "bench": (*NET, *OPTIONS),
    "export": (*NET,),
    "doctor": (),
    "ops": ("nn.functional.gelu",),
}
LONG = "pip install --force-reinstall torch torchvision, both from the index that has the builds for this machine"


@pytest.fixture(autouse=True)
def one_finding(monkeypatch):
    """A report of `doctor` without the time that it takes to import every library."""
    found = tools.Diagnosis({"jax": "0.10.2"}, {"JAX": ["cpu"]}, [tools.Finding("warning", "torchvision", "old", LONG)])
    monkeypatch.setattr(tools, "doctor", lambda step: found)


def test_every_command_is_here():
    assert set(COMMANDS) == {command.callback.__name__ for command in app.registered_commands}


def arguments(command: str, folder: Path) -> list:
    """The arguments of a command, which writes what it writes to a folder."""
    first, rest = COMMANDS[command][:1], COMMANDS[command][1:]
    return [command, *first, *([folder / "net.jaxexport"] if command == "export" else []), *rest]


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_width(command, columns, tmp_path):
    result = run(*arguments(command, tmp_path), columns=columns)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines), default=0) <= columns
    assert "…" not in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_json(command, tmp_path):
    assert isinstance(json.loads(run(*arguments(command, tmp_path), "--json").stdout), dict)
