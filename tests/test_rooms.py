"""The rooms of the package: what is above knows what is below, and never the other way round."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

import torch2jax
from torch2jax.translation import this_call

ROOT = Path(torch2jax.__file__).parent
# From the top to the bottom; rooms of one line do not know each other.
FLOORS = [
    {"__init__", "__main__"},
    {"sharding", "tools"},
    {"convert"},
    {"bridge", "checkpoints", "exporting", "ops", "training"},
    {"modules"},
    {"calls"},
    {"autograd", "values"},
    {"branches", "compiled", "functional"},
    {"rules", "tracing"},
    {"loops"},
    {"tensors"},
    {"patches", "tracebacks"},
    {"hints", "jit_errors"},
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


# What a room may ask of the call that it runs in stands in its `call.py`; from `calls` upwards it is all of `Call`.
ASKING = {"tensors", "rules", "tracing", "branches", "compiled", "functional", "autograd", "values"}


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


def _members(kind: type) -> set[str]:
    """What a protocol lists, and those that it goes on from."""
    classes = [x for x in kind.__mro__ if x.__module__.startswith("torch2jax.")]
    return {name for x in classes for name in (*vars(x), *x.__annotations__) if not name.startswith("_")}


def _call_of(room: str) -> type:
    module = importlib.import_module(f"torch2jax.{room}.call")
    return getattr(module, f"{room.capitalize()}Call")


@pytest.mark.parametrize("room", sorted(ASKING))
def test_a_room_asks_of_the_call_what_it_lists(room):
    listed, found = _members(_call_of(room)), set()
    for path in (ROOT / room).rglob("*.py"):
        for name, line in _asked_in(path):
            if name not in OWN_CALLS.get(path.relative_to(ROOT).as_posix(), ()):
                assert name in listed, f"{path.relative_to(ROOT)}:{line} asks for {name}"
                found.add(name)
    own = {name for name in (*vars(_call_of(room)), *_call_of(room).__annotations__) if not name.startswith("_")}
    assert own <= found | BY_OTHER_NAMES, "what is listed is asked for"


# Other things that are called: of `inline` and of JAX functions.
OWN_CALLS = {"rules/inline.py": {"body", "run", "takes_arrays"}}
# What is narrowed, since several rooms below ask for parts of it; or asked for through a variable of another name.
BY_OTHER_NAMES = {"constants", "stream", "attempt", "run_planned"}


@pytest.mark.parametrize("room", sorted(ASKING))
def test_the_call_provides_what_rooms_ask(room):
    missing = []

    def function(x):
        missing.extend(name for name in _members(_call_of(room)) if not hasattr(this_call(), name))
        return x

    torch2jax.t2j(function)(jnp.ones(2))
    assert not missing


def test_upper_rooms_ask_of_the_call_what_it_has():
    known: set[str] = set()
    torch2jax.t2j(lambda x: known.update(dir(this_call())) or x)(jnp.ones(2))
    for room in ("calls", "modules", "ops", "training", "sharding", "exporting"):
        for path in (ROOT / room).rglob("*.py"):
            unknown = [f"{path.name}:{line} {name}" for name, line in _asked_in(path) if name not in known]
            assert not unknown
