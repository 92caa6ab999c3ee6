"""Private names of PyTorch and JAX stand in `torch2jax/internals/` alone, each with a sentence on what it must do.

Private is a name of the libraries any part of which begins with an underscore. That is none where it is

- an operator, by whatever binding: ``torch.ops.aten._softmax``, ``torch._softmax``, ``torch._C._nn.pad``;
- what a rule is registered for, or what a patch exchanges: an argument of one of `REGISTERS`;
- the original of what a patch exchanges in the same file.

A module of the libraries that comes from `internals` is for patches: a name in it is private as well. An attribute of
an object, as ``overload._schema``, is taken where it is wanted, and named in `internals/attributes.py`.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.names_of_libraries import ROOT, used_names
from torch2jax.internals.attributes import ATTRIBUTES

REGISTERS = {"implements", "implements_tensors", "replaces", "exchange", "applies", "runs_instead_of"}
INTERNALS = ROOT / "internals"
OTHERS = sorted(path for path in ROOT.rglob("*.py") if INTERNALS not in path.parents)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _names(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    return list(used_names(tree))


def _is_underscored(part: str) -> bool:
    return part.startswith("_") and not (part.startswith("__") and part.endswith("__"))


def _is_operator(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return name.startswith("torch.ops.") or (owner in ("torch", "torch._C._nn") and hasattr(torch.ops.aten, last))


def _is_attribute(name: str) -> bool:
    return any(
        name.startswith(f"{owner}.") and name.removeprefix(f"{owner}.").partition(".")[0] in attributes
        for owner, attributes in ATTRIBUTES.items()
    )


def _private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    registering = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REGISTERS
    ]
    arguments = [part for call in registering for argument in call.args for part in ast.walk(argument)]
    exchanged = {part.value for part in arguments if isinstance(part, ast.Constant)}
    allowed = set(map(id, arguments))
    for node, name in _names(tree):
        if id(node) in allowed or _is_operator(name) or _is_attribute(name) or name.rpartition(".")[2] in exchanged:
            continue
        if any(map(_is_underscored, name.split("."))):
            yield getattr(node, "lineno", 0), name


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in OTHERS}))
def test_no_other_file_uses_a_private_name(room):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in OTHERS
        if path.relative_to(ROOT).parts[0] == room
        for line, name in _private_names(_tree(path))
    ]
    assert not found, "wanted them in torch2jax/internals/, see its docstring"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("import jax\njax._src.core.Trace", "jax._src.core.Trace"),
        ("import torch\nwith torch._C.DisableTorchFunction(): pass", "torch._C.DisableTorchFunction"),
        ("from torch import nn as layers\nlayers.Module._call_impl", None),
        ("from torch import nn as layers\nlayers.Module._apply", "torch.nn.Module._apply"),
        ("import torch\nmodule = torch.nn\nmodule.functional._pad", "torch.nn.functional._pad"),
        ("import torch\ngetattr(torch, '_C')", "torch._C"),
        ("import importlib\nimportlib.import_module('torch._refs')", "torch._refs"),
        ("from ..internals.transforms import pyfunctorch\npyfunctorch.a", "torch._functorch.pyfunctorch.a"),
        ("from ..internals.transforms import pyfunctorch\nreplaces(pyfunctorch, '_a')(print)", None),
        ("import torch\nreplaces(torch.amp, '_cast')(print)\noriginal = torch.amp._cast", None),
        ("import torch\n@implements(torch.Tensor._conj)\ndef rule(x): pass", None),
        ("import torch\ntorch.ops.aten._softmax, torch._softmax, torch.__version__", None),
    ],
)
def test_what_counts_as_private(source, name):
    assert {name for _, name in _private_names(ast.parse(source))} == ({name} if name else set())


# Attributes of others: of Python's, and of a class of models of `transformers`.
OTHERS_ATTRIBUTES = {"_getframe", "_replace", "_from_config"}


def _defined(tree: ast.Module) -> Iterator[str]:
    """What a file gives names to."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_private_attributes_of_objects_are_listed():
    """Those that the package itself has none of that name of; who uses one of the others cannot be told from a file."""
    trees = {path: _tree(path) for path in OTHERS}
    known = {name for tree in trees.values() for name in _defined(tree)} | OTHERS_ATTRIBUTES
    known |= {attribute for attributes in ATTRIBUTES.values() for attribute in attributes}
    found = []
    for path, tree in trees.items():
        names = {id(part) for node, _ in _names(tree) for part in ast.walk(node)}
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and id(node) not in names
            if _is_underscored(node.attr) and node.attr not in known
        ]
    assert not found, "wanted them in torch2jax/internals/attributes.py"


@pytest.mark.parametrize("path", sorted(INTERNALS.glob("*.py")), ids=lambda path: path.stem)
def test_every_name_has_its_sentence(path):
    body = ast.parse(path.read_text()).body
    named = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            named[node.name] = ast.get_docstring(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            named[ast.unparse(target)] = isinstance(after, ast.Expr) and ast.unparse(after)
    public = {name for name in named if not name.startswith("_")} - {"ATTRIBUTES"}
    assert not [name for name in public if not named[name]]
