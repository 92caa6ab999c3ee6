"""``torch2jax export``."""

from pathlib import Path
from typing import Annotated

import typer

from .. import options as take
from ..running import give, running

__all__ = ["export"]


def export(
    spec: take.Spec,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="The file to write. The weights go to a .safetensors file next to it.",
            show_default=False,
        ),
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE", help="The shape of an input, such as 1,3,224,224, or b,3,224,224 for any b."),
    ] = None,
    constraint: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A constraint on symbols in shapes, such as 'b >= 2'.")
    ] = None,
    input: take.Inputs = None,
    weights: take.Weights = None,
    dtype: take.Dtype = None,
    platforms: Annotated[
        str, typer.Option(metavar="NAMES", help="The platforms of the program: cpu, cuda, rocm, tpu.")
    ] = "cpu,cuda,tpu",
    grad: take.Grad = False,
    branch: take.Branches = None,
    allow_pickle: take.AllowPickle = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """Write a model as a program that runs without PyTorch."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        from torch2jax.tools.files import with_numbers

        shapes = shape or []
        numbers = [with_numbers(text) for text in shapes]
        written = run.tools.write(
            run.build(spec, numbers, input, weights, dtype, branch, allow_pickle),
            out,
            [name.strip() for name in platforms.split(",")],
            shapes=shapes,
            constraints=constraint or [],
            grad=grad,
            step=run.step,
        )
    from ..reports import export as form

    give(form, written, json)
