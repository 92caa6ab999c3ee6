"""Functions of each row of what a traced mask chose, whichever dimensions data decide, and two of them at once."""

import jax
import pytest
import torch
import torch.nn.functional as F

from tests.ops.test_lengths import MASKS, X, check_kinds, each_of, in_groups
from torch2jax import TracedValueError, t2j

Z = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(2))
COLUMNS = torch.tensor([True, False, True, True, False])


def both(m):
    """Two data-dependent dimensions: ``(n, k, 4)``."""
    return (Z + 0 * m[:, None, None])[m][:, COLUMNS & (m.sum() >= 0)]


def grid(x, m):
    """A mask of two dimensions, whose dimension is moved behind another: ``(4, n)``."""
    return (Z + 0 * x[0, 0])[m[:, None] & COLUMNS].T


PARTS = {
    "matrices": lambda x, m: (torch.linalg.det(Z[m][:, :4]), torch.linalg.svdvals(Z[m]), torch.matrix_exp(Z[m][:, :4])),
    "gated": lambda x, m: (F.glu(Z[m]), F.glu(Z[m], 2), F.layer_norm(both(m), (4,)), F.rms_norm(both(m), (4,))),
    "linear": lambda x, m: (
        F.linear(x[m], x),
        F.linear(x, x[m]),
        F.linear(x[m].T, x[m].T),
        F.linear(x, x[m], x[m][:, 0]),
    ),
    "beside": lambda x, m: (torch.isin(x[m].T, x[0]), torch.bucketize(x[m].T.contiguous(), x[0].sort().values)),
    "cat": lambda x, m: [torch.cat([both(m), both(m)], dim) for dim in (0, 1, 2)],
    "unpooled": lambda x, m: F.max_unpool1d(*F.max_pool1d(Z[m], 2, return_indices=True), 2),
    "sampled": lambda x, m: F.grid_sample(Z[m][:, None], Z[m][:, :, :2].unsqueeze(1).tanh(), align_corners=False),
    "products": lambda x, m: (
        torch.baddbmm(Z[m] @ Z[m].mT, Z[m], Z[m].mT),
        torch.inner(x[m], x[m]),
        x[m].T[0].vdot(x[m].T[1]),
    ),
    "areas": lambda x, m: (
        torch.trapezoid(x[m], x[m]),
        torch.trapezoid(x[m], dim=0),
        torch.cumulative_trapezoid(x[m], x[0]),
    ),
    "copies": lambda x, m: (torch.transpose_copy(x[m], 0, 1), torch.unbind_copy(x[m], 1), x[m].ravel(), x[m].mH),
    "cut": lambda x, m: (x[m].T.vsplit(3), x[m].hsplit(3), x[m].tensor_split(2, 1), torch.unsafe_chunk(x[m], 3, 1)),
    "losses": lambda x, m: (
        F.soft_margin_loss(x[m], x[m].sign(), reduction="sum"),
        F.poisson_nll_loss(x[m], x[m].abs(), full=True, reduction="none"),
        F.margin_ranking_loss(x[m], x[m].flip(1), x[m].sign(), reduction="sum"),
    ),
    "of both": lambda x, m: (
        both(m).sort(1)[0],
        both(m).cumsum(1),
        both(m).softmax(1),
        both(m).flip(0, 1),
        both(m).diff(dim=1),
    ),
    "over both": lambda x, m: (both(m).prod(1), both(m).prod(), both(m).logsumexp((0, 1)), both(m).sum((1, 2), True)),
    "merged": lambda x, m: (both(m).flatten(), both(m).flatten(1), both(m).unbind(2), both(m).unique()),
    "of a grid": lambda x, m: (grid(x, m) + x[0, 0], grid(x, m).exp().sum(1, keepdim=True), grid(x, m).sum(0)),
    "grids joined": lambda x, m: (torch.stack([grid(x, m).T, grid(x, m).T]), torch.stack([grid(x, m)] * 2, 1).sum(1)),
    "along a grid": lambda x, m: (grid(x, m).sort(1)[0], grid(x, m).cumsum(0), grid(x, m) @ grid(x, m).T),
}


def normed(x, m):
    """In training: the results, and the buffers that are written."""
    running = torch.zeros(3), torch.ones(3)
    found = F.batch_norm(x[m], *running, x[0], x[1], training=True), F.batch_norm(Z[m], None, None, training=True)
    return *found, *running


MORE = {  # PyTorch refuses them where nothing is chosen
    "normed": normed,
    "transforms": lambda x, m: (torch.fft.fft(x[m]).abs(), torch.fft.rfft2(Z[m]).abs(), torch.fft.fftshift(x[m], 1)),
    "places of both": lambda x, m: (
        both(m).argmax(1),
        both(m).argmax(1, True),
        both(m).max(0),
        both(m).topk(2, 1),
        both(m).median(1),
    ),
    "spread of both": lambda x, m: (both(m).std((1, 2), keepdim=True), both(m).mean(), both(m).quantile(0.3, 1)),
    "quantiles of both": lambda x, m: [both(m).quantile(torch.tensor([0.3, 0.6]), dim) for dim in (0, 1, 2)],
    "spread of a grid": lambda x, m: (grid(x, m).std(1), grid(x, m).mean((0, 1), keepdim=True), grid(x, m)[:, :1]),
}
FUNCTIONS = PARTS | MORE

of_all = each_of(FUNCTIONS)
compiled = jax.jit(t2j(of_all), static_argnums=2)


@in_groups(FUNCTIONS)
def test_values(names):
    check_kinds(compiled, of_all, names, PARTS, ("none", "few"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, m: torch.fft.fft(x[m], dim=0), "fft_fft along a dimension"),
        (lambda x, m: torch.linalg.det(x[m] @ x[m].T), "det along a dimension"),
        (lambda x, m: torch.cross(x[m][:, :3], x[m][:, :3]), "cross along a boolean-mask selection"),
    ],
)
def test_what_has_a_mask_is_no_row(function, message):
    with pytest.raises(TracedValueError, match=message):
        jax.jit(t2j(function))(t2j(X), t2j(MASKS["some"]))
