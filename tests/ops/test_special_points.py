"""Derivatives at ties, zeros, kinks, bounds and infinities are PyTorch's: a sample, and all that ever differed.

``python -m scripts.special_points`` runs every entry of the database and writes `docs/tested/special-points.md`.
"""

import itertools

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import Refused, cases, entry
from tests.ops.database.functionals import FUNCTIONALS
from tests.ops.database.special import compared, points
from torch2jax import t2j

INFINITY = float("inf")
PAIR = ([1.0, 2.0, 0.0, -1.0], [1.0, 2.0, 0.0, 1.0])
ROWS = [[0.0, 0.0], [1.0, 1.0], [1.0, 3.0], [1.0, 1.0]]
KINKS = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -0.5, 6.0]
BASES = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, INFINITY, -INFINITY]
POWERS = tuple(zip(*itertools.product(BASES, [*BASES, 3.0]), strict=True))

# Functions at points where a derivative of them was not PyTorch's.
NAMED = {
    "pow": (torch.pow, *POWERS),
    "float_power": (torch.float_power, *POWERS),
    "pow of some bases by one exponent": (torch.pow, BASES, 0.0),
    "l1_loss": (F.l1_loss, *PAIR),
    "L1Loss": (torch.nn.L1Loss(reduction="none"), *PAIR),
    "smooth_l1_loss, beta=0": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), *PAIR),
    "smooth_l1_loss": (F.smooth_l1_loss, *PAIR),
    "huber_loss": (F.huber_loss, [1.0, 2.0, 0.0], [1.0, 1.0, 1.0]),
    "atan2": (torch.atan2, [0.0, -0.0, 0.0, 0.0, 1.0], [0.0, 0.0, -1.0, 1.0, 0.0]),
    "atan2 of negative zeros": (torch.atan2, [-0.0, 0.0], [-0.0, -0.0]),
    "ldexp": (torch.ldexp, [1.0, 2.0, 0.0, 3.0], [0.5, -2.0, 3.0, 0.0]),
    "hypot": (torch.hypot, [1.0, 0.5, -1.0, 3.0, INFINITY, 0.0], [1.0, 0.5, 1.0, 4.0, 1.0, -INFINITY]),
    "logaddexp": (torch.logaddexp, [0.0, INFINITY, -INFINITY, 1.0, -INFINITY], [INFINITY, 0.0, 1.0, 1.0, INFINITY]),
    "logaddexp2": (torch.logaddexp2, [0.0, INFINITY, -INFINITY, 1.0, 2.0], [INFINITY, 0.0, 1.0, 1.0, -INFINITY]),
    "smooth_l1_loss of an infinite target": (F.smooth_l1_loss, [0.0, 1.0], [INFINITY, -INFINITY]),
    "huber_loss of an infinite target": (F.huber_loss, [0.0, 1.0], [INFINITY, -INFINITY]),
    "entr": (torch.special.entr, [0.0, -0.0, -1.0, 1.0, 0.5, INFINITY]),
    "xlogy": (torch.xlogy, [0.0, 0.0, 0.0, 1.0, 0.0], [0.0, -1.0, 2.0, 0.0, INFINITY]),
    "xlog1py": (torch.special.xlog1py, [0.0, 0.0, 0.0, 1.0, 0.0], [-1.0, -2.0, 0.0, -1.0, INFINITY]),
    "copysign": (torch.copysign, [0.0, -0.0, 1.0, -1.0, 0.0], [0.0, 1.0, -1.0, 0.0, -1.0]),
    "asarray": (lambda x: torch.asarray(x, copy=True) * 2, [0.0, 1.0]),
    "cdist, p=inf": (lambda x, y: torch.cdist(x, y, p=INFINITY), ROWS, [[0.0, 0.0], [2.0, 2.0]]),
    "pdist, p=inf": (lambda x: torch.pdist(x, p=INFINITY), ROWS),
    "softplus": (lambda x: F.softplus(x, 2, threshold=2), KINKS),
    "softplus, beta=0": (lambda x: F.softplus(x, 0.0), [*KINKS, INFINITY, -INFINITY]),
    "softplus, beta=0, a threshold below": (lambda x: F.softplus(x, 0.0, -1.0), [*KINKS, INFINITY]),
    "celu, alpha=-1": (lambda x: F.celu(x, -1.0), KINKS),
    "celu": (lambda x: F.celu(x, 0.5), KINKS),
    "elu": (lambda x: F.elu(x, 2.0), KINKS),
    "selu": (F.selu, KINKS),
    "leaky_relu": (F.leaky_relu, KINKS),
    "hardtanh": (F.hardtanh, KINKS),
    "hardswish": (F.hardswish, KINKS),
    "hardsigmoid": (F.hardsigmoid, KINKS),
    "relu6": (F.relu6, KINKS),
    "softshrink": (F.softshrink, KINKS),
    "hardshrink": (F.hardshrink, KINKS),
}
# PyTorch's reverse mode is no linear map that forward mode has too: the first derivatives agree, the others need not.
REVERSE_ONLY = {
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 2), [[0.0, 0.0, 0.0, 0.0]]),
    "polar": (lambda x, y: torch.view_as_real(torch.polar(x, y)), [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]),
    "prelu": (F.prelu, [0.0, -0.0, 1.0], [0.25]),
    "lgamma": (torch.lgamma, [0.0, -0.0, 1.0]),
    "digamma": (torch.digamma, [0.0, -0.0, 1.0]),
    "ndtri": (torch.special.ndtri, [0.0, 0.5, 1.0]),
}
# Those of the database whose derivatives are PyTorch's at all points; docs/tested/special-points.md has the others.
SAMPLED = ("abs", "max.binary", "norm", "linalg.vector_norm", "sqrt", "amax", "sign")
SAMPLED += (
    "logsumexp",
    "nn.functional.relu",
    "nn.functional.margin_ranking_loss",
    "nn.functional.hinge_embedding_loss",
)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMED)
def test_named_points(name, dtype):
    function, *values = NAMED[name]
    found = compared(function, [torch.tensor(x, dtype=dtype) for x in values])
    assert [x for x in found if x.kind == "differs"] == []


def test_outside_of_its_domain_logit_has_no_derivative():
    x = torch.tensor([-0.5, 1.5, INFINITY, -INFINITY, 0.0, 1.0, 0.25], dtype=torch.float64)
    found = compared(torch.logit, [x])
    assert [each for each in found if each.kind != "agrees"] == []
    gradient = jax.grad(lambda x: t2j(torch.special.logit)(x).sum())(t2j(x))
    np.testing.assert_array_equal(np.isnan(gradient), [True] * 4 + [False] * 3)


@pytest.mark.parametrize("name", REVERSE_ONLY)
def test_where_pytorchs_modes_disagree_gradients_are_those_of_reverse_mode(name):
    function, *values = REVERSE_ONLY[name]
    first, *_ = compared(function, [torch.tensor(x, dtype=torch.float64) for x in values])
    assert first.kind == "agrees"


# As `SAMPLED`, of functions with their options.
FUNCTIONS = ("logit, eps=0.1", "kl_div, log_target=False", "binary_cross_entropy", "normalize, p=2.0, eps=0.0")
FUNCTIONS += ("instance_norm, eps=0.0", "max_pool1d", "max_pool2d")
FUNCTIONS += ("std, correction=3", "cdist, p=1.5", "cross_entropy, weight, mean", "kl_divergence of Bernoulli")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_their_options(name):
    (functional,) = [x for x in FUNCTIONALS if x.name == name]
    found = {at: compared(functional.function, tensors) for at, tensors in functional.tensors(torch.float64)}
    assert [(at, x) for at, each in found.items() for x in each if x.kind == "differs"] == []


@pytest.mark.parametrize("name", SAMPLED)
def test_entries_of_the_database(name):
    differing, tried = [], 0
    for case in cases(entry(name), torch.float64, 2):
        for point in points(case):
            try:
                found = compared(case.function, point.tensors)
            except Refused:
                continue
            tried += 1
            differing += [(point.name, x) for x in found if x.kind == "differs"]
    assert tried
    assert differing == []
