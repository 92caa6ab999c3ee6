"""Matrix products: values, gradients, graphs and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare, compare_trees
from torch2jax import t2j

pytestmark = pytest.mark.filterwarnings("ignore:Using torch.cross without specifying the dim")


def _primitives(function, *shapes) -> list[str]:
    jaxpr = jax.make_jaxpr(t2j(function))(*(jnp.ones(shape) for shape in shapes))
    return [equation.primitive.name for equation in jaxpr.eqns]


class TestGraph:
    def test_linear_layer_is_one_two_dimensional_product(self):
        assert _primitives(torch.matmul, (2, 3, 4), (4, 5)) == ["reshape", "dot_general", "reshape"]

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ((3,), (3,)),
            ((2, 3), (3,)),
            ((5, 2, 3), (3,)),
            ((3,), (5, 3, 2)),
            ((2, 3), (3, 4)),
            ((5, 6, 2, 3), (5, 6, 3, 4)),
        ],
    )
    def test_nothing_but_the_product(self, left, right):
        assert _primitives(torch.matmul, left, right) == ["dot_general"]

    @pytest.mark.parametrize(
        ("equation", "left", "right"),
        [("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5))],
    )
    def test_einsum(self, equation, left, right):
        assert _primitives(lambda x, y: torch.einsum(equation, x, y), left, right) == ["dot_general"]

    def test_bias_is_added_to_the_product(self):
        assert _primitives(torch.addmm, (5,), (2, 3), (3, 5)) == ["dot_general", "broadcast_in_dim", "add"]

    def test_batches_are_broadcast_only_where_they_differ(self):
        assert _primitives(torch.matmul, (7, 1, 2, 3), (1, 5, 3, 4)) == ["broadcast_in_dim"] * 2 + ["dot_general"]
        assert _primitives(torch.matmul, (7, 5, 2, 3), (1, 1, 3, 4)) == ["reshape", "reshape", "dot_general", "reshape"]


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (torch.matmul, [(2, 3), (4, 5)], r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)"),
        (torch.matmul, [(7, 2, 3), (4, 5)], r"mat1 and mat2 shapes cannot be multiplied \(14x3 and 4x5\)"),
        (
            torch.matmul,
            [(7, 2, 3), (7, 4, 5)],
            r"Expected size for first two dimensions of batch2 tensor to be: \[7, 3\]",
        ),
        (torch.matmul, [(7, 2, 3), (6, 3, 5)], "do not broadcast"),
        (torch.matmul, [(), (3,)], "both arguments to matmul need to be at least 1D, but they are 0D and 1D"),
        (torch.mm, [(2, 3, 4), (4, 5)], "self must be a matrix"),
        (torch.bmm, [(2, 3, 4), (3, 4, 5)], r"to be: \[2, 4\] but got: \[3, 4\]"),
        (torch.mv, [(2, 3), (4,)], "size mismatch"),
        (torch.dot, [(3,), (4,)], "inconsistent tensor size"),
        (torch.dot, [(3, 3), (3,)], "1D tensors expected, but got 2D and 1D tensors"),
        (torch.addmm, [(4,), (2, 3), (3, 5)], "must match the existing size"),
        (torch.tensordot, [(2, 3), (4, 5)], "contracted dimensions need to match"),
        (torch.cross, [(2, 4), (2, 4)], "no dimension of size 3"),
        (lambda x, y: torch.einsum("ij,jk->ik", x, y), [(2, 3), (4, 5)], r"einsum\(\)"),
    ],
)
def test_refusals(function, shapes, message):
    with pytest.raises(RuntimeError, match=message):
        t2j(function)(*(jnp.ones(shape) for shape in shapes))
    with pytest.raises(RuntimeError):
        function(*(torch.ones(shape) for shape in shapes))


def test_mixed_dtypes_are_refused():
    with pytest.raises(RuntimeError, match="same dtype"):
        t2j(torch.matmul)(jnp.ones((2, 2)), jnp.ones((2, 2), jnp.bfloat16))


def test_bool_is_refused():
    with pytest.raises(NotImplementedError, match=r"matmul got a tensor of torch\.bool"):
        t2j(torch.matmul)(jnp.ones((2, 2), bool), jnp.ones((2, 2), bool))


def test_input_is_not_looked_at_with_beta_zero():
    def function(x):
        return torch.addmm(torch.full((2, 2), float("nan")), x, x, beta=0, alpha=2.0)

    compare(t2j(function)(jnp.ones((2, 2))), torch.full((2, 2), 4.0))


def test_einsum_with_lists_of_indices():
    x, y = torch.randn(2, 3), torch.randn(3, 4)

    def function(x, y):
        return torch.einsum(x, [0, 1], y, [1, 2], [2, 0])

    compare(t2j(function)(t2j(x), t2j(y)), function(x, y))


def test_int64_stays_int64():
    def function(x):
        y = torch.arange(4).reshape(2, 2) @ x.long()
        assert y.dtype == torch.int64
        return y

    compare(t2j(function)(jnp.ones((2, 2))), function(torch.ones(2, 2)))


@pytest.mark.parametrize(
    ("left", "right"),
    [((12, 8), (3, 8, 4)), ((3, 4, 8), (8, 12)), ((4, 12), (12, 8)), ((3, 4, 8), (3, 8, 4))],
    ids=["rows", "columns", "terms", "all"],
)
def test_grouped_products(left, right):
    offsets = None if len(left) == len(right) == 3 else torch.tensor([4, 4, 12], dtype=torch.int32)
    a, b = torch.randn(left, requires_grad=True), torch.randn(right, requires_grad=True)

    def function(a, b, offsets):
        return torch.nn.functional.grouped_mm(a, b, offs=offsets)

    arrays = t2j((a, b, offsets))
    expected = function(a, b, offsets)
    compare(jax.jit(t2j(function))(*arrays), expected)
    if len(left) == len(right) == 2:
        return  # JAX has no derivative of this one, which is itself one of the others
    weights = torch.randn(expected.shape)
    wanted = torch.autograd.grad((weights * expected).sum(), (a, b))
    _, pull = jax.vjp(lambda a, b: t2j(function)(a, b, arrays[2]), *arrays[:2])
    compare_trees(pull(t2j(weights)), wanted)


def test_grouped_products_refuse_other_groups():
    rows, matrices, offsets = jnp.ones((12, 8)), jnp.ones((3, 8, 4)), jnp.array([4, 12])
    with pytest.raises(RuntimeError, match="2 offsets for 3 matrices"):
        t2j(torch._grouped_mm)(rows, matrices, offsets)
    with pytest.raises(RuntimeError, match="wanted offs if and only if"):
        t2j(torch._grouped_mm)(rows, matrices)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_products_of_small_integers_are_not_small(dtype):
    a, b = torch.randint(0, 127, (3, 5)).to(dtype), torch.randint(-128, 127, (4, 5)).to(torch.int8).t()
    expected = torch._int_mm(a, b)
    for run in (t2j(torch._int_mm), jax.jit(t2j(torch._int_mm))):
        result = run(t2j(a), t2j(b))
        assert result.dtype == jnp.int32
        np.testing.assert_array_equal(result, expected.numpy())
    with pytest.raises(RuntimeError, match="float32"):
        t2j(torch._int_mm)(t2j(a), t2j(b.float()))
    with pytest.raises(RuntimeError, match="dimension 2"):
        t2j(torch._int_mm)(t2j(a)[0], t2j(b))


@pytest.mark.parametrize("beta", [0, 1])
def test_what_a_product_is_added_to_has_its_dtype(beta):
    def function(x):
        return torch.baddbmm(x.int(), x, x, beta=beta)

    with pytest.raises(RuntimeError, match="Input dtypes must be the same, got: input int, batch1: float"):
        t2j(function)(jnp.ones((2, 3, 3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.addmm, [(9, 17), (9, 20), (20, 17)]),
        (torch.baddbmm, [(2, 9, 17), (2, 9, 20), (2, 20, 17)]),
        (torch.addmv, [(9,), (9, 20), (20,)]),
        (torch.addbmm, [(9, 17), (2, 9, 20), (2, 20, 17)]),
    ],
)
def test_half_precision_is_rounded_once(function, shapes, dtype):
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    scaled = lambda *tensors: function(*tensors, beta=3.4445, alpha=-0.7)
    exact = scaled(*(x.double() for x in tensors))
    found = torch.from_numpy(np.array(t2j(scaled)(*map(t2j, tensors)).astype(jnp.float32)))
    assert (found - exact).abs().max() <= exact.abs().max() * torch.finfo(dtype).eps / 2
    gradients = jax.grad(lambda *arrays: t2j(scaled)(*arrays).sum().astype(jnp.float32), argnums=(0, 1, 2))
    leaves = [x.double().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(scaled(*leaves).sum(), leaves)
    for gradient, tensor, expected in zip(gradients(*map(t2j, tensors)), tensors, wanted, strict=True):
        assert gradient.dtype == t2j(tensor).dtype
        np.testing.assert_allclose(gradient.astype(jnp.float32), expected.numpy(), rtol=0.05, atol=0.1)


def test_dots_of_an_ellipsis_stand_together():
    with pytest.raises(RuntimeError, match=r"found '\.' for operand 1 that is not part of any ellipsis"):
        t2j(lambda x: torch.einsum("i, . ..", x, x))(jnp.ones(2))


def test_subscripts_are_letters():
    with pytest.raises(RuntimeError, match="invalid subscript given at index 3"):
        t2j(lambda x: torch.einsum("i->1", x))(jnp.ones(2))


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.int64, torch.float32), (torch.float32,) * 2])
def test_an_inner_product_with_a_number_is_one_of_each_element(dtypes):
    number, row = torch.tensor(3, dtype=dtypes[0]), torch.tensor([0.1, 0.2], dtype=dtypes[1])
    with jax.enable_x64(True):
        for pair in ((number, row), (row, number)):
            for run in (t2j(torch.inner), jax.jit(t2j(torch.inner))):
                compare(run(*map(t2j, pair)), torch.inner(*pair))
