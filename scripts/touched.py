"""A plugin of pytest that records which functions of the package each test file runs.

``pytest -p scripts.touched --touched FILE`` appends to a file, for each test file, the functions that ran in its tests.
Of the files in `BY_CASE`, which run a whole database, each test counts by itself.

Modules are compiled with a call at the start of each function, which takes some tens of nanoseconds: a profiler would
take several times as long as the tests. What a function ran once and keeps is told for the first test only.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["BY_CASE", "functions_of", "pytest_addoption", "pytest_configure"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch2jax", "torch2jax_cli")
BY_CASE = ("tests/ops/test_database.py", "tests/modules/test_module_database.py")
_NAME = "__torch2jax_runs__"

_functions: list[str] = []  # each as torch2jax/ops/fft.py:fft2
_running: set[int] = set()


def functions_of(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions and methods of a file by their names, such as ``Class.method``; not those within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield outer + node.name, node
        else:
            yield from functions_of(node, f"{outer}{node.name}." if isinstance(node, ast.ClassDef) else outer)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module whose functions say that they run."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        name = Path(path).relative_to(ROOT).as_posix()
        for function, node in functions_of(tree):
            call = ast.parse(f"{_NAME}({len(_functions)})").body[0]
            _functions.append(f"{name}:{function}")
            place = int(ast.get_docstring(node, clean=False) is not None and len(node.body) > 1)
            for each in ast.walk(call):
                ast.copy_location(each, node.body[place])
            node.body.insert(place, call)
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of the package, for `_Loader`."""

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Recorder:
    """Appends what ran to a file when another test file begins."""

    def __init__(self, path: Path):
        self._path, self._unit = path, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem) -> None:
        file = item.nodeid.partition("::")[0]
        unit = item.nodeid if file in BY_CASE else file
        if unit != self._unit:
            self._end()
            self._unit = unit

    def _end(self) -> None:
        if self._unit:
            names = sorted(_functions[i] for i in _running)
            with self._path.open("a") as file:
                print(json.dumps([self._unit, names]), file=file)
        _running.clear()

    def pytest_sessionfinish(self) -> None:
        self._end()


def pytest_addoption(parser) -> None:
    parser.addoption("--touched", type=Path, help="the file to append to")


def pytest_configure(config) -> None:
    path = config.getoption("--touched")
    if path is not None:
        config.pluginmanager.register(_Recorder(path))


if "pytest" in sys.modules and not any(isinstance(x, _Finder) for x in sys.meta_path):
    setattr(builtins, _NAME, _running.add)
    sys.meta_path.insert(0, _Finder())
