"""Runs a program from a file in a process without PyTorch: ``python -m scripts.models.alone FOLDER``.

The folder has the program and its arguments, and gets the leaves of its result. PyTorch, what is built on it and
torch2jax cannot be imported here.
"""

import importlib.abc
import sys
from pathlib import Path

__all__ = ["ABSENT", "ARGUMENTS", "PROGRAM", "RESULTS"]

ABSENT = ("torch", "torchvision", "timm", "transformers", "diffusers", "torch2jax", "torch2jax_cli")
PROGRAM, ARGUMENTS, RESULTS = "program.jaxexport", "arguments.safetensors", "results.safetensors"


class Absent(importlib.abc.MetaPathFinder):
    """Finds none of the packages that are to be absent."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def main(folder: Path) -> None:
    sys.meta_path.insert(0, Absent())
    import jax
    from safetensors.flax import load_file, save_file

    program = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    arguments = load_file(folder / ARGUMENTS)
    leaves = [arguments[str(place)] for place in range(len(arguments))]
    args, kwargs = jax.tree.unflatten(program.in_tree, leaves)
    results = jax.tree.leaves(jax.jit(program.call)(*args, **kwargs))
    assert not sys.modules.keys() & set(ABSENT)
    save_file({str(place): result for place, result in enumerate(results)}, folder / RESULTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
