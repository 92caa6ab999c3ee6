"""What the doctor finds in installations that are ill."""

import importlib.metadata

import jax
import pytest

from torch2jax import tools
from torch2jax.tools import installation as found


def _levels(diagnosis: tools.Diagnosis) -> dict[str, str]:
    return {finding.subject: finding.level for finding in diagnosis.findings}


def test_this_installation():
    steps = []
    diagnosis = tools.doctor(step=steps.append, libraries=False)
    assert diagnosis.healthy
    assert len(steps) == 4
    assert diagnosis.versions["jax"] == jax.__version__
    assert diagnosis.devices["JAX"][0].startswith(jax.default_backend())
    levels = _levels(diagnosis)
    assert levels["requirements"] == levels["t2j"] == levels["torch2jax"] == "ok"
    assert levels["64-bit types"] == "note"
    with jax.enable_x64(True):
        assert "64-bit types" not in _levels(tools.doctor(libraries=False))


@pytest.fixture
def pretends(monkeypatch):
    """Lets packages be there in other versions, or not at all."""
    others: dict[str, str | None] = {}
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in others and others[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return others.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return others


def test_versions_that_are_not_asked_for(pretends):
    pretends.update({"torch": "2.3.1+cu121", "optree": None, "safetensors": None, "timm": "0.1"})
    findings = {finding.subject: finding for finding in found._requirements()}
    assert findings["torch"].level == "error"
    assert findings["torch"].found.startswith("got 2.3.1+cu121; wanted torch<2.16,>=2.11")
    assert findings["torch"].remedy == "pip install 'torch<2.16,>=2.11'"
    assert findings["optree"].found.startswith("got nothing")
    assert findings["timm"].level == "warning"
    assert "safetensors" not in findings
    assert "requirements" not in findings
    assert not tools.Diagnosis({}, {}, [*findings.values()]).healthy


def test_a_plugin_of_another_jaxlib(monkeypatch):
    class Package:
        name, version = "jax_cuda13_plugin", "0.9.1"

    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Package()])
    (finding,) = found._plugins()
    jaxlib = importlib.metadata.version("jaxlib")
    assert finding.level == "error"
    assert finding.remedy == f"pip install 'jax[cuda13]=={jaxlib}'"


def test_libraries_that_cannot_be_imported(tmp_path, pretends, monkeypatch):
    programs = {
        "torchvision": "raise RuntimeError('operator torchvision::nms does not exist\\nand more')",
        "timm": "try:\n    import torchvision\nexcept RuntimeError as error:\n    raise ImportError('no') from error",
        "peft": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "torchaudio": "print('imported')",
        "e3nn": "raise ValueError",
    }
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
        pretends[name] = "0.1"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(found, "_LIBRARIES", {name: name for name in (*programs, "torch_that_is_not_there")})
    findings = {finding.subject: finding for finding in found._libraries(lambda text: None)}
    assert findings.keys() == {"libraries", "torchvision", "peft", "e3nn"}
    assert findings["libraries"].found == "torchaudio 0.1 can be imported"
    assert findings["torchvision"].level == "error"
    assert findings["torchvision"].found.endswith(
        "RuntimeError: operator torchvision::nms does not exist; the same for timm"
    )
    assert "--force-reinstall torch torchvision" in findings["torchvision"].remedy
    assert findings["peft"].found.endswith("ends Python (-11)")
    assert findings["e3nn"].found.endswith("ValueError")
    assert findings["e3nn"].remedy.startswith("pip install --upgrade e3nn")


def test_an_accelerator_that_is_not_used(monkeypatch):
    monkeypatch.setattr(found, "_present", lambda: [("NVIDIA GPU", "pip install 'jax[cuda13]'")])
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    (finding,) = found._accelerators({"JAX": ["cpu: cpu"]})
    assert (finding.level, finding.remedy) == ("warning", "pip install 'jax[cuda13]'")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert [finding.level for finding in found._accelerators({"JAX": ["cpu: cpu"]})] == ["note"]
    assert [finding.level for finding in found._accelerators({"JAX": ["gpu: H100"]})] == ["ok"]


def test_a_platform_that_is_not_there(monkeypatch):
    def devices():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    diagnosis = tools.doctor(libraries=False)
    assert not diagnosis.healthy
    (finding,) = (finding for finding in diagnosis.findings if finding.level == "error")
    assert finding.remedy == "unset JAX_PLATFORMS, which is 'cuda'"


def test_a_program_that_fails():
    def program():
        raise RuntimeError("no kernel image\nand more")

    assert [finding.found for finding in found._tried("t2j", program)] == [
        "a small program fails: RuntimeError: no kernel image"
    ]
    assert [finding.level for finding in found._tried("t2j", lambda: False)] == ["error"]
