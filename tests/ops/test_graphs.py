"""The graphs of the most used operators: the StableHLO operations of each, apart from constants and broadcasts of them.

A count that changes is looked at before it is written down here: it is to be what an expert would have written.
"""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

from torch2jax import t2j

X = jnp.linspace(-1, 1, 24).reshape(2, 3, 4)  # three dimensions
M = jnp.linspace(-1, 1, 12).reshape(3, 4)
V = jnp.linspace(-1, 1, 4)
S = jnp.eye(4)
IMAGE = jnp.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
SIGNAL = jnp.linspace(-1, 1, 2 * 4 * 6).reshape(2, 4, 6)
KERNEL = jnp.ones((8, 4, 3, 3))
MASK = M > 0
INDEX = jnp.array([2, 0])
ROWS = jnp.array([[0, 1, 2, 0], [2, 1, 0, 1]])
LABELS = jnp.array([0, 3, 1])
QUERY = jnp.linspace(-1, 1, 2 * 2 * 3 * 4).reshape(2, 2, 3, 4)

GRAPHS = {
    # elementwise
    "add": (lambda x: x + x, (X,), "add"),
    "add a row": (lambda x, v: x + v, (X, V), "add, broadcast_in_dim"),
    "add a scalar": (lambda x: x + 2, (X,), "add"),
    "sub": (lambda x, y: x - y, (X, X), "subtract"),
    "mul": (lambda x, y: x * y, (X, X), "multiply"),
    "div": (lambda x, y: x / y, (X, X), "divide"),
    "floor_divide by a scalar": (lambda x: x // 2, (ROWS,), "compare, divide, remainder, select, subtract"),
    "remainder by a scalar": (lambda x: x % 3, (ROWS,), "add, compare, remainder, select"),
    "pow 2": (lambda x: x**2, (X,), "multiply"),
    "pow": (lambda x, y: x**y, (X, X), "power"),
    "neg": (lambda x: -x, (X,), "negate"),
    "abs": (lambda x: x.abs(), (X,), "abs"),
    "exp": (torch.exp, (X,), "exponential"),
    "log": (torch.log, (X,), "log"),
    "sqrt": (torch.sqrt, (X,), "sqrt"),
    "rsqrt": (torch.rsqrt, (X,), "rsqrt"),
    "sin": (torch.sin, (X,), "sine"),
    "tanh": (torch.tanh, (X,), "tanh"),
    "sigmoid": (torch.sigmoid, (X,), "add, divide, exponential, negate"),
    "clamp": (lambda x: x.clamp(0, 1), (X,), "maximum, minimum"),
    "maximum": (torch.maximum, (X, X), "maximum"),
    "where": (torch.where, (MASK, M, M), "select"),
    "masked_fill": (lambda x, m: x.masked_fill(m, 0.0), (M, MASK), "select"),
    "eq": (lambda x, y: x == y, (X, X), "compare"),
    "gt a scalar": (lambda x: x > 0, (X,), "compare"),
    "logical_and": (torch.logical_and, (MASK, MASK), "and"),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.1), (X, X), "add, multiply, subtract"),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (X, X, X), "add, multiply 2"),
    "to float": (lambda x: x.float(), (ROWS,), "convert"),
    "to its own dtype": (lambda x: x.to(torch.float32), (X,), ""),
    "in place": (lambda x: x.mul_(2).add_(1), (X,), "add, multiply"),
    # reductions
    "sum": (lambda x: x.sum(-1), (X,), "reduce"),
    "sum of all": (torch.sum, (X,), "reduce"),
    "mean": (lambda x: x.mean(-1), (X,), "divide, reduce"),
    "mean, keepdim": (lambda x: x.mean(-1, keepdim=True), (X,), "broadcast_in_dim, divide, reduce"),
    "var": (lambda x: x.var(-1), (X,), "broadcast_in_dim, divide 2, reduce 2, square, subtract"),
    "std": (lambda x: x.std(-1), (X,), "broadcast_in_dim, divide 2, reduce 2, sqrt, square, subtract"),
    "amax": (lambda x: x.amax(-1), (X,), "reduce"),
    "max with indices": (lambda x: x.max(-1), (X,), "and, call, compare 4, iota, or 2, reduce 2, select 2"),
    "argmax": (lambda x: x.argmax(-1), (X,), "and, call, compare 4, iota, or 2, reduce, select 2"),
    "prod": (lambda x: x.prod(-1), (X,), "reduce"),
    "all": (lambda x: x.all(-1), (MASK,), "reduce"),
    "any": (lambda x: x.any(), (MASK,), "reduce"),
    "norm": (lambda x: x.norm(dim=-1), (X,), "reduce, sqrt, square"),
    "logsumexp": (
        lambda x: x.logsumexp(-1),
        (X,),
        "add, broadcast_in_dim 2, exponential, is_finite, log, reduce 2, reshape, select, subtract",
    ),
    "cumsum": (lambda x: x.cumsum(-1), (X,), "add, call, reduce_window"),
    # products
    "matmul": (lambda x, y: x @ y, (M, S), "dot_general"),
    "matmul, batched by a matrix": (lambda x, y: x @ y, (X, S), "dot_general, reshape 2"),
    "bmm": (lambda x, y: torch.bmm(x, y.mT), (X, X), "dot_general, transpose"),
    "addmm": (torch.addmm, (V, M, S), "add, broadcast_in_dim, dot_general"),
    "linear": (F.linear, (M, S), "dot_general"),
    "linear with a bias": (F.linear, (M, S, V), "add, broadcast_in_dim, dot_general"),
    "linear in three dimensions": (F.linear, (X, S, V), "add, broadcast_in_dim, dot_general, reshape 2"),
    "einsum": (lambda x, y: torch.einsum("bij,jk->bik", x, y), (X, S), "dot_general"),
    "einsum of heads": (lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), (QUERY, QUERY), "dot_general"),
    "outer": (torch.outer, (V, V), "broadcast_in_dim 2, multiply, reshape"),
    "dot": (torch.dot, (V, V), "dot_general"),
    # shapes
    "reshape": (lambda x: x.reshape(6, 4), (X,), "reshape"),
    "flatten": (lambda x: x.flatten(1), (X,), "reshape"),
    "transpose": (lambda x: x.mT, (X,), "transpose"),
    "permute": (lambda x: x.permute(2, 0, 1), (X,), "transpose"),
    "unsqueeze": (lambda x: x.unsqueeze(0), (X,), "reshape"),
    "expand": (lambda v: v.expand(3, 4), (V,), "broadcast_in_dim"),
    "repeat": (lambda v: v.repeat(2), (V,), "broadcast_in_dim, reshape"),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, X), "concatenate"),
    "stack": (lambda x, y: torch.stack([x, y]), (V, V), "broadcast_in_dim 2, concatenate"),
    "chunk": (lambda x: x.chunk(2, -1), (X,), "slice 2"),
    "split": (lambda x: x.split([1, 2], 1), (X,), "slice 2"),
    "unbind": (lambda x: x.unbind(0), (X,), "reshape 2, slice 2"),
    "flip": (lambda x: x.flip(-1), (X,), "reverse"),
    "roll": (lambda x: x.roll(1, -1), (X,), "concatenate, slice 2"),
    "tril": (torch.tril, (M,), "compare, iota 2, select, subtract"),
    "pad": (lambda x: F.pad(x, (1, 2)), (X,), "pad"),
    "pad by reflection": (lambda x: F.pad(x, (1, 1), mode="reflect"), (X,), "concatenate, reverse 2, slice 3"),
    # indexing
    "x[0]": (lambda x: x[0], (X,), "reshape, slice"),
    "x[:, 1:3]": (lambda x: x[:, 1:3], (X,), "slice"),
    "x[..., ::2]": (lambda x: x[..., ::2], (X,), "slice"),
    "x[index]": (lambda x, i: x[i], (M, INDEX), "add, broadcast_in_dim, compare, gather, select"),
    "x[[2, 0]]": (lambda x: x[[2, 0]], (M,), "reverse, slice"),
    "x[i] of a traced i": (lambda x, i: x[i], (M, jnp.int32(1)), "add, compare, dynamic_slice, reshape, select"),
    "x[mask] = 0": (lambda x, m: x.masked_fill_(m, 0), (M, MASK), "select"),
    "x[0] = 1": (lambda x: x.__setitem__(0, 1) or x, (M,), "dynamic_update_slice"),
    "x[:, 0] += 1": (
        lambda x: x[:, 0].add_(1) is None or x,
        (M,),
        "add, broadcast_in_dim, dynamic_update_slice, reshape, slice",
    ),
    "index_select": (lambda x, i: x.index_select(0, i), (M, INDEX), "broadcast_in_dim, gather"),
    "gather": (lambda x, i: x.gather(0, i), (M, ROWS), "broadcast_in_dim, gather"),
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i, y), (M, ROWS, M), "add, broadcast_in_dim, scatter, slice"),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), (M, INDEX, M[:2]), "add, broadcast_in_dim, scatter"),
    "one_hot": (lambda i: F.one_hot(i, 4), (LABELS,), "broadcast_in_dim, compare, convert, iota"),
    "embedding": (
        lambda i, w: F.embedding(i, w),
        (ROWS, M),
        "and, broadcast_in_dim 2, compare 2, gather, reduce, select",
    ),
    "sort": (lambda x: x.sort(-1), (X,), "compare 5, iota, select 4, sort"),
    "argsort": (lambda x: x.argsort(-1), (X,), "compare 5, iota, select 4, sort"),
    "topk": (lambda x: x.topk(2), (X,), "top_k"),
    # networks
    "relu": (F.relu, (X,), "maximum"),
    "leaky_relu": (F.leaky_relu, (X,), "compare, multiply, select"),
    "elu": (F.elu, (X,), "compare 2, exponential_minus_one, multiply, select 2"),
    "gelu": (F.gelu, (X,), "add, erf, multiply 3"),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,), "add 2, multiply 6, tanh"),
    "silu": (F.silu, (X,), "add, divide, exponential, multiply, negate"),
    "softplus": (F.softplus, (X,), "compare, exponential, log_plus_one, select 2"),
    "softmax": (lambda x: F.softmax(x, -1), (X,), "broadcast_in_dim 2, divide, exponential, reduce 2, subtract"),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (X,), "broadcast_in_dim 2, exponential, log, reduce 2, subtract 2"),
    "layer_norm": (
        lambda x, v: F.layer_norm(x, (4,), v, v),
        (X, V),
        "add 2, broadcast_in_dim 4, divide 2, multiply 2, reduce 2, rsqrt, square, subtract",
    ),
    "rms_norm": (
        lambda x, v: F.rms_norm(x, (4,), v),
        (X, V),
        "add, broadcast_in_dim 2, divide, multiply 2, reduce, rsqrt, square",
    ),
    "group_norm": (
        lambda x, v: F.group_norm(x, 2, v, v),
        (IMAGE, V),
        "add 2, broadcast_in_dim 4, divide 2, multiply 2, reduce 2, reshape 2, rsqrt, square, subtract",
    ),
    "batch_norm in evaluation": (
        lambda x, v: F.batch_norm(x, v, v, v, v),
        (IMAGE, V),
        "add 2, broadcast_in_dim 2, multiply 3, rsqrt, subtract",
    ),
    "batch_norm in training": (
        lambda x, v: F.batch_norm(x, None, None, v, v, training=True),
        (IMAGE, V),
        "add 2, broadcast_in_dim 4, divide 2, multiply 2, reduce 2, rsqrt, square, subtract",
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), (SIGNAL, KERNEL[:, :, 0]), "convolution, transpose 2"),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, KERNEL), "convolution, transpose 2"),
    "conv2d with a bias": (
        lambda x, w, b: F.conv2d(x, w, b),
        (IMAGE, KERNEL, jnp.ones(8)),
        "add, broadcast_in_dim, convolution, transpose 2",
    ),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        (IMAGE, KERNEL.swapaxes(0, 1)),
        "convolution, reverse, transpose 2",
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (IMAGE,), "maximum 3, slice 4"),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (IMAGE,), "add 3, divide, slice 4"),
    "adaptive_avg_pool2d to one": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,), "divide, reduce, reshape"),
    "interpolate, nearest": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,), "broadcast_in_dim 2, reshape 2"),
    "interpolate, bilinear": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (IMAGE,),
        "compare 2, dot_general 2, iota 2, reduce 2, select 2",
    ),
    "attention": (
        F.scaled_dot_product_attention,
        (QUERY, QUERY, QUERY),
        "broadcast_in_dim 2, divide, dot_general 2, exponential, multiply, reduce 2, subtract",
    ),
    "causal attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        (QUERY,),
        "broadcast_in_dim 3, compare, divide, dot_general 2, exponential, iota 2, multiply, reduce 2, select, subtract",
    ),
    "dropout in evaluation": (lambda x: F.dropout(x, training=False), (X,), ""),
    "mse_loss": (F.mse_loss, (M, M), "divide, reduce, square, subtract"),
    "l1_loss": (F.l1_loss, (M, M), "abs, divide, reduce, subtract"),
    "cross_entropy": (
        F.cross_entropy,
        (M, LABELS),
        "and, broadcast_in_dim 2, compare 3, convert, divide, exponential, gather, log, negate, reduce 5, select 2, "
        "subtract 2",
    ),
    "binary_cross_entropy_with_logits": (
        F.binary_cross_entropy_with_logits,
        (M, M),
        "compare, divide, exponential, log_plus_one, multiply, negate 2, reduce, select 2, subtract 2",
    ),
    "normalize": (lambda x: F.normalize(x, dim=-1), (X,), "broadcast_in_dim 2, divide, maximum, reduce, sqrt, square"),
    "cosine_similarity": (
        lambda x, y: F.cosine_similarity(x, y, dim=-1),
        (X, X),
        "broadcast_in_dim 4, divide 2, maximum 2, multiply, reduce 3, sqrt 2, square 2",
    ),
}


def operations(function, *arrays) -> str:
    """The StableHLO operations of a translated function: ``"add 2, dot_general"``."""
    text = jax.jit(t2j(function)).lower(*arrays).as_text()
    constants = set(re.findall(r"(%\S+) = stablehlo\.constant", text))
    counts = Counter()
    for result, name, operand in re.findall(r"(%[\w#:]+) = \"?(?:stablehlo|chlo)\.(\w+)\"?\(? ?(%\w+)?", text):
        if name == "constant" or (name == "broadcast_in_dim" and operand in constants):
            constants.add(result)
        else:
            counts[name] += 1
    counts["call"] = text.count(" call @")
    return ", ".join(name if count == 1 else f"{name} {count}" for name, count in sorted(counts.items()) if count)


@pytest.mark.skipif(not jax.__version__.startswith("0.10."), reason="the counts are of how JAX 0.10 lowers")
@pytest.mark.parametrize("name", GRAPHS)
def test_operations(name):
    function, arrays, expected = GRAPHS[name]
    assert operations(function, *arrays) == expected
