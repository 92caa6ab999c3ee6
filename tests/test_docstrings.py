"""The examples in docstrings of public functions give what they say, and the errors that docstrings name exist."""

import ast
import builtins
import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch

import torch2jax
from torch2jax import tools

WITH_EXAMPLES = ["export", "j2t", "load_state", "t2j", "torch2jax"]


TOOLS = ["bench", "bisect", "check", "doctor"]


@pytest.mark.parametrize("name", [*WITH_EXAMPLES, *(f"tools.{name}" for name in TOOLS)])
def test_examples(name: str):
    function = getattr(tools if name.startswith("tools.") else torch2jax, name.removeprefix("tools."))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0


_TREES = {path: ast.parse(path.read_text()) for path in Path(torch2jax.__file__).parent.rglob("*.py")}
_NAMES = {name for module in (builtins, torch) for name in vars(module)}
_NAMES |= {node.name for tree in _TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
_NAMES |= {"REFUSALS", "UNSUITED"}  # several
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _errors_of(docstring: str) -> Iterator[str]:
    """The names of the errors in a docstring's section `Raises`."""
    section = re.search(r"^Raises:\n((?:    .*\n?)*)", docstring, flags=re.MULTILINE)
    for line in re.findall(r"^    (\S[^:]*):", section[1] if section else "", flags=re.MULTILINE):
        yield from line.split(", ")


def _exists(name: str) -> bool:
    head, *rest = name.split(".")
    found = {"jax": jax, "torch": torch}.get(head) if rest else None
    for part in rest:
        found = getattr(found, part, None)
    return name in _NAMES or found is not None


def test_errors_that_are_raised_exist():
    named = {
        f"{path.name}:{node.name}: {name}"
        for path, tree in _TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, _DOCUMENTED)
        for name in _errors_of(ast.get_docstring(node) or "")
        if not _exists(name)
    }
    assert not named


def _is_there(name: str) -> bool:
    """True if the package has what its text names: a file, or a module's class or function."""
    file = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
    if any(path.as_posix().endswith(f"/{file}") for path in _TREES):
        return True
    module, _, thing = name.rpartition(".")
    named = [tree for path, tree in _TREES.items() if module in (path.stem, path.parent.name)]
    nodes = [node for tree in named for node in ast.walk(tree)]
    return any(thing in (getattr(x, "name", None), getattr(x, "id", None), getattr(x, "attr", None)) for x in nodes)


_MODULES = {path.stem for path in _TREES} | {path.parent.name for path in _TREES}
_ELSEWHERE = ("jax.", "torch.", "tests/", "aten.", "nn.")
"""The beginnings of names of others."""


def test_files_and_modules_that_are_named_exist():
    missing = [
        f"{path.name}: {name}"
        for path in _TREES
        for name in re.findall(r"`([\w/]+\.py|[a-z_]+\.[A-Za-z_]\w*)`", path.read_text())
        if not name.startswith(_ELSEWHERE)
        and (name.endswith(".py") or name.partition(".")[0] in _MODULES)
        and not _is_there(name)
    ]
    assert not missing
