"""numpy's numbers and arrays among the arguments of PyTorch's functions."""

import operator
import warnings
from typing import Any

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

NUMBERS = [
    *(np.bool_(True), np.int8(3), np.float32(1.5), np.float64(1.5)),
    *(np.longdouble(1.5), np.complex64(1 + 2j), np.complex128(1 + 2j)),
]
ARRAYS = [np.array(1.5), np.array([3, 4]), np.array([1.5, 2.0], np.float32), np.array([True, True])]
TENSORS = [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1.5, 2.5])]
FUNCTIONS = {
    **{name: getattr(operator, name) for name in ("add", "mul", "truediv", "floordiv", "mod", "pow", "lt", "eq")},
    "radd": lambda x, v: v + x,
    "rsub": lambda x, v: v - x,
    "rtruediv": lambda x, v: v / x,
    "rpow": lambda x, v: v**x,
    "in place": lambda x, v: operator.iadd(x.clone(), v),
    "function": torch.add,
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "value": lambda x, v: torch.addcmul(x, x, x, value=v),
    "full": lambda x, v: torch.full((2,), v),
    "where": lambda x, v: torch.where(x > 1, x, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "fill": lambda x, v: x.clone().fill_(v),
    "roll": lambda x, v: x.roll(v),
    "tensor": lambda x, v: torch.tensor(v),
    "result_type": lambda x, v: torch.zeros(1, dtype=torch.result_type(x, v)),
}


def outcome(function, *args) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of complex numbers that lose a part
        try:
            result = function(*args)
        except Exception as error:
            return error
    return t2j(result) if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operands_of_numpy(name):
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        for x in TENSORS:
            for value in (*NUMBERS, *ARRAYS):
                if name == "roll" and isinstance(value, np.ndarray):  # an internal error of PyTorch
                    continue
                expected = outcome(function, x.clone(), value)
                code = t2j(lambda x, value=value: function(x, value))
                # With an array on their right most operators are numpy's, which wants values.
                for is_traced in (False,) if isinstance(value, np.ndarray) else (False, True):
                    got = outcome(lambda *a: jax.eval_shape(code, *a) if is_traced else code(*a), t2j(x))  # noqa: B023
                    what = f"{name} of {x!r} and {value!r}: {got!r}; PyTorch: {expected!r}"
                    if isinstance(expected, Exception):
                        assert isinstance(got, type(expected)), what
                        continue
                    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), what
                    if not is_traced:
                        np.testing.assert_allclose(got, expected, 1e-5, err_msg=what)


def test_an_array_is_traced_with_its_tensor():
    x, array = np.arange(3.0, dtype=np.float32), np.array([2.0, 3.0, 4.0])
    result = jax.jit(t2j(lambda x: (x**array) // array.sum()))(x)
    np.testing.assert_allclose(result, x**array // 9, 1e-6)


def test_functions_take_no_arrays():
    with pytest.raises(TypeError, match=r"must be Tensor, not numpy\.ndarray"):
        t2j(lambda x: torch.mul(x, np.ones(3)))(np.ones(3))  # pyright: ignore


@pytest.mark.filterwarnings("ignore:__array_wrap__")
def test_what_numpy_gives_is_a_tensor_of_the_call():
    def code(x):
        y = x + np.ones(3, np.float32)
        return y, type(y) is type(x)

    result, is_of_call = t2j(code)(np.arange(3.0, dtype=np.float32))
    np.testing.assert_array_equal(result, [1, 2, 3])
    assert is_of_call
