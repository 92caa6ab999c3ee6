"""Arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AllowPickle",
    "Branches",
    "Dtype",
    "Grad",
    "Inputs",
    "Json",
    "Quiet",
    "Shapes",
    "Spec",
    "Tolerance",
    "Train",
    "Weights",
]

_KINDS = ("torchvision:", "timm:", "transformers:")
_DTYPES = ("bfloat16", "float16", "float32", "float64")


def _beginnings(incomplete: str) -> list[str]:
    """What a spec may begin with, for completion; names of models would take an import of their library."""
    files = [str(path) for path in sorted(Path().glob(f"{incomplete}*")) if path.suffix in (".pt", ".pt2", ".pth")]
    return [kind for kind in _KINDS if kind.startswith(incomplete)] + files


def _dtypes(incomplete: str) -> list[str]:
    return [name for name in _DTYPES if name.startswith(incomplete)]


Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="torchvision:NAME, timm:NAME, transformers:CONFIG (a model type, a class, a config.json or its folder), "
        "package.module:NAME (a module, a function, or a function that returns a module), an exported program in a "
        ".pt2 file, or a pickled module.",
        autocompletion=_beginnings,
        show_default=False,
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SHAPE",
        help="The shape of a random input, such as 1,3,224,224 or 1,16:int64. Repeat it for each input.",
    ),
]
Inputs = Annotated[Path | None, typer.Option(metavar="FILE", help="A file of inputs: .pt, .npy, .npz or .safetensors.")]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file of weights: .safetensors, .pt, .pth or .bin, or a checkpoint folder. By default they are random.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help=f"Cast the module and its floating-point inputs: {', '.join(_DTYPES)}.",
        autocompletion=_dtypes,
    ),
]
Branches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE=BOOL",
        help="The branch to take if code tests a traced value and the other branch cannot be translated: "
        "model.py:forward=False, or model.py:LINE=True.",
    ),
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Load a pickled module, which can run any code.")]
Grad = Annotated[bool, typer.Option("--grad", help="Include gradients.")]
Train = Annotated[bool, typer.Option("--train", help="Also run in training mode, with dropout off.")]
Tolerance = Annotated[
    float | None, typer.Option(metavar="NUMBER", min=0, help="The relative error to accept, such as 1e-3.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
