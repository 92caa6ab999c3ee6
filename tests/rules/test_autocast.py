"""Mixed precision: PyTorch's own lists for both devices, and what PyTorch itself does on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint

from torch2jax import t2j
from torch2jax.rules import autocast
from torch2jax.tensors.dtypes import canonical

KERNELS = {"cudnn_convolution", "cudnn_convolution_transpose"}  # of one library; no function of PyTorch calls them


def entries(lists, suffixes):
    """``(name, args, kwargs)`` of an operator, from the lists whose names end so."""
    for name, rows in vars(lists).items():
        if name.endswith(suffixes):
            for op, args, *rest in rows:
                if not isinstance(args, str) and op not in KERNELS:  # einsum's, which PyTorch skips
                    yield op, args, next((x for x in rest if isinstance(x, dict)), {})


def call(name: str, args, kwargs):
    owner = next(x for x in (torch, torch._C._nn, torch._C._linalg) if hasattr(x, name)) if name[0] != "_" else torch
    if not hasattr(owner, name):
        return getattr(args[0], name)(*args[1:], **kwargs)
    return getattr(owner, name)(*args, **kwargs)


def cast(args, dtype):
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, args)


LISTS = {"cpu": AutocastCPUTestLists, "cuda": AutocastTestLists}
# Parts of the largest element by which PyTorch's own results differ from one processor to another.
PROCESSOR = {"conv_transpose3d": 0.05}
LOWER, FLOAT32 = ("_16", "_fp16"), ("_fp32", "need_autocast_promote")


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda", torch.float16)])
def test_lists_of_pytorch(device, dtype):
    """Each entry has the dtype that PyTorch's test wants, and the values of the call with its arguments cast before."""
    torch.manual_seed(0)
    lists = LISTS[device]("cpu")
    rows = [(*row, dtype) for row in entries(lists, LOWER)]
    rows += [(*row, torch.float32) for row in entries(lists, FLOAT32)]
    rows = [(name, cast_low(args, dtype), kwargs, wanted) for name, args, kwargs, wanted in rows]
    assert len(rows) > 30
    leaves, spec = tree_flatten([row[1] for row in rows])
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]

    def run(*given):
        given = iter(given)
        filled = tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
        results = []
        for (name, _, kwargs, wanted), args in zip(rows, filled, strict=True):
            with torch.autocast(device, dtype=dtype):
                found = call(name, args, kwargs)
                with torch.autocast(device, enabled=False):
                    by_hand = call(name, cast(args, wanted), kwargs)
            results.append((tree_leaves(found), tree_leaves(by_hand)))
        return results

    found = jax.jit(lambda *xs: t2j(run)(*xs, rng=jax.random.key(0)))(*t2j(tensors))
    for (name, args, kwargs, wanted), (outputs, by_hand) in zip(rows, found, strict=True):
        for output, expected in zip(outputs, by_hand, strict=True):
            expected_dtype = jnp.bool_ if output.dtype == bool else t2j(wanted)
            assert output.dtype == expected.dtype == expected_dtype, name
            np.testing.assert_array_equal(output, expected, err_msg=name)
        if device == "cpu" and outputs[0].dtype != bool:
            with torch.autocast(device, dtype=dtype):
                in_pytorch = tree_leaves(call(name, args, kwargs))
            assert [canonical(x.dtype) for x in in_pytorch] == [x.dtype for x in outputs], name
            for output, expected in zip(outputs, in_pytorch, strict=True):
                if output.shape == ():  # the reduction of these functions is not by default what they document
                    expected = expected.float().mean()
                scale = float(expected.float().abs().max())
                atol = scale * (0.03 if wanted is dtype else 1e-4) + PROCESSOR.get(name, 0) * scale
                np.testing.assert_allclose(np.float32(output), expected.float(), rtol=1e-4, atol=atol, err_msg=name)


def cast_low(args, dtype):
    """The lists' tensors of low precision, in that of the region."""
    low = (torch.float16, torch.bfloat16)
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in low else x, args)


def test_every_policy_is_of_an_operator_that_pytorch_casts():
    names = autocast._LOWER | autocast._SUM_IN_FLOAT32 | autocast._WIDEST | autocast._FLOAT32_ON_CPU
    keys = ("AutocastCPU", "AutocastCUDA", "AutocastMPS")
    assert [name for name in names if not any(autocast._registers(name, None, key) for key in keys)] == []


COMPOSED = {
    "einsum": lambda x, h: (torch.einsum("ij,kj->ik", x, x), torch.einsum("ij,ij->ij", x, x), torch.einsum("ii", x)),
    "inner": lambda x, h: (x.inner(x), x.select(0, 0).inner(x.select(0, 1)), x.inner(torch.tensor(2.0))),
    "tensordot": lambda x, h: torch.tensordot(x, x, 1),
    "division": lambda x, h: (1 / h, 1 / x, h / 2, h**-1, 2**h, h.square()),
    "norms": lambda x, h: (h.norm(), torch.norm(h, dim=0), torch.linalg.norm(h), F.normalize(h), h.norm(dtype=x.dtype)),
    "sums": lambda x, h: (h.sum(), h.sum(dtype=h.dtype), h.mean(), h.std(), h.cumsum(0), torch.ones(2).long().sum()),
    "softmax": lambda x, h: (F.softmax(h, -1), h.softmax(-1, h.dtype), F.log_softmax(h, 0, dtype=h.dtype)),
    "cross_entropy": lambda x, h: (
        F.cross_entropy(h, torch.zeros(4, dtype=torch.long)),
        F.cross_entropy(h, h.softmax(-1)),
        F.cross_entropy(h, torch.zeros(4, dtype=torch.long), label_smoothing=0.1, reduction="none"),
        F.nll_loss(h, torch.zeros(4, dtype=torch.long)),
    ),
    "pad": lambda x, h: [
        F.pad(h.unsqueeze(0), (1, 1), mode=m) for m in ("constant", "reflect", "replicate", "circular")
    ],
    "interpolate": lambda x, h: F.interpolate(h.expand(1, 1, 4, 4), scale_factor=2.0, mode="bilinear"),
    "cells": lambda x, h: (
        torch.gru_cell(x, x, x.repeat(3, 1), x.repeat(3, 1)),
        torch.rnn_tanh_cell(x, x, x, x),
        torch.lstm_cell(x, (x, x), x.repeat(4, 1), x.repeat(4, 1)),
    ),
    "joined": lambda x, h: (torch.cat([x, h]), torch.stack([h, h]), torch.hstack([h, x]), torch.block_diag(x, h)),
    "in place": lambda x, h: (h.clone().exp_(), x.clone().addmm_(x, x), torch.mm(x, x, out=torch.empty(4, 4))),
    "attention": lambda x, h: F.scaled_dot_product_attention(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)),
    "convolution": lambda x, h: F.conv1d(x.unsqueeze(0), x.unsqueeze(-1), padding="same"),
    "doubles": lambda x, h: x.double() @ x.double(),
}


def dtypes_in_pytorch(device, function, x, h):
    """Those of PyTorch itself; for CUDA of its tensors without data, since that needs no such device."""
    if device == "cpu":
        with torch.autocast(device, dtype=torch.bfloat16):
            return [y.dtype for y in tree_leaves(function(x, h))]
    with FakeTensorMode(), torch.device("cuda"):
        x, h = (torch.empty(t.shape, dtype=t.dtype) for t in (x, h))
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        try:
            return [y.dtype for y in tree_leaves(function(x, h))]
        finally:
            torch.set_autocast_enabled(device, False)
            torch.set_autocast_dtype(device, torch.float16)


CASES = [(name, device) for name in COMPOSED for device in ("cpu", "cuda") if (name, device) != ("cells", "cuda")]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_functions_made_of_others(name, device):
    """They are cast where PyTorch casts: as a whole, or each of the operators that they are made of."""
    x, h = torch.ones(4, 4), torch.ones(4, 4, dtype=torch.bfloat16)

    def run(x, h):
        with torch.autocast(device, dtype=torch.bfloat16):
            found.extend(y.dtype for y in tree_leaves(COMPOSED[name](x, h)))
        return x

    found = []
    jax.eval_shape(t2j(run), *t2j((x, h)))
    assert found == dtypes_in_pytorch(device, COMPOSED[name], x, h)


@torch.autocast("cpu")
def fails_in_a_region(x, found):
    found.append((x @ x).dtype)
    raise ZeroDivisionError


def test_regions_nest_and_the_innermost_counts():
    def dtypes(x):
        found = []
        with torch.autocast("cuda"):
            found.append((x @ x).dtype)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found.append((x @ x).dtype)
                with torch.autocast("cuda", enabled=False):
                    found.append((x @ x).dtype)
                with torch.autocast(x.device.type, enabled=False):  # says "cpu", and means this region
                    found.append((x @ x).dtype)
                found.append((x @ x).dtype)
            with pytest.raises(ZeroDivisionError):
                fails_in_a_region(x, found)
            found.append((x @ x).dtype)
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") == torch.float16
        assert not torch.is_autocast_enabled("cuda")
        seen.append([*found, (x @ x).dtype])
        return x

    seen = []
    t2j(dtypes)(jnp.ones((2, 2)))
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    assert seen == [[half, brain, single, single, brain, brain, half, single]]


@torch.autocast("cpu", dtype=torch.float16)
def decorated(x):
    return x @ x


def test_decorators_and_switches():
    def switched(x):
        torch.set_autocast_dtype("cpu", torch.float16)
        torch.set_autocast_enabled("cpu", True)
        return x @ x

    x = jnp.ones((2, 2))
    assert t2j(decorated)(x).dtype == t2j(switched)(x).dtype == jnp.float16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_a_region_around_the_call_is_in_it():
    product, x = t2j(lambda x: x @ x), jnp.ones((2, 2))
    with torch.autocast("cpu"):
        assert product(x).dtype == jax.jit(product)(x).dtype == jnp.bfloat16
    assert product(x).dtype == jnp.float32


def test_transformations_within_a_region():
    layer = nn.Linear(2, 2)

    def loss(x):
        result = layer(x)
        assert result.dtype == torch.bfloat16
        return result.float().sum()

    def run(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            checkpointed = checkpoint(loss, x, use_reentrant=False)
            return checkpointed + loss(x), torch.func.grad(loss)(x), torch.vmap(loss)(x)

    x = jnp.ones((3, 2))
    assert [y.dtype for y in jax.eval_shape(t2j(run), x)] == [jnp.float32] * 3
    gradient = jax.jit(jax.grad(lambda x: t2j(run)(x)[0]))(x)  # a weight's cast within a checkpoint stays in it
    np.testing.assert_allclose(gradient[0], 2 * layer.weight.detach().sum(0), rtol=2e-2)


def test_what_pytorch_refuses():
    def banned(x):
        with torch.autocast("cuda"):
            return F.binary_cross_entropy(x, x)

    def mixed(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.dot(x.half(), x.half())

    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        t2j(banned)(jnp.ones(3))
    with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        t2j(mixed)(jnp.ones(3))


def test_what_a_mask_chose_is_cast_too():
    def chosen(x):
        with torch.autocast("cuda"):
            return x.half()[x > 1].exp().sum()

    x = jnp.array([0.5, 1.5, 2.5])
    found = jax.jit(t2j(chosen))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, np.exp([1.5, 2.5]).sum(), rtol=1e-5)


# Graphs.


def conversions(jaxpr, dtype) -> int:
    return sum(e.primitive.name == "convert_element_type" and e.params["new_dtype"] == dtype for e in jaxpr.eqns)


def test_a_weight_is_cast_once():
    layer = nn.Linear(4, 4)

    def twice(x):
        with torch.autocast("cpu"):
            return layer(layer(x))

    graph = jax.make_jaxpr(t2j(twice))(jnp.ones((2, 4)))
    assert conversions(graph, jnp.bfloat16) == 3  # x, weight, bias

    def without_cache(x):
        with torch.autocast("cpu", cache_enabled=False):
            return layer(layer(x))

    assert conversions(jax.make_jaxpr(t2j(without_cache))(jnp.ones((2, 4))), jnp.bfloat16) == 5


def test_a_cast_is_of_the_values_at_the_time():
    layer = nn.Linear(2, 2, bias=False)
    state = t2j(layer.state_dict())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            with torch.autocast("cpu"):
                first = self.layer(x)
                with torch.no_grad():
                    self.layer.weight.mul_(2)
                    second = self.layer(x)
                return second / first, self.layer(x).float().sum()

    x = jnp.ones((1, 2))
    ratio, _ = t2j(Model())(x, state_dict={"layer.weight": state["weight"]})
    np.testing.assert_array_equal(ratio, 2 * jnp.ones((1, 2), jnp.bfloat16))
    gradient = jax.grad(lambda w: t2j(Model())(x, state_dict={"layer.weight": w})[1])(state["weight"])
    assert (gradient != 0).all()  # what was cast without gradients is not used again with them


def test_code_outside_of_regions_keeps_its_graph():
    def plain(x):
        with torch.autocast("cpu", enabled=False):
            return F.layer_norm(x @ x, (2,)).softmax(-1)

    def bare(x):
        return F.layer_norm(x @ x, (2,)).softmax(-1)

    graphs = [str(jax.make_jaxpr(t2j(f))(jnp.ones((2, 2)))) for f in (plain, bare)]
    assert graphs[0] == graphs[1]


# Layers, and their gradients.


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train()


def watched(model, x, device):
    """What each module gives, by dtype, and the loss."""
    seen = []

    def note(name, module, args, output):
        seen.append((name, [y.dtype for y in tree_leaves(output) if isinstance(y, torch.Tensor)]))

    hooks = [m.register_forward_hook(functools.partial(note, name)) for name, m in model.named_modules()]
    try:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
    finally:
        for hook in hooks:
            hook.remove()
    return seen, loss


def test_a_transformer():
    """The dtype of every module's output is PyTorch's, and the gradients, inside and from outside, are as near to it
    as it is to its own in single precision."""
    torch.manual_seed(0)
    model, x = encoder(), torch.randn(3, 5, 8)
    wanted, loss = watched(model, x, "cpu")
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().mean().backward()
    single = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()

    def train(x):
        found, loss = watched(model, x, "cpu")
        seen.append(found)
        loss.backward()
        return loss, {name: p.grad for name, p in model.named_parameters()}

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return watched(self.model, x, "cpu")[1]

    seen, params = [], {f"model.{name}": t2j(p) for name, p in model.named_parameters()}
    value, inside = jax.jit(t2j(train))(t2j(x))
    outside = jax.jit(jax.grad(lambda p: t2j(Loss())(t2j(x), state_dict=p)))(params)
    assert seen[-1] == wanted
    np.testing.assert_allclose(value, loss.item(), rtol=1e-2)
    for name, gradient in expected.items():
        for found in (inside[name], outside[f"model.{name}"]):
            assert found.dtype == jnp.float32
            atol = 2 * float((gradient - single[name]).abs().max()) + 0.02 * float(gradient.abs().max()) + 1e-4
            np.testing.assert_allclose(found, gradient, atol=atol, rtol=0)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    layer, x = kind(4, 3, 2), torch.randn(5, 2, 4)

    def run(x):
        with torch.autocast("cpu"):
            return layer(x)

    found = jax.tree.leaves(jax.jit(t2j(run))(t2j(x)))
    try:
        in_pytorch = tree_leaves(run(x))
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("PyTorch has no such layer of half precision for this processor")
    for output, expected in zip(found, in_pytorch, strict=True):
        assert output.dtype == canonical(expected.dtype)
        np.testing.assert_allclose(np.float32(output), expected.detach().float(), atol=1e-2)


# Custom functions.


class Scaled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient @ x.T + x.T @ gradient


class InRegion(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        product = gradient @ x.T
        assert product.dtype == torch.bfloat16, "the region of forward is that of backward"
        return product.float() + (x.T @ gradient).float()


@pytest.mark.parametrize(("function", "dtype"), [(Scaled, torch.float32), (InRegion, torch.bfloat16)])
def test_custom_functions(function, dtype):
    """`custom_fwd` casts what it is told to, whatever device tensors claim, and `custom_bwd` is in the same region."""

    def run(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            result = function.apply(x)
        assert result.dtype == dtype
        return result.float().sum()

    def on_tape(x):
        x.requires_grad_()
        run(x).backward()
        return x.grad

    x = jnp.array([[1.0, 2.0], [0.5, 1.5]])
    expected = jax.grad(lambda x: (x @ x).sum())(x)
    for found in (jax.grad(t2j(run))(x), jax.jit(t2j(on_tape))(x)):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=2e-2)
