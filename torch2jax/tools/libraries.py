"""Whether installed libraries that models come from can be imported: another process tries, as one may end it."""

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

__all__ = ["LIBRARIES", "Library", "import_libraries", "remedy_of"]

LIBRARIES = {
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "timm": "timm",
    "transformers": "transformers.modeling_utils",  # `import transformers` alone imports nothing
    "diffusers": "diffusers.models.modeling_utils",
    "accelerate": "accelerate",
    "peft": "peft",
    "sentence-transformers": "sentence_transformers",
    "torchao": "torchao.quantization",
    "torch-geometric": "torch_geometric.nn",
    "e3nn": "e3nn.o3",
    "kornia": "kornia",
    "safetensors": "safetensors.torch",
    "flax": "flax",
    "equinox": "equinox",
    "optax": "optax",
    "orbax-checkpoint": "orbax.checkpoint",
}
"""What is imported of each package."""

_SECONDS = 120
_PROGRAM = """
import importlib, json, sys
out = open(sys.argv[1], "w")
def tell(*what):
    print(json.dumps(what), file=out, flush=True)
for name in sys.argv[2:]:
    tell(name)
    try:
        importlib.import_module(name)
    except BaseException as error:
        while error.__cause__ or error.__context__:
            error = error.__cause__ or error.__context__
        lines = str(error).strip().splitlines() or [""]
        tell(name, type(error).__name__, lines[0], getattr(error, "name", None))
    else:
        tell(name, "")
tell()
"""


@dataclasses.dataclass(frozen=True)
class Library:
    """An installed library.

    Attributes:
        name: the name of its package.
        version: its version.
        error: the first cause of why it cannot be imported, or "".
        lacks: the module that this cause names, if it does.
    """

    name: str
    version: str
    error: str = ""
    lacks: str | None = None


def import_libraries(libraries: Mapping[str, str] = LIBRARIES) -> list[Library]:
    """Imports the libraries that are installed, one after the other, in another process.

    Args:
        libraries: the module to import of each package.
    """
    versions = {name: version for name in libraries if (version := _version(name)) is not None}
    pending, found = list(versions), []
    while pending:
        tried = list(_tried(pending, libraries, versions))
        found += tried
        pending = pending[len(tried) :]
    return found


def remedy_of(library: Library) -> str:
    """What to do about a library that cannot be imported."""
    if "torchvision::" in library.error or library.name in ("torchvision", "torchaudio"):
        kind = torch.__version__.partition("+")[2] or "cpu"
        package = library.name if library.name == "torchaudio" else "torchvision"
        return (
            f"install both from one index: pip install --force-reinstall torch {package} --index-url "
            f"https://download.pytorch.org/whl/{kind}; or pip uninstall {package}, where nothing needs it"
        )
    if library.error.startswith("ModuleNotFoundError") and library.lacks:
        return f"install what it lacks, {library.lacks.partition('.')[0]}; or pip uninstall {library.name}"
    if re.search(r"undefined symbol|\.so\b|\.dll\b|signal", library.error):
        return (
            f"install a build of it for PyTorch {torch.__version__}: pip install --force-reinstall --no-deps "
            f"{library.name}; or pip uninstall {library.name}"
        )
    return f"pip install --upgrade {library.name}; or pip uninstall {library.name}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tried(names: list[str], libraries: Mapping[str, str], versions: Mapping[str, str]) -> Iterator[Library]:
    """Those that a process has come to, until one ends it."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        command = [sys.executable, "-c", _PROGRAM, str(told), *(libraries[name] for name in names)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, timeout=_SECONDS, check=False
            ).returncode
            end = (
                f"importing it ends Python, with signal {-ended}"
                if ended < 0
                else f"importing it ends Python ({ended})"
            )
        except subprocess.TimeoutExpired:
            end = f"importing it has not ended in {_SECONDS} seconds"
        lines = [json.loads(line) for line in told.read_text().splitlines()] if told.is_file() else []
    results = {line[0]: line for line in lines if len(line) > 1}
    for name in names:
        module = libraries[name]
        if module not in results:
            yield Library(name, versions[name], end)
            return
        kind, *rest = results[module][1:]
        error = f"{kind}: {rest[0]}" if kind and rest[0] else kind
        yield Library(name, versions[name], error, rest[1] if rest else None)
