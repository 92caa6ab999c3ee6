"""Loss functions: targets out of the ordinary, and the graph of the commonest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import compare
from torch2jax import t2j


@pytest.mark.parametrize(
    "reduction",
    [
        "none",
        "mean",
        "sum",
    ],
)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3, 2)])
def test_cross_entropy(shape, weighted, label_smoothing, reduction):
    torch.manual_seed(0)
    x = (100 * torch.randn(shape)).requires_grad_()
    weight = torch.rand(5) if weighted else None
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    if target.ndim:
        target.view(-1)[0] = 2
    options = {"ignore_index": 2 if target.ndim else -100, "label_smoothing": label_smoothing, "reduction": reduction}
    expected = F.cross_entropy(x, target, weight, **options)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    call = t2j(lambda x, target: F.cross_entropy(x, target, weight, **options))
    compare(jax.jit(call)(t2j(x.detach()), t2j(target)), expected)
    compare(jax.grad(lambda x: call(x, t2j(target)).sum())(t2j(x.detach())), gradient)


def test_classes_out_of_range_are_not_a_number_where_they_are_traced():
    assert jnp.isnan(jax.jit(t2j(F.cross_entropy))(jnp.zeros((2, 3)), jnp.asarray([0, 3])))
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        t2j(F.cross_entropy)(jnp.zeros((2, 3)), jnp.asarray([0, 3]))
    assert t2j(F.cross_entropy)(jnp.zeros((2, 3)), jnp.asarray([0, -100])) == pytest.approx(np.log(3))


def test_binary_cross_entropy_at_the_ends():
    x = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.3], requires_grad=True)
    target = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5])
    expected = F.binary_cross_entropy(x, target, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    call = t2j(lambda x: F.binary_cross_entropy(x, target, reduction="none"))
    compare(call(t2j(x.detach())), expected)
    compare(jax.grad(lambda x: call(x).sum())(t2j(x.detach())), gradient)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)), ValueError, "Expected input batch_size"),
        (lambda x: F.cross_entropy(x, torch.zeros(2)), RuntimeError, "expected scalar type Long"),
        (lambda x: F.cross_entropy(x, x, label_smoothing=2.0), RuntimeError, "between 0.0 and 1.0"),
        (lambda x: F.huber_loss(x, x, delta=0.0), RuntimeError, "non-positive"),
        (lambda x: F.binary_cross_entropy(x * 2, x), RuntimeError, "elements of input should be between 0 and 1"),
        (lambda x: F.binary_cross_entropy(x, x - 2), RuntimeError, "elements of target should be between 0 and 1"),
        (lambda x: F.binary_cross_entropy(x / 0 * 0, x), RuntimeError, "elements of input should be"),
        (lambda x: F.mse_loss(x, x, reduction="average"), ValueError, "not a valid value for reduction"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        t2j(call)(jnp.ones((2, 3)))


def test_cross_entropy_does_not_scatter():
    gradient = jax.grad(t2j(F.cross_entropy))
    assert "scatter" not in str(jax.make_jaxpr(gradient)(jnp.ones((4, 5)), jnp.zeros(4, int)))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(("shape", "target"), [((5,), 3), ((5,), [3]), ((2, 5), [4, 0]), ((1, 5), [2])])
def test_margins_of_one_class(shape, target, reduction):
    x, target, weight = torch.randn(shape), torch.tensor(target), torch.rand(5)
    expected = F.multi_margin_loss(x, target, p=2, margin=0.5, weight=weight, reduction=reduction)
    call = jax.jit(t2j(lambda x: F.multi_margin_loss(x, target, p=2, margin=0.5, weight=weight, reduction=reduction)))
    compare(call(t2j(x)), expected)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("target", [3, [3, -1, 1, 0], [[2, 0, -1, 3], [-1, 1, 1, 1], [0, 1, 2, 3]]])
def test_margins_of_several_classes(target, reduction):
    target = torch.tensor(target)
    x, target = torch.randn(target.shape), target.clamp(max=3 if target.ndim else 0)
    expected = F.multilabel_margin_loss(x, target, reduction=reduction)
    compare(t2j(lambda x, target: F.multilabel_margin_loss(x, target, reduction=reduction))(x, target), expected)
    compare(jax.jit(t2j(lambda x: F.multilabel_margin_loss(x, target, reduction=reduction)))(t2j(x)), expected)
    with pytest.raises(RuntimeError, match="target out of range"):
        t2j(F.multilabel_margin_loss)(x, target + 4)


def test_soft_margins_that_are_far_have_derivatives():
    x = torch.tensor([-100.0, -50.0, -8.0, 0.5, 50.0], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    (first,) = torch.autograd.grad(F.soft_margin_loss(x, target.double(), reduction="sum"), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    gradient = jax.grad(t2j(lambda x: F.soft_margin_loss(x, target, reduction="sum")))
    single = t2j(x.detach().float())
    np.testing.assert_allclose(gradient(single), first.detach().numpy(), 1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: gradient(x).sum())(single), second.numpy(), 1e-3, 1e-10)


@pytest.mark.parametrize(
    "dtypes", [(torch.float64, torch.complex64), (torch.complex64, torch.float64), (torch.complex64, torch.complex64)]
)
def test_distances_of_complex_numbers_are_real(dtypes):
    input, target = (torch.randn(3, dtype=dtype) for dtype in dtypes)
    compare(t2j(F.l1_loss)(t2j(input), t2j(target)), F.l1_loss(input.to(torch.complex64), target.to(torch.complex64)))
    seen = []
    t2j(lambda x, y: seen.append(F.l1_loss(x, y).dtype))(input, target)
    assert seen == [F.l1_loss(input, target).dtype]


def test_a_margin_makes_floats_of_integers():
    operands = [torch.tensor([1, -5, 2]), torch.tensor([-1, 1, 1]), torch.tensor([1, 1, -1])]
    compare(t2j(F.margin_ranking_loss)(*map(t2j, operands)), F.margin_ranking_loss(*operands))


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0, 1.0])], ids=["", "weights"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore_index", [-100, 7])
def test_ignored_targets_make_no_nan(weight, label_smoothing, ignore_index):
    """Nor do they step by step, on the way: JAX looks there too."""
    torch.manual_seed(0)
    x, target = torch.randn(4, 3, requires_grad=True), torch.tensor([0, ignore_index, 2, ignore_index])
    options = {"weight": weight, "ignore_index": ignore_index}
    for loss, more in ((F.cross_entropy, {"label_smoothing": label_smoothing}), (F.nll_loss, {})):

        def run(x, loss=loss, more=more):
            return loss(x, target, **options, **more)

        expected = run(x)
        (gradient,) = torch.autograd.grad(expected, x)
        with jax.debug_nans(True), jax.disable_jit():
            value, got = jax.value_and_grad(t2j(run))(t2j(x))
        compare(value, expected)
        compare(got, gradient)


def test_weights_of_fewer_dimensions():
    """JAX may be told to raise where it would add dimensions."""
    x, target, weight = torch.randn(2, 4, 3), torch.rand(2, 4, 3), torch.rand(3)
    for weights in ({"pos_weight": weight}, {"weight": weight}):
        for loss, given in ((F.binary_cross_entropy_with_logits, x), (F.binary_cross_entropy, x.sigmoid())):
            if loss is F.binary_cross_entropy and "pos_weight" in weights:
                continue
            with jax.numpy_rank_promotion("raise"):
                got = t2j(lambda x, loss=loss, weights=weights: loss(x, target, **weights))(t2j(given))
            compare(got, loss(given, target, **weights))
