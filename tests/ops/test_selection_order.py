"""Scans, softmax, orders and reductions of ``x[mask]`` under jit: PyTorch's values and gradients, also of nothing."""

import jax
import numpy as np
import pytest
import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

from tests.ops.database import entries
from torch2jax import t2j

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, generator=GENERATOR)
ROWS = torch.tensor([True, False, True, True, False, True])
CHOICES = {
    "of a matrix": lambda x, rows: (x, x.detach() > 0.1),
    "of rows": lambda x, rows: (x, rows),
    "of a vector": lambda x, rows: (x[:, 0], rows),
}

# What is written back where it was chosen.
WRITTEN = {
    "cumsum": lambda s: s.cumsum(0),
    "cumprod": lambda s: s.cumprod(0),
    "logcumsumexp": lambda s: s.logcumsumexp(0),
    "cummax": lambda s: s.cummax(0)[0] + s.cummax(0)[1],
    "cummin": lambda s: s.cummin(0)[0] + s.cummin(0).indices,
    "softmax": lambda s: s.softmax(0),
    "log_softmax": lambda s: torch.nn.functional.log_softmax(s, dim=0),
    "sort": lambda s: s.sort(0)[0] + s.sort(0).indices,
    "descending": lambda s: s.sort(dim=0, descending=True, stable=True)[0] - s.argsort(0, descending=True),
    "in each row": lambda s: s.sort(dim=-1, stable=True)[0] - s.argsort(dim=-1, descending=True, stable=True),
    "msort": lambda s: s.msort(),
    "flip": lambda s: s.flip(0) * s + s.flip([-1]) + s.flipud(),
    "normed": lambda s: s / s.norm(dim=0, keepdim=True) - s.mean(0, keepdim=True),
}
REDUCED = {
    name: lambda s, name=name: getattr(torch, name)(s)
    for name in (
        *("sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "median", "nanmedian", "norm", "nansum"),
        *("nanmean", "count_nonzero", "aminmax", "any", "all", "argmax", "argmin", "var_mean", "std_mean"),
    )
}
ALONG = {
    f"{name}, dim=0": lambda s, name=name: getattr(torch, name)(s, dim=0)
    for name in (
        *("sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "median", "nanmedian", "nansum"),
        *("count_nonzero", "argmax", "argmin", "var_mean", "logsumexp", "aminmax", "norm"),
    )
}
OTHERS = {
    "keepdim": lambda s: (s.max(0, keepdim=True), s.argmin(0, keepdim=True), s.median(0, keepdim=True)),
    "topk": lambda s: (s.topk(2, dim=0), s.topk(1, dim=0, largest=False)),
    "diff": lambda s: (s.diff(dim=0).square().sum(), s.diff(2, 0).sort(0)[0].sum(0), (s > 0.5).diff(dim=0).sum()),
    "diff, prepend": lambda s: s.diff(dim=0, prepend=torch.ones(2, *s.shape[1:])).square().sum(0),
    "kthvalue": lambda s: s.kthvalue(2, dim=0),
    "norms": lambda s: (s.norm(1), s.norm(float("inf"), dim=0), torch.linalg.vector_norm(s, 3)),
}


def written(function):
    def run(x, rows, choice):
        x, mask = choice(x, rows)
        result = torch.zeros_like(x)
        result[mask] = function(x[mask])
        return result

    return run


def reduced(function):
    def run(x, rows, choice):
        x, mask = choice(x, rows)
        return function(x[mask])

    return run


FUNCTIONS = {name: written(function) for name, function in WRITTEN.items()}
FUNCTIONS |= {name: reduced(function) for name, function in (REDUCED | ALONG | OTHERS).items()}
# Of nothing PyTorch has no such thing, or has what depends on nothing.
OF_SOMETHING = (
    "amax",
    "amin",
    "max",
    "min",
    "arg",
    "aminmax",
    "topk",
    "kth",
    "keepdim",
    "diff",
    "median",
    "nanmedian",
    "norms",
)


def of_some(names):
    def run(x, rows, choice):
        return {name: FUNCTIONS[name](x, rows, CHOICES[choice]) for name in names}

    return run


def total(results):
    return sum(x.sum() * (1 + i / 8) for i, x in enumerate(jax.tree.leaves(results)) if "float" in str(x.dtype))


@pytest.mark.parametrize("choice", CHOICES)
def test_values_and_gradients(choice):
    check(list(FUNCTIONS), choice, X, ROWS, gradients=choice != "of a vector")


@pytest.mark.filterwarnings("ignore:(var|std)")
@pytest.mark.parametrize("choice", ["of a matrix", "of rows"])
def test_of_nothing(choice):
    names = [name for name in FUNCTIONS if not name.startswith(OF_SOMETHING)]
    x = X.clamp(max=0) if choice == "of a matrix" else X
    check(names, choice, x, torch.zeros(6, dtype=torch.bool), gradients=False)
    smooth = ["sum", "prod", "softmax", "log_softmax", "sort", "cumsum", "cumprod", "logcumsumexp"]
    gradient = jax.jit(jax.grad(lambda *args: total(t2j(of_some(smooth))(*args, choice))))
    assert not np.asarray(gradient(t2j(x), np.zeros(6, bool))).any()


def check(names, choice, x, rows, gradients=True) -> None:
    function = of_some(names)
    wanted = function(x.clone(), rows, choice)
    ours = jax.jit(lambda *args: t2j(function)(*args, choice))(t2j(x), t2j(rows))
    for name in names:
        pairs = zip(jax.tree.leaves(ours[name]), jax.tree.leaves(wanted[name]), strict=True)
        for got, want in pairs:
            np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-6, err_msg=name)
    if not gradients:
        return
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(function(leaf, rows, choice)), leaf)
    ours = jax.jit(jax.grad(lambda *args: total(t2j(function)(*args, choice))))(t2j(x), t2j(rows))
    np.testing.assert_allclose(ours, slope.numpy(), 1e-4, 1e-4)


def test_numbers_that_are_none():
    x, mask = torch.tensor([3.0, float("nan"), 1.0, 2.0]), torch.tensor([True, True, False, True])

    def function(x, mask):
        s = x[mask]
        return s.median(), s.nanmedian(), s.max(0), s.argmin(), s.nanmean(), s.sort()[0].nansum(), s.amax()

    ours = jax.jit(t2j(function))(t2j(x), t2j(mask))
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(function(x, mask)), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def test_more_than_there_are_is_no_number():
    values, _ = jax.jit(t2j(lambda x, m: x[m].topk(3)))(t2j(torch.tensor([1.0, 2, 3])), np.array([True, False, True]))
    np.testing.assert_array_equal(values, [3, 1, np.nan])


def test_mapped():
    def function(x, mask):
        return x[mask].softmax(0).sum(), x[mask].median(), x[mask].cumsum(0).max(), x[mask].argmax()

    masks = torch.stack([ROWS, ~ROWS, ROWS.flip(0)])
    ours = jax.vmap(t2j(function))(t2j(X.T), t2j(masks))
    wanted = [function(x, mask) for x, mask in zip(X.T, masks, strict=True)]
    for got, want in zip(ours, zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(got, torch.stack(want).numpy(), 1e-5, 1e-6)


REFUSED = ("nn.functional.rrelu", "hash_tensor")  # random numbers for each, and a sum that depends on places


def of_database():
    """Every pointwise function and reduction of the database, that PyTorch has for the selection."""
    for entry in entries():
        if not isinstance(entry, (UnaryUfuncInfo, ReductionOpInfo, BinaryUfuncInfo)) or entry.name in REFUSED:
            continue
        if entry.name.startswith(("masked", "jiterator")) or entry.name in ("bfloat16", "chalf"):
            continue

        def function(x, mask, entry=entry):
            chosen = x[mask]
            given = (chosen, chosen * 0.5) if isinstance(entry, BinaryUfuncInfo) else (chosen,)
            results = entry.op(*given)
            if isinstance(entry, ReductionOpInfo):
                return results
            parts = results if isinstance(results, tuple) else (results,)
            return [x.any(0) if x.dtype == torch.bool else x.sum(0) for x in parts]

        try:
            wanted = function(X.abs(), ROWS)
        except (RuntimeError, TypeError, IndexError):
            continue
        yield entry.name, function, wanted


@pytest.mark.filterwarnings("ignore")
def test_pointwise_functions_and_reductions_of_the_database():
    found = list(of_database())
    assert len(found) > 150
    # XLA takes a second for these; what it makes of the jaxpr is what it makes of that of the whole tensor.
    ours = [jax.eval_shape(t2j(function), t2j(X.abs()), t2j(ROWS)) for _, function, _ in found]
    for (name, _, wanted), got in zip(found, ours, strict=True):
        shapes = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(got)]
        assert [shape for shape, _ in shapes] == [tuple(x.shape) for x in jax.tree.leaves(wanted)], name
    few = found[:: len(found) // 40]
    results = jax.jit(lambda x, m: [t2j(function)(x, m) for _, function, _ in few])(t2j(X.abs()), t2j(ROWS))
    for (name, _, wanted), got in zip(few, results, strict=True):
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(x, y.numpy(), 1e-4, 1e-5, err_msg=name)
