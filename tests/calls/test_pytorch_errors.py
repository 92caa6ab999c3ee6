"""What cannot be served is refused in PyTorch's words, and with its types of errors."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch2jax import Rules, t2j

MATRIX, WIDE, VECTOR = torch.eye(3), torch.ones(2, 3), torch.ones(3)
DOUBLE, INTEGERS, STACK = MATRIX.double(), MATRIX.int(), torch.ones(2, 3, 3)
L, F = torch.linalg, torch.nn.functional
CASES = [
    (torch.add, WIDE, torch.ones(2, 2)),
    (F.batch_norm, WIDE, VECTOR, torch.ones(2)),
    (F.batch_norm, WIDE, None, None, torch.ones(2), None, True),
    (F.multi_margin_loss, torch.ones(0), VECTOR.long()),
    (lambda a, b: torch.vmap(torch.mm)(a, b), STACK, WIDE),
    (lambda a, b: torch.vmap(torch.mm, (0, None))(a, b), STACK, torch.ones(2, 2)),
    (torch.mm, MATRIX, VECTOR),
    (torch.bmm, STACK, torch.ones(3, 3, 3)),
    (torch.matmul, STACK, torch.ones(3, 3, 3)),
    (torch.cross, WIDE, MATRIX),
    (torch.cholesky_inverse, VECTOR),
    (torch.cholesky_solve, VECTOR, MATRIX),
    (torch.cholesky_solve, WIDE, MATRIX),
    (lambda *tensors: torch.cat(tensors), WIDE, MATRIX, VECTOR),
    (torch.gather, MATRIX, 0, torch.zeros(2, dtype=torch.int64)),
    (torch.triangular_solve, WIDE, MATRIX),
    (L.cholesky, INTEGERS),
    (L.det, VECTOR),
    (L.eigvals, WIDE),
    (L.householder_product, MATRIX, MATRIX),
    (L.inv, INTEGERS),
    (L.lu_factor, VECTOR),
    (L.lstsq, WIDE, MATRIX),
    (L.lstsq, MATRIX, INTEGERS),
    (L.matrix_exp, INTEGERS),
    (L.pinv, VECTOR),
    (L.solve, MATRIX, INTEGERS),
    (L.solve, STACK, torch.ones(3, 3, 3)),
    (lambda a, b: L.solve_triangular(a, b, upper=True), MATRIX, VECTOR),
    (torch.complex, VECTOR, VECTOR.int()),
    (lambda a, b: a.index_add(0, torch.arange(2), b), WIDE, VECTOR[:2]),
    (lambda a: a.as_strided((2, 2), (200, 200)), MATRIX),
    (lambda a: a.masked_scatter(torch.ones(3, dtype=torch.uint8), a), VECTOR),
    (lambda a: a.new_ones(3).uniform_(3, -1), VECTOR),
    (lambda a: torch.take(a, torch.arange(3), out=a), VECTOR),
    (lambda a: torch.kthvalue(a, 1, out=(a, torch.empty(0, dtype=torch.int64))), VECTOR),
    (lambda a: torch.cat([a[:1], a[1:]], out=a), VECTOR),
    (lambda a: torch.gather(a, 0, torch.arange(3), out=a), VECTOR),
    (lambda a, b: torch.addr(a, b, b, beta=2.0), INTEGERS, VECTOR.int()),
    (lambda a, b: torch.addr(a, b, b, alpha=True), INTEGERS, VECTOR.int()),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_errors_are_pytorchs(case, transform):
    function, *args = case
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]

    def of_tensors(*tensors):
        given = dict(zip(places, tensors, strict=True))
        return function(*(given.get(i, x) for i, x in enumerate(args)))

    tensors = [args[i] for i in places]
    with pytest.raises(Exception) as expected:  # noqa: PT011  (it tells what is wanted)
        of_tensors(*tensors)
    with pytest.raises(type(expected.value)) as found:
        transform(t2j(of_tensors))(*map(t2j, tensors))
    assert str(expected.value).partition("\n")[0].strip(". ")[:60] in str(found.value)


def test_what_the_rule_says_is_told_as_well():
    with pytest.raises(RuntimeError, match=r"must match the size of tensor b.*\n.*do not broadcast") as found:
        t2j(torch.add)(jnp.ones((2, 3)), jnp.ones((2, 2)))
    assert isinstance(found.value.__cause__, RuntimeError)


def test_what_pytorch_would_take_is_refused_by_the_rule_alone():
    rules = Rules()

    @rules.implements(torch.sinh)
    def sinh(input):
        raise ValueError("not today")

    with rules, pytest.raises(ValueError, match="not today"):
        t2j(torch.sinh)(jnp.ones(2))


def test_of_large_tensors_only_shapes_are_tried():
    with pytest.raises(RuntimeError):
        jax.eval_shape(t2j(torch.mm), jnp.ones((2, 3)), jax.ShapeDtypeStruct((10**7, 10**7), jnp.float32))


def test_to_refuse_changes_no_tensor_of_the_users():
    constant, state = torch.zeros(3), torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="must match the size"):
        t2j(lambda x: constant.add_(x))(jnp.ones(4))
    with pytest.raises((RuntimeError, ValueError)):
        t2j(lambda x: torch.normal(x, torch.ones(5)))(jnp.ones(4), rng=jax.random.key(0))
    assert not constant.any()
    assert torch.equal(torch.random.get_rng_state(), state)


OUTPUTS = [
    (L.cholesky, MATRIX, torch.int32),
    (torch.cholesky_inverse, MATRIX, torch.int32),
    (L.cond, MATRIX, torch.int32),
    (L.inv, MATRIX, torch.int32),
    (L.eigvalsh, MATRIX, torch.int32),
    (L.matrix_rank, MATRIX, torch.bool),
    (L.pinv, MATRIX, torch.int32),
    (L.tensorinv, torch.eye(4).reshape(2, 2, 2, 2), torch.int32),
]


@pytest.mark.parametrize("case", OUTPUTS, ids=lambda case: case[0].__name__)
def test_what_cannot_be_written_to_out_is_refused_in_pytorchs_words(case):
    function, tensor, dtype = case

    def into(x):
        return function(x, out=torch.empty(0, dtype=dtype))

    with pytest.raises(RuntimeError) as expected:
        into(tensor)
    with pytest.raises(RuntimeError) as found:
        t2j(into)(t2j(tensor))
    assert str(expected.value) in str(found.value)


def test_an_out_of_another_dtype_gets_the_result_cast():
    def function(x):
        return torch.mm(x, x, out=torch.empty(0, dtype=torch.float16))

    assert t2j(function)(jnp.eye(4)).dtype == jnp.float16
    with pytest.raises(RuntimeError, match="can't be cast"):
        t2j(lambda x: torch.mm(x, x, out=torch.empty(0, dtype=torch.int64)))(jnp.eye(4))


def test_one_out_for_several_results_is_refused():
    with pytest.raises(RuntimeError, match="nonzero does not support the out kwarg when as_tuple is True"):
        t2j(lambda x: torch.nonzero(x, as_tuple=True, out=torch.empty(0, dtype=torch.int64)))(jnp.eye(4))


def test_functions_that_are_given_are_not_run_to_learn_what_pytorch_says():
    kinds = set()

    def goes_on(x):
        kinds.add(type(x))
        return x.sum() < 0

    with pytest.raises(Exception, match=r"body_fn|carried|shape"):
        t2j(lambda x: torch.while_loop(goes_on, lambda x: (x[:1],), (x,)))(jnp.ones(3))
    assert kinds
    assert torch.Tensor not in kinds


def test_refusals_are_not_of_what_stands_in():
    """PyTorch is asked with other whole numbers, and arrays have int32 where PyTorch wants int64."""
    with pytest.raises(RuntimeError, match="meta"):
        t2j(lambda x: torch.index_add(x, 0, torch.tensor([0]), x, out=torch.empty(1, device="meta")))(jnp.ones(1))
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        t2j(F.cross_entropy)(jnp.ones((1, 3)), jnp.array([3]))
    with pytest.raises(ValueError, match="batch_size"):
        t2j(lambda x, y: F.cross_entropy(x, y))(jnp.ones((2, 3)), jnp.ones(1, int))
