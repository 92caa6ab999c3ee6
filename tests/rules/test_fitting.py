"""Rules whose parameters are not those of PyTorch's function are refused when they are declared."""

import contextlib
import importlib

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import Rules, t2j
from torch2jax.rules.array_rule import ArrayRule
from torch2jax.rules.fitting import expect_fitting
from torch2jax.rules.rule import TensorRule
from torch2jax.rules.tables import PROVIDED


@torch.library.custom_op("fitting::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, mode: str = "plain") -> torch.Tensor:
    return x * factor


@torch.library.custom_op("fitting::scale", mutates_args={"x"})
def scale(x: torch.Tensor, factor: float) -> None:
    x.numpy()[...] *= factor


@torch.library.custom_op("fitting::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x / 2, x / 2


class Scaled(torch.nn.Module):
    def forward(self, x, factor, mode="plain"):
        return x * factor


X = jnp.arange(3.0)
MISFITS = {
    "lacks one": (scaled, lambda x: x, "takes (x): .* (x, factor, mode=): the rule lacks 'factor'"),
    "has one more": (scaled, lambda x, factor, mode, more: x, "'more' is none of them"),
    "has one more by keyword": (scaled, lambda x, factor, mode, *, more: x, "'more' is none of them"),
    "another order": (scaled, lambda factor, x, mode="plain": x, "'factor' is number 2 there"),
    "a misspelt keyword": (scaled, lambda x, factor, *, mood="plain": x, "'mood' is none of them (nearest: 'mode')"),
    "an overload": (torch.ops.fitting.scaled.default, lambda x: x, "the rule lacks 'factor'"),
    "a name": ("fitting::scaled", lambda x: x, "the rule lacks 'factor'"),
    "a function of C++": (
        torch.nn.functional.gelu,
        lambda x, approx="none": x,
        "(input, *, approximate=): 'approx' is none of them (nearest: 'approximate')",
    ),
    "a method": (torch.Tensor.addcmul, lambda x, one: x, "the rule lacks 'tensor2'"),
    "a function of Python": (torch.nn.functional.elu, lambda x, *, alfa=1.0: x, "'alfa' is none of them"),
    "more of a function": (torch.special.airy_ai, lambda x, order: x, "'order' is none of them"),
}
OF_MODULES = (lambda module, x: x, "takes (module, x): .* (self, x, factor, mode=): the rule lacks 'factor'")


def as_pattern(text: str) -> str:
    return text.replace("(", r"\(").replace(")", r"\)").replace(", *,", r", \*,")


@pytest.mark.parametrize("name", MISFITS)
def test_a_rule_that_does_not_fit_is_refused(name):
    function, body, told = MISFITS[name]
    for declare in (Rules().implements, Rules().implements_tensors):
        with pytest.raises(TypeError, match=as_pattern(told)) as error:
            declare(function)(body)
        assert f"test_fitting.py:{body.__code__.co_firstlineno}" in str(error.value)


def test_a_rule_of_a_module_that_does_not_fit_is_refused():
    body, told = OF_MODULES
    with pytest.raises(TypeError, match=as_pattern(told)):
        Rules().implements_tensors(Scaled)(body)


WRITERS = {
    "of a library": (scale, "scale, which writes to 'x'"),
    "a packet": (torch.ops.fitting.scale, "writes to 'x'"),
    "a name": ("fitting::scale", "writes to 'x'"),
    "an overload": (torch.ops.aten.mul_.Tensor, "writes to 'self'"),
    "a method": (torch.Tensor.mul_, "writes to its tensor"),
    "a function": (torch.relu_, "writes to its tensor"),
    "an operator of Python's": (torch.Tensor.__iadd__, "__iadd__, which writes to its tensor"),
    "an operator of bits": (torch.Tensor.__ilshift__, "writes to its tensor"),
    "a power": (torch.Tensor.__ipow__, "writes to its tensor"),
    "an assignment": (torch.Tensor.__setitem__, "__setitem__, which writes to its tensor"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_rule_of_arrays_for_a_function_that_writes_is_refused(name):
    function, told = WRITERS[name]
    with pytest.raises(TypeError, match=f"{told}.*implements_tensors") as error:
        Rules().implements(function)(lambda x, factor=1.0: x * factor)
    assert "test_fitting.py:" in str(error.value)


@pytest.mark.parametrize("function", [torch.Tensor.__invert__, torch.Tensor.__index__, torch.Tensor.__add__])
def test_an_operator_that_only_returns_may_have_a_rule_of_arrays(function):
    Rules().implements(function)(lambda *args: args[0])


def test_a_rule_of_tensors_writes():
    rules = Rules()

    @rules.implements_tensors(scale)
    def _(x, factor):
        x.copy_(x * factor)

    def f(x):
        y = x.clone()
        torch.ops.fitting.scale(y, 3.0)
        return y

    for transform in (lambda f: f, jax.jit, jax.vmap):
        with rules:
            assert (transform(t2j(f))(X) == 3 * X).all()
    with rules:
        assert (jax.grad(lambda x: t2j(f)(x).sum())(X) == 3).all()


RESULTS = {
    "one for two": (lambda x: x, r"gave an array; wanted a tuple of 2 arrays"),
    "three for two": (lambda x: (x, x, x), r"gave a tuple of 3; wanted a tuple of 2 arrays"),
    "a number": (lambda x: (x, 2.0), r"gave a float; wanted an array"),
    "a tensor": (lambda x: (torch.ones(3), x), r"gave a Tensor; wanted an array"),
    "none": (lambda x: None, r"gave a NoneType; wanted a tuple of 2 arrays"),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_result_that_is_not_the_operators_is_refused(name, transform):
    body, told = RESULTS[name]
    rules = Rules()
    rules.implements(halves)(body)
    f = transform(t2j(lambda x: torch.ops.fitting.halves(x)[0] + 1))
    with rules, pytest.raises(TypeError, match=f"the rule for halves at .*test_fitting.py:.* {told}"):
        f(X)


def test_a_tuple_for_one_result_is_refused():
    rules = Rules()
    rules.implements(scaled)(lambda x, factor: (x, x))
    with rules, pytest.raises(TypeError, match="gave a tuple of 2; wanted an array"):
        jax.jit(t2j(lambda x: torch.ops.fitting.scaled(x, 2.0)))(X)


def test_a_refused_rule_leaves_no_trace():
    rules = Rules()
    with pytest.raises(TypeError):
        rules.implements(scaled)(lambda x: x)
    with rules:
        assert (t2j(scaled)(X, 2.0) == 2 * X).all()


FITTING = {
    "its own names": lambda x, factor, mode="plain": x * factor,
    "other names by place": lambda a, b, c="plain": a * b,
    "without an option": lambda x, factor: x * factor,
    "by keyword": lambda x, *, mode="plain", factor: x * factor,
    "any": lambda *args, **kwargs: args[0] * 2.0,
}


@pytest.mark.parametrize("name", FITTING)
def test_a_rule_that_fits_is_taken(name):
    rules = Rules()
    rules.implements(scaled)(FITTING[name])
    with rules:
        assert (t2j(lambda x: torch.ops.fitting.scaled(x, factor=2.0))(X) == 2 * X).all()


def test_a_random_rule_has_its_key_first():
    rules = Rules()
    rules.implements(scaled, random=True)(lambda key, x, factor, mode="plain": x)
    with pytest.raises(TypeError, match="the rule lacks 'factor'"):
        Rules().implements(scaled, random=True)(lambda key, x: x)


def test_what_python_hands_on_though_it_was_left_out_may_be_lacking():
    rules = Rules()
    rules.implements(torch.nn.functional.softmax)(lambda input, dim=None: input + dim)
    with rules:
        f = t2j(lambda x: torch.nn.functional.softmax(x, dim=0))
        assert (f(X) == X).all()
        with pytest.raises(TypeError, match="'dtype'"):
            t2j(lambda x: torch.nn.functional.softmax(x, dim=0, dtype=torch.float32))(X)


def test_the_rules_of_the_package_fit():
    with contextlib.suppress(ImportError):  # PyTorch 2.11 has none; it defines operators that are loaded late
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
    checked = 0
    for function, rule in PROVIDED.functions.items():
        if not isinstance(rule, (ArrayRule, TensorRule)) or getattr(rule, "prepare", None) is not None:
            continue
        if rule.names.places[1:2] == ("like",):  # of a view, which gets PyTorch's own beside
            continue
        expect_fitting(function, rule.body, rule.name, "", 1 if getattr(rule, "random", False) else 0)
        checked += 1
    assert checked > 1500
