"""``x[mask]`` under jit, where its length is unknown: what may be done with it, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch2jax import TracedValueError, t2j
from torch2jax.tensors.dtypes import canonical

CLASSES = torch.tensor([0, 2, 1, 1])
WEIGHT = torch.tensor([1.0, 2.0, 0.5])


def _written(x, change):
    x = x.clone()
    change(x)
    return x


def _assign(mask, value):
    return lambda x: x.__setitem__(mask, value)


def _in_place(x, y, m):
    chosen = x[m]
    chosen.add_(1).mul_(2)
    chosen += y[m]
    m = m.clone()
    m.fill_(False)  # what was chosen before does not change
    return _written(x, _assign(x > 0.1, chosen))


def _write_rows(chosen, others):
    chosen[..., 0] = 2.0
    chosen[:, -1] += others[..., -1]
    chosen[..., 1:] *= 3
    chosen[chosen > 4] = 1.5
    return chosen.sum(0), chosen.exp().mean()


# Of a matrix, another one, a mask over both, and a mask over their rows.
FUNCTIONS = {
    "add in place": lambda x, y, m, r: _written(x, lambda x: x.__setitem__(m, x[m].__iadd__(1))),
    "x[x < 0] *= 2": lambda x, y, m, r: _written(x, lambda x: x.__setitem__(x < 0, x[x < 0] * 2)),
    "x[m] = y[m]": lambda x, y, m, r: _written(x, _assign(m, y[m])),
    "from another mask": lambda x, y, m, r: _written(x, _assign(r, y[r.flip(0)])),
    "logarithm": lambda x, y, m, r: _written(x, _assign(m, torch.log(x[m]) * y[m])),
    "in place": lambda x, y, m, r: _in_place(x, y, m),
    "masked_scatter": lambda x, y, m, r: x.masked_scatter(m, y[m] * 2),
    "masked_scatter_": lambda x, y, m, r: x.clone().masked_scatter_(m, y[r]),
    "masked_select": lambda x, y, m, r: torch.masked_select(x, m).abs().sum(),
    "mean": lambda x, y, m, r: (x[m] - y[m]).pow(2).mean(),
    "sums": lambda x, y, m, r: (x[r].sum(0), x[r].sum(-1).sum(), x[r].sum(0, keepdim=True), x[r].sum((0, 1))),
    "means": lambda x, y, m, r: (x[r].mean(0), x[r].mean(1).sum(), x[r].mean(), (x[r] > 0).float().mean(0)),
    "deviations": lambda x, y, m, r: (x[m].std(), x[r].std(0), x[r].var(unbiased=False), x[r].var(correction=2)),
    "extremes": lambda x, y, m, r: (x[m].max(), x[m].min(), x[r].amax(0), x[r].amin(-1).sum()),
    "tests": lambda x, y, m, r: ((x[m] > y[m]).all(), (x[m] > 1).any(), (x[r] > 0).any(0)),
    "subscripts": lambda x, y, m, r: (x[r][:, 0].sum(), x[m][y[m] > 0.3].sum(), x[r][:, 1:].exp().mean()),
    "as index": lambda x, y, m, r: x[CLASSES.add((0 * y[:, 0]).long())[r]].sum(),
    "rows by subscript": lambda x, y, m, r: (x[r, :].sum(0), x[r, ...].mean(), x[m][..., None].sum()),
    "along rows": lambda x, y, m, r: (
        (x[r, :].softmax(-1) * F.pad(x[r].cumsum(dim=1), (1, 0))[..., :-1] / x[r].shape[-1]).sum(0),
        x[r].gather(1, (y[r][:, :1] > 0).long()).sum(),
        torch.cat([x[r], y[r] * 2], dim=-1).log_softmax(1).mean(0),
        (x[m].squeeze() * y[m]).sum(),
    ),
    "masks that are computed again": lambda x, y, m, r: (
        _written(x, lambda x: x.__setitem__(~m, x[~m] + y[~m])),
        (x[(x > 0.2) & ~m] * y[(x > 0.2) & ~m]).sum() + (x[~r] * y[~r]).sum(),
    ),
    "written rows": lambda x, y, m, r: _write_rows(x[r, :], y[r, :]),
    "of two": lambda x, y, m, r: (torch.min(x[m], y[m]).sum(), x[r].max(other=y[r]).mean(0)),
    "views": lambda x, y, m, r: (
        x[r].view(-1).exp().sum(),
        x[r].unsqueeze(1).squeeze(-2).mean(0),
        x[m].reshape(-1).sum(),
    ),
    "activations": lambda x, y, m, r: (F.relu(x[m]).sum(), F.gelu(x[r]).sum(0), x[m].clamp(0, 0.5).sum()),
    "where": lambda x, y, m, r: torch.where(x[m] > 0.5, x[m], 0.0).sum(),
    "conversions": lambda x, y, m, r: (x[m].to(torch.bfloat16).float().sum(), torch.ones_like(x[m]).sum()),
    "chosen again": lambda x, y, m, r: (
        x[m][x[m].argsort()].cumsum(0).max(),
        x[r][y[:, 0][r].argsort(descending=True)].cumsum(0).amax(0),
        x[r][m[r]].sum(),
        x[r][m[r]].sort()[0].amax(),
    ),
    "norms": lambda x, y, m, r: (
        F.layer_norm(x[r], (3,), y[0], y[1]).square().sum(0),
        F.rms_norm(x[r], (3,)).sum(0),
    ),
    "embedding": lambda x, y, m, r: (F.embedding(CLASSES[r], x) * y[r]).sum(),
    "linear": lambda x, y, m, r: F.linear(x[r], y).sum(),
    "mse_loss": lambda x, y, m, r: (F.mse_loss(x[m], y[m]), F.mse_loss(x[r], y[r], reduction="none").sum(0)),
    "l1_loss": lambda x, y, m, r: F.l1_loss(x[r], y[r], reduction="sum"),
    "smooth_l1_loss": lambda x, y, m, r: F.smooth_l1_loss(x[m], y[m], beta=0.5),
    "binary_cross_entropy": lambda x, y, m, r: F.binary_cross_entropy(torch.sigmoid(x)[m], y[m]),
    "with logits": lambda x, y, m, r: F.binary_cross_entropy_with_logits(x[r], y[r], pos_weight=WEIGHT),
    "cross_entropy": lambda x, y, m, r: (
        F.cross_entropy(x[r], CLASSES[r]),
        F.cross_entropy(x[r], CLASSES[r], weight=WEIGHT, reduction="sum", label_smoothing=0.1),
        F.cross_entropy(x[r], CLASSES[r], reduction="none").square().sum(),
    ),
}


def _operands():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator)
    return x, torch.rand(4, 3, generator=generator), x > 0.1, torch.tensor([True, False, True, True])


def _total(results):
    return sum(x.sum() for x in jax.tree.leaves(results) if "bool" not in str(x.dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_under_jit(name):
    function, operands = FUNCTIONS[name], _operands()
    expected = function(*operands)
    arrays = [t2j(x) for x in operands]
    actual = jax.jit(t2j(function))(*arrays)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert got.dtype == canonical(want.dtype)
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-6)
    x = operands[0].clone().requires_grad_()
    total = _total(function(x, *operands[1:]))
    if total.requires_grad if isinstance(total, torch.Tensor) else False:
        (wanted,) = torch.autograd.grad(total, x)
        gradient = jax.jit(jax.grad(lambda *arrays: _total(t2j(function)(*arrays))))(*arrays)
        np.testing.assert_allclose(gradient, wanted.numpy(), 1e-4, 1e-5)


def test_what_was_not_chosen_makes_no_gradient_nan():
    x = jnp.array([0.0, 1.0, -2.0, 3.0])
    gradient = jax.jit(jax.grad(t2j(lambda x, m: (torch.log(x[m]) / x[m].sqrt()).sum())))
    chosen = np.array([False, True, False, True])
    leaf = torch.tensor(np.asarray(x), requires_grad=True)
    (torch.log(leaf[chosen]) / leaf[chosen].sqrt()).sum().backward()
    np.testing.assert_allclose(gradient(x, chosen), leaf.grad.numpy(), 1e-5)
    np.testing.assert_array_equal(gradient(x, np.zeros(4, bool)), 0)


def test_vmap():
    def f(x, m):
        x = x.clone()
        x[m] += 1
        return x, x[m].mean()

    x, m = torch.randn(3, 4), torch.tensor([[True] * 4, [False, True] * 2, [True, False, False, False]])
    written, means = jax.vmap(t2j(f))(t2j(x), t2j(m))
    for i in range(3):
        want, mean = f(x[i], m[i])
        np.testing.assert_allclose(written[i], want.numpy(), 1e-6)
        np.testing.assert_allclose(means[i], mean.numpy(), 1e-5)


def test_masks_computed_alike_are_one_in_a_batch_too():
    def f(x, m):
        return (x[~m] * x.exp()[~m]).sum()

    x, m = torch.randn(3, 4), torch.tensor([[True] * 4, [False, True] * 2, [True, False, False, False]])
    wanted = [f(*pair).item() for pair in zip(x, m, strict=True)]
    for mapped in (jax.vmap(t2j(f)), jax.jit(jax.vmap(t2j(f))), t2j(torch.vmap(f))):
        np.testing.assert_allclose(mapped(t2j(x), t2j(m)), wanted, 1e-5, 1e-6)


def test_graph():
    def f(x, m):
        x[m] += 1
        return x

    jaxpr = jax.make_jaxpr(t2j(f))(jnp.ones(4), jnp.ones(4, bool))
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["add", "select_n"]


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x, m: x[m[0]].diff(dim=0, append=x), "torch.diff"),
        (lambda x, m: x[m].tolist(), "torch.tolist"),
        (lambda x, m: x[m].roll(1), "torch.roll"),
        (lambda x, m: x.add_(x[m]), "torch.add_"),
        (lambda x, m: x[m].unbind(), "torch.unbind"),
        (lambda x, m: x[m].view(2, -1, len(x[m])), r"a view of shape \[2, -1, n\]"),
        (lambda x, m: torch.ops.aten.sin(x[m]), "torch.sin"),
    ],
)
def test_what_needs_the_length_is_refused(function, what):
    with pytest.raises(TracedValueError, match=rf"{what}.*test_selection.py"):
        jax.jit(t2j(function))(jnp.ones((2, 2)), jnp.ones((2, 2), bool))


@pytest.mark.parametrize("subscript", [lambda m: (m, slice(None)), lambda m: (m, ...), lambda m: (m,)])
def test_whole_rows_are_changed_in_place(subscript):
    def turned(x, m):
        x = x.clone()
        x[subscript(m)] *= -2
        return x

    x, mask = torch.randn(4, 3), torch.tensor([True, False, True, False])
    np.testing.assert_array_equal(jax.jit(t2j(turned))(t2j(x), t2j(mask)), turned(x, mask))
