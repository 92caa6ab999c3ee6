"""The commands together, each with its examples."""

import importlib.metadata
import platform
from typing import Annotated

import typer

from .commands.bench import bench
from .commands.bisect import bisect
from .commands.check import check
from .commands.doctor import doctor
from .commands.explain import explain
from .commands.export import export
from .commands.ops import ops

__all__ = ["app"]

_EXIT_CODES = """
Exit codes: 0 success, 1 the translation differs (doctor: something is wrong), 2 there is nothing to run (an unknown
model, inputs that PyTorch itself rejects, a misspelt option), 3 it cannot be translated, compiled or run in JAX.
"""
_COMMANDS = {
    check: (
        "check torchvision:resnet18 --grad",
        "check transformers:bert --dtype bfloat16 --json",
        "check my_package.models:make_model --shape 8,3,64,64 --weights model.safetensors",
    ),
    bisect: ("bisect torchvision:resnet18", "bisect my_package.models:make_model --grad --train"),
    explain: (
        "explain torchvision:resnet18 --compile",
        "explain transformers:bert --grad --depth 3",
    ),
    bench: ("bench torchvision:resnet18 --grad", "bench transformers:bert --no-compile --json"),
    export: (
        "export transformers:gpt2 gpt2.jaxexport --platforms cpu,tpu",
        "export torchvision:resnet18 resnet18.jaxexport --shape b,3,224,224 --grad",
    ),
    doctor: ("doctor", "doctor --json"),
    ops: ("ops 'nn.functional.*pool*'", "ops softmax --aten"),
}

app = typer.Typer(
    help="Run PyTorch code in JAX: compare a model with PyTorch, find what differs, explain, time and export it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        versions = [f"torch2jax {importlib.metadata.version('torch2jax')}", f"Python {platform.python_version()}"]
        versions += [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "jax", "jaxlib")]
        typer.echo(", ".join(versions))
        raise typer.Exit


def _documentation() -> str:
    """Where the documentation is: the address that the package is published with, or the file in its source."""
    urls = importlib.metadata.metadata("torch2jax").get_all("Project-URL") or []
    found = dict(url.split(", ", 1) for url in urls)
    return found.get("Documentation", "docs/command-line.md in the folder of torch2jax's source")


def _epilog(examples: tuple[str, ...]) -> str:
    lines = [f"  torch2jax {example}" for example in examples]
    return "\n".join(["\b", "Examples:", *lines, "", _EXIT_CODES.strip(), "", f"Documentation: {_documentation()}"])


@app.callback(epilog=f"Documentation: {_documentation()}")
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    pass


for command, examples in _COMMANDS.items():
    app.command(epilog=_epilog(examples))(command)
