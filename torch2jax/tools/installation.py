"""Problems of an installation: versions, accelerators, and packages that do not fit together."""

import contextlib
import dataclasses
import glob
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..modules.convert import t2j
from ..runtime.layers import BRIDGE
from .models import first_line

_LIBRARIES = {
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "timm": "timm",
    "transformers": "transformers.modeling_utils",  # `import transformers` alone imports nothing
    "diffusers": "diffusers.models.modeling_utils",
    "peft": "peft",
    "sentence-transformers": "sentence_transformers",
    "torchao": "torchao.quantization",
    "torch-geometric": "torch_geometric.nn",
    "e3nn": "e3nn.o3",
}
"""The module to import of each package."""
_PACKAGES = (
    *("torch2jax", "torch", "jax", "jaxlib", "numpy", "ml-dtypes", "optree"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu", "triton"),
    *_LIBRARIES,
    *("flax", "equinox", "optax", "orbax-checkpoint", "safetensors", "flatbuffers", "typer", "rich"),
)
_PLUGINS = re.compile(r"jax-(cuda|rocm)\d+-(plugin|pjrt)")
_FIRST_ERROR = re.compile(r"^(\w[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check of the installation.

    Attributes:
        level: ``ok``, ``note`` for information, ``warning`` for something that may fail, ``error`` for a failure.
        subject: what was checked.
        found: what was found.
        remedy: what to do about it, or "".
    """

    level: str
    subject: str
    found: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The installed packages, the devices, and the findings of all checks.

    Attributes:
        versions: the versions of Python and of installed packages.
        devices: the devices of each JAX platform, the default one first, and of PyTorch's accelerator.
        findings: the results of all checks.
    """

    versions: dict[str, str]
    devices: dict[str, list[str]]
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """True if no check fails."""
        return all(finding.level != "error" for finding in self.findings)


def doctor(*, libraries: bool = True, step: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Checks the installation: versions, accelerators, libraries; and runs a program of each kind.

    Args:
        libraries: whether to import the installed libraries that models come from, each in another process.
        step: a function that receives progress messages.

    Examples:
        >>> from torch2jax import tools
        >>> tools.doctor(libraries=False).healthy
        True
    """
    step("reading versions")
    findings = [*_requirements(), *_plugins()]
    if libraries:
        findings += _libraries(step)
    step("looking for accelerators")
    devices, problems = _devices()
    findings += [*problems, *_accelerators(devices), *_numbers(devices)]
    if "JAX" in devices:
        step("running a translated program")
        findings += _tried("t2j", _translated)
        step("calling PyTorch from JAX")
        findings += _tried("torch2jax", _called)
    return Diagnosis(_versions(_PACKAGES), devices, findings)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    found = {"Python": platform.python_version(), "platform": platform.platform()}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _requirements() -> Iterator[Finding]:
    """The versions that this package asks for; those of its extras, where they are installed."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        yield Finding("note", "requirements", "not compared: packaging is not installed", "pip install packaging")
        return
    wrong = []
    for text in importlib.metadata.requires("torch2jax") or []:
        wanted, is_optional = Requirement(text), "extra ==" in text
        found = _versions((wanted.name,)).get(wanted.name, "" if is_optional else "nothing")
        if found and (found == "nothing" or not wanted.specifier.contains(found, prereleases=True)):
            pinned = f"{wanted.name}{wanted.specifier}"
            level = "warning" if is_optional else "error"
            wrong.append(Finding(level, wanted.name, f"got {found}; wanted {pinned}", f"pip install '{pinned}'"))
    yield from wrong or [Finding("ok", "requirements", "the installed versions are supported")]


def _plugins() -> Iterator[Finding]:
    """JAX's plugins for accelerators, which go with one release of jaxlib."""
    jaxlib = importlib.metadata.version("jaxlib")
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.name or "").lower()
        if _PLUGINS.fullmatch(name) and package.version != jaxlib:
            kind = name.split("-")[1]
            yield Finding(
                "error", name, f"got {package.version} beside jaxlib {jaxlib}", f"pip install 'jax[{kind}]=={jaxlib}'"
            )


def _libraries(step: Callable[[str], None]) -> Iterator[Finding]:
    """Libraries that cannot be imported, those together that fail for one reason: processes try, as one may end."""
    complete: list[str] = []
    reasons: dict[str, list[str]] = {}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    installed = _versions(tuple(_LIBRARIES))
    for name, module in _LIBRARIES.items():
        if name in installed:
            step(f"importing {name}")
            command = [sys.executable, "-c", f"import {module}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            cause = _FIRST_ERROR.search(done.stderr)
            if not done.returncode:
                complete.append(f"{name} {installed[name]}")
            else:
                error = cause[1] if cause else f"importing it ends Python ({done.returncode})"
                reasons.setdefault(error, []).append(name)
    if complete:
        yield Finding("ok", "libraries", f"{', '.join(complete)} can be imported")
    for error, (first, *others) in reasons.items():
        more = f"; the same for {', '.join(others)}" if others else ""
        yield Finding("error", first, f"{installed[first]} cannot be imported: {error}{more}", _remedy(first, error))


def _remedy(name: str, error: str) -> str:
    if "torchvision::" in error or name in ("torchvision", "torchaudio"):
        kind = torch.__version__.partition("+")[2] or "cpu"
        package = name if name == "torchaudio" else "torchvision"
        return (
            f"install both from one index: pip install --force-reinstall torch {package} --index-url "
            f"https://download.pytorch.org/whl/{kind}; or pip uninstall {package}, where nothing needs it"
        )
    return f"pip install --upgrade {name}; or pip uninstall {name}"


def _devices() -> tuple[dict[str, list[str]], list[Finding]]:
    devices, problems = {}, []
    try:
        devices["JAX"] = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    except Exception as error:  # a RuntimeError, or an assertion of JAX's
        asked = os.environ.get("JAX_PLATFORMS")
        remedy = f"unset JAX_PLATFORMS, which is {asked!r}" if asked else "reinstall JAX"
        problems.append(Finding("error", "JAX", f"has no devices: {first_line(error)}", remedy))
    devices["PyTorch"] = ["cpu"]
    if torch.accelerator.is_available():
        kind = str(torch.accelerator.current_accelerator())
        count = torch.cuda.device_count() if kind == "cuda" else 0
        devices["PyTorch"] = [f"{kind}: {torch.cuda.get_device_name(index)}" for index in range(count)] or [kind]
    return devices, problems


def _accelerators(devices: dict[str, list[str]]) -> Iterator[Finding]:
    """Accelerators of this machine that JAX does not use."""
    used = devices.get("JAX", [])
    if any(not device.startswith("cpu") for device in used):
        yield Finding("ok", "accelerator", f"JAX computes on {used[0]}")
        return
    asked = os.environ.get("JAX_PLATFORMS", "")
    for kind, remedy in _present():
        if asked.split(",")[0] == "cpu":
            yield Finding("note", "accelerator", f"JAX_PLATFORMS is {asked!r}: JAX leaves the {kind} alone", "unset it")
        else:
            yield Finding("warning", "accelerator", f"this machine has a {kind}, and JAX computes on the CPU", remedy)


def _present() -> Iterator[tuple[str, str]]:
    """The accelerators of this machine, each with the command that installs JAX for it."""
    if glob.glob("/dev/nvidia[0-9]*") or shutil.which("nvidia-smi"):
        yield "NVIDIA GPU", "pip install 'jax[cuda13]'; with a driver before 580, 'jax[cuda12]'"
    if Path("/dev/kfd").exists():
        yield "AMD GPU", "pip install 'jax[rocm7-local]'"
    if glob.glob("/dev/accel[0-9]*") or os.environ.get("TPU_ACCELERATOR_TYPE"):
        yield "TPU", "pip install 'jax[tpu]'"


def _numbers(devices: dict[str, list[str]]) -> Iterator[Finding]:
    """Settings that make numbers differ from PyTorch's."""
    config: Any = jax.config  # whose type has none of its attributes
    if not config.jax_enable_x64:
        yield Finding(
            "note",
            "64-bit types",
            "are truncated to 32 bits, which is JAX's default",
            "jax.config.update('jax_enable_x64', True), or JAX_ENABLE_X64=1, where float64 or int64 matter",
        )
    precision = config.jax_default_matmul_precision
    if precision is None and any(not device.startswith("cpu") for device in devices.get("JAX", [])):
        yield Finding(
            "note",
            "precision",
            "float32 products are computed in bfloat16 passes on TPU, in TF32 on NVIDIA GPUs since Ampere",
            "jax.config.update('jax_default_matmul_precision', 'float32') for PyTorch's default",
        )


def _tried(name: str, program: Callable[[], bool]) -> Iterator[Finding]:
    try:
        agrees = program()
    except Exception as error:
        yield Finding("error", name, f"a small program fails: {type(error).__name__}: {first_line(error)}")
        return
    if agrees:
        yield Finding("ok", name, f"a small program runs on {jax.default_backend()}, and agrees with PyTorch")
    else:
        yield Finding("error", name, f"a small program on {jax.default_backend()} does not give what PyTorch gives")


def _translated() -> bool:
    x = torch.linspace(-2, 2, 8)
    found = jax.jit(t2j(torch.nn.functional.gelu))(t2j(x))
    return bool(jnp.allclose(found, t2j(torch.nn.functional.gelu(x)), atol=1e-3))


def _called() -> bool:
    x = jnp.linspace(-2, 2, 8)
    return bool(jnp.allclose(jax.jit(BRIDGE.torch2jax(torch.sin, x))(x), jnp.sin(x), atol=1e-3))
