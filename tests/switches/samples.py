"""What runs under each switch: operators by family, modules, training steps, branches, transformations, the bridge."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch2jax import j2t, t2j, torch2jax

__all__ = ["DRAWN", "SAMPLES", "Sample"]

Sample = Callable[[], Any]
"""Makes what it needs, under the switch, and gives arrays."""


def _x() -> jax.Array:
    return jnp.linspace(0.5, 2.0, 6, dtype=jnp.float32).reshape(2, 3)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.twice = 2 * x
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp() + 0 * ctx.twice


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, ctx.x, gradient)


def _branch(x):
    return x * 2 if x.sum() > 0 else x - 1


def _loop(x):
    for _ in range(4):
        if x.sum() > 20:
            break
        x = x * 2
    return x


def _check(x):
    if x.sum() < 0:
        raise ValueError("a negative sum")
    return x.log()


def _backward(x):
    x = x.detach().requires_grad_()
    x.sin().sum().backward()
    return x.grad


def _backward_on_one_side(x):
    x = x.detach().requires_grad_()
    y = x * 3
    if x.sum() > 0:
        y = y * torch.arange(6.0).reshape(2, 3)
    y.sin().sum().backward()
    return x.grad


def _checkpointed(function):
    def checkpointed(x):
        return checkpoint(lambda y: function(y * torch.arange(6.0).reshape(2, 3), x), x * 1.5, use_reentrant=False)

    return checkpointed


def _takes_a_gradient(y, x):
    weight = torch.ones(2, 3, requires_grad=True)
    (weight * y * x).sin().sum().backward()
    return weight.grad


def _knows_its_sum(y, x):
    return y * 0 * len(str(float(y.sum()))) + x


def _asked_for_a_number():
    """What is left when a checkpoint cannot be translated."""
    try:
        return jax.jit(t2j(_checkpointed(_knows_its_sum)))(_x())
    except TypeError:
        return _x()


def _branch_in_a_branch(x):
    return torch.cond(x.sum() > 0, lambda x: _branch(x * torch.arange(6.0).reshape(2, 3)), torch.sin, (x,))


def _write(x):
    y = x.clone()
    y[0] += 1
    y.view(-1)[2:4].mul_(3)
    return y


def _asks(x):
    return x * 2 if x.requires_grad else x.detach() * 2


def _hooked(x):
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2)
    return y.sin()


def _in_place_within_vmap(x):
    def each(row):
        row.add_(1)
        return row[:2]

    return torch.vmap(each)(x.clone())


FUNCTIONS: dict[str, Callable] = {
    "pointwise": lambda x: (x.sin() + x.exp().log1p() * x.sigmoid()).clamp(0, 1),
    "broadcast": lambda x: x + torch.ones(3) * x[0] - x.sum(1, keepdim=True),
    "reduce": lambda x: torch.stack([x.mean(), x.std(), x.logsumexp(1).sum(), x.amax()]),
    "index": lambda x: x[:, torch.tensor([2, 0])] + x.gather(1, torch.tensor([[0, 1], [2, 0]])),
    "mask": lambda x: x[x > 1].sum(),
    "sort": lambda x: x.sort(dim=1, descending=True).values + x.topk(3).values,
    "linalg": lambda x: torch.linalg.inv(x @ x.T + torch.eye(2)) + torch.linalg.cholesky(x @ x.T + torch.eye(2)),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "special": lambda x: torch.special.i0(x) + torch.lgamma(x) + torch.special.erfcx(x),
    "polynomials": lambda x: torch.special.chebyshev_polynomial_t(x, 3),
    "integers": lambda x: (x * 4).long() // 3 + (x > 1),
    "loss": lambda x: F.cross_entropy(x, torch.tensor([1, -100])) + F.l1_loss(x, x.flip(0)),
    "pos_weight": lambda x: F.binary_cross_entropy_with_logits(x, 0 * x, pos_weight=torch.ones(3)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "pool": lambda x: F.max_pool1d(F.conv1d(x[None], torch.ones(2, 2, 2)), 2),
    "norm": lambda x: F.layer_norm(x, (3,)) + F.normalize(x),
    "write": _write,
    "branch": _branch,
    "loop": _loop,
    "check": _check,
    "asks": _asks,
    "backward": _backward,
    "backward on one side": _backward_on_one_side,
    "hook": _hooked,
    "checkpoint": lambda x: checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=True),
    "checkpoint, branch": _checkpointed(lambda y, x: y * 2 * x if y.sum() > 0 else y - 1),
    "checkpoint, check": _checkpointed(lambda y, x: _check(y + x)),
    "checkpoint, asks": _checkpointed(lambda y, x: y * x if y.requires_grad else y.detach() * x),
    "checkpoint, backward": _checkpointed(_takes_a_gradient),
    "custom": lambda x: _Exp.apply(x),
    "custom, recorded": lambda x: _Recorded.apply(x),
    "vmap": torch.vmap(torch.sin),
    "vmap, in place": _in_place_within_vmap,
    "func.grad": torch.func.grad(lambda x: x.sin().sum()),
    "func.jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "func.jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "func.hessian": lambda x: torch.func.hessian(lambda y: y.sin().sum())(x[0]),
    "func.jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "cond, branch": _branch_in_a_branch,
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
}


def _total(function: Callable) -> Callable:
    return lambda x: sum(jnp.sum(y.real) for y in jax.tree.leaves(t2j(function)(x)))


def _ways(name: str, function: Callable) -> dict[str, Sample]:
    ways = {
        "eager": lambda: t2j(function)(_x()),
        "jit": lambda: jax.jit(t2j(function))(_x()),
    }
    if name not in ("integers",):
        ways |= {
            "grad": lambda: jax.grad(_total(function))(_x()),
            "jit of grad": lambda: jax.jit(jax.grad(_total(function)))(_x()),
            "grad of jit": lambda: jax.grad(jax.jit(_total(function)))(_x()),
        }
    return {f"{name}: {way}": sample for way, sample in ways.items()}


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(0.5)), (2, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.MaxPool2d(2)), (1, 1, 6, 6)),
    "lstm": (lambda: nn.LSTM(3, 4, batch_first=True), (1, 2, 3)),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (1, 3, 4)),
}


def _training_step(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Any:
    torch.manual_seed(0)
    module = make()
    f, state = t2j(module), t2j(module.state_dict())
    weights = {name: x for name, x in state.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    x = jnp.ones(shape, jnp.float32).at[..., 0].set(0.3)

    def loss(weights, key):
        out, new = f(x, state_dict={**state, **weights}, rng=key, return_state_dict=True)
        return jnp.square(jax.tree.leaves(out)[0]).mean(), new

    gradients, _ = jax.jit(jax.grad(loss, has_aux=True))(weights, jax.random.key(0))
    return jax.tree.map(lambda x, g: x - 0.1 * g, weights, gradients)


def _by_optimizer() -> Any:
    def steps(x):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.Adam([weight], 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (x @ weight).square().mean().backward()
            optimizer.step()
        return weight.detach()

    return jax.jit(t2j(steps))(_x())


def _drawn() -> Any:
    return jax.jit(t2j(lambda x: F.dropout(x) * 0 + torch.rand(2, 3) * 0 + torch.randperm(3) * 0))(
        _x(), rng=jax.random.key(0)
    )


def _bridge(transform: Callable) -> Sample:
    def sample() -> Any:
        f = torch2jax(lambda x: torch.sin(x) * 2, _x())
        return transform(f)(_x())

    return sample


def _from_torch() -> Any:
    x = torch.linspace(0.5, 2, 6, requires_grad=True)
    y = j2t(jnp.sin)(x)
    y.sum().backward()
    return jnp.asarray(x.grad.numpy()), jnp.asarray(y.detach().numpy())


DRAWN = ("training: mlp", "training: transformer")
"""Samples whose numbers are random."""

SAMPLES: dict[str, Sample] = {}
for _name, _function in FUNCTIONS.items():
    SAMPLES |= _ways(_name, _function)
for _name, _arguments in MODULES.items():
    SAMPLES[f"training: {_name}"] = lambda arguments=_arguments: _training_step(*arguments)
SAMPLES |= {
    "training: optimizer": _by_optimizer,
    "a number within a checkpoint": _asked_for_a_number,
    "random": _drawn,
    "bridge: eager": _bridge(lambda f: f),
    "bridge: jit": _bridge(jax.jit),
    "bridge: grad": _bridge(lambda f: jax.grad(lambda x: f(x).sum())),
    "bridge: jit of grad": _bridge(lambda f: jax.jit(jax.grad(lambda x: f(x).sum()))),
    "j2t": _from_torch,
}
