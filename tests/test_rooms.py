"""The rooms of the package: what is above knows what is below, and never the other way round."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch2jax

ROOT = Path(torch2jax.__file__).parent
# From the top to the bottom; rooms of one line do not know each other.
FLOORS = [
    {"__init__", "__main__"},
    {"cli", "sharding"},
    {"convert"},
    {"bridge", "checkpoints", "exporting", "ops", "torchscript", "training"},
    {"modules"},
    {"calls"},
    {"autograd", "values"},
    {"branches", "compiled", "functional"},
    {"rules", "tracing"},
    {"loops"},
    {"tensors"},
    {"patches", "tracebacks"},
    {"hints"},
    {"errors"},
    {"abandoning"},
    {"translation"},
    {"internals"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def _rooms_known_to(path: Path) -> Iterator[tuple[str, int]]:
    """Rooms that a file imports from, and the line where it does."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            below = package[: len(package) - node.level + 1]
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            for module in modules:
                yield (*below, *module.split("."))[0], node.lineno


@pytest.mark.parametrize("room", sorted(FLOOR_OF))
def test_arrows_point_downwards(room):
    paths = (ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]
    upwards = [
        f"{path.relative_to(ROOT)}:{line} knows {other}"
        for path in paths
        for other, line in _rooms_known_to(path)
        if other != room and FLOOR_OF[other] <= FLOOR_OF[room]
    ]
    assert not upwards


def test_every_room_has_its_floor():
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found == set(FLOOR_OF)
