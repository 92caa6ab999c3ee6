"""The files of rooms: what they say now, and what they said when they were written."""

import contextlib
import difflib
import importlib
import math
import re
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .program import Graph, Program
from .text import counted, full

__all__ = ["FOLDER", "ROOMS", "difference", "programs", "room_text", "stored", "text", "versions"]

FOLDER = Path(__file__).parent
_MODULES = {
    "operators": "graphs graphs_gradients arithmetic reductions views writes indexing conversions linalg random "
    "known_values",
    "networks": "layers losses attention modules autocast steps parts",
    "control": "selections lengths conditions loops control_flow rolled",
    "derivatives": "tape functions transformations forward_mode checkpoints",
    "kinds": "sparse quantized jagged subclasses bridge",
    "meshes": "distributed dtensors",
    "models": "models models_gradients generating",
}
ROOMS = {room: module for module, rooms in _MODULES.items() for room in rooms.split()}
"""Each room, and the module that has it."""
_LIBRARIES = {"models": ("diffusers", "torchvision", "transformers")}
"""What graphs of a module's rooms depend on, beside jax and torch."""
_MOST = {"models": 100_000, "generating": 60_000, "distributed": 3_000, "dtensors": 3_000}
"""How many characters of a program are kept; of longer ones it is counted how often each equation occurs."""


def versions(room: str) -> str:
    """Those that its graphs depend on, of libraries that are there."""
    found = {}
    for name in ("jax", "torch", *_LIBRARIES.get(ROOMS[room], ())):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return ", ".join(f"{name} {number}" for name, number in found.items())


def programs(room: str) -> dict[str, Program]:
    """The programs of a room."""
    torch.manual_seed(0)
    return getattr(importlib.import_module(f"tests.golden.{ROOMS[room]}"), room)()


def text(program: Program, most: float = math.inf) -> str:
    """That of its graph, of so many characters at most, or of the exception that it raises."""
    torch.manual_seed(0)
    torch.distributions.Distribution.set_default_validate_args(__debug__)  # torch.compile of another program ends this
    try:
        graph = program()
    except Exception as error:
        message = re.sub(r",? at /\S+( in \S+)?", "", f"{type(error).__name__}: {error}".strip().splitlines()[0])
        return f"  raises {_plain(message)[:200]}\n"
    return _text(graph, most)


def _text(graph: Graph, most: float) -> str:
    tree = _plain(str(graph.tree)).removeprefix("PyTreeDef(").removesuffix(")")
    kept = full(graph.equations)
    if len(kept) > most:
        kept = counted(graph.equations)
    return kept if tree == "*" or len(tree) > 300 else f"{kept}  tree {tree}\n"


def _plain(text: str) -> str:
    """Without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def room_text(room: str) -> str:
    """The file of a room."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        most = _MOST.get(room, 8_000)
        parts = [f"== {name}\n{text(program, most)}" for name, program in programs(room).items()]
    return "\n".join([versions(room) + "\n", *parts])


def stored(room: str) -> str:
    """What was written, or nothing."""
    path = FOLDER / f"{room}.txt"
    return path.read_text() if path.exists() else ""


def difference(room: str, found: str) -> list[str]:
    """The lines of a diff, program by program.

    An equation more or less changes the names of all variables that follow. So equations that differ in names only are
    no difference, unless a program has no other.
    """
    before, after = _sections(stored(room)), _sections(found)
    lines = []
    for name in before | after:
        old, new = before.get(name, []), after.get(name, [])
        if old != new:
            lines += [f"@@ {name}", *(_diff(old, new, _nameless) or _diff(old, new, str))]
    return lines


def _sections(text: str) -> dict[str, list[str]]:
    """The lines of each program."""
    parts = [part.splitlines() for part in re.split(r"^== ", text, flags=re.MULTILINE)]
    return {lines[0]: lines[1:] for lines in parts if lines}


def _diff(old: list[str], new: list[str], key: Callable[[str], str]) -> list[str]:
    matcher = difflib.SequenceMatcher(None, [*map(key, old)], [*map(key, new)], autojunk=False)
    lines = []
    for group in matcher.get_grouped_opcodes(2):
        lines += ["  ..."] if lines else []
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += [f" {line}" for line in new[k:m]]
            else:
                lines += [f"-{line}" for line in old[i:j]] + [f"+{line}" for line in new[k:m]]
    return lines


def _nameless(line: str) -> str:
    """An equation without the names of its variables."""
    results, _, rest = line.rpartition(" = ")
    operation, _, operands = rest.strip().partition(" ")
    return " ".join([re.sub(r"[a-z]+:", ":", results), operation, re.sub(r"(?<!\S)[a-z]+(?=[: ]|$)", "_", operands)])
