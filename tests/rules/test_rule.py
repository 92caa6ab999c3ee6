"""What surrounds a rule's body: the dtypes that it takes, and options that are given by place."""

import jax
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import implements, t2j
from torch2jax.tensors.dtypes import FLOATS, NUMBERS, expect


@torch.library.custom_op("test_rule::half", mutates_args=())
def half(input: torch.Tensor) -> torch.Tensor:
    return input / 2


implements(torch.ops.test_rule.half, takes=FLOATS)(lambda input: input / 2)

BOOL, INT, COMPLEX = (torch.ones(2, 3).to(dtype) for dtype in (torch.bool, torch.int64, torch.complex64))


def test_a_refusal_says_what_was_got_and_wanted():
    wanted = (
        r"(?m)^\"ceil\" not implemented for 'Bool': ceil got a tensor of torch\.bool; "
        r"wanted one of floating-point or integer dtype: convert it first$"
    )
    with pytest.raises(NotImplementedError, match=wanted):
        t2j(torch.ceil)(BOOL)
    with pytest.raises(NotImplementedError, match=r"wanted one of floating-point or torch\.uint8 dtype"):
        expect("upsample", torch.bool, FLOATS | {torch.uint8})
    expect("add", torch.int8, NUMBERS)


@pytest.mark.parametrize(
    ("function", "tensor"),
    [
        (torch.special.erf, COMPLEX),  # after promotion
        (lambda x: torch.round(x, decimals=1), INT),  # as other arguments decide
        (lambda x: torch.div(x, other=x, rounding_mode="floor"), COMPLEX),
        (lambda x: F.softmax(x, 0), INT),
        (lambda x: F.softmax(x.float(), 0, dtype=torch.int64), INT),
        (lambda x: F.softplus(x, 2.0), INT),  # a number does not promote
        (lambda x: F.layer_norm(input=x, normalized_shape=(3,)), INT),
        (lambda x: torch.polygamma(1, x), COMPLEX),  # not the first argument
        (lambda x: torch.einsum("ij,ij->i", [x, x]), BOOL),
        (lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5), COMPLEX),  # decomposed
        (lambda x: x.uniform_(), BOOL),
        (lambda x: 1 - x, BOOL),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_dtype_without_meaning_is_refused(transform, function, tensor):
    with pytest.raises(RuntimeError, match=r"got a tensor of|with a bool tensor"):
        transform(t2j(function))(t2j(tensor))
    with pytest.raises(RuntimeError):
        function(tensor)


def test_own_rules_are_told_too():
    compare(t2j(half)(torch.ones(2)), torch.ones(2) / 2)
    with pytest.raises(NotImplementedError, match=r"half got a tensor of torch\.int64; wanted one of floating-point"):
        t2j(half)(INT)


@pytest.mark.parametrize(
    ("function", "tensor"),
    [
        (torch.erf, BOOL),
        (torch.round, INT),
        (lambda x: torch.softmax(x, 0, torch.float32), INT),
        (lambda x: torch.div(x, x), BOOL),
        (lambda x: torch.einsum("ij->ji", x), BOOL),
        (lambda x: x.clamp(0, 1), BOOL),
        (lambda x: x % 2, BOOL),
        (lambda x: x.cumsum(0), BOOL),
    ],
)
def test_what_pytorch_takes_is_taken(function, tensor):
    compare(t2j(function)(tensor), function(tensor))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.elu(x, 2.0),
        lambda x: F.leaky_relu(x, negative_slope=0.5),
        lambda x: F.leaky_relu(x, torch.tensor(0.5)),
        lambda x: F.hardtanh(x, -0.5, max_val=0.25),
        lambda x: torch.nan_to_num(x, 0.0, 2.0),
        lambda x: torch.logit(x, 0.1),
        lambda x: torch.ops.aten.softplus(x, 2, 1),
    ],
)
def test_options_are_given_by_place_or_name(function):
    x = torch.tensor([-1.0, 0.3, 2.0])
    compare(jax.jit(t2j(function))(t2j(x)), function(x))


def test_preparations_see_tensors_from_outside_of_the_call():
    layer = torch.nn.Embedding(5, 3)
    indices = torch.tensor([1, 4])
    compare(t2j(lambda x: layer(x))(t2j(indices)), layer(indices))
    compare(jax.jit(t2j(lambda x: layer(indices) + x))(t2j(torch.zeros(3))), layer(indices))
