"""Rules of the user's: for a while, and for whole classes of modules."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.declaring import declaring_for_a_while
from torch2jax import Rules, implements, implements_tensors, j2t, t2j

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def doubling() -> Rules:
    rules = Rules()

    @rules.implements(F.gelu)
    def _(input, approximate="none"):
        return input * 2

    @rules.implements(torch.sinh)
    def _(input):
        return input * 3

    return rules


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        (F.gelu, 2),
        (torch.nn.GELU(), 2),
        (torch.sinh, 3),
        (lambda x: x.sinh(), 3),
        (lambda x: x.clone().sinh_(), 3),
        (lambda x: torch.sinh(x, out=torch.empty(0)), 3),
        (torch.ops.aten.sinh.default, 3),
    ],
)
def test_rules_hold_where_they_are_entered(function, factor):
    before = t2j(function)(X)
    with doubling():
        np.testing.assert_allclose(jax.jit(t2j(function))(X), factor * X, rtol=1e-6)
        np.testing.assert_allclose(jax.grad(lambda x: t2j(function)(x).sum())(X), np.full_like(X, factor))
    np.testing.assert_array_equal(t2j(function)(X), before)


def test_the_last_entered_comes_first_and_an_exception_ends_them():
    tripling = Rules()
    tripling.implements(F.gelu)(lambda input, approximate="none": input * 3)
    function, outer = t2j(F.gelu), doubling()
    before = function(X)
    with outer:
        with tripling:
            np.testing.assert_array_equal(function(X), X * 3)
            with outer:  # again
                np.testing.assert_array_equal(function(X), X * 2)
            np.testing.assert_array_equal(function(X), X * 3)
        with pytest.raises(KeyError), tripling:
            raise KeyError
        np.testing.assert_array_equal(function(X), X * 2)
    np.testing.assert_array_equal(function(X), before)


def test_other_threads_do_not_see_them():
    found = []
    with doubling():
        thread = threading.Thread(target=lambda: found.append(t2j(torch.sinh)(X)))
        thread.start()
        thread.join()
    np.testing.assert_allclose(found[0], np.sinh(X), rtol=1e-6)


def test_operators_of_their_own():
    @torch.library.custom_op("test_tables::cube", mutates_args=())
    def cube(input: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(input.numpy() ** 3)

    rules = Rules()
    rules.implements("test_tables::cube")(lambda input: input**3)
    with rules:
        np.testing.assert_allclose(jax.jit(t2j(cube))(X), X**3, rtol=1e-6)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x, *, power=1):
        return x**power * self.weight


class Inherits(Scale):
    pass


class Overrides(Scale):
    def forward(self, x, *, power=1):
        return super().forward(x, power=power) + 1


def kernel(x, weight):
    return jnp.sinh(x) * weight


def sinh_rules() -> Rules:
    rules = Rules()

    @rules.implements_tensors(Scale)
    def _(module, x, *, power=1):
        return j2t(kernel)(x, module.weight) if power == 1 else module(x, power=power)

    return rules


@pytest.mark.parametrize(
    ("module", "expected"),
    [(Scale(), kernel), (Inherits(), kernel), (Overrides(), lambda x, weight: kernel(x, weight) + 1)],
)
def test_classes_of_modules(module, expected):
    model = torch.nn.Sequential(module)
    state = t2j(model.state_dict())
    weight = state["0.weight"]
    with sinh_rules():
        for run in (t2j(model), jax.jit(t2j(model)), t2j(lambda x, state_dict: model(x))):
            np.testing.assert_allclose(run(X, state_dict=state), expected(X, weight), rtol=1e-6)
        got = jax.grad(lambda state: t2j(model)(X, state_dict=state).sum())(state)["0.weight"]
    np.testing.assert_allclose(got, jax.grad(lambda weight: expected(X, weight).sum())(weight), rtol=1e-6)
    np.testing.assert_allclose(t2j(model)(X), model(torch.tensor(X)).detach(), rtol=1e-6)
    assert "forward" not in vars(Inherits)
    assert Scale.forward.__qualname__ == "Scale.forward"


def test_a_rule_of_modules_leaves_some_cases_to_them_and_hooks_run():
    module, seen = Scale(), []
    module.register_forward_hook(lambda module, args, result: seen.append(type(module).__name__))
    with sinh_rules():
        np.testing.assert_allclose(t2j(module)(X, power=2), X**2 * np.array([1, 2, 3]), rtol=1e-6)
    assert seen == ["Scale", "Scale"]  # the call, and the rule's own


def test_gradients_inside_pass_through_a_rule_of_modules():
    def forces(x):
        module = Scale()
        module(x).sum().backward()
        return module.weight.grad, torch.autograd.grad(module(x).sum(), module.weight)[0]

    with sinh_rules():
        for got in jax.jit(t2j(forces))(X):
            np.testing.assert_allclose(got, np.sinh(X).sum(0), rtol=1e-6)


def test_a_rule_of_modules_declared_within_a_call_holds_at_once():
    class Local(torch.nn.Module):
        def forward(self, x):
            return x

    def function(x):
        rules = Rules()
        rules.implements_tensors(Local)(lambda module, x: x * 5)
        with rules:
            return Local()(x)

    np.testing.assert_array_equal(t2j(function)(X), X * 5)
    assert Local()(3) == 3


def test_names_of_operators():
    rules = Rules()
    rules.implements("not_loaded::operator")(lambda x: x)
    for name in ("aten::sinhh", "sinh"):
        with pytest.raises(ValueError, match=r"nearest: .aten::sinh|wanted that of an operator"):
            rules.implements(name)(lambda x: x)
        with pytest.raises(ValueError, match="implements got the name"):
            rules.implements_tensors(name)(lambda x: x)
    for wrong in ((None,), (3,), ()):
        with pytest.raises(TypeError, match="wanted functions"):
            rules.implements(*wrong)(lambda x: x)


def test_what_custom_op_makes_is_its_operator():
    @torch.library.custom_op("test_tables::fourth", mutates_args=())
    def fourth(input: torch.Tensor) -> torch.Tensor:
        return input.clone()

    rules = Rules()
    rules.implements(fourth)(lambda input: input**4)
    with rules:
        np.testing.assert_allclose(t2j(fourth)(X), X**4, rtol=1e-6)


@pytest.mark.parametrize("name", ["implements", "implements_tensors"])
def test_a_second_rule_for_a_function(name):
    rules = Rules()
    declare = getattr(rules, name)

    def first(input):
        return input * 2

    def second(input):
        return input * 3

    declare(torch.sinh)(first)
    declare(torch.sinh)(first)  # as a cell of a notebook that runs again
    with pytest.raises(ValueError, match=r"second rule for sinh.*second at .*first at .*replace=True"):
        declare(torch.sinh)(second)
    declare(torch.sinh, replace=True)(second)
    with rules:
        np.testing.assert_array_equal(t2j(torch.sinh)(X), X * 3)


def test_a_rule_for_good_is_that_of_the_whole_family():
    forms = (torch.sinh, torch.Tensor.sinh, lambda x: (x * 1).sinh_(), torch.ops.aten.sinh)
    forms = (*forms, lambda x: torch.sinh(x, out=torch.empty(x.shape)))
    with declaring_for_a_while():
        implements(torch.sinh)(lambda input: input * 2)
        for function in forms:
            np.testing.assert_array_equal(t2j(function)(X), 2 * X)
    for function in forms:
        np.testing.assert_allclose(t2j(function)(X), np.sinh(X), rtol=1e-6)


def test_refusals():
    with pytest.raises(TypeError, match="implements_tensors, and call JAX functions there through j2t"):
        implements(Scale)(lambda module, x: x)
    with pytest.raises(TypeError, match="wanted functions or classes of modules"):
        implements_tensors(int)(lambda x: x)


def test_a_rule_of_all_overloads_serves_what_is_written_to():
    rules = Rules()

    @rules.implements_tensors("aten::uniform")
    def _(input, low=0.0, high=1.0, *, generator=None):
        return input + low

    def function(x):
        written = torch.empty(0)
        return torch.ops.aten.uniform.out(x, 2.0, 3.0, out=written) is written, written

    for entered, expected in ((Rules(), None), (rules, X + 2)):
        with entered:
            is_written, result = t2j(function)(X, rng=jax.random.key(0))
        assert is_written
        assert result.shape == X.shape
        assert ((result >= 2) & (result < 3)).all() if expected is None else (result == expected).all()
