"""``torch2jax bench``."""

from typing import Annotated

import typer

from .. import options as take
from ..running import DIFFERS, give, running

__all__ = ["bench"]


def bench(
    spec: take.Spec,
    shape: take.Shapes = None,
    input: take.Inputs = None,
    weights: take.Weights = None,
    dtype: take.Dtype = None,
    grad: take.Grad = False,
    compile: Annotated[bool, typer.Option(help="Also time torch.compile, if it works.")] = True,
    seconds: Annotated[
        float, typer.Option(metavar="NUMBER", min=0, help="The minimum time to measure each way, in seconds.")
    ] = 1.0,
    branch: take.Branches = None,
    allow_pickle: take.AllowPickle = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """Time PyTorch, torch.compile and the translation, on this machine."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch, allow_pickle)
        found = run.tools.bench(subject, grad=grad, compile=compile, seconds=seconds, step=run.step)
    from ..reports import bench as form

    give(form, found, json)
    raise typer.Exit(0 if found.agreement.agrees else DIFFERS)
