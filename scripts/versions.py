"""Runs the package beside some release of Python, PyTorch and JAX, and writes what came of it into a page.

    python -m scripts.versions                                          # in this environment
    python -m scripts.versions --make ENV --python python3.13           # the newest releases there are, in a new one
    python -m scripts.versions --make ENV --require 'torch==2.11.*' 'jax==0.10.2'
    python -m scripts.versions --is-recorded                            # whether what decides it has passed before

An environment that is made has PyTorch for the CPU only where pip finds that; else it takes some gigabytes. The exit
code is 0 if nothing failed but tests whose reason is written down here.

What passes in an environment that is made with the newest releases is recorded in `.ci/versions.sha256`, by a digest of
the private names and requirements that decide it; commit it, and `.ci/run` does not run it again.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import tests

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tested" / "versions.md"
RECORD = ROOT / ".ci" / "versions.sha256"
_NEWEST = ["torch", "jax"]
_DECIDES = ("torch2jax/internals", "constraints.txt", "scripts/versions.py", "tests/test_contract.py")
MODEL = "torchvision:resnet18"
_VERSIONS = "import platform, torch, jax; print(platform.python_version(), torch.__version__, jax.__version__)"
_ROW = re.compile(r"^\| (\d\S*) \| (\d\S*) \| (\d\S*) \|.*$", re.MULTILINE)
# Why a test fails beside another release than the one it is written for; none is a wrong number.
REASONS = {
    "test_averaged_model[kwargs1]": "an average of integers at the edge of rounding, one unit off in JAX 0.12",
    "test_arguments_are_checked_by_pytorch[ValueError-larger": "2.14 raises a RuntimeError; the test names another",
    "test_functions_with_their_options[normalize": "2.15 has a derivative of inf for 0 / 0, whose value is nan",
    "test_entry[__rmod__]": "PyTorch 2.11 refuses the dtype, before it looks at the divisor",
    "test_selection_statistics.py::test_values_and_gradients[of rows]": "2.15 takes another of several equal numbers",
    "test_sympy_is_not_imported_for_operands_of_one_dtype": "2.14 imports it itself, with flex attention",
}
_HEAD = """\
# Versions

This page shows what was run with which releases. `python -m scripts.versions` runs the following and writes this page:
the contract (`tests/test_contract.py`: the names that the package needs from PyTorch and JAX), the first program of the
README, `torch2jax check torchvision:resnet18 --grad`, and a number of the tests, in a fixed random order. The tests
that failed are listed below.

| Python | PyTorch | JAX | contract | first program | check | tests | passed | skipped | failed |
|---|---|---|---|---|---|---|---|---|---|
"""


def make(folder: Path, python: str, requirements: list[str]) -> Path:
    """The Python of a new environment, with this package and what its tests need."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    made = folder / "bin" / "python"
    options = ["--quiet", "--no-compile"]  # most of it is never imported
    subprocess.run(
        [made, "-m", "pip", "install", *options, *requirements, "--editable", ".[test]"], cwd=ROOT, check=True
    )
    return made


def succeeds(python: Path, *arguments: str) -> bool:
    """Whether a command of an environment succeeds; what it prints is shown where it does not."""
    done = subprocess.run([python, "-W", "ignore", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return done.returncode == 0


def first_program() -> str:
    """The first program of the README."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found.group(1)


def run_tests(python: Path, sample: int) -> tuple[dict[str, int], list[str]]:
    """How many tests had which outcome, and those that failed."""
    parts = tests.shares(tests.files([str(ROOT / "tests")]), 2, tests.durations())
    options = ["-p", "scripts.sampled", "--sample", str(-(-sample // len(parts)))]
    _, found = tests.run(parts, [*options, "--continue-on-collection-errors"], str(python))
    return {"tests": found.counts.total()} | {x: found.counts[x] for x in ("passed", "skipped", "failed")}, found.failed


def digest() -> str:
    """A digest of what decides whether the package runs beside other releases: private names, and what it asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {name: project[name] for name in ("requires-python", "dependencies", "optional-dependencies")}
    found = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for path in sorted(path for name in _DECIDES for path in [ROOT / name, *(ROOT / name).rglob("*.py")]):
        if path.is_file():
            found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def row(versions: list[str], steps: dict[str, bool], counts: dict[str, int]) -> str:
    """A line of the table."""
    cells = [*versions, *("yes" if done else "**no**" for done in steps.values()), *map(str, counts.values())]
    return f"| {' | '.join(cells)} |"


def page(rows: dict[tuple[str, ...], str], failures: dict[str, dict[str, str]]) -> Iterator[str]:
    """The page: its rows by versions, and the tests that failed, with reasons, by the versions they failed with."""
    yield _HEAD + "\n".join(rows[key] for key in sorted(rows, key=_order))
    for versions, reasons in failures.items():
        lines = (f"- `{name}`{reason and ': '}{reason}" for name, reason in sorted(reasons.items()))
        yield f"\n## Failed with {versions}\n\n" + "\n".join(lines)


def _reason(name: str) -> str:
    return next((reason for part, reason in REASONS.items() if part in name), "")


def _order(versions: tuple[str, ...]) -> list[list[int]]:
    return [[int(part) for part in re.findall(r"\d+", version)] for version in versions]


def known(text: str) -> tuple[dict[tuple[str, ...], str], dict[str, dict[str, str]]]:
    """The rows and failures of a page. What was said of these stays, though the tests may have been mended."""
    rows = {found.groups(): found.group(0) for found in _ROW.finditer(text)}
    failures = {}
    for part in text.split("\n## Failed with ")[1:]:
        versions, _, rest = part.partition("\n")
        failures[versions] = dict(re.findall(r"^- `(.*?)`(?:: (.*))?$", rest, re.MULTILINE))
    return rows, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, metavar="ENV", help="make an environment in this folder, and run there")
    parser.add_argument("--python", default=sys.executable, help="the Python that makes it, or has one made before")
    parser.add_argument("--require", nargs="*", default=_NEWEST, help="what pip is to install, and how new")
    parser.add_argument("--sample", type=int, default=1500, help="how many tests to run, 0 for all")
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--is-recorded", action="store_true", help="say whether this has passed, and run nothing")
    arguments = parser.parse_args()
    if arguments.is_recorded:
        return 0 if RECORD.exists() and RECORD.read_text().strip() == digest() else 1
    python = Path(arguments.python)
    if arguments.make is not None:
        python = make(arguments.make, arguments.python, arguments.require)
    asked = subprocess.run(
        [python, "-W", "ignore", "-c", _VERSIONS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    versions = asked.stdout.split()
    steps: dict[str, Any] = {
        "contract": succeeds(python, "-m", "pytest", "-q", "tests/test_contract.py"),
        "first program": succeeds(python, "-c", first_program()),
        "check": succeeds(python, "-m", "torch2jax", "check", MODEL, "--grad"),
    }
    counts, failed = run_tests(python, arguments.sample)
    print(json.dumps({"versions": versions, **steps, **counts}))
    rows, failures = known(arguments.output.read_text() if arguments.output.exists() else "")
    rows[tuple(versions)] = row(versions, steps, counts)
    told = f"Python {versions[0]}, PyTorch {versions[1]}, JAX {versions[2]}"
    failures.pop(told, None)
    if failed:
        failures[told] = {name: _reason(name) for name in failed}
    arguments.output.write_text("\n".join(page(rows, failures)) + "\n")
    unexplained = [name for name in failed if not _reason(name)]
    print(*(f"failed without a reason: {name}" for name in unexplained), sep="\n")
    has_passed = bool(counts["passed"]) and all(steps.values()) and not unexplained
    if has_passed and arguments.make is not None and arguments.require == _NEWEST:
        RECORD.write_text(digest() + "\n")
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
