"""The commands: what they take, what they run, their examples and their exit codes."""

import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Annotated

import typer

from .running import CANNOT, DIFFERS, BrokenError, console, give, running, write_json

_DTYPES = ("bfloat16", "float16", "float32", "float64")
_EXIT_CODES = """
Exit codes: 0 success, 1 the translation differs (doctor: something is wrong), 2 there is nothing to run (an unknown
model, inputs that PyTorch itself rejects, a misspelt option), 3 it cannot be translated, compiled or run in JAX.
"""


def _documentation() -> str:
    """Where the documentation is: the address that the package is published with, or the file in its source."""
    urls = importlib.metadata.metadata("torch2jax").get_all("Project-URL") or []
    found = dict(url.split(", ", 1) for url in urls)
    return found.get("Documentation", "docs/command-line.md in the folder of torch2jax's source")


def _examples(*examples: str) -> str:
    lines = [f"  torch2jax {example}" for example in examples]
    return "\n".join(["\b", "Examples:", *lines, "", _EXIT_CODES.strip(), "", f"Documentation: {_documentation()}"])


def _beginnings(incomplete: str) -> list[str]:
    """What a spec may begin with, for completion; names of models would take an import of their library."""
    kinds = [kind for kind in ("torchvision:", "timm:", "transformers:") if kind.startswith(incomplete)]
    return kinds + [str(path) for path in sorted(Path().glob(f"{incomplete}*.py"))]


def _dtypes(incomplete: str) -> list[str]:
    return [name for name in _DTYPES if name.startswith(incomplete)]


def _version(wanted: bool) -> None:
    if wanted:
        versions = [f"torch2jax {importlib.metadata.version('torch2jax')}", f"Python {platform.python_version()}"]
        versions += [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "jax", "jaxlib")]
        typer.echo(", ".join(versions))
        raise typer.Exit


_Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="FILE.py with a model and inputs, FILE.py:NAME or package.module:NAME (a module, a function, or a "
        "function that returns a module), transformers:TYPE (a model type, a class, a config.json or its folder), "
        "torchvision:NAME, or timm:NAME.",
        autocompletion=_beginnings,
        show_default=False,
    ),
]
_Shapes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SHAPE",
        help="The shape of a random input, such as 1,3,224,224 or 1,16:int64. Repeat it for each input.",
    ),
]
_Inputs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file of inputs: .pt, .npy, .npz or .safetensors.")
]
_Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file of weights: .safetensors, .pt, .pth or .bin, or a checkpoint folder. By default they are random.",
    ),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help=f"Cast the module and its floating-point inputs: {', '.join(_DTYPES)}.",
        autocompletion=_dtypes,
    ),
]
_Branches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE=BOOL",
        help="The branch to take if code tests a traced value and the other branch cannot be translated: "
        "model.py:forward=False, or model.py:LINE=True.",
    ),
]
_Grad = Annotated[bool, typer.Option("--grad", help="Include gradients.")]
_Tolerance = Annotated[
    float | None, typer.Option(metavar="NUMBER", min=0, help="The relative error to accept, such as 1e-3.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]

app = typer.Typer(
    help="Run PyTorch code in JAX: compare a model with PyTorch, find what differs, time and export it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


@app.callback(epilog=f"Documentation: {_documentation()}")
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=_examples(
        "check torchvision:resnet18 --grad",
        "check transformers:bert --dtype bfloat16 --json",
        "check my_package.models:make_model --shape 8,3,64,64 --weights model.safetensors",
    )
)
def check(
    spec: _Spec,
    shape: _Shapes = None,
    input: _Inputs = None,
    weights: _Weights = None,
    dtype: _Dtype = None,
    grad: _Grad = False,
    vmap: Annotated[bool, typer.Option("--vmap", help="Also compare jax.vmap with one call for each input.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Also run in training mode, with dropout off.")] = False,
    tolerance: _Tolerance = None,
    branch: _Branches = None,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Compare a model with its translation: outputs, gradients, times."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch)
        report = run.tools.check(subject, grad=grad, vmap=vmap, train=train, tolerance=tolerance, step=run.step)
    give(report, json)
    raise typer.Exit(CANNOT if report.failed else 0 if report.passed else DIFFERS)


@app.command(epilog=_examples("bisect torchvision:resnet18", "bisect my_package.models:make_model --train"))
def bisect(
    spec: _Spec,
    shape: _Shapes = None,
    input: _Inputs = None,
    weights: _Weights = None,
    dtype: _Dtype = None,
    train: Annotated[bool, typer.Option("--train", help="Run in training mode, with dropout off.")] = False,
    tolerance: _Tolerance = None,
    branch: _Branches = None,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Find the first operator that differs, with its module and line."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch)
        found = run.tools.bisect(subject, train=train, tolerance=tolerance, step=run.step)
    give(found, json)
    raise typer.Exit(0 if found.agrees else CANNOT if found.error else DIFFERS)


@app.command(epilog=_examples("bench torchvision:resnet18 --grad", "bench transformers:bert --no-compile --json"))
def bench(
    spec: _Spec,
    shape: _Shapes = None,
    input: _Inputs = None,
    weights: _Weights = None,
    dtype: _Dtype = None,
    grad: _Grad = False,
    compile: Annotated[bool, typer.Option(help="Also time torch.compile, if it works.")] = True,
    seconds: Annotated[
        float, typer.Option(metavar="NUMBER", min=0, help="The minimum time to measure each way, in seconds.")
    ] = 1.0,
    branch: _Branches = None,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Time PyTorch, torch.compile and the translation, on this machine."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch)
        found = run.tools.bench(subject, grad=grad, compile=compile, seconds=seconds, step=run.step)
    give(found, json)
    raise typer.Exit(0 if found.agreement.agrees else DIFFERS)


@app.command(
    epilog=_examples(
        "export transformers:gpt2 gpt2.jaxexport --platforms cpu,tpu",
        "export torchvision:resnet18 resnet18.jaxexport --shape b,3,224,224 --grad",
    )
)
def export(
    spec: _Spec,
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
    input: _Inputs = None,
    weights: _Weights = None,
    dtype: _Dtype = None,
    platforms: Annotated[
        str, typer.Option(metavar="NAMES", help="The platforms of the program: cpu, cuda, rocm, tpu.")
    ] = "cpu,cuda,tpu",
    grad: _Grad = False,
    branch: _Branches = None,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Write a model as a program that runs without PyTorch."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        from torch2jax.tools.files import with_numbers

        shapes = shape or []
        numbers = [with_numbers(text) for text in shapes]
        written = run.tools.write(
            run.build(spec, numbers, input, weights, dtype, branch),
            out,
            [name.strip() for name in platforms.split(",")],
            shapes=shapes,
            constraints=constraint or [],
            grad=grad,
            step=run.step,
        )
    give(written, json)


@app.command(epilog=_examples("doctor", "doctor --json"))
def doctor(json: _Json = False, quiet: _Quiet = False) -> None:
    """Check the installation, and say what to do about problems."""
    try:
        with running(as_json=json, quiet=quiet) as run:
            diagnosis = run.tools.doctor(step=run.step)
    except BrokenError as error:  # which is what it is for, so it tells what can be told without
        _give_broken(str(error), json)
        raise typer.Exit(DIFFERS) from None
    give(diagnosis, json)
    raise typer.Exit(0 if diagnosis.healthy else DIFFERS)


def _give_broken(error: str, as_json: bool) -> None:
    """Prints the error, and the versions that are installed and wanted, where PyTorch or JAX cannot be imported."""
    packages: dict[str, dict[str, str | None]] = {}
    for text in importlib.metadata.requires("torch2jax") or []:
        match = re.fullmatch(r"([\w.-]+)([^;]*)", text)  # without a condition: no extra's
        if match is not None:
            try:
                installed = importlib.metadata.version(match[1])
            except importlib.metadata.PackageNotFoundError:
                installed = None
            packages[match[1]] = {"installed": installed, "wanted": match[2]}
    if as_json:
        return write_json({"error": error, "healthy": False, "Python": platform.python_version(), "packages": packages})
    out = console()
    out.print(f"torch2jax cannot be imported: {error}", style="red", markup=False, highlight=False)
    for name, versions in packages.items():
        out.print(f"{name}  {versions['installed'] or 'nothing'}, wanted {versions['wanted']}", highlight=False)
    out.print("install the versions that are wanted; a fresh environment is the shortest way")


@app.command(epilog=_examples("ops 'nn.functional.*pool*'", "ops softmax --aten"))
def ops(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A part of a name, or a shell pattern: 'nn.functional.*pool*'.")
    ] = "*",
    aten: Annotated[bool, typer.Option("--aten", help="List ATen operators instead of torch functions.")] = False,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """List PyTorch's operators, and how each is implemented."""
    with running(as_json=json, quiet=quiet) as run:
        served = run.tools.operators(pattern, aten)
        if not served:
            raise run.tools.SpecError(f"no operator matches {pattern!r}")
    give(served, json)
