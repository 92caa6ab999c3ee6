"""The names of PyTorch and JAX that a file of the package uses."""

import ast
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import torch2jax

__all__ = ["ROOT", "used_names"]

_LIBRARIES = ("functorch", "jax", "jaxlib", "torch")
ROOT = Path(torch2jax.__file__).parent


def used_names(tree: ast.Module, *, optional: bool = True) -> Iterator[tuple[ast.AST, str]]:
    """The dotted names that a file imports, looks up in what it imported, or asks for by a string; and where.

    A module that comes from `internals` has the name that it has there; what else does is no more than a value.

    Args:
        optional: also those that the file can do without: it asks whether they are there, or has a default for them.
    """
    nodes = list(ast.walk(tree))
    known = dict(_imported(nodes))
    known.update(_aliases(tree, known))
    asked = [(call, name) for call, name in _asked_for(nodes, known) if optional or _is_needed(call)]
    without = () if optional else tuple(name for call, name in _asked_for(nodes, known) if _is_question(call))
    for node, name in [*_imports(nodes), *asked, *_looked_up(nodes, known)]:
        if name.partition(".")[0] in _LIBRARIES and not name.startswith(without):
            yield node, name


def _looked_up(nodes: list[ast.AST], known: dict[str, str]) -> Iterator[tuple[ast.AST, str]]:
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in inner and (name := _dotted(node, known)) is not None:
            yield node, name


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """What names of a file are those of a library's."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name, name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("internals."):
            module = importlib.import_module(f"torch2jax.{node.module}")
            for alias in node.names:
                if isinstance(value := getattr(module, alias.name), types.ModuleType):
                    yield alias.asname or alias.name, value.__name__


def _aliases(tree: ast.Module, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The names that a file gives to what it has imported, or looked up there."""
    known = dict(known)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = _dotted(node.value, known)
            if isinstance(target, ast.Name) and name is not None and name.partition(".")[0] in _LIBRARIES:
                known[target.id] = name
                yield target.id, name


def _dotted(node: ast.AST, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, known)
        return None if owner is None else f"{owner}.{node.attr}"
    if isinstance(node, ast.Name):
        name = known.get(node.id, "")
        return name if name.partition(".")[0] in _LIBRARIES else None
    if isinstance(node, ast.Call):
        return _string(node, "import_module", 0)
    return None


def _asked_for(nodes: list[ast.AST], known: dict[str, str]) -> Iterator[tuple[ast.Call, str]]:
    """Names in ``importlib.import_module("torch.a")``, ``getattr(torch, "a")`` and ``hasattr(torch, "a")``."""
    for node in nodes:
        if isinstance(node, ast.Call):
            module = _string(node, "import_module", 0)
            if module is not None:
                yield node, module
            name = _string(node, "getattr", 1) or _string(node, "hasattr", 1)
            owner = _dotted(node.args[0], known) if name is not None else None
            if owner is not None:
                yield node, f"{owner}.{name}"


def _is_question(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "hasattr"


def _is_needed(call: ast.Call) -> bool:
    return not _is_question(call) and len(call.args) < 3


def _string(call: ast.Call, function: str, place: int) -> str | None:
    """The string that a function of this name is called with."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if called != function or len(call.args) <= place or not isinstance(call.args[place], ast.Constant):
        return None
    value = call.args[place].value  # pyright: ignore[reportAttributeAccessIssue]
    return value if isinstance(value, str) else None
