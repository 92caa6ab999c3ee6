"""``torch2jax bisect``."""

from typing import Annotated

import typer

from .. import options as take
from ..running import CANNOT, DIFFERS, give, running

__all__ = ["bisect"]


def bisect(
    spec: take.Spec,
    shape: take.Shapes = None,
    input: take.Inputs = None,
    weights: take.Weights = None,
    dtype: take.Dtype = None,
    grad: take.Grad = False,
    train: Annotated[bool, typer.Option("--train", help="Run in training mode, with dropout off.")] = False,
    tolerance: take.Tolerance = None,
    branch: take.Branches = None,
    allow_pickle: take.AllowPickle = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """Find the first operator that differs, with its module and line."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch, allow_pickle)
        found = run.tools.bisect(subject, grad=grad, train=train, tolerance=tolerance, step=run.step)
    from ..reports import bisect as form

    give(form, found, json)
    raise typer.Exit(0 if found.agrees else CANNOT if found.error else DIFFERS)
