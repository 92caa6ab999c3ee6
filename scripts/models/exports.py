"""A model as a program in a file, for several platforms, which a process without PyTorch loads and runs."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.flax import load_file, save_file

from scripts.models.alone import ARGUMENTS, PROGRAM, RESULTS
from torch2jax import export, t2j
from torch2jax.modules.exporting.export import plain
from torch2jax.tools.models import Subject
from torch2jax.tools.trial import Trial

__all__ = ["HEAD", "Loading", "loaded_alone", "loading"]

HEAD = "| model | program, MB | weights, MB | difference | what fails |"
_PLATFORMS = ("cpu", "cuda", "tpu")
_ROOT = Path(__file__).parents[2]
_SECONDS = 600  # for a process that loads and runs a program
_ROUNDING = 1e-5


@dataclasses.dataclass
class Loading:
    """What became of a program in a process without PyTorch, as a line of `docs/tested/models.md`.

    Attributes:
        spec: the model, as ``torch2jax check`` takes it.
        program: the bytes of the program's file.
        arguments: those of its arguments' file, nearly all of them weights.
        difference: between what the program gives and what the translated model gives, relative to the largest element
            of each result: the largest.
        failure: why there is nothing to compare.
    """

    spec: str
    program: int = 0
    arguments: int = 0
    difference: float = 0.0
    failure: str = ""

    @property
    def agrees(self) -> bool:
        return not self.failure and self.difference <= _ROUNDING

    def row(self) -> str:
        """The line of the table."""
        if self.failure:
            return f"| {self.spec} |  |  |  | `{self.failure.replace('|', '/')}` |"
        sizes = " | ".join(f"{size / 1e6:.2f}" for size in (self.program, self.arguments))
        problem = "" if self.agrees else "the results differ"
        return f"| {self.spec} | {sizes} | {self.difference:.0e} | {problem} |"


def loading(subject: Subject) -> Loading:
    """Exports the forward pass of a subject, with its state as an argument, and runs it on this CPU, loaded alone.

    Raises:
        Exception: it cannot be exported, or the process that loads it fails.
    """
    trial = Trial(subject, training=False)

    def forward(state: Any, inputs: Any):
        return trial.jax(state, inputs, jax.random.key(0))[0]

    return dataclasses.replace(loaded_alone(forward, t2j((trial.state(), trial.inputs))), spec=subject.name)


def loaded_alone(function: Callable, arguments: Sequence[Any]) -> Loading:
    """Exports a function of arrays, and compares what its program gives in a process of its own."""
    program = export(function, platforms=_PLATFORMS)(*arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / PROGRAM).write_bytes(program.serialize())
        leaves = jax.tree.leaves(plain(tuple(arguments)))
        save_file({str(place): leaf for place, leaf in enumerate(leaves)}, folder / ARGUMENTS)
        command = [sys.executable, "-m", "scripts.models.alone", name]
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64))},  # pyright: ignore
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wanted = jax.tree.leaves(plain(jax.jit(function)(*arguments)))  # at the same time
            _, errors = process.communicate(timeout=_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise RuntimeError(f"the process that loads it: {errors.strip().rpartition(chr(10))[2]}")
        results = load_file(folder / RESULTS)
        sizes = [(folder / file).stat().st_size for file in (PROGRAM, ARGUMENTS)]
    got = [results[str(place)] for place in range(len(results))]
    differences = [_difference(one, other) for one, other in zip(got, wanted, strict=True)]
    return Loading("", *sizes, max(differences, default=0.0))


def _difference(one: jax.Array, other: jax.Array) -> float:
    """How far an array is from another, relative to its largest element; infinity if they are not alike."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if np.array_equal(one, other):
        return 0.0
    wide = np.complex128 if jax.numpy.iscomplexobj(other) else np.float64
    a, b = np.asarray(one, wide), np.asarray(other, wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.abs(np.where(same, 0, a) - np.where(same, 0, b)).max()
    if apart == 0:
        return 0.0
    finite = np.abs(b[np.isfinite(b)])
    largest = finite.max() if finite.size else 0.0
    return float(apart / largest) if largest and np.isfinite(apart) else np.inf
