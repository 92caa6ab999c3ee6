"""``torch.compile`` in translated code, where JAX compiles."""

import torch

from ..seams import stands_in


@stands_in(torch, "compile")
def compile(model=None, **options):
    return (lambda model: model) if model is None else model
