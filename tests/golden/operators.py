"""Programs of operators: numbers, shapes, subscripts, matrices, random numbers, and what is known while JAX traces."""

import jax.numpy as jnp
import torch
import torch.nn.functional as F

from tests.ops.test_graphs import GRAPHS, INDEX, LABELS, MASK, ROWS, M, S, V, X

from .program import Program, drawing, gradient, of

__all__ = [
    "arithmetic",
    "conversions",
    "graphs",
    "graphs_gradients",
    "indexing",
    "known_values",
    "linalg",
    "random",
    "reductions",
    "views",
    "writes",
]

_I = jnp.arange(4, dtype=jnp.int32)
_C = jnp.array([1 + 2j, 3 - 1j])
_HALF = jnp.ones((2, 3), jnp.bfloat16)


def graphs() -> dict[str, Program]:
    return {name: of(function, *args) for name, (function, args, _) in GRAPHS.items()}


def graphs_gradients() -> dict[str, Program]:
    """Of those that have one."""
    none = {"argmax", "argsort", "eq", "gt a scalar"}
    programs = {}
    for name, (function, args, _) in GRAPHS.items():
        if jnp.issubdtype(args[0].dtype, jnp.floating) and name not in none:
            programs[name] = gradient(function, *args)
    return programs


def arithmetic() -> dict[str, Program]:
    return {
        "a formula": of(lambda x: (x.sin() + x.exp().log1p() * x.sigmoid()).clamp(0, 1), M),
        "int and float": of(lambda x, i: x * i + i / 2, V, _I),
        "int and bool": of(lambda i, m: i + m, _I, V > 0),
        "half and number": of(lambda x: x * 2 + 0.5, _HALF),
        "half and float": of(lambda x, y: x + y, _HALF, jnp.ones(3)),
        "number first": of(lambda x: 1 - 2 / x, V),
        "a scalar tensor": of(lambda x: x * torch.tensor(0.5), V),
        "floor_divide": of(lambda x, y: x // y, V, V),
        "integers, floor_divide": of(lambda x, y: x // y, _I, _I),
        "remainder": of(lambda x, y: x % y, V, V),
        "fmod": of(lambda x, y: torch.fmod(x, y), V, V),
        "negative power": of(lambda x: x**-1 + x**0.5 + x**-0.5, V),
        "integers to a power": of(lambda x: x**3, _I),
        "two to the power": of(lambda x: 2**x, V),
        "shifts": of(lambda x: (x << 1) | (x >> 2) ^ ~x, _I),
        "sign, round, trunc": of(lambda x: (x.sign(), x.round(), x.trunc(), x.frac(), x.ceil(), x.floor()), V),
        "round to decimals": of(lambda x: x.round(decimals=2), V),
        "hypot, atan2": of(lambda x, y: (torch.hypot(x, y), torch.atan2(x, y)), V, V),
        "logaddexp, xlogy": of(lambda x, y: (torch.logaddexp(x, y), torch.xlogy(x, y)), V, V),
        "nan_to_num": of(torch.nan_to_num, V),
        "isnan, isinf, isfinite": of(lambda x: (x.isnan(), x.isinf(), x.isfinite()), V),
        "isclose": of(torch.isclose, V, V),
        "clamp by tensors": of(lambda x, y: x.clamp(min=y), V, V),
        "clamp of integers": of(lambda x: x.clamp(max=2), _I),
        "where with a number": of(lambda x: torch.where(x > 0, x, 0.0), V),
        "chained comparison": of(lambda x: (x > 0) & (x < 1) | ~(x == 2), V),
        "erf, lgamma, digamma": of(lambda x: (x.erf(), x.lgamma(), x.digamma()), V),
        "special": of(lambda x: (torch.special.i0(x), torch.special.ndtri(x), torch.special.expit(x)), V),
        "complex": of(lambda x: (x.conj() * x).real + x.abs() + x.angle(), _C),
        "view_as_real": of(lambda x: torch.view_as_real(x * 1j), _C),
        "polar": of(lambda x: torch.polar(x, x), V),
        "foreach": of(lambda x, y: torch._foreach_add([x, y], [y, x], alpha=2), V, V),
        "out=": of(lambda x: torch.add(x, 1, out=torch.empty(4)), V),
        "lerp by a tensor": of(torch.lerp, V, V, V),
        "abs, gradient": gradient(lambda x: x.abs(), V),
        "sqrt, gradient": gradient(torch.sqrt, V),
        "power, gradient of the exponent": gradient(lambda y, x: x**y, V, V),
        "clamp, gradient": gradient(lambda x: x.clamp(0, 1), V),
        "maximum, gradient": gradient(torch.maximum, V, V),
        "where, gradient": gradient(lambda x: torch.where(x > 0, x.log(), 0.0), V),
        "atan2, gradient": gradient(torch.atan2, V, V),
        "complex, gradient": gradient(lambda x: (x * x.conj()).real, _C),
    }


def reductions() -> dict[str, Program]:
    return {
        "sum of integers": of(lambda x: x.sum(), _I),
        "sum of bools": of(lambda x: x.sum(0), MASK),
        "sum in another dtype": of(lambda x: x.sum(dtype=torch.float64), V),
        "mean of half": of(lambda x: x.mean(), _HALF),
        "sum of several": of(lambda x: x.sum((0, -1), keepdim=True), X),
        "var, unbiased or not": of(lambda x: (x.var(), x.var(0, correction=0)), X),
        "var_mean": of(lambda x: torch.var_mean(x, -1), X),
        "std, gradient": gradient(lambda x: x.std(-1), X),
        "norms": of(lambda x: (x.norm(), x.norm(1, -1), x.norm(float("inf"), 0)), M),
        "min with indices": of(lambda x: x.min(0), M),
        "max, gradient": gradient(lambda x: x.max(-1).values, M),
        "amax, gradient": gradient(lambda x: x.amax(-1), M),
        "aminmax": of(lambda x: torch.aminmax(x), M),
        "median": of(lambda x: x.median(), V),
        "quantile": of(lambda x: x.quantile(0.3, -1), M),
        "mode": of(lambda x: x.mode(-1), ROWS),
        "cumprod": of(lambda x: x.cumprod(-1), M),
        "cumsum of integers": of(lambda x: x.cumsum(0), _I),
        "cummax": of(lambda x: x.cummax(-1), M),
        "logcumsumexp": of(lambda x: x.logcumsumexp(-1), M),
        "prod, gradient": gradient(lambda x: x.prod(-1), M),
        "count_nonzero": of(lambda x: x.count_nonzero(-1), M),
        "nansum, nanmean": of(lambda x: (x.nansum(-1), x.nanmean(-1)), M),
        "any of numbers": of(lambda x: (x.any(-1), x.all()), M),
        "diff": of(lambda x: x.diff(), M),
        "trace": of(torch.trace, S),
        "histc": of(lambda x: x.histc(4, -1, 1), V),
        "bincount of known length": of(lambda i: torch.bincount(i.clamp(0, 3), minlength=4), jnp.array([0, 1, 1])),
        "argmin, keepdim": of(lambda x: x.argmin(-1, keepdim=True), M),
        "kthvalue": of(lambda x: x.kthvalue(2), M),
        "sort, stable and descending": of(lambda x: x.sort(descending=True, stable=True), V),
        "sort, gradient": gradient(lambda x: x.sort().values * torch.arange(4), V),
        "topk, smallest": of(lambda x: x.topk(2, largest=False), M),
        "searchsorted": of(torch.searchsorted, V, V),
        "bucketize": of(lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 0.5])), V),
        "unique of known values": of(lambda x: x * torch.tensor([1, 3, 3]).unique().sum(), V),
        "segment reduce": of(lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3])), V),
        "cdist": of(torch.cdist, M, M),
        "pdist": of(torch.pdist, M),
    }


def views() -> dict[str, Program]:
    return {
        "view, as one dimension": of(lambda x: x.view(-1), X),
        "view of a transposed one": of(lambda x: x.mT.reshape(2, -1), X),
        "view as a dtype": of(lambda x: x.view(torch.int32), V),
        "squeeze": of(lambda x: x[None].squeeze(), M),
        "movedim": of(lambda x: x.movedim(0, -1), X),
        "unflatten": of(lambda x: x.unflatten(-1, (2, 2)), X),
        "unfold": of(lambda x: x.unfold(-1, 2, 1), M),
        "as_strided": of(lambda x: x.as_strided((2, 2), (4, 1), 1), M),
        "diagonal": of(lambda x: x.diagonal(), S),
        "diag": of(torch.diag, V),
        "narrow, select": of(lambda x: x.narrow(1, 1, 2).select(0, 0), X),
        "tensor_split": of(lambda x: x.tensor_split(3, -1), X),
        "hstack, vstack": of(lambda x: (torch.hstack([x, x]), torch.vstack([x, x])), M),
        "cat of dtypes": of(lambda x, i: torch.cat([x, i]), V, _I),
        "repeat_interleave": of(lambda x: x.repeat_interleave(2, 0), M),
        "tile": of(lambda x: x.tile(2, 2), M),
        "rot90": of(lambda x: x.rot90(), M),
        "roll of two": of(lambda x: x.roll((1, 2), (0, 1)), M),
        "expand_as": of(lambda x, y: x.expand_as(y) * 2, V, M),
        "broadcast_tensors": of(lambda x, y: torch.broadcast_tensors(x[:, None], y), V, V),
        "meshgrid": of(lambda x, y: torch.meshgrid(x, y, indexing="ij"), V, V),
        "cartesian_prod": of(torch.cartesian_prod, V, V),
        "block_diag": of(torch.block_diag, M, M),
        "triu of a batch": of(lambda x: x.triu(1), X),
        "pixel_shuffle": of(lambda x: F.pixel_shuffle(x, 2), jnp.ones((1, 4, 2, 2))),
        "im2col": of(lambda x: F.unfold(x, 2), jnp.ones((1, 1, 3, 3))),
        "T, mT, H": of(lambda x: (x.T, x.mT, x.H), M),
        "contiguous, clone": of(lambda x: x.mT.contiguous().clone(), X),
        "pad by circles": of(lambda x: F.pad(x[None], (1, 1), mode="circular"), M),
        "chunk and cat, gradient": gradient(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) * torch.arange(4), M),
        "expand, gradient": gradient(lambda x: x.expand(3, 4) * torch.arange(12).view(3, 4), V),
    }


def _row_and_view(x):
    y = x.clone()
    y[0] += 1
    y.view(-1)[2:4].mul_(3)
    return y


def _two_views(x):
    first, second = x[:2], x[1:]
    first.add_(1)
    second.mul_(2)
    return x, first


def _through_a_transposed(x):
    x.T[0].zero_()
    x.diagonal().fill_(5)
    return x


def _list_of_parts(x):
    for i, part in enumerate(x.split(1)):
        part.mul_(i)
    return x


def _rows_one_by_one(x):
    found = torch.zeros(3, 4)
    for i in range(3):
        found[i] = x[i].flip(0)
    return found


def _swapped(x):
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x


def _set_data(x):
    y = torch.zeros_like(x)
    y.data = x * 2
    return y.add_(1)


def _written_before_use(x):
    y = x * 2
    z = y.sin()
    y.copy_(x)
    return y + z


def _chain(x):
    return x[1:].T[:2].unsqueeze(0).mul_(2).sum() + x.sum()


def writes() -> dict[str, Program]:
    return {
        "a row and a view": of(_row_and_view, M),
        "two views that overlap": of(_two_views, M),
        "through a transposed view": of(_through_a_transposed, S),
        "parts of a split": of(_list_of_parts, M),
        "rows one by one": of(_rows_one_by_one, M),
        "rows swapped": of(_swapped, M),
        ".data": of(_set_data, V),
        "after it was read": of(_written_before_use, V),
        "a chain of views": of(_chain, M),
        "an argument": of(lambda x: (x.add_(1), x)[1], V),
        "of another dtype": of(lambda i, x: i.copy_(x), _I, V),
        "relu_": of(lambda x: F.relu_(x[0]) is None or x, M),
        "masked_fill_ of a view": of(lambda x, m: x[0].masked_fill_(m[0], 0) is None or x, M, MASK),
        "clamp_": of(lambda x: x.mul(2).clamp_(0, 1), V),
        "swapped by copy": of(lambda x, y: (x.copy_(y), y.zero_()), V, V),
        "fill_diagonal_": of(lambda x: x.fill_diagonal_(0), S),
        "addmm_": of(lambda x, y: x.addmm_(y, y), S, S),
        "index_fill_": of(lambda x: x.index_fill_(0, torch.tensor([0, 2]), 1.0), M),
        "set_ of a storage": of(lambda x, y: x.set_(y), V, M),
        "resize_": of(lambda x: x.clone().resize_(2), V),
        "through NumPy's interface": of(lambda x: x.clone().put_(torch.tensor([1, 2]), torch.ones(2)), V),
        "a row, gradient": gradient(_row_and_view, M),
        "two views, gradient": gradient(_two_views, M),
        "rows one by one, gradient": gradient(_rows_one_by_one, M),
    }


def _set(x, key, value):
    x = x.clone()
    x[key] = value
    return x


def _add(x, key, value):
    x = x.clone()
    x[key] += value
    return x


def indexing() -> dict[str, Program]:
    return {
        "x[-1]": of(lambda x: x[-1], M),
        "x[..., None, 0]": of(lambda x: x[..., None, 0], M),
        "x[::2, 1:-1]": of(lambda x: x[::2, 1:-1], M),
        "x[i, j]": of(lambda x, i: x[i, i], M, INDEX),
        "x[:, i]": of(lambda x, i: x[:, i], M, INDEX),
        "x[i[:, None], j]": of(lambda x, i: x[i[:, None], i], M, INDEX),
        "x[i, :, j]": of(lambda x, i: x[i % 2, :, i], X, INDEX),
        "x[arange, labels]": of(lambda x, i: x[torch.arange(3), i], M, LABELS),
        "x[[0, 1, 2]]": of(lambda x: x[[0, 1, 2]], M),
        "x[[0, 0, 2]]": of(lambda x: x[[0, 0, 2]], M),
        "x[known mask]": of(lambda x: x[torch.tensor([True, False, True])], M),
        "x[torch.tensor(1)]": of(lambda x: x[torch.tensor(1)], M),
        "x[True]": of(lambda x: x[True], M),
        "x[i] of negative i": of(lambda x: x[torch.tensor([-1, 0])], M),
        "x[i:i+2] of a traced i": of(lambda x, i: x.narrow(0, i, 2), M, jnp.int32(1)),
        "take": of(lambda x, i: x.take(i), M, INDEX),
        "take_along_dim": of(lambda x: x.take_along_dim(x.argsort(-1), -1), M),
        "masked_scatter": of(lambda x, m: x.masked_scatter(m, torch.arange(12.0)), M, MASK),
        "x[:, 1:3] = y": of(lambda x, y: _set(x, (slice(None), slice(1, 3)), y), M, M[:, :2]),
        "x[..., 0] = 1": of(lambda x: _set(x, (..., 0), 1), M),
        "x[::2] = 0": of(lambda x: _set(x, slice(None, None, 2), 0), M),
        "x[i] = y": of(lambda x, i, y: _set(x, i, y), M, INDEX, M[:2]),
        "x[i, j] = 1": of(lambda x, i: _set(x, (i, i), 1.0), M, INDEX),
        "x[i] += 1": of(lambda x, i: _add(x, i, 1), M, INDEX),
        "x[mask] = 0": of(lambda x, m: _set(x, m, 0), M, MASK),
        "x[mask] = y[mask]": of(lambda x, m, y: _set(x, m, y[m]), M, MASK, M),
        "x[mask] *= 2": of(lambda x, m: _set(x, m, x[m] * 2), M, MASK),
        "x[mask, 0] = 1": of(lambda x, m: _set(x, (m, 0), 1.0), M, MASK[:, 0]),
        "x[rows by a mask] = row": of(lambda x, m, v: _set(x, m, v), M, MASK[:, 0], V),
        "x[i, 1:] = 0": of(lambda x, i: _set(x, (i, slice(1, None)), 0), M, INDEX),
        "x[n] = 1 of a traced n": of(lambda x, n: _set(x, n, 1), M, jnp.int32(1)),
        "index_put_, accumulate": of(
            lambda x, i: x.clone().index_put_((i,), torch.ones(2, 4), accumulate=True), M, INDEX
        ),
        "scatter": of(lambda x, i: x.scatter(1, i, 1.0), M[:2], ROWS),
        "scatter_reduce": of(lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), M, ROWS, M[:2]),
        "index_copy": of(lambda x, i, y: x.index_copy(0, i, y), M, INDEX, M[:2]),
        "index_reduce": of(lambda x, i, y: x.index_reduce(0, i, y, "mean"), M, INDEX, M[:2]),
        "select_scatter": of(lambda x, y: x.select_scatter(y, 0, 1), M, V),
        "slice_scatter": of(lambda x, y: x.slice_scatter(y, 0, 0, 2), M, M[:2]),
        "x[i], gradient": gradient(lambda x, i: x[i], M, INDEX),
        "x[arange, labels], gradient": gradient(lambda x, i: x[torch.arange(3), i], M, LABELS),
        "gather, gradient": gradient(lambda x, i: x.gather(0, i), M, ROWS),
        "scatter_add, gradient": gradient(lambda y, i: torch.zeros(3, 4).scatter_add(0, i, y), M[:2], ROWS),
        "x[mask] = 0, gradient": gradient(lambda x, m: _set(x, m, 0), M, MASK),
        "embedding of padding, gradient": gradient(lambda w, i: F.embedding(i, w, padding_idx=0), M, ROWS),
    }


def conversions() -> dict[str, Program]:
    return {
        "to half and back": of(lambda x: x.half().float(), V),
        "to bfloat16": of(lambda x: x.bfloat16(), V),
        "to double": of(lambda x: x.double(), V),
        "to long": of(lambda x: x.long(), V),
        "to bool": of(lambda x: x.bool(), V),
        "to uint8": of(lambda x: x.to(torch.uint8), V),
        "to float8": of(lambda x: x.to(torch.float8_e4m3fn), V),
        "bools as numbers": of(lambda x: (x > 0).float(), V),
        "type_as": of(lambda x, i: i.type_as(x), V, _I),
        "to a device": of(lambda x: x.to("cpu", non_blocking=True), V),
        "tensor of a list": of(lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), V),
        "tensor of traced numbers": of(lambda x: torch.tensor([x[0].item(), x[1].item()]), V),
        "stack of numbers": of(lambda x: torch.stack([x[0], torch.tensor(1.0)]), V),
        "zeros_like, ones, full": of(lambda x: torch.zeros_like(x) + torch.ones(4) + torch.full((4,), 2.0), V),
        "new_tensor": of(lambda x: x.new_zeros(2) + x.new_tensor([1.0, 2.0]), V),
        "empty": of(lambda x: torch.empty(4).copy_(x), V),
        "item": of(lambda x: x.sum().item() * 2 + x.mean(), V),
        "tolist": of(lambda x: sum(x.tolist()), V),
        "detach, requires_grad": of(lambda x: x.detach().requires_grad_().sum(), V),
        "numpy": of(lambda x: torch.from_numpy(torch.arange(4).numpy()) + x, V),
        "complex of two": of(torch.complex, V, V),
        "as_tensor": of(lambda x: torch.as_tensor(x) * torch.as_tensor([2] * 4), V),
        "dtype of a result": of(lambda x: torch.result_type(x, 1) is x.dtype and x, V),
        "default dtype": of(lambda x: x + torch.get_default_dtype().itemsize, V),
        "promote half and int": of(lambda x, i: x[0, 0] + i, _HALF, _I),
        "half, gradient": gradient(lambda x: (x.half() * 2).float(), V),
    }


def linalg() -> dict[str, Program]:
    spd = lambda x: x @ x.mT + torch.eye(x.shape[-1])
    return {
        "mv, vm, dot": of(lambda x, v: (x @ v, v @ x, v @ v), S, V),
        "baddbmm": of(lambda x, y: torch.baddbmm(y[..., :3], x, x.mT, beta=0.5), X, X),
        "multi_dot": of(lambda x: torch.linalg.multi_dot([x, x, x]), S),
        "matrix_power": of(lambda x: torch.matrix_power(x, 3), S),
        "tensordot": of(lambda x, y: torch.tensordot(x, y, 1), X, S),
        "einsum of three": of(lambda x, y, z: torch.einsum("bi,ij,bj->b", x, y, z), M, S, M),
        "einsum with a diagonal": of(lambda x: torch.einsum("ii->i", x), S),
        "kron": of(torch.kron, V, V),
        "cross": of(lambda x: torch.linalg.cross(x, x.flip(-1)), M[:, :3]),
        "inv": of(torch.linalg.inv, S),
        "det, slogdet": of(lambda x: (torch.linalg.det(x), torch.linalg.slogdet(x)), S),
        "solve": of(lambda x, b: torch.linalg.solve(x, b), S, V),
        "cholesky": of(lambda x: torch.linalg.cholesky(spd(x)), S),
        "cholesky_solve": of(lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(spd(x))), S),
        "triangular": of(lambda x, b: torch.linalg.solve_triangular(x.triu(), b, upper=True), S, S),
        "qr": of(torch.linalg.qr, M),
        "svd": of(lambda x: torch.linalg.svd(x, full_matrices=False), M),
        "eigh": of(lambda x: torch.linalg.eigh(spd(x)), S),
        "lstsq": of(lambda x, y: torch.linalg.lstsq(x, y).solution, M.T, S),
        "pinv": of(torch.linalg.pinv, M),
        "matrix norm": of(lambda x: (torch.linalg.matrix_norm(x), torch.linalg.norm(x, 2)), M),
        "matrix_exp": of(torch.matrix_exp, S),
        "lu_factor": of(lambda x: torch.linalg.lu_factor(x), S),
        "inv, gradient": gradient(torch.linalg.inv, S),
        "logdet of a cholesky, gradient": gradient(
            lambda x: torch.linalg.cholesky(spd(x)).diagonal().log().sum() * 2, S
        ),
        "fft": of(lambda x: torch.fft.ifft(torch.fft.fft(x)).real, V),
        "rfft of two dimensions": of(torch.fft.rfft2, M),
        "stft": of(lambda x: torch.stft(x, 4, return_complex=True, window=torch.ones(4)), jnp.ones(12)),
    }


def _seeded(x):
    torch.manual_seed(3)
    return x + torch.rand(4)


def random() -> dict[str, Program]:
    return {
        "rand, randn": drawing(lambda x: (torch.rand(2), torch.randn_like(x)), V),
        "randint": drawing(lambda: torch.randint(0, 10, (3,))),
        "randperm": drawing(lambda: torch.randperm(4)),
        "dropout": drawing(lambda x: F.dropout(x, 0.5), V),
        "dropout2d": drawing(lambda x: F.dropout2d(x, 0.5), jnp.ones((2, 3, 2, 2))),
        "bernoulli": drawing(lambda x: torch.bernoulli(x), jnp.full(3, 0.5)),
        "multinomial": drawing(lambda x: torch.multinomial(x, 2), jnp.full(4, 0.25)),
        "normal": drawing(lambda x: torch.normal(x, 2.0), V),
        "in place": drawing(lambda x: x.clone().uniform_(-1, 1).add_(torch.empty(4).exponential_()), V),
        "a distribution": drawing(lambda x: torch.distributions.Normal(x, 1.0).rsample(), V),
        "log_prob": of(lambda x: torch.distributions.Categorical(logits=x).log_prob(torch.tensor([0, 1, 2])), M),
        "gamma": drawing(lambda x: torch.distributions.Gamma(x, 1.0).rsample(), jnp.ones(2)),
        "gumbel_softmax": drawing(lambda x: F.gumbel_softmax(x, hard=True), M),
        "seeded": of(_seeded, V),
        "a generator": of(lambda x: x + torch.rand(4, generator=torch.Generator().manual_seed(0)), V),
        "dropout twice": drawing(lambda x: F.dropout(x) - F.dropout(x), V),
        "rrelu": drawing(lambda x: F.rrelu(x, training=True), V),
    }


def _sines(x):
    position, scale = torch.arange(3.0)[:, None], torch.exp(torch.arange(0, 4, 2) * -0.5)
    table = torch.zeros(3, 4)
    table[:, 0::2] = torch.sin(position * scale)
    table[:, 1::2] = torch.cos(position * scale)
    return x + table


def _causal(x):
    mask = torch.full((4, 4), float("-inf")).triu(1)
    return (x + mask).softmax(-1)


def _by_shapes(x):
    total = x * 0
    for i in torch.arange(x.shape[0]):
        if i % 2 == 0:
            total = total + x[i] * i
    return total


def _window(x):
    place = torch.arange(3)
    mask = (place[:, None] - place).abs() < 2
    return x[:, :3].masked_fill(~mask, 0)


def known_values() -> dict[str, Program]:
    return {
        "positional encoding": of(_sines, M),
        "causal mask": of(_causal, S),
        "a window": of(_window, M),
        "loop over arange": of(_by_shapes, M),
        "a shape as a number": of(lambda x: x / torch.tensor(x.shape).prod().sqrt(), M),
        "linspace": of(lambda x: x * torch.linspace(0, 1, 4), V),
        "a large arange": of(lambda: torch.arange(10_000) * 2 + 1),
        "eye": of(lambda x: x + torch.eye(4), S),
        "one_hot of known": of(lambda x: x * F.one_hot(torch.tensor([0, 2, 1]), 4), M),
        "index by known": of(lambda x: x[torch.arange(4).flip(0)], S),
        "tril_indices": of(lambda x: x[tuple(torch.tril_indices(4, 4))], S),
        "a buffer that is written": of(lambda x: torch.zeros(4).index_fill_(0, torch.tensor([1]), 2.0) + x, V),
        "64 bits": of(lambda x: x + (torch.tensor(2**40) // 2**38), V),
        "a condition on shapes": of(lambda x: x * 2 if torch.tensor(x.shape).max() > 3 else x, M),
        "rotary angles": of(lambda x: x * torch.outer(torch.arange(3.0), 1e4 ** -torch.linspace(0, 1, 4)).cos(), M),
        "a known and a traced part": of(lambda x: torch.cat([torch.arange(4.0), x]).view(2, 4)[0], V),
        "written by a traced one": of(lambda x: torch.zeros(3, 4).index_copy_(0, torch.tensor([1]), x[None]), V),
    }
