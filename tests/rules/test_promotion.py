"""The dtypes of pointwise operators are those that PyTorch says."""

import itertools
import subprocess
import sys

import torch
from torch._prims_common import elementwise_dtypes

from torch2jax.rules.promotion import Promotion, promoted
from torch2jax.tensors.dtypes import COMPLEX, FLOATS, INTEGERS

_DTYPES = sorted((x for x in FLOATS | COMPLEX | INTEGERS | {torch.bool} if "float8" not in str(x)), key=str)
_NUMBERS = (bool, int, float, complex)
_KINDS = [kind for kind in Promotion if not kind.name.endswith("_ONCE")]


def _said(kind: Promotion, examples: list) -> tuple[torch.dtype, torch.dtype]:
    said = elementwise_dtypes(*examples, type_promotion_kind=kind.value)
    if kind is not Promotion.ALWAYS_BOOL:
        return said
    return elementwise_dtypes(*examples, type_promotion_kind=Promotion.NO_OPMATH.value)[0], said[1]


def test_dtypes_are_those_that_pytorch_says():
    tensors = [(dtype, is_scalar) for dtype in _DTYPES for is_scalar in (False, True)]
    numbers = [(number, True) for number in _NUMBERS]
    few = [x for x in tensors if x[0] in (torch.bool, torch.int64, torch.float16, torch.float32, torch.complex64)]
    alone = [*((x,) for x in tensors), *((x, x) for x in tensors)]
    for kinds in [*alone, *itertools.product(tensors, numbers), *itertools.product(few, few)]:
        examples = [
            of(1) if isinstance(of, type) else torch.empty(() if scalar else 1, dtype=of) for of, scalar in kinds
        ]
        for kind in _KINDS:
            assert promoted(kind, kinds) == _said(kind, examples), (kind, kinds)


def test_sympy_is_not_imported_for_operands_of_one_dtype():
    code = (
        "import sys, jax.numpy as jnp; from torch2jax import t2j; "
        "t2j(lambda x: (x * 2 + x / x > 0).view(-1)[1:].sum())(jnp.ones((2, 2))); assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
