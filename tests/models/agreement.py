"""Asserts that a translated model agrees with PyTorch: outputs, and the gradient of every parameter."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch2jax import t2j


def tensors_of(tree) -> list[torch.Tensor]:
    """The floating-point tensors of a result, in order."""
    if hasattr(tree, "to_tuple"):
        tree = tree.to_tuple()
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def arrays_of(tree) -> list[jax.Array]:
    """The floating-point arrays of a result, in order."""
    if hasattr(tree, "to_tuple"):
        tree = tree.to_tuple()
    leaves = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)]


def relative_error(actual, expected) -> float:
    """The largest error, as a part of the largest expected value."""
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max(initial=0) + 1e-6
    return float(np.abs(np.asarray(actual, np.float64) - expected).max(initial=0) / scale)


def assert_agrees(
    model: torch.nn.Module,
    *args: Any,
    tolerance: float = 2e-5,
    gradient_tolerance: float = 1e-3,
    eager: bool,
    **kwargs: Any,
) -> None:
    """Compares outputs, gradients of all parameters, and the buffers afterwards, jitted; outputs perhaps also eager,
    which compiles each operation by itself.

    Errors are measured against the largest value of each tensor: deep models lose digits on small ones.
    """
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    params, buffers = _split(model)
    j_args, j_kwargs = pytree.tree_map_only(torch.Tensor, t2j, (args, kwargs))
    translated = t2j(model)

    def apply(params):
        result, state = translated(*j_args, state_dict={**buffers, **params}, return_state_dict=True, **j_kwargs)
        return arrays_of(result), state

    reference = copy.deepcopy(model)
    expected = tensors_of(reference(*args, **kwargs))
    generator = np.random.default_rng(0)
    cotangents = [generator.standard_normal(want.shape).astype(want.detach().numpy().dtype) for want in expected]

    def loss(params):
        outputs, state = apply(params)
        return sum(jnp.vdot(c, out) for c, out in zip(cotangents, outputs, strict=True)), (outputs, state)

    if eager:
        outputs, _ = apply(params)
    grads, (jitted, state) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert len(jitted) == len(expected)
    for i, want in enumerate(expected):
        want = want.detach().numpy()
        assert jitted[i].shape == want.shape
        assert relative_error(jitted[i], want) < tolerance, f"output {i} under jit"
        if eager:
            assert relative_error(outputs[i], want) < tolerance, f"output {i}"
    for name, buffer in reference.named_buffers():
        if name in state:
            assert relative_error(state[name], buffer.numpy()) < tolerance, f"buffer {name}"

    sum((torch.from_numpy(c) * out).sum() for c, out in zip(cotangents, expected, strict=True)).backward()
    norm = max(float(p.grad.abs().max()) for p in reference.parameters() if p.grad is not None)
    for name, parameter in reference.named_parameters():
        if not parameter.requires_grad:
            continue
        want = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        # A gradient that is zero but for rounding (a bias before a norm) is compared to the largest one.
        error = np.abs(np.asarray(grads[name], np.float64) - want).max() / max(np.abs(want).max(), 1e-4 * norm)
        assert error < gradient_tolerance, f"gradient of {name}: {error}"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"{name} was changed"


def _split(model: torch.nn.Module):
    """The arrays to differentiate by, and the others (buffers and frozen parameters)."""
    params = {name: t2j(p) for name, p in model.named_parameters() if p.requires_grad}
    others = {name: t2j(p) for name, p in model.named_parameters() if not p.requires_grad}
    return params, others | {name: t2j(b) for name, b in model.named_buffers()}
