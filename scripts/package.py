"""Builds the wheel and the sdist, checks what they say of themselves, and runs the wheel where nothing else is.

    python -m scripts.package                                   # in a new environment of this Python
    python -m scripts.package --python python3.11 python3.14    # of each of these
    python -m scripts.package --constraint constraints.txt      # with the releases that the tests run with

In each new environment pip installs the wheel with what it needs, and the first program of the README runs in an empty
folder. The wheel is built once more from the sdist: both have the same files.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from scripts.versions import ROOT, first_program

_SHOW = """
import platform, torch, jax, torch2jax
print(f"torch2jax {torch2jax.__version__}: Python {platform.python_version()}, "
      f"PyTorch {torch.__version__}, JAX {jax.__version__}, from {torch2jax.__file__}")
"""


def environment(folder: Path, python: str) -> Path:
    """The Python of a new environment."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *requirements: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)


def build(folder: Path) -> Path:
    """The wheel, built from this repository and from its sdist, both checked."""
    python = environment(folder / "tools", sys.executable)
    install(python, "build", "twine")
    subprocess.run([python, "-m", "build", "--outdir", folder / "dist", ROOT], check=True)  # the wheel from the sdist
    subprocess.run([python, "-m", "build", "--wheel", "--outdir", folder / "direct", ROOT], check=True)
    (wheel,), (direct,) = (folder / "dist").glob("*.whl"), (folder / "direct").glob("*.whl")
    missing = contents(wheel) ^ contents(direct)
    assert not missing, f"the wheels of the repository and of the sdist differ in {sorted(missing)}"
    subprocess.run([python, "-m", "twine", "check", "--strict", *sorted((folder / "dist").iterdir())], check=True)
    return wheel


def contents(wheel: Path) -> set[tuple[str, int]]:
    """The files of a wheel, each with the checksum of what it holds."""
    with zipfile.ZipFile(wheel) as archive:
        return {(info.filename, info.CRC) for info in archive.infolist()}


def runs(wheel: Path, folder: Path, python: str, constraints: list[str]) -> None:
    """Installs the wheel in a new environment, and runs the first program there, in an empty folder."""
    made = environment(folder / "environment", python)
    install(made, *(f"--constraint={Path(path).resolve()}" for path in constraints), str(wheel))
    (folder / "empty").mkdir()
    for program in (_SHOW, first_program()):
        subprocess.run([made, "-I", "-c", program], cwd=folder / "empty", check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="the Pythons to install the wheel for")
    parser.add_argument("--constraint", nargs="*", default=[], metavar="FILE", help="constraints for pip")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        wheel = build(Path(name))
        for python in arguments.python:
            with tempfile.TemporaryDirectory(dir=name) as folder:
                runs(wheel, Path(folder), python, arguments.constraint)


if __name__ == "__main__":
    main()
