"""Rules for functions that write, and rules whose results or parameters are not those of PyTorch's function."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import Rules, t2j


@torch.library.custom_op("fitting::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, mode: str = "plain") -> torch.Tensor:
    return x * factor


@torch.library.custom_op("fitting::scale", mutates_args={"x"})
def scale(x: torch.Tensor, factor: float) -> None:
    x.numpy()[...] *= factor


@torch.library.custom_op("fitting::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x / 2, x / 2


X = jnp.arange(3.0)


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


def test_parameters_that_do_not_fit_are_an_error_of_the_call():
    rules = Rules()
    rules.implements(scaled)(lambda x: x)
    with rules, pytest.raises(TypeError) as error:
        t2j(lambda x: torch.ops.fitting.scaled(x, 2.0))(X)
    assert any("test_fitting.py" in note and "wanted the parameters" in note for note in error.value.__notes__)
