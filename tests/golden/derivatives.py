"""Programs that take derivatives: on the tape, by `torch.func`, in forward mode, of functions, of checkpoints."""

import functools

import jax
import jax.numpy as jnp
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn
from torch.autograd import Function
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from tests.ops.test_graphs import LABELS, M, V
from torch2jax import t2j

from .program import Program, drawing, gradient, of, of_jax, of_module

__all__ = ["checkpoints", "forward_mode", "functions", "tape", "transformations"]


def _backward(x):
    x = x.detach().requires_grad_()
    (x.sin() * x).sum().backward()
    return x.grad


def _forces(positions):
    positions.requires_grad_()
    energy = (1 / torch.pdist(positions)).sum()
    (slope,) = torch.autograd.grad(energy, positions)
    return energy, -slope


def _penalised(weight, x):
    weight.requires_grad_()
    x.requires_grad_()
    loss = torch.tanh(weight * x).sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()
    return weight.grad


def _accumulated(x):
    x = x.detach().requires_grad_()
    x.sin().sum().backward()
    (x * 2).sum().backward()
    return x.grad


def _by_hand(weight, x, y):
    weight = weight.clone().requires_grad_()
    for _ in range(2):
        (x @ weight - y).square().mean().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad.zero_()
    return weight.detach()


def _with_cotangents(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad([x.sin(), x * 2], x, [torch.ones(4), torch.arange(4.0)])


def _through_writes(x):
    x = x.detach().requires_grad_()
    y = x * 1
    y[0] = y[1] * 2
    y.view(2, 2)[1].mul_(3)
    y.sin().sum().backward()
    return x.grad


def _retained(x):
    x.requires_grad_()
    y = x.exp()
    y.retain_grad()
    y.square().sum().backward()
    return x.grad, y.grad


def _second(x):
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return second


def _unused(x, y):
    x.requires_grad_()
    y.requires_grad_()
    return torch.autograd.grad(x.sum(), [x, y], allow_unused=True, materialize_grads=True)


def _of_a_module(module):
    def run(x):
        module.zero_grad()
        module(x).square().mean().backward()
        return [parameter.grad for parameter in module.parameters()]

    return run


def tape() -> dict[str, Program]:
    return {
        "backward": of(_backward, V),
        "backward, gradient": gradient(_backward, V),
        "forces": of(_forces, M),
        "forces, jacobian": of_jax(jax.jacobian(lambda x: t2j(_forces)(x)[1]), M[:2]),
        "forces, in a batch": of_jax(jax.vmap(t2j(_forces)), jnp.stack([M, M])),
        "a penalty on a slope": of(_penalised, V, V),
        "accumulated": of(_accumulated, V),
        "steps by hand": of(_by_hand, V, M, M[:, 0]),
        "cotangents": of(_with_cotangents, V),
        "through writes": of(_through_writes, V),
        "retained": of(_retained, V),
        "a second derivative": of(_second, V),
        "unused": of(_unused, V, V),
        "of a module": of(_of_a_module(nn.Linear(4, 2)), M),
        "of a network": of(_of_a_module(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())), M),
        "no_grad, gradient": gradient(lambda x: x * _without(x), V),
        "detach, gradient": gradient(lambda x: x * x.detach(), V),
        "requires_grad asked": of(lambda x: x * 2 if x.requires_grad else x - 1, V),
        "requires_grad asked, gradient": gradient(lambda x: x * 2 if x.requires_grad else x - 1, V),
        "autograd.functional": of(lambda x: torch.autograd.functional.hessian(lambda x: x.prod(), x), V),
        "a loss of indices": of(lambda x, i: _backward(x.gather(1, i[:, None])), M, LABELS),
        "max and sort": of(lambda x: _grad_of(lambda x: x.max() + x.sort().values[1], x), V),
    }


def _without(x):
    with torch.no_grad():
        return x.sin()


def _grad_of(function, x):
    x = x.detach().requires_grad_()
    function(x).backward()
    return x.grad


class _Rounded(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Exp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(result := x.exp())
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return gradient * result


class _Scaled(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale * 2, None


class _Forward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.sin()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.x.cos()


class _InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class _Recorded(Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, ctx.x, gradient)


def _clipped(x):
    y = x**3
    y.register_hook(lambda gradient: gradient.clamp(-1, 1) * x)
    return (5 * y).sum()


def _module_hook():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module[0].register_full_backward_hook(lambda module, given, found: (given[0] * 2,))
    return module


def _double(x):
    x.grad.mul_(2)


def _accumulate_hook(x):
    x = x.detach().requires_grad_()
    x.register_post_accumulate_grad_hook(_double)
    x.sin().sum().backward()
    return x.grad


def functions() -> dict[str, Program]:
    return {
        "straight through": of(_Rounded.apply, V),
        "straight through, gradient": gradient(lambda x: _Rounded.apply(x) * x, V),
        "saved, gradient": gradient(_Exp.apply, V),
        "on the tape": of(lambda x: _grad_of(lambda x: (_Exp.apply(x) * x).sum(), x), V),
        "setup_context, gradient": gradient(lambda x: _Scaled.apply(x, 3.0), V),
        "in a batch": of(lambda x: vmap(lambda row: _Scaled.apply(row, 2.0))(x), M),
        "its jvp": of_jax(lambda x: jax.jvp(t2j(_Forward.apply), (x,), (x,)), V),
        "mark_dirty, gradient": gradient(lambda x: _InPlace.apply(x * 1), V),
        "recorded, gradient": gradient(_Recorded.apply, V),
        "a hook": of(lambda x: _grad_of(_clipped, x), V),
        "a hook, gradient": gradient(_clipped, V),
        "a hook, value": of(_clipped, V),
        "a module's hook, gradient": gradient(_module_hook(), M),
        "after accumulation": of(_accumulate_hook, V),
    }


def _of_each_sample(weight, x, y):
    module = nn.utils.skip_init(nn.Linear, 4, 2, bias=False)

    def loss(weight, x, y):
        return (functional_call(module, {"weight": weight}, (x,)) - y).square().mean()

    return vmap(grad(loss), in_dims=(None, 0, 0))(weight, x, y)


def _written_in_a_batch(x):
    def each(row):
        row = row.clone()
        row[0] += 1
        return row[:2]

    return vmap(each)(x)


def transformations() -> dict[str, Program]:
    f = lambda x: (x.sin() * x).sum()
    return {
        "grad": of(grad(f), V),
        "grad, gradient": gradient(grad(f), V),
        "grad_and_value": of(torch.func.grad_and_value(f), V),
        "grad with aux": of(grad(lambda x: (f(x), x * 2), has_aux=True), V),
        "vjp": of(lambda x: vjp(torch.sin, x)[1](torch.ones(4)), V),
        "jvp": of(lambda x: jvp(torch.sin, (x,), (torch.ones(4),)), V),
        "jacrev": of(jacrev(torch.sin), V),
        "jacfwd": of(jacfwd(torch.sin), V),
        "hessian": of(hessian(f), V),
        "linearize": of(lambda x: torch.func.linearize(torch.sin, x)[1](torch.ones(4)), V),
        "vmap": of(lambda x: vmap(lambda row: row.softmax(0) @ row)(x), M),
        "vmap of dims": of(lambda x, y: vmap(torch.dot, (1, None))(x, y), M, V[:3]),
        "vmap, nested": of(lambda x, y: vmap(lambda a: vmap(lambda b: a @ b)(y))(x), M, M),
        "vmap, random": drawing(lambda x: vmap(torch.nn.functional.dropout, randomness="different")(x), M),
        "vmap of an index": of(lambda x, i: vmap(lambda row, i: row[i])(x, i), M, LABELS),
        "vmap of a write": of(_written_in_a_batch, M),
        "gradients of each sample": of(_of_each_sample, M[:2], M, M[:, :2]),
        "functionalize": of(torch.func.functionalize(lambda x: x.clone().add_(1)), V),
        "jax's vmap": of_jax(jax.vmap(t2j(lambda x: x[x.argmax()] + x.norm())), M),
        "jax's jvp": of_jax(lambda x: jax.jvp(t2j(f), (x,), (x,)), V),
        "jax's hessian": of_jax(jax.hessian(t2j(f)), V),
        "jax's linearize": of_jax(lambda x: jax.linearize(t2j(f), x)[1](x), V),
    }


def _dual(function):
    def run(x, direction):
        with fwAD.dual_level():
            return fwAD.unpack_dual(function(fwAD.make_dual(x, direction)))

    return run


def _of_a_gradient(x, v):
    x = x.clone().requires_grad_()
    with fwAD.dual_level():
        y = fwAD.make_dual(x, v)
        (gradient,) = torch.autograd.grad((y.sin() * y).sum(), x)
        return fwAD.unpack_dual(gradient)


def _into_a_row(x):
    y = torch.zeros(2, 4)
    y[0] = x
    return y.mT


def forward_mode() -> dict[str, Program]:
    return {
        "exp": of(_dual(torch.exp), V, V),
        "a formula": of(_dual(lambda x: x.sin() * 2 + x @ x), V, V),
        "a write": of(_dual(_into_a_row), V, V),
        "of a gradient": of(_of_a_gradient, V, V),
        "linear": of(_dual(nn.Linear(4, 2)), M, M),
        "gradient of it": gradient(_dual(torch.exp), V, V),
    }


def _deep(x, w):
    for _ in range(2):
        x = checkpoint(lambda x: torch.sin(x @ w), x, use_reentrant=False)
    return x.sum()


def _selective(x, w):
    keep = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(lambda x: torch.sin(x @ w).exp(), x, use_reentrant=False, context_fn=keep)


def checkpoints() -> dict[str, Program]:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    square = jnp.eye(4)
    return {
        "value": of(_deep, M, square),
        "gradient": gradient(_deep, M, square),
        "reentrant": gradient(lambda x: checkpoint(torch.sin, x, use_reentrant=True), V),
        "selective": gradient(_selective, M, square),
        "of a sequence": of_module(_InParts(layers), M, by=True),
        "with dropout": drawing(lambda x: checkpoint(nn.Dropout(), x, use_reentrant=False), V),
        "on the tape": of(lambda x, w: _grad_of(lambda x: _deep(x, w), x), M, square),
        "a condition within": gradient(
            lambda x: checkpoint(lambda x: x.sin() if x.sum() > 0 else x, x, use_reentrant=False), V
        ),
        "without gradients": of(lambda x, w: _deep(x, w) * _without(x).sum(), M, square),
    }


class _InParts(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)
