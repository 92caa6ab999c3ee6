"""Code that handles every exception in a loop: what ends its run, or is refused there, ends the loop."""

import contextlib
import sys

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.refusals import error_of
from torch2jax import t2j


def _loss(x, weight):
    return (x * weight).sin().sum()


def _by_a_bare_except(x, weight):
    while True:
        try:
            _loss(x, weight).backward()
            return weight.grad
        except:  # noqa: E722
            pass


def _by_two(x, weight):
    while True:
        try:
            try:
                _loss(x, weight).backward()
                return weight.grad
            except:  # noqa: E722
                pass
        except:  # noqa: E722
            pass


def _in_a_function(x, weight):
    def step():
        try:
            _loss(x, weight).backward()
        except:  # noqa: E722
            return

    while weight.grad is None:
        try:
            step()
        except:  # noqa: E722
            continue
    return weight.grad


def _by_a_context(x, weight):
    while weight.grad is None:
        with contextlib.suppress(BaseException):
            _loss(x, weight).backward()
    return weight.grad


def _by_finally(x, weight):
    while weight.grad is None:
        try:
            _loss(x, weight).backward()
        finally:
            continue  # noqa: B012
    return weight.grad


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("code", [_by_a_bare_except, _by_two, _in_a_function, _by_a_context, _by_finally])
def test_a_backward_pass_that_is_tried_again(code, jit):
    def gradient(x):
        return code(x, torch.ones(3, requires_grad=True))

    function = t2j(gradient)
    x = torch.tensor([0.5, 1.0, 2.0])
    found = (jax.jit(function) if jit else function)(jnp.asarray(x.numpy()))
    torch.testing.assert_close(torch.tensor(found.tolist()), gradient(x))
    assert sys.gettrace() is None
    assert sys.exc_info() == (None, None, None)


def _choice(x):
    while True:
        try:
            return x * 2 if x.sum() > 0 else x
        except:  # noqa: E722
            pass


def _asks(x):
    while True:
        try:
            return x * 2 if x.requires_grad else x.detach()
        except:  # noqa: E722
            pass


def _in_a_block(x):
    return torch.cond(x.sum() > -1, _choice, torch.sin, (x,))


@pytest.mark.parametrize("code", [_choice, _asks, _in_a_block])
def test_a_question_that_is_asked_again(code):
    x = jnp.array([0.5, 1.0])
    gradient = jax.jit(jax.grad(lambda x: t2j(code)(x).sum()))(x)
    assert gradient.tolist() == [2.0, 2.0]
    assert sys.gettrace() is None
    assert sys.exc_info() == (None, None, None)


def _number(x):
    while True:
        try:
            return x * complex(x.sum()).real
        except TypeError:
            pass


@pytest.fixture
def little_patience(monkeypatch):
    monkeypatch.setattr("torch2jax.runtime.errors.unwinding._MANY", 64)


@pytest.mark.usefixtures("little_patience")
@pytest.mark.parametrize("code", [_number, lambda x: checkpoint(_number, x, use_reentrant=False)])
def test_what_is_refused_again_and_again(code):
    error = error_of(jax.jit(t2j(code)), jnp.ones(2))
    assert "complex(tensor) needs the value" in str(error)
    assert error.__notes__[0].startswith("The code has handled this error 6")
    assert sys.gettrace() is None
    assert sys.exc_info() == (None, None, None)


@pytest.mark.usefixtures("little_patience")
def test_code_around_the_loop_handles_the_error():
    def code(x):
        try:
            return _number(x)
        except TypeError:
            return x + 2

    assert jax.jit(t2j(code))(jnp.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("little_patience")
def test_what_the_code_has_not_handled_itself_does_not_count():
    """A checkpoint runs without a trace of its own where a value is asked for."""

    def each(x):
        with contextlib.suppress(TypeError):
            complex(x.sum())
        return x + 1

    def code(x):
        for _ in range(40):
            x = checkpoint(each, x, use_reentrant=False)
        for _ in range(40):
            x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return x

    jax.jit(t2j(code))(jnp.ones(2))
    assert sys.gettrace() is None
    assert sys.exc_info() == (None, None, None)


def test_a_tracer_that_is_there_goes_on():
    seen = []

    def tracer(frame, event, arg):
        seen.append(event)

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        t2j(lambda x: _by_a_bare_except(x, torch.ones(2, requires_grad=True)))(jnp.ones(2))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def _backward_or_zeros(x):
    weight = torch.ones(2, requires_grad=True)
    try:
        _loss(x, weight).backward()
        return weight.grad.detach()
    except:  # noqa: E722
        return torch.zeros(2)


def _backward_and_more(x):
    weight = torch.ones(2, requires_grad=True)
    try:
        _loss(x, weight).backward()
        found = weight.grad.detach()
    finally:
        found = found + 1
    return found


def _count_or_seven(x):
    try:
        n = len(x[x > 0])
    except BaseException:
        n = 7
    return x * n


def _choice_and_more(x):
    try:
        if x.sum() < 0:
            raise ValueError("negative")
        found = x * 2
    except ValueError:
        found = -x
    finally:
        found = found + 1
    return found


def _length_or_unset(x):
    with contextlib.suppress(BaseException):
        n = len([x] if x.sum() > 0 else [x, x])
    return x * n


@pytest.mark.parametrize(
    "code", [_backward_or_zeros, _backward_and_more, _count_or_seven, _choice_and_more, _length_or_unset]
)
def test_code_that_goes_on_once_with_something_else(code):
    compiled = jax.jit(t2j(code))
    for x in (torch.tensor([3.0, 4.0]), torch.tensor([3.0, -4.0])):
        torch.testing.assert_close(torch.tensor(compiled(jnp.asarray(x.numpy())).tolist()), code(x))
