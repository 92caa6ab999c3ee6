"""The commands, their arguments and their exit codes."""

import os
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .subject import SpecError, read_branches

__all__ = ["app"]

_BAD_USAGE = 2

app = typer.Typer(
    help="Run PyTorch code in JAX.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


Spec = Annotated[
    str,
    typer.Argument(
        help="torchvision:NAME, timm:NAME, transformers:CONFIG (a model type, a class, or a config.json), "
        "package.module:callable, a .pt2 exported program, or a pickled module"
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(help="Shape of a random input, as 1,3,224,224 or 1,16:int64; once for each input."),
]
Inputs = Annotated[Path | None, typer.Option(help="A file of inputs: .pt, .npy, .npz or .safetensors.", metavar="FILE")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Load a pickled module, which can run any code.")]
Answers = Annotated[
    list[str] | None,
    typer.Option(
        help="What to answer to a question about values, where one side cannot be translated: model.py:forward=False.",
        metavar="PLACE=BOOL",
    ),
]


@app.command()
def check(
    spec: Spec,
    shape: Shapes = None,
    input: Inputs = None,
    grad: Annotated[bool, typer.Option("--grad", help="Also compare gradients.")] = False,
    vmap: Annotated[bool, typer.Option("--vmap", help="Also compare under jax.vmap.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Also compare in training mode, with dropout off.")] = False,
    tolerance: Annotated[float | None, typer.Option(help="Relative error to accept.")] = None,
    branch: Answers = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Compare a PyTorch model with its translation to JAX: results, gradients and times.

    The exit code is 0 if they agree, 1 if not, and 2 if there is nothing to compare.
    """
    from .check import check as run_check
    from .display import console, show_report
    from .specs import build

    try:
        branches = read_branches(branch or [])
        with _progress() as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = progress.add_task(f"building {spec}")
            subject = build(spec, shape or [], input, allow_pickle)
            subject.branches = branches
            report = run_check(
                subject,
                grad=grad,
                vmap=vmap,
                train=train,
                tolerance=tolerance,
                step=lambda text: progress.update(task, description=text),
            )
    except SpecError as error:
        raise _failed(error) from None
    show_report(report, console())
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def export(
    spec: Spec,
    out: Annotated[Path, typer.Argument(help="The file to write; the weights go to a .safetensors file beside it.")],
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of an input, as 1,3,224,224, or b,3,224,224 for any b; once for each input."),
    ] = None,
    constraint: Annotated[list[str] | None, typer.Option(help="What holds of symbols in shapes, as 'b >= 2'.")] = None,
    input: Inputs = None,
    platforms: Annotated[str, typer.Option(help="What the program is for, of cpu, cuda, rocm, tpu.")] = "cpu,cuda,tpu",
    grad: Annotated[bool, typer.Option("--grad", help="Write the gradient as well.")] = False,
    branch: Answers = None,
    allow_pickle: AllowPickle = False,
) -> None:
    """Write a model, in evaluation mode, as a program of JAX's that runs without PyTorch.

    The exit code is 0 if it is written, 1 if it cannot be exported, and 2 if there is nothing to export.
    """
    from .display import console, show_written
    from .export import with_numbers, write
    from .specs import build

    try:
        branches = read_branches(branch or [])
        with _progress() as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = progress.add_task(f"building {spec}")
            shapes = shape or []
            subject = build(spec, [with_numbers(text) for text in shapes], input, allow_pickle)
            subject.branches = branches
            written = write(
                subject,
                out,
                [name.strip() for name in platforms.split(",")],
                shapes=shapes,
                constraints=constraint or [],
                grad=grad,
                step=lambda text: progress.update(task, description=text),
            )
    except SpecError as error:
        raise _failed(error) from None
    except Exception as error:
        raise _failed(f"{spec} cannot be exported: {type(error).__name__}: {error}", 1) from error
    show_written(written, console())


@app.command()
def ops(
    pattern: Annotated[str, typer.Argument(help="Part of a name, or a pattern such as 'nn.functional.*pool*'.")] = "*",
    aten: Annotated[bool, typer.Option("--aten", help="List ATen operators instead of torch functions.")] = False,
) -> None:
    """List PyTorch's operators, and how each is served."""
    from .display import console, show_operators
    from .operators import operators

    served = operators(pattern, aten)
    if not served:
        raise _failed(SpecError(f"no operator matches {pattern!r}"))
    show_operators(served, console())


def _progress() -> Progress:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _failed(error: SpecError | str, code: int = _BAD_USAGE) -> typer.Exit:
    Console(stderr=True).print(f"torch2jax: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(code)
