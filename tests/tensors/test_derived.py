"""Tensors of classes that code derives from `torch.Tensor`."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

from torch2jax import t2j


class Labelled(torch.Tensor):
    """One that hands its label on to what is computed of it."""

    label = None

    def __new__(cls, data, label=None):
        made = torch.as_tensor(data).as_subclass(cls)
        made.label = label
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Labelled):
            result.label = next((x.label for x in args if isinstance(x, Labelled)), None)
        return result

    def doubled(self):
        return self * 2


class More(Labelled):
    pass


class Counted(torch.Tensor):
    """One that looks on, with torch functions of subclasses switched off by itself."""

    calls: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Slotted(torch.Tensor):
    __slots__ = ("note",)


OUTSIDE = Labelled(torch.tensor([1.0, 2.0, 3.0]), "outside")


def methods(x):
    labelled = Labelled(x, "x")
    result = labelled.doubled() + 1
    assert isinstance(result, Labelled)
    assert result.label == "x"
    return result


def by_the_unbound_method(x):
    return torch.Tensor.as_subclass(x, Labelled).doubled()


def by_make_subclass(x):
    return torch.Tensor._make_subclass(Labelled, x).sin()


def by_the_constructor(x):
    made = More(x)
    assert isinstance(torch.cat([made, made]), More)
    return torch.cat([made, made])


def back_to_a_plain_one(x):
    plain = Labelled(x, "x").doubled().as_subclass(torch.Tensor)
    assert not isinstance(plain, Labelled)
    return plain


def from_outside(x):
    result = OUTSIDE.doubled() + x
    assert isinstance(result, Labelled)
    assert result.label == "outside"
    return result


def a_class_and_one_derived_from_it(x):
    result = Labelled(x, "x") + More(x, "more")
    assert isinstance(result, More)
    return result


def with_slots(x):
    slotted = x.as_subclass(Slotted)
    slotted.note = 3
    return slotted * slotted.note


def a_write(x):
    x = x.clone()
    Labelled(x).mul_(3)
    return x


def its_gradient(x):
    x = x.detach().requires_grad_()
    labelled = Labelled(x, "x")
    (labelled * labelled).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "function",
    [
        methods,
        by_the_unbound_method,
        by_make_subclass,
        by_the_constructor,
        back_to_a_plain_one,
        from_outside,
        a_class_and_one_derived_from_it,
        with_slots,
        a_write,
        its_gradient,
    ],
)
def test_computes_as_in_pytorch(function):
    x = np.array([0.5, -1.0, 2.0], np.float32)
    wanted = function(torch.tensor(x)).detach().as_subclass(torch.Tensor).numpy()
    for run in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(run(jnp.asarray(x)), wanted, rtol=1e-6)


def test_derivatives_pass():
    slope = jax.jvp(t2j(methods), (np.ones(3, np.float32),), (np.ones(3, np.float32),))[1]
    np.testing.assert_array_equal(slope, [2, 2, 2])


def test_the_graph_is_that_of_plain_tensors():
    x = jnp.ones(3)
    plain = jax.make_jaxpr(t2j(lambda x: x * 2 + 1))(x)
    assert str(jax.make_jaxpr(t2j(lambda x: Labelled(x, "x").doubled() + 1))(x)) == str(plain)


def test_a_class_is_asked_once_for_each_function():
    def softmax(x):
        Counted.calls.clear()
        result = torch.nn.functional.softmax(x.as_subclass(Counted), -1)
        return result, len(Counted.calls)

    wanted = softmax(torch.ones(2, 3))[1]
    assert t2j(softmax)(jnp.ones((2, 3)))[1] == wanted


def test_pytorch_is_left_as_it_was():
    t2j(by_make_subclass)(jnp.ones(3))
    assert not {"as_subclass", "_make_subclass", "__new__"} & vars(torch.Tensor).keys()
    assert type(Labelled(torch.ones(2))) is Labelled


def test_names_that_translated_tensors_have_for_themselves():
    class Reader(torch.Tensor):
        def read(self):
            return self

    with pytest.raises(TypeError, match=r"class .*Reader cannot be translated: it has 'read'"):
        t2j(lambda x: x.as_subclass(Reader))(jnp.ones(3))


def test_what_is_no_class_of_tensors():
    with pytest.raises(TypeError, match=r"wanted torch\.Tensor or a class derived from it"):
        t2j(lambda x: x.as_subclass(int))(jnp.ones(3))


@pytest.mark.parametrize("jit", [False, True])
def test_gradients_of_each_sample(jit):
    """PyTorch's weights for them have properties that need what their `__init__` sets, and handle few functions."""

    def gradients(x, weight, bias):
        layer = torch.nn.Linear(3, 2)
        layer.weight, layer.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        call_for_per_sample_grads(layer)(x).square().sum().backward()
        return layer.weight.grad_sample, layer.bias.grad_sample

    given = torch.randn(5, 3), torch.randn(2, 3), torch.randn(2)
    translated = t2j(gradients)
    got = (jax.jit(translated) if jit else translated)(*t2j(given), rng=jax.random.key(0))
    for a, b in zip(got, gradients(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
