"""Helpers that make the families of pointwise rules: decorators by kind of promotion, and plain bodies."""

import functools

from ..rules.promotion import Promotion
from ..rules.registry import implements
from ..tensors.dtypes import FLOATS

default = functools.partial(implements, promote=Promotion.DEFAULT)
exact = functools.partial(implements, promote=Promotion.NO_OPMATH)
floating = functools.partial(implements, promote=Promotion.INT_TO_FLOAT)
predicate = functools.partial(implements, promote=Promotion.ALWAYS_BOOL)
floating_once = functools.partial(implements, promote=Promotion.INT_TO_FLOAT_ONCE)
default_once = functools.partial(implements, promote=Promotion.DEFAULT_ONCE)
floating_real = functools.partial(floating, takes=FLOATS)
floating_real_once = functools.partial(floating_once, takes=FLOATS)


def unary(function):
    """A body that is one function of its one operand."""

    def body(input):
        return function(input)

    return body


def binary(function):
    """A body that is one function of two operands, either of which may be a scalar."""

    def body(input, other):
        return function(input, other)

    return body
