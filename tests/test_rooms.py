"""The rooms of the package: what is above knows what is below, and never the other way round."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

import torch2jax
from torch2jax.runtime.translation import this_call

ROOT = Path(torch2jax.__file__).parent
# From the top to the bottom; rooms of one line do not know each other.
FLOORS = [
    {"__init__", "__main__"},
    {"sharding", "tools"},
    {"bridge", "ops"},
    {"control", "modules"},
    {"calls"},
    {"transforms", "values"},
    {"rules", "tracing"},
    {"tensors"},
    {"runtime"},
    {"internals"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def _files_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]


def _rooms_known_to(path: Path) -> Iterator[tuple[str, int]]:
    """Rooms that a file imports from, and the line where it does.

    `translation.py` names the class of the call for the type checker, and so imports it there alone.
    """
    package, tree = path.relative_to(ROOT).parts[:-1], ast.parse(path.read_text())
    if path.stem == "translation":
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            below = package[: len(package) - node.level + 1]
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            for module in modules:
                yield (*below, *module.split("."))[0], node.lineno


@pytest.mark.parametrize("room", sorted(FLOOR_OF))
def test_arrows_point_downwards(room):
    upwards = [
        f"{path.relative_to(ROOT)}:{line} knows {other}"
        for path in _files_of(room)
        for other, line in _rooms_known_to(path)
        if other != room and FLOOR_OF[other] <= FLOOR_OF[room]
    ]
    assert not upwards


def test_every_room_has_its_floor():
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found == set(FLOOR_OF)


def test_the_map_of_rooms_is_in_the_order_of_floors():
    page = (ROOT.parent / "docs/how-it-works.md").read_text()
    _, _, table = page.partition("| room | what happens there |")
    cells = [line.split("|")[1] for line in table.split("\n\n")[0].splitlines()[2:]]
    rooms = [name.strip("` /").removesuffix(".py") for cell in cells for name in cell.split(",")]
    assert sorted(rooms) == sorted(FLOOR_OF.keys() - {"__init__", "__main__"})
    assert [FLOOR_OF[room] for room in rooms] == sorted(FLOOR_OF[room] for room in rooms)


def _is_call(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="current" | "this_call" | "_call")) | ast.Name(id="call"):
            return True
        case ast.Attribute(attr="_call" | "call", value=ast.Name(id="self" | "level" | "cls")):
            return True
    return False


def _asked_in(path: Path) -> Iterator[tuple[str, int]]:
    """What a file asks of the call, and the lines where it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and _is_call(node.value):
            yield node.attr, node.lineno


# What `call` means something else in: a call of PyTorch or of a program.
OTHER_CALLS = {"bridge", "tools"}
# Other things that are called: of `inline` and of JAX functions.
OWN_CALLS = {"rules/inline.py": {"body", "run", "takes_arrays"}}


@pytest.mark.parametrize("room", sorted(FLOOR_OF.keys() - OTHER_CALLS))
def test_rooms_ask_of_the_call_what_it_has(room):
    known: set[str] = set()
    torch2jax.t2j(lambda x: known.update(dir(this_call())) or x)(jnp.ones(2))
    unknown = [
        f"{path.name}:{line} {name}"
        for path in _files_of(room)
        for name, line in _asked_in(path)
        if name not in known | OWN_CALLS.get(path.relative_to(ROOT).as_posix(), set())
    ]
    assert not unknown
