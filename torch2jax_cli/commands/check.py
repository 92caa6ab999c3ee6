"""``torch2jax check``."""

from typing import Annotated

import typer

from .. import options as take
from ..running import CANNOT, DIFFERS, give, running

__all__ = ["check"]


def check(
    spec: take.Spec,
    shape: take.Shapes = None,
    input: take.Inputs = None,
    weights: take.Weights = None,
    dtype: take.Dtype = None,
    grad: take.Grad = False,
    vmap: Annotated[bool, typer.Option("--vmap", help="Also compare jax.vmap with one call for each input.")] = False,
    train: take.Train = False,
    tolerance: take.Tolerance = None,
    branch: take.Branches = None,
    allow_pickle: take.AllowPickle = False,
    json: take.Json = False,
    quiet: take.Quiet = False,
) -> None:
    """Compare a model with its translation: outputs, gradients, times."""
    with running(as_json=json, quiet=quiet, dtype=dtype) as run:
        subject = run.build(spec, shape, input, weights, dtype, branch, allow_pickle)
        report = run.tools.check(subject, grad=grad, vmap=vmap, train=train, tolerance=tolerance, step=run.step)
    from ..reports import check as form

    give(form, report, json)
    raise typer.Exit(CANNOT if report.failed else 0 if report.passed else DIFFERS)
