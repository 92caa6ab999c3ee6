"""``torch2jax doctor``, also where nothing can be imported."""

import json
import sys

from torch2jax import tools

from .test_cli import run


def test_report(monkeypatch):
    finding = tools.Finding("warning", "torchvision", "is broken", "reinstall it")
    monkeypatch.setattr(tools, "doctor", lambda step: tools.Diagnosis({"jax": "1"}, {"JAX": ["cpu: cpu"]}, [finding]))
    result = run("doctor", "--quiet")
    assert result.exit_code == 0
    for text in ("jax 1", "cpu: cpu", "warning  torchvision: is broken", "→ reinstall it"):
        assert text in result.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["healthy"]
    assert report["findings"][0]["remedy"] == "reinstall it"


def test_exit_code(monkeypatch):
    finding = tools.Finding("error", "torch", "got 1.0", "pip install torch")
    monkeypatch.setattr(tools, "doctor", lambda step: tools.Diagnosis({}, {}, [finding]))
    assert run("doctor").exit_code == 1


def test_where_nothing_can_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    result = run("doctor", "--quiet")
    assert result.exit_code == 1
    assert "cannot be imported: ModuleNotFoundError" in result.stdout
    assert "torch  " in result.stdout
    assert "<2.16,>=2.11" in result.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["packages"]["jax"]["wanted"] == "<0.13,>=0.10.2"
