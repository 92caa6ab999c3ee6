"""How the command starts: what it imports for its help, and how Ctrl-C ends it."""

import json
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import torch2jax
from torch2jax_cli import leaves, main
from torch2jax_cli.app import app

_HEAVY = ("jax", "numpy", "torch", "torch2jax")
_HELP = """
import contextlib, io, json, sys
from torch2jax_cli import main
def run(*arguments):
    sys.argv = ["torch2jax", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    return out.getvalue()
texts = [run("--help"), run("--version"), *(run(name, "--help") for name in COMMANDS)]
print(json.dumps([texts, [name for name in HEAVY if name in sys.modules], len(sys.modules)]))
"""
_COMMANDS = [command.callback.__name__ for command in app.registered_commands]


def _run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)


def test_help_and_version_import_neither_pytorch_nor_jax():
    done = _run(f"HEAVY, COMMANDS = {_HEAVY}, {_COMMANDS}\n{_HELP}")
    texts, heavy, count = json.loads(done.stdout)
    assert not heavy
    assert count < 500  # of PyTorch and JAX it would be thousands
    general, version, *commands = texts
    assert version.startswith(f"torch2jax {torch2jax.__version__}, Python 3.")
    assert all(name in general for name in _COMMANDS)
    for name, text in zip(_COMMANDS, commands, strict=True):
        assert f"  torch2jax {name}" in text
        assert "Documentation: " in text
        assert "Exit codes: " in text


def test_help_names_no_types_of_flags():
    for name in _COMMANDS:
        assert not re.search(r"--\S+ +<bool>", CliRunner().invoke(app, [name, "--help"]).stdout)


def test_completion():
    words = {"_TORCH2JAX_COMPLETE": "complete_bash", "COMP_WORDS": "torch2jax check tim", "COMP_CWORD": "2"}
    done = _run(f"import os; os.environ.update({words}); from torch2jax_cli import main; main()")
    assert done.stdout.split() == ["timm:"]


def test_ctrl_c_while_it_imports():
    code = "import os, signal; from torch2jax_cli import ends_silently\nwith ends_silently():\n "
    done = _run(code + "os.kill(os.getpid(), signal.SIGINT); print('went on')")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_it_runs():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended, leaves():
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_without_its_extra(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "torch2jax_cli.app")
    monkeypatch.setitem(sys.modules, "typer", None)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        main()
    assert signal.getsignal(signal.SIGINT) is before
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        "torch2jax: the command line needs typer: pip install '.[cli]' in the folder of"
    )


def test_where_pytorch_cannot_be_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(sys, "argv", ["torch2jax", "check", "torch:sin", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "torch2jax cannot be imported: ModuleNotFoundError" in (told := capsys.readouterr().err)
    assert "torch2jax doctor" in told
