"""Programs of special tensors, and of JAX within: sparse, quantized, jagged, subclasses, the bridge."""

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao import quantization

from tests.ops.test_graphs import M, S, V
from torch2jax import j2t, t2j, torch2jax

from .program import Program, drawing, gradient, of, of_jax, of_module

__all__ = ["bridge", "jagged", "quantized", "sparse", "subclasses"]

_EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 0]])


def _adjacency() -> torch.Tensor:
    return torch.sparse_coo_tensor(_EDGES, torch.ones(4), (3, 3)).coalesce()


class _Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", _adjacency())
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, self.linear(x)).relu()


def _energy(values, x):
    matrix = torch.sparse_coo_tensor(_EDGES, values, (3, 3))
    return (matrix @ x).square().sum()


def _inside(values, x):
    matrix = torch.sparse_coo_tensor(_EDGES, values, (3, 3), requires_grad=True)
    torch.sparse.mm(matrix, x).square().sum().backward()
    return matrix.grad.coalesce().values()


def _embedded(weight, ids):
    weight = weight.detach().requires_grad_()
    F.embedding(ids, weight, sparse=True).sum().backward()
    return weight.grad


def _doubled_in_place(matrix):
    alias = matrix
    matrix.mul_(2)
    return alias.to_dense()


def sparse() -> dict[str, Program]:
    coo = t2j(_adjacency())
    csr = t2j(_adjacency().to_sparse_csr())
    traced = (jnp.asarray(_EDGES.numpy()), jnp.ones(4), M)
    made = lambda i, v: torch.sparse_coo_tensor(i, v, (3, 3))
    return {
        "a layer": of_module(_Graph(), M),
        "a layer, gradient": of_module(_Graph(), M, by=True),
        "known indices": of(lambda v, x: torch.sparse_coo_tensor(_EDGES, v, (3, 3)) @ x, V, M),
        "known indices, gradient": gradient(_energy, V, M),
        "traced indices": of(lambda i, v, x: made(i, v) @ x, *traced),
        "traced indices, coalesced": of(lambda i, v, x: made(i, v).coalesce().values().sum(), *traced),
        "traced indices, dense": of(lambda i, v, x: made(i, v).to_dense(), *traced),
        "on the tape": of(_inside, V, M),
        "an argument": of(lambda m: m * 2, coo),
        "an argument times a vector": of(torch.mv, coo, V[:3]),
        "CSR": of(lambda m, x: m @ x, csr, M),
        "CSR from COO": of(lambda m, x: m.to_sparse_csr() @ x, coo, M),
        "sum and transpose": of(lambda m: (torch.sparse.sum(m, 1).to_dense(), m.t().to_dense()), coo),
        "sparse and sparse": of(lambda m, n: (m + n).to_dense(), coo, coo),
        "a pointwise function": of(lambda m: m.sin().relu().to_dense(), coo),
        "softmax": of(lambda m: torch.sparse.softmax(m, 1).to_dense(), coo),
        "addmm": of(lambda m, x, y: torch.sparse.addmm(y, m, x), coo, M, M),
        "a write": of(_doubled_in_place, coo),
        "to_sparse": of(lambda x: x.to_sparse() @ x.T, M),
        "embedding": of(_embedded, M, jnp.array([0, 2])),
        "index_select": of(lambda m: m.index_select(0, torch.tensor([2, 0])).to_dense(), coo),
    }


class _Int8Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("codes", torch.ones(2, 4, dtype=torch.int8))

    def forward(self, x):
        scale = x.abs().amax(1, keepdim=True) / 127
        codes = (x / scale).round().to(torch.int8)
        return torch._int_mm(codes, self.codes.t()) * scale * self.scale


def _aware() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU()).train()
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(net)


def quantized() -> dict[str, Program]:
    numbers, one = (-128, 127), torch.ones(())
    constant = torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 3, torch.quint8)
    fake = lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, *numbers)
    channels = lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(4), torch.zeros(4, dtype=torch.int32), 1, *numbers
    )
    float8 = jnp.ones((16, 32), jnp.float8_e4m3fn)
    return {
        "8 bits by hand": of_module(_Int8Linear(), jnp.ones((32, 4))),
        "fake": of(fake, M),
        "fake, gradient": gradient(fake, M),
        "fake, by channels": of(channels, M),
        "aware training": of_module(_aware(), M, train=True),
        "int_mm": of(lambda x: torch._int_mm(x, x.t()), jnp.ones((32, 8), jnp.int8)),
        "scaled_mm": of(lambda x: torch._scaled_mm(x, x.t(), one, one, out_dtype=torch.float32), float8),
        "a constant": of(lambda x: x @ constant.dequantize().t() + constant.q_scale(), M),
        "made within": of(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), M),
    }


def _jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)


def _attend(x):
    heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


def _longest(values, offsets):
    return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=6).amax(1).sum()


def _learn(values, offsets):
    x = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=5).detach().requires_grad_()
    (x.softmax(1) ** 2).sum().backward()
    return x.grad.values()


def jagged() -> dict[str, Program]:
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    x, parts = t2j(_jagged()), (jnp.ones((8, 4)), jnp.array([0, 3, 8]))
    return {
        "pointwise": of(lambda x: torch.where(x > 0, x * 2 + x.sin(), F.gelu(x)), x),
        "linear and norm": of(lambda x: norm(x + linear(x)), x),
        "mean of rows": of(lambda x: x.mean(1), x),
        "softmax of rows": of(lambda x: x.softmax(1), x),
        "sum": of(lambda x: x.sum(), x),
        "padded": of(lambda x: x.to_padded_tensor(0.0), x),
        "attention": of(_attend, x),
        "largest of rows, gradient": gradient(_longest, *parts),
        "on the tape": of(_learn, *parts),
        "rows": of(lambda x: [row.softmax(0) for row in x.unbind()], x),
        "two of them": of(torch.add, x, t2j(_jagged())),
        "narrow": of(
            lambda x: torch.nested.narrow(x, 1, 0, torch.tensor([2, 4]), layout=torch.jagged) * 2, jnp.ones((2, 5, 4))
        ),
    }


class _Scaled(torch.Tensor):
    """A weight of codes and scales, as quantized ones are."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)  # pyright: ignore

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return cls(func(args[0].codes), func(args[0].scale))
        return func(*(x.codes * x.scale if isinstance(x, cls) else x for x in args), **(kwargs or {}))


class _Rounding(_Scaled):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return cls(func(args[0].codes), func(args[0].scale))
        return func(*(x.codes * x.scale if isinstance(x, cls) else x.round() for x in args))


class _Logged(torch.Tensor):
    """Adds one to sines."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found + 1 if func is torch.sin else found


def _of_scaled(weight, x):
    return x @ weight.t() + 1


class _Meters(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * (2 if func is torch.cos else 1)


def _in_a_mode(x):
    with _Meters():
        return x.cos() + torch.cos(x)


def subclasses() -> dict[str, Program]:
    codes, scale = torch.ones(2, 4, dtype=torch.int8), torch.ones(2, 1)
    weight, rounding = t2j(_Scaled(codes, scale)), t2j(_Rounding(codes, scale))
    layer = nn.Linear(4, 2)
    layer.weight = nn.Parameter(_Scaled(codes, scale), requires_grad=False)
    return {
        "a product": of(_of_scaled, weight, M),
        "a product, gradient": gradient(lambda x, w: _of_scaled(w, x), M, rounding),
        "a layer": of_jax(lambda s, x: t2j(layer)(x, state_dict=s), t2j(layer.state_dict()), M),
        "made within": of(lambda x: x @ _Scaled(torch.ones(4, 2, dtype=torch.int8), torch.ones(1, 2)), M),
        "a result": of(lambda c, s: _Scaled(c, s), jnp.ones((2, 4), jnp.int8), jnp.ones((2, 1))),
        "__torch_function__": of(lambda x: x.as_subclass(_Logged).sin().as_subclass(torch.Tensor), V),
        "a mode": of(_in_a_mode, V),
        "in a batch": of_jax(
            jax.vmap(lambda w, x: t2j(_of_scaled)(w, x), (0, None)),
            jax.tree.map(lambda x: jnp.stack([x, x]), weight),
            M,
        ),
    }


def _in_jax(x):
    return jnp.tanh(x) * 2


def bridge() -> dict[str, Program]:
    inner, twice = j2t(_in_jax), torch2jax(lambda x: torch.sin(x) * 2, V)
    layer = nn.Linear(4, 4)
    return {
        "j2t within": of(lambda x: inner(x * 3).sum(), V),
        "j2t within, gradient": gradient(lambda x: inner(x * 3), V),
        "j2t within, on the tape": of(lambda x: _grad_of(inner, x), V),
        "j2t of gelu in a layer": of_module(_With(layer, j2t(jax.nn.gelu)), M),
        "t2j of j2t": of(j2t(_in_jax), V),
        "torch2jax": of_jax(twice, V),
        "torch2jax, gradient": of_jax(jax.grad(lambda x: twice(x).sum()), V),
        "torch2jax in a batch": of_jax(jax.vmap(twice), M),
        "call_torch": of(lambda x: torch.sin(x) + 1, V, call_torch=[torch.sin]),
        "jax around": of_jax(lambda x: jax.lax.scan(lambda c, x: (t2j(torch.add)(c, x), c), V, x), M),
        "shard of jit": of_jax(jax.jit(t2j(lambda x: F.softmax(x, -1))), M),
        "jax.checkpoint": of_jax(jax.grad(jax.checkpoint(lambda x: t2j(_formula)(x))), V),
        "dropout by jax's key": drawing(lambda x: F.dropout(inner(x)), V),
        "a named tuple": of(lambda x: torch.return_types.max((x.max(), x.argmax())), V),
        "a dictionary in and out": of(lambda d: {"b": d["a"] * 2, "c": [d["a"], None, 3]}, {"a": V}),
        "weights of jax": of_jax(lambda w, x: t2j(F.linear)(x, w), S, M),
    }


def _formula(x):
    return (x.sin() * x.exp()).sum()


def _grad_of(function, x):
    x = x.detach().requires_grad_()
    function(x).sum().backward()
    return x.grad


class _With(nn.Module):
    def __init__(self, layer, function):
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x):
        return self.function(self.layer(x)).sum()
