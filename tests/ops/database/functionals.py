"""Losses, activations, distances, norms and other functions with their options, to be tried at special points.

The operator database has samples of most of them, but of few of their options, and none at kinks.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import distributions as D, linalg, special

__all__ = ["FUNCTIONALS", "Functional"]

INFINITY = float("inf")
REDUCTIONS = ("none", "mean", "sum")
ANY = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0, 20.0, -20.0, INFINITY, -INFINITY)
FEW = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, INFINITY, -INFINITY)
FINITE = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0)
UNIT = (0.0, -0.0, 0.5, 1.0)
SIGNS = (1.0, -1.0)


class Functional(NamedTuple):
    """A function, and the values at which it is tried: of one tensor for each of its operands."""

    name: str
    function: Callable
    points: dict[str, list[list]]

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """The operands at each point."""
        for name, values in self.points.items():
            yield name, [torch.tensor(x, dtype=dtype) for x in values]


def _grid(name: str, function: Callable, *values) -> Functional:
    """An elementwise function at all combinations of values: those of finite ones, and the others."""
    points: dict[str, list] = {"numbers": [], "infinities": []}
    for combination in itertools.product(*values):
        points["numbers" if all(map(math.isfinite, combination)) else "infinities"].append(combination)
    return Functional(
        name, function, {at: [list(x) for x in zip(*rows, strict=True)] for at, rows in points.items() if rows}
    )


# Functions of one number.

_Of = functools.partial


def _power(exponent):
    return lambda x: x**exponent


def _power_of(base):
    return lambda x: base**x


ACTIVATIONS = {
    **{name: getattr(F, name) for name in ("relu", "relu6", "elu", "selu", "celu", "leaky_relu", "rrelu", "hardtanh")},
    **{name: getattr(F, name) for name in ("hardsigmoid", "hardswish", "hardshrink", "softshrink", "tanhshrink")},
    **{name: getattr(F, name) for name in ("softsign", "softplus", "logsigmoid", "silu", "mish", "gelu")},
    **{f"elu, alpha={a}": _Of(F.elu, alpha=a) for a in (0.5, 0.0, -1.0)},
    **{f"celu, alpha={a}": _Of(F.celu, alpha=a) for a in (0.5, -1.0)},
    **{f"leaky_relu, negative_slope={a}": _Of(F.leaky_relu, negative_slope=a) for a in (0.0, 1.0, -0.5)},
    **{f"hardtanh, {a}, {b}": _Of(F.hardtanh, min_val=a, max_val=b) for a, b in ((0.0, 0.0), (-2.0, 0.5))},
    **{f"hardshrink, lambd={a}": _Of(F.hardshrink, lambd=a) for a in (0.0, 1.0, -1.0)},
    **{f"softshrink, lambd={a}": _Of(F.softshrink, lambd=a) for a in (0.0, 1.0)},
    **{f"threshold, {a}, {b}": _Of(F.threshold, threshold=a, value=b) for a, b in ((0.0, 0.0), (1.0, -1.0))},
    **{f"softplus, {b}, {t}": _Of(F.softplus, beta=b, threshold=t) for b, t in ((2, 2), (0.0, 20), (-1.0, 1), (1, 0))},
    "gelu, tanh": _Of(F.gelu, approximate="tanh"),
}
NUMBERS = {
    **{name: getattr(torch, name) for name in ("abs", "sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p")},
    **{name: getattr(torch, name) for name in ("exp", "exp2", "expm1", "sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(torch, name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "sinc")},
    **{name: getattr(torch, name) for name in ("sign", "sgn", "round", "frac", "trunc", "floor", "nan_to_num")},
    **{name: getattr(torch, name) for name in ("erf", "erfc", "erfinv", "lgamma", "digamma", "square", "positive")},
    **{f"special.{name}": getattr(special, name) for name in ("entr", "ndtr", "ndtri", "log_ndtr", "erfcx", "expit")},
    **{f"special.{name}": getattr(special, name) for name in ("i0", "i0e", "i1", "i1e", "logit", "gammaln", "psi")},
    **{f"polygamma {n}": _Of(torch.polygamma, n) for n in (0, 1, 2)},
    **{f"logit, eps={e}": _Of(torch.logit, eps=e) for e in (0.0, 0.1, 0.5)},
    **{
        f"clamp, {a}, {b}": _Of(torch.clamp, min=a, max=b)
        for a, b in ((0, 1), (1, 1), (2, 1), (None, 0.5), (0.5, None))
    },
    **{f"x**{n}": _power(n) for n in (0, 0.5, 1, 2, 3, -1, -0.5, 1.5, -2)},
    **{f"{b}**x": _power_of(b) for b in (0.0, 1.0, 2.0, -1.0)},
}

# Functions of several numbers.

PAIRS = {
    **{name: getattr(torch, name) for name in ("mul", "div", "atan2", "pow", "float_power", "hypot", "maximum")},
    **{name: getattr(torch, name) for name in ("minimum", "fmax", "fmin", "fmod", "remainder", "copysign", "xlogy")},
    **{name: getattr(torch, name) for name in ("logaddexp", "logaddexp2", "ldexp", "floor_divide")},
    "special.xlog1py": special.xlog1py,
    "lerp, 0.5": lambda x, y: torch.lerp(x, y, 0.5),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp, min": lambda x, y: torch.clamp(x, min=y),
    "clamp, max": lambda x, y: torch.clamp(x, max=y),
    "l1_loss": _Of(F.l1_loss, reduction="none"),
    "mse_loss": _Of(F.mse_loss, reduction="none"),
    **{f"smooth_l1_loss, beta={b}": _Of(F.smooth_l1_loss, beta=b, reduction="none") for b in (0.0, 0.5, 1.0)},
    **{f"huber_loss, delta={d}": _Of(F.huber_loss, delta=d, reduction="none") for d in (0.5, 1.0)},
    "binary_cross_entropy_with_logits": _Of(F.binary_cross_entropy_with_logits, reduction="none"),
    **{f"kl_div, log_target={x}": _Of(F.kl_div, log_target=x, reduction="none") for x in (False, True)},
    **{
        f"poisson_nll_loss, log_input={a}, full={b}, eps={e}": _Of(
            F.poisson_nll_loss, log_input=a, full=b, eps=e, reduction="none"
        )
        for a, b, e in ((True, False, 1e-8), (False, False, 1e-8), (False, False, 0.0), (True, True, 1e-8))
    },
    "soft_margin_loss": _Of(F.soft_margin_loss, reduction="none"),
}
OF_UNIT = {
    "binary_cross_entropy": _Of(F.binary_cross_entropy, reduction="none"),
}
OF_SIGNS = {
    f"hinge_embedding_loss, margin={m}": _Of(F.hinge_embedding_loss, margin=m, reduction="none") for m in (1.0, 0.0)
}
TRIPLES = {
    "clamp, both": torch.clamp,
    "addcmul": torch.addcmul,
    "addcdiv": torch.addcdiv,
    "lerp": torch.lerp,
}

# Functions of rows.

ROWS = {
    "zeros": [[0.0] * 3] * 2,
    "negative zeros": [[-0.0] * 3] * 2,
    "ones": [[1.0] * 3] * 2,
    "ties": [[1.0, 2.0, 2.0], [-1.0, -1.0, -2.0]],
    "signs": [[0.0, -1.0, 1.0], [1.0, 0.0, -0.0]],
    "halves": [[0.5, -0.5, 1.5], [2.5, 0.5, 0.5]],
    "an infinity": [[INFINITY, 1.0, 2.0], [-INFINITY, 1.0, 0.0]],
    "infinities": [[INFINITY, INFINITY, 0.0], [-INFINITY, -INFINITY, -INFINITY]],
}
PAIRS_OF_ROWS = {name: [x, list(reversed(x))] for name, x in ROWS.items()} | {
    "equal arguments": [[[0.5, 1.0, -2.0], [0.0, 1.0, 1.0]]] * 2,
    "zeros and ones": [ROWS["zeros"], ROWS["ones"]],
    "some equal": [[[0.5, 1.0, 2.0], [0.0, 1.0, 1.0]], [[0.5, 1.0, 1.0], [0.0, 2.0, 2.0]]],
}
ORDERS = (0, 0.5, 1, 1.5, 2, 3, INFINITY, -INFINITY, -1)
DISTANCES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INFINITY)


def _means(name: str, function: Callable) -> dict[str, Callable]:
    """A loss that is reduced in each way."""
    return {f"{name}, {reduction}": _Of(function, reduction=reduction) for reduction in REDUCTIONS}


CLASSES = torch.tensor([2, 0])
LABELS = torch.tensor([[2, 0, -1], [-1, 1, 0]])
WEIGHT = torch.tensor([0.0, 1.0, 2.0])


def _weighted(function: Callable, target: torch.Tensor, **options) -> Callable:
    def loss(x, reduction):
        return function(x, target, weight=WEIGHT.to(x.dtype), reduction=reduction, **options)

    return loss


def _batch_norm(x, training, eps=1e-5):
    return F.batch_norm(x, torch.zeros(3, dtype=x.dtype), torch.zeros(3, dtype=x.dtype), training=training, eps=eps)


def _first(function: Callable) -> Callable:
    return lambda x: function(x, 1)[0]


OF_ROWS = {
    **{name: _Of(getattr(torch, name), dim=1) for name in ("softmax", "log_softmax", "logsumexp", "cumprod", "prod")},
    **{name: _Of(getattr(torch, name), dim=1) for name in ("amax", "amin", "cumsum", "logcumsumexp", "std", "var")},
    **{name: _first(getattr(torch, name)) for name in ("max", "min", "median", "cummax", "cummin")},
    **{name: getattr(torch, name) for name in ("aminmax", "nanmean", "nansum", "nanmedian")},
    **{f"std, correction={n}": _Of(torch.std, dim=1, correction=n) for n in (0, 2, 3)},
    **{f"var, correction={n}": _Of(torch.var, dim=1, correction=n) for n in (0, 3)},
    "softmin": _Of(F.softmin, dim=1),
    "quantile": lambda x: torch.quantile(x, 0.25, dim=1),
    "nanquantile": lambda x: torch.nanquantile(x, 0.5, dim=1),
    "sort": lambda x: torch.sort(x, 1, stable=True)[0],
    "glu": lambda x: F.glu(torch.cat((x, x), 1)),
    **{f"linalg.vector_norm, {p}": _Of(linalg.vector_norm, ord=p, dim=1) for p in ORDERS},
    **{f"norm, p={p}": _Of(torch.norm, p=p, dim=1) for p in ORDERS},
    **{f"linalg.matrix_norm, {p}": _Of(linalg.matrix_norm, ord=p) for p in (1, -1, INFINITY, -INFINITY, "fro")},
    **{f"normalize, p={p}, eps={e}": _Of(F.normalize, p=p, eps=e) for p in (1.0, 2.0, INFINITY) for e in (1e-12, 0.0)},
    **{f"renorm, p={p}": lambda x, p=p: torch.renorm(x, p, 0, 1.0) for p in (1.0, 2.0, INFINITY)},
    **{f"pdist, p={p}": _Of(F.pdist, p=p) for p in DISTANCES},
    **{f"layer_norm, eps={e}": lambda x, e=e: F.layer_norm(x, (3,), eps=e) for e in (1e-5, 0.0)},
    **{f"rms_norm, eps={e}": lambda x, e=e: F.rms_norm(x, (3,), eps=e) for e in (None, 1e-5, 0.0)},
    **{f"group_norm, eps={e}": lambda x, e=e: F.group_norm(x, 3, eps=e) for e in (1e-5,)},
    **{f"instance_norm, eps={e}": lambda x, e=e: F.instance_norm(x[None], eps=e) for e in (1e-5, 0.0)},
    **{f"batch_norm, training, eps={e}": _Of(_batch_norm, training=True, eps=e) for e in (1e-5, 0.0)},
    **{f"batch_norm, eps={e}": _Of(_batch_norm, training=False, eps=e) for e in (1e-5, 0.0)},
    **{f"local_response_norm, k={k}": lambda x, k=k: F.local_response_norm(x, 2, k=k) for k in (1.0, 0.0)},
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2, stride=1, padding=1),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2, stride=1, padding=1),
    "max_pool3d": lambda x: F.max_pool3d(x[None, None], (1, 2, 2), stride=1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], (1, 2)),
    "avg_pool1d": lambda x: F.avg_pool1d(x[None], 2, stride=1, padding=1),
    **{f"lp_pool1d, p={p}": lambda x, p=p: F.lp_pool1d(x[None], p, 2, 1) for p in (1.0, 2.0, 3.0, INFINITY)},
    **{f"lp_pool2d, p={p}": lambda x, p=p: F.lp_pool2d(x[None], p, 2, 1) for p in (1.0, 2.0)},
    **{
        f"interpolate, {m}, align_corners={a}": lambda x, m=m, a=a: F.interpolate(
            x[None, None], (3, 5), mode=m, align_corners=a
        )
        for m in ("bilinear", "bicubic")
        for a in (False, True)
    },
    **{f"interpolate, {m}": lambda x, m=m: F.interpolate(x[None], 4, mode=m) for m in ("nearest", "nearest-exact")},
    **_means("cross_entropy", lambda x, reduction: F.cross_entropy(x, CLASSES, reduction=reduction)),
    **_means("cross_entropy, weight", _weighted(F.cross_entropy, CLASSES)),
    **_means("cross_entropy, label_smoothing=1", _weighted(F.cross_entropy, CLASSES, label_smoothing=1.0)),
    **_means("cross_entropy, ignore_index", _weighted(F.cross_entropy, CLASSES, ignore_index=2)),
    **_means("cross_entropy, all ignored", _weighted(F.cross_entropy, torch.tensor([1, 1]), ignore_index=1)),
    **_means("nll_loss", lambda x, reduction: F.nll_loss(x, CLASSES, reduction=reduction)),
    **_means("nll_loss, weight", _weighted(F.nll_loss, CLASSES)),
    **_means("multi_margin_loss", _weighted(F.multi_margin_loss, CLASSES)),
    **_means("multi_margin_loss, p=2", _weighted(F.multi_margin_loss, CLASSES, p=2, margin=1.0)),
    **_means("multilabel_margin_loss", lambda x, reduction: F.multilabel_margin_loss(x, LABELS, reduction=reduction)),
    "linalg.det": lambda x: linalg.det(x[:, :2]),
    "linalg.slogdet": lambda x: linalg.slogdet(x[:, :2])[1],
    "logdet": lambda x: torch.logdet(x[:, :2]),
}
OF_ROWS_AND_ROWS = {
    **{f"dist, p={p}": _Of(torch.dist, p=p) for p in DISTANCES},
    **{f"cdist, p={p}": _Of(torch.cdist, p=p) for p in DISTANCES},
    **{
        f"pairwise_distance, p={p}, eps={e}": _Of(F.pairwise_distance, p=p, eps=e)
        for p in (0.5, *DISTANCES[2:])
        for e in (1e-6, 0.0)
    },
    **{f"cosine_similarity, eps={e}": _Of(F.cosine_similarity, eps=e) for e in (1e-8, 0.0)},
    **{
        name: loss
        for y in (1.0, -1.0)
        for name, loss in _means(
            f"cosine_embedding_loss of {y}",
            lambda a, b, reduction, y=y: F.cosine_embedding_loss(a, b, torch.tensor([y] * 2), reduction=reduction),
        ).items()
    },
    **_means("l1_loss", F.l1_loss),
    **_means("mse_loss", F.mse_loss),
    **_means("smooth_l1_loss", F.smooth_l1_loss),
    **_means("huber_loss", F.huber_loss),
    **_means("cross_entropy of probabilities", F.cross_entropy),
    **_means("cross_entropy of probabilities, label_smoothing=0.5", _Of(F.cross_entropy, label_smoothing=0.5)),
    **_means("multilabel_soft_margin_loss", F.multilabel_soft_margin_loss),
    **_means("kl_div, batchmean", lambda a, b, reduction: F.kl_div(a, b, reduction="batchmean")),
    **{
        name: loss
        for y in (1.0, -1.0)
        for name, loss in _means(
            f"margin_ranking_loss of {y}",
            lambda a, b, reduction, y=y: F.margin_ranking_loss(a, b, torch.full_like(a, y), reduction=reduction),
        ).items()
    },
    **{
        name: loss
        for full in (False, True)
        for eps in (1e-6, 0.0)
        for name, loss in _means(
            f"gaussian_nll_loss, full={full}, eps={eps}",
            lambda a, b, reduction, f=full, e=eps: F.gaussian_nll_loss(a, b, b.abs(), f, e, reduction),
        ).items()
    },
    **{
        name: loss
        for p in (1.0, 2.0, INFINITY)
        for swap in (False, True)
        for name, loss in _means(
            f"triplet_margin_loss, p={p}, swap={swap}",
            lambda a, b, reduction, p=p, swap=swap: F.triplet_margin_loss(
                a, b, a.roll(1, 0), p=p, eps=0.0, swap=swap, reduction=reduction
            ),
        ).items()
    },
    "triplet_margin_with_distance_loss": lambda a, b: F.triplet_margin_with_distance_loss(a, b, a.roll(1, 0)),
    "scaled_dot_product_attention, scale=0": lambda a, b: F.scaled_dot_product_attention(a, b, a, scale=0.0),
    "scaled_dot_product_attention": lambda a, b: F.scaled_dot_product_attention(a, b, a),
}
CORNERS = {
    "corners": [[[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [1.0, -1.0]]],
    "beyond": [[[-1.5, 0.0], [2.0, 2.0], [-3.0, 1.0], [0.5, 5.0]]],
    "halves": [[[-0.5, 0.5], [0.75, -0.75], [0.25, 0.0], [0.0, -0.25]]],
}  # PyTorch's kernel reads beyond its memory at infinities
IMAGE = torch.arange(12.0).reshape(1, 1, 3, 4)
OF_GRIDS = {
    f"grid_sample, {m}, {p}, align_corners={a}": lambda g, m=m, p=p, a=a: F.grid_sample(
        IMAGE.to(g.dtype), g[None], mode=m, padding_mode=p, align_corners=a
    )
    for m in ("bilinear", "nearest", "bicubic")
    for p in ("zeros", "border", "reflection")
    for a in (False, True)
}

# Distributions: parameters and values at bounds.


def _density(distribution: Callable) -> Callable:
    return lambda value, *parameters: distribution(*parameters).log_prob(value)


REALS, POSITIVE = (0.0, -0.0, 1.0, -1.0, 2.0), (0.5, 1.0, 2.0)
DENSITIES = {
    "Normal": (D.Normal, REALS, FINITE, POSITIVE),
    "Laplace": (D.Laplace, REALS, REALS, POSITIVE),
    "Cauchy": (D.Cauchy, REALS, REALS, POSITIVE),
    "StudentT": (D.StudentT, REALS, POSITIVE),
    "Gumbel": (D.Gumbel, REALS, REALS, POSITIVE),
    "Exponential": (D.Exponential, (0.0, 1.0), POSITIVE),
    "Gamma": (D.Gamma, (0.0, 1.0, 2.0), POSITIVE, POSITIVE),
    "Beta": (D.Beta, UNIT, POSITIVE, POSITIVE),
    "Uniform": (D.Uniform, (0.0, 0.5, 1.0), (-1.0, 0.0), (1.0, 2.0)),
    "HalfNormal": (D.HalfNormal, (0.0, 1.0), POSITIVE),
    "HalfCauchy": (D.HalfCauchy, (0.0, 1.0), POSITIVE),
    "Weibull": (D.Weibull, (0.0, 1.0, 2.0), POSITIVE, POSITIVE),
    "Pareto": (D.Pareto, (2.0, 3.0), (1.0, 2.0), POSITIVE),
    "LogNormal": (D.LogNormal, (0.5, 1.0, 2.0), REALS, POSITIVE),
    "Kumaraswamy": (D.Kumaraswamy, UNIT, POSITIVE, POSITIVE),
    "Poisson": (D.Poisson, (0.0, 1.0, 3.0), (0.0, 1.0, 2.0)),
    "Bernoulli": (lambda p: D.Bernoulli(p), (0.0, 1.0), UNIT),
    "Bernoulli of logits": (lambda x: D.Bernoulli(logits=x), (0.0, 1.0), ANY),
    "Geometric": (D.Geometric, (0.0, 1.0, 2.0), (0.5, 1.0)),
    "Binomial": (lambda p: D.Binomial(3, p), (0.0, 1.0, 3.0), UNIT),
    "NegativeBinomial": (lambda p: D.NegativeBinomial(3.0, p), (0.0, 1.0), (0.0, 0.5)),
    "ContinuousBernoulli": (D.ContinuousBernoulli, UNIT, (0.25, 0.5, 0.75)),
    "VonMises": (D.VonMises, (0.0, 1.0), (0.0, 1.0), (0.5, 1.0, 5.0)),
}


def _divergence(distribution: Callable, places: int) -> Callable:
    return lambda *x: D.kl_divergence(distribution(*x[:places]), distribution(*x[places:]))


DIVERGENCES = {
    "Normal": (D.Normal, (0.0, 1.0), POSITIVE),
    "Laplace": (D.Laplace, (0.0, 1.0), POSITIVE),
    "Bernoulli": (D.Bernoulli, UNIT),
    "Geometric": (D.Geometric, (0.5, 1.0)),
    "Exponential": (D.Exponential, POSITIVE),
    "Gamma": (D.Gamma, POSITIVE, POSITIVE),
    "Beta": (D.Beta, POSITIVE, POSITIVE),
    "Poisson": (D.Poisson, (0.0, 1.0, 2.0)),
    "Uniform": (D.Uniform, (-1.0, 0.0), (1.0, 2.0)),
}


def _kinds() -> Iterator[Functional]:
    for name, function in {**ACTIVATIONS, **NUMBERS}.items():
        yield _grid(name, function, ANY)
    for name, function in PAIRS.items():
        yield _grid(name, function, FEW, FEW)
    for name, function in OF_UNIT.items():
        yield _grid(name, function, UNIT, UNIT)
    for name, function in OF_SIGNS.items():
        yield _grid(name, function, FEW, SIGNS)
    for name, function in TRIPLES.items():
        yield _grid(name, function, FINITE, FINITE, FINITE)
    for name, function in OF_ROWS.items():
        yield Functional(name, function, {at: [x] for at, x in ROWS.items()})
    for name, function in OF_ROWS_AND_ROWS.items():
        yield Functional(name, function, PAIRS_OF_ROWS)
    for name, function in OF_GRIDS.items():
        yield Functional(name, function, {at: [x] for at, x in CORNERS.items()})
    for name, (distribution, *values) in DENSITIES.items():
        yield _grid(f"log_prob of {name}", _density(distribution), *values)
    for name, (distribution, *values) in DIVERGENCES.items():
        yield _grid(f"kl_divergence of {name}", _divergence(distribution, len(values)), *values, *values)


FUNCTIONALS = list(_kinds())
