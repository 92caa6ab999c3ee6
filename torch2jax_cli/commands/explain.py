"""``torch2jax explain``."""

from typing import Annotated

import typer

from .. import options as take
from ..running import give, running

__all__ = ["explain"]


def explain(
    spec: take.Spec,
    shape: take.Shapes = None,
    input: take.Inputs = None,
    dtype: take.Dtype = None,
    grad: Annotated[bool, typer.Option("--grad", help="Analyze the gradient instead of the outputs.")] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Also compile it, and show XLA's numbers for fused operations and memory.")
    ] = False,
    depth: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="How many levels of modules to show; 0 for all.")
    ] = 2,
    branch: take.Branches = None,
    allow_pickle: take.AllowPickle = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """Show what each module computes: operations, flops, bytes."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, None, dtype, branch, allow_pickle)
        explanation = run.tools.explain(subject, grad=grad, compile=compile, step=run.step)
    from ..reports import explain as form

    give(form.Levels(depth), explanation, json)
