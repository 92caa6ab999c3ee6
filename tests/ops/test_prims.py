"""Every prim gives what PyTorch gives for it."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._prims
from torch._ops import OpOverload

from tests.ops.database import compare_trees
from torch2jax import t2j

PRIMS = {prim.overloadpacket.__name__: prim for prim in vars(torch._prims).values() if isinstance(prim, OpOverload)}
CPU = torch.device("cpu")
MATRIX = torch.tensor([[0.1, 0.7, 0.3], [0.9, 0.2, 0.7]])
OTHER = torch.tensor([[0.4, 0.7, 0.2], [0.6, 0.5, 0.8]])
INTEGERS = torch.tensor([[3, 8, 5], [12, 9, 2]])
OTHER_INTEGERS = torch.tensor([[2, 4, 5], [3, 6, 7]])
COMPLEX = torch.complex(MATRIX, OTHER)
NEW = {"dtype": torch.float32, "device": CPU, "requires_grad": False}

ON_INTEGERS = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "shift_left", "shift_right_arithmetic"}
ABOVE_ONE = {"acosh": MATRIX + 1, "zeta": MATRIX + 1.5}
EXAMPLES = {
    "amax": (MATRIX, [1]),
    "amin": (MATRIX, [0, 1]),
    "sum": (MATRIX, [0, 1]),
    "prod": (MATRIX, [0, 1]),
    "xor_sum": (INTEGERS, [1]),
    "var": (MATRIX, [1], 1.0),
    "as_strided": (MATRIX, [2, 2], [1, 2], 1),
    "as_strided_scatter": (MATRIX, torch.ones(2, 2), [2, 2], [1, 2], 1),
    "broadcast_in_dim": (MATRIX, [2, 4, 3], [0, 2]),
    "collapse": (MATRIX.expand(2, 2, 3), 0, 1),
    "collapse_view": (MATRIX[None], 1, 2),
    "split_dim": (MATRIX, 1, 3),
    "squeeze": (MATRIX[None], [0]),
    "transpose": (MATRIX, [1, 0]),
    "reshape": (MATRIX, [3, 2]),
    "rev": (MATRIX, [1]),
    "cat": ([MATRIX, OTHER], 1),
    "where": (MATRIX > 0.5, MATRIX, OTHER),
    "conj": (COMPLEX,),
    "conj_physical": (COMPLEX,),
    "real": (COMPLEX,),
    "imag": (COMPLEX,),
    "convert_element_type": (MATRIX * 9, torch.int32),
    "device_put": (MATRIX, CPU),
    "clone": (MATRIX,),
    "copy_strided": (MATRIX, [1, 2]),
    "fill": (MATRIX, 3.0),
    "item": (torch.tensor(2.5),),
    "maximum_value": (torch.float32,),
    "minimum_value": (torch.int8,),
    "view_of_dtype": (MATRIX, torch.int32),
}
WITH_KEYWORDS = {
    "full": (([2, 3], 1.5), NEW),
    "full_like": ((MATRIX, 1.5), NEW),
    "iota": ((5,), {**NEW, "start": 2, "step": 3, "dtype": torch.int64}),
    "scalar_tensor": ((2.5,), {"dtype": torch.float32, "device": CPU}),
    "fft_r2c": ((MATRIX,), {"dim": [1], "onesided": True}),
    "fft_c2c": ((COMPLEX,), {"dim": [0, 1], "forward": False}),
    "fft_c2r": ((COMPLEX,), {"dim": [1], "last_dim_size": 4}),
}
SEPARATE = {"svd", "copy_to", "resize", "normal", "uniform", "empty", "empty_strided", "empty_permuted"}
EFFECTS = {"_make_token", "_sink_tokens"}  # order the effects of a compiler's graph


def _example(name: str):
    if name in WITH_KEYWORDS:
        return WITH_KEYWORDS[name]
    if name in EXAMPLES:
        return EXAMPLES[name], {}
    first, second = (INTEGERS, OTHER_INTEGERS) if name in ON_INTEGERS else (ABOVE_ONE.get(name, MATRIX), OTHER)
    return (first, second)[: len(PRIMS[name]._schema.arguments)], {}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # PyTorch's own use of it
@pytest.mark.parametrize("name", sorted(PRIMS.keys() - SEPARATE - EFFECTS))
def test_prim(name):
    args, kwargs = _example(name)

    def function():
        return PRIMS[name](*args, **kwargs)

    if name == "xor_sum":  # PyTorch has none outside its compiler
        expected = torch.tensor([3 ^ 8 ^ 5, 12 ^ 9 ^ 2])
    elif name == "fill":  # nor this
        expected = torch.full_like(MATRIX, 3.0)
    else:
        expected = function()
    compare_trees(t2j(function)(), expected, name)


@pytest.mark.parametrize("name", ["div", "remainder", "maximum", "pow"])
def test_prim_on_integers(name):
    def function():
        return PRIMS[name](INTEGERS, OTHER_INTEGERS)

    compare_trees(t2j(function)(), function(), name)


def test_views_share_memory():
    def function(x):
        torch.ops.prims.transpose(x, [1, 0])[0, 1] = 5.0
        torch.ops.prims.split_dim(x, 1, 3)[1, 2, 0] = 7.0
        return x

    compare_trees(t2j(function)(t2j(MATRIX)), function(MATRIX.clone()))


def test_new_tensors_do_not():
    def function(x):
        for copy in (torch.ops.prims.reshape(x, [3, 2]), torch.ops.prims.collapse(x, 0, 1)):
            copy.zero_()
        return x

    compare_trees(t2j(function)(MATRIX), MATRIX)


def test_writes():
    def function(x):
        torch.ops.prims.copy_to(x[0], x[1])
        y = x.clone()
        torch.ops.prims.resize(y, [4])
        return x, y

    compare_trees(t2j(function)(t2j(MATRIX)), function(MATRIX.clone()))


def test_svd():
    def function(x):
        u, s, vh = torch.ops.prims.svd(x, full_matrices=False)
        return (u * s) @ vh

    compare_trees(t2j(function)(MATRIX), MATRIX)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("empty", ([2, 3],), NEW),
        ("empty_strided", ([2, 3], [1, 2]), NEW),
        ("empty_permuted", ([2, 3], [1, 0]), NEW),
    ],
)
def test_empty(name, args, kwargs):
    got = t2j(lambda: PRIMS[name](*args, **kwargs))()
    assert got.shape == (2, 3)
    assert got.dtype == jnp.float32


def test_random():
    def function():
        options = {"dtype": torch.float32, "device": CPU}
        normal = torch.ops.prims.normal([4000], mean=3.0, std=2.0, requires_grad=False, **options)
        uniform = torch.ops.prims.uniform([4000], low=1.0, high=5.0, stride=[1], **options)
        return normal, uniform

    normal, uniform = t2j(function)(rng=jax.random.key(0))
    assert normal.mean() == pytest.approx(3, abs=0.2)
    assert normal.std() == pytest.approx(2, abs=0.2)
    assert 1 <= uniform.min() < 1.1
    assert 4.9 < uniform.max() <= 5
