"""What wrong calls are told: what was got, what was wanted, what to do.

The calls are those that newcomers have tried, in the order in which they would meet them.
"""

import dataclasses
import functools
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch2jax
from torch2jax import j2t, load_state, sharding, t2j, torch2jax as bridge

X = jnp.ones((2, 3))
LINEAR = nn.Linear(3, 4)
STATE = t2j(LINEAR.state_dict())
KEY = jax.random.key(0)
EMBEDDING = nn.Embedding(3, 2)
NORMED = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
SGD = torch.optim.SGD(LINEAR.parameters(), 0.1)


class Row(NamedTuple):
    """A wrong call, the exception it ends in, and texts that tell what was got, what was wanted, and what to do."""

    call: Callable[[], Any]
    error: type[Exception]
    got: str
    wanted: str
    do: str


def under_jit(function, *args, **kwargs):
    return lambda: jax.jit(t2j(function))(*args, **kwargs)


def on(function, *args, **kwargs):
    return lambda: t2j(function)(*args, **kwargs)


class Model(nn.Sequential):
    def sample(self, x):
        return self(x)


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x, mask=None):
        return self.layer(x)


@dataclasses.dataclass
class Batch:
    x: jax.Array


@torch.library.custom_op("messages::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


@torch.library.custom_op("messages::cosine", mutates_args=())
def cosine(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def differentiated_within(x):
    x = x.clone().requires_grad_()
    torch.ops.messages.cosine(x).sum().backward()
    return x.grad


class Writing(nn.Linear):
    def forward(self, x):
        self.weight.add_(1)
        return super().forward(x)


def root_of_the_bridge(scale):
    solve = lambda f, x: jax.lax.fori_loop(0, 3, lambda i, x: x - f(x) / 12, x)
    divided = lambda g, y: y / g(1.0)
    return jax.lax.custom_root(lambda x: scale * scalar()(x), jnp.float32(1), solve, divided)


@functools.cache
def scalar():
    return bridge(lambda x: x**3 - 8, jnp.float32(1))


@functools.cache
def doubled():
    return bridge(lambda x: x * 2, X)


@functools.cache
def sorted_by_numpy():
    return bridge(lambda x: torch.from_numpy(np.sort(x.detach().numpy())).sum(), jnp.ones(3))


def fails_on_large(x):
    if x.sum() > 3:
        raise ValueError("too large")
    return x


def trains_from_outside(x):
    SGD.zero_grad()
    LINEAR(x).sum().backward()
    SGD.step()
    return x


def on_explicit_mesh():
    with jax.set_mesh(jax.make_mesh((2,), ("data",))):
        x = jax.device_put(jnp.zeros((4,), jnp.int32), jax.P("data"))
        table = jax.device_put(jnp.ones((4, 2)), jax.P(None, "data"))
        return jax.jit(t2j(nn.Embedding(4, 2)))(x, state_dict={"weight": table})


def meta_without(name):
    with torch.device("meta"):
        model = nn.BatchNorm1d(3).eval()
    state = {key: x for key, x in t2j(nn.BatchNorm1d(3).state_dict()).items() if key != name}
    return t2j(model)(X, state_dict=state)


@functools.cache
def step():
    made = t2j(lambda linear, x, scale=1.0: linear(x) * scale, state=(LINEAR,))
    return made, made.init(X)


def accumulating():
    def accumulate(linear, optimizer, x, turn):
        linear(x).sum().backward()
        if turn % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    linear = nn.Linear(3, 4)
    made = t2j(accumulate, state=(linear, torch.optim.SGD(linear.parameters(), 0.1)))
    return jax.jit(made)(made.init(X, 1), X, 0)


def by_a_rule_of_other_parameters():
    rules = torch2jax.Rules()
    rules.implements(torch.special.airy_ai)(lambda x, order: x)
    with rules:
        return t2j(lambda x: torch.special.airy_ai(x))(X)


def quantized():
    with warnings.catch_warnings(action="ignore"):  # PyTorch will do without them
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8)


def grows(x):
    out = []
    while x.sum() < 100:
        x = x * 2
        out.append(x)
    return torch.stack(out)


def of_before():
    kept = []
    t2j(lambda x: kept.append(x * 2))(X)
    return kept[0]


def without_operators(x):
    """As torchvision's own Python code runs where its library is missing."""
    if hasattr(torch.ops.torchvision, "roi_align"):
        pytest.skip("another test has defined torchvision's operators")
    code = compile("def pooled(x): return torch.sum(x, dim=x)", "site-packages/torchvision/ops/roi_align.py", "exec")
    names = {"torch": torch}
    exec(code, names)
    return names["pooled"](x)


STATIC = "static_argnames=("
TO_JIT = "The problematic value is of type", "; wanted a"
OF_LATER = {
    "an operator without a derivative": Row(
        lambda: jax.grad(lambda x: t2j(torch.ops.messages.cosine)(x).sum())(X),
        RuntimeError,
        "backward through messages.cosine",
        "no autograd formula",
        "@torch2jax.implements(name)",
    ),
    "an operator without a derivative, in a gradient within": Row(
        on(differentiated_within, X),
        RuntimeError,
        "backward through messages.cosine",
        "no autograd formula",
        "@torch2jax.implements(name)",
    ),
    "an operator without a derivative, in PyTorch": Row(
        lambda: jax.grad(bridge(lambda x: torch.ops.messages.cosine(x).sum(), X))(X),
        jax.errors.JaxRuntimeError,
        "backward through messages.cosine",
        "no autograd formula",
        "register_autograd(name, backward)",
    ),
    "a root of the bridge": Row(
        lambda: jax.grad(root_of_the_bridge)(1.0),
        TypeError,
        "runs in PyTorch",
        "take derivatives forwards",
        "a jax.custom_vjp around the solver",
    ),
    "a derivative forwards of the bridge": Row(
        lambda: jax.jvp(doubled(), (X,), (X,)), TypeError, "runs in PyTorch", "reverse-mode", "Use jax.grad"
    ),
    "a string": Row(
        on(EMBEDDING, "hello"), TypeError, "Got a string for input", "wanted an array", 'return_tensors="np"'
    ),
    "what a tokenizer gives": Row(
        on(EMBEDDING, {"input": np.array([1])}), TypeError, "Got a dict of 'input'", "wanted an array", "(**batch)"
    ),
    "a device of JAX's by name": Row(
        on(lambda x: x.to("gpu"), X), RuntimeError, "Got the device 'gpu'", "wanted a name of PyTorch's", "device_put"
    ),
    "a device of JAX's": Row(
        on(lambda x: x.to(jax.devices()[0]), X), TypeError, "a device of JAX's", "wants its own", "device_put"
    ),
    "a dtype of JAX's": Row(
        on(lambda x: x.to(jnp.bfloat16), X), TypeError, "a dtype of JAX's", "wanted PyTorch's", "torch.float32"
    ),
    "a dtype of JAX's in a factory": Row(
        on(lambda x: torch.zeros(3, dtype=jnp.float32), X), TypeError, "a dtype of JAX's", "wanted", "j2t(jnp.float32)"
    ),
    "numpy of what is differentiated": Row(
        lambda: jax.grad(t2j(lambda x: torch.from_numpy(np.sin(x.numpy())).sum()))(X),
        RuntimeError,
        "numpy() on Tensor that requires grad",
        "no gradient leads through numpy",
        "torch.autograd.Function around it",
    ),
    "a state by name and by place": Row(
        on(LINEAR, X, STATE, state_dict=STATE), TypeError, "Argument 1 is a state", "wanted that by name", "state_dict="
    ),
    "parameters for a state": Row(
        on(LINEAR, X, state_dict=LINEAR.named_parameters()), TypeError, "is a generator", "wanted one", "split()"
    ),
    "a list to load": Row(
        lambda: t2j(LINEAR).load([1, 2]), TypeError, "the state is a list", "wanted one dictionary", "params | buffers"
    ),
    "a state as a tree": Row(
        on(NORMED, X, state_dict={"0": STATE}), RuntimeError, "dictionary in the dictionary", "wanted one", "'0.weight'"
    ),
    "a state of DataParallel's": Row(
        on(LINEAR, X, state_dict={f"module.{name}": x for name, x in STATE.items()}),
        RuntimeError,
        "They begin with 'module.'",
        "names that the module lacks",
        "name.removeprefix('module.')",
    ),
    "a module of DataParallel's": Row(
        on(nn.DataParallel(LINEAR), X, state_dict=STATE),
        RuntimeError,
        "is one around that of the state",
        "names that the module lacks",
        "t2j(module.module)",
    ),
    "a module that is compiled": Row(
        on(torch.compile(LINEAR), X, state_dict=STATE),
        RuntimeError,
        "is one around that of the state",
        "names that the module lacks",
        "t2j(module._orig_mod)",
    ),
    "channels behind": Row(
        on(nn.Conv2d(3, 4, 3), jnp.ones((2, 8, 8, 3))),
        RuntimeError,
        "(2, 8, 8, 3) has its channels last",
        "wanted them behind the batch",
        "jnp.moveaxis(x, 3, 1)",
    ),
    "keys for a key": Row(
        on(nn.Dropout(), X, rng=jax.random.split(KEY, 3)), TypeError, "key<fry>[3]", "wanted one JAX key", "key(0)"
    ),
    "a gradient of PyTorch's around": Row(
        lambda: torch.func.grad(lambda x: t2j(LINEAR)(x).sum())(torch.ones(2, 3)),
        RuntimeError,
        "a tensor that torch.func or torch.vmap transforms",
        "wanted an array",
        "jax.grad or jax.vmap",
    ),
    "a batch of PyTorch's around": Row(
        lambda: torch.vmap(t2j(LINEAR))(torch.ones(2, 3)),
        NotImplementedError,
        "a tensor that torch.func or torch.vmap transforms",
        "wanted an array",
        "jax.grad or jax.vmap",
    ),
    "a write to a parameter": Row(
        on(Writing(3, 4), X), RuntimeError, "a leaf Variable", "within torch.no_grad()", "state=module"
    ),
    "a name on the Hub": Row(
        lambda: load_state("someone/model"),
        FileNotFoundError,
        "someone/model",
        "wanted a .safetensors",
        "snapshot_download",
    ),
    "a module to be sharded": Row(
        lambda: sharding.put(LINEAR, {}, jax.make_mesh((1,), ("data",))),
        TypeError,
        "put got a Linear",
        "wanted a tree of arrays",
        "module.state_dict()",
    ),
    "an axis that the mesh lacks": Row(
        lambda: sharding.specs(LINEAR, jax.make_mesh((1,), ("data",)), fsdp="model"),
        ValueError,
        "got the axis 'model'",
        "the mesh has",
        "'data'",
    ),
    "an optimizer": Row(
        lambda: t2j(torch.optim.SGD([nn.Parameter(torch.ones(2))])),
        TypeError,
        "got a SGD",
        "wanted the function that calls its step()",
        "state=(model, optimizer)",
    ),
    "a loader": Row(
        lambda: t2j(torch.utils.data.DataLoader([1, 2])),
        TypeError,
        "got a DataLoader",
        "wanted its batches",
        "t2j(batch)",
    ),
    "a class": Row(lambda: t2j(nn.Linear), TypeError, "got the class Linear", "wanted a module", "t2j(Linear(...))"),
    "a function of PyTorch's to j2t": Row(
        lambda: j2t(torch.sin), TypeError, "got torch.sin", "wanted JAX's", "Use t2j to convert"
    ),
    "a number": Row(on(LINEAR, 3.0), TypeError, "not float", "Wanted an array for input", "jnp.asarray(input)"),
    "complex numbers": Row(
        on(LINEAR, X.astype(complex)), RuntimeError, "input is complex64", "are float32", "input.astype('float32')"
    ),
    "a missing argument": Row(
        on(LINEAR), TypeError, "missing 1 required", "Wanted the arguments", "(input, state_dict=, rng="
    ),
    "a method of a tensor's device": Row(
        lambda: t2j(LINEAR).cuda(), AttributeError, "'cuda'", "Wanted that of the module", "before t2j(module)"
    ),
    "a state that lacks something": Row(
        lambda: t2j(LINEAR).load({}),
        RuntimeError,
        "no array for 'weight'",
        "pass everything that split() returned",
        "strict=False",
    ),
}
OF_NEWCOMERS = {
    "a formatted loss": Row(
        under_jit(lambda x: print(f"loss {x.sum():.3f}"), X),
        torch2jax.TracedValueError,
        "format(tensor)",
        "needs the value",
        "j2t(jax.debug.print)('{:.3f}', tensor)",
    ),
    "a loss in a text of C's": Row(
        under_jit(lambda x: print("loss %.3f" % x.sum()), X),  # noqa: UP031
        torch2jax.TracedValueError,
        "the text of a traced number",
        "needs the value",
        "j2t(jax.debug.print)('{:.3f}', tensor)",
    ),
    "a whole number in a text of C's": Row(
        under_jit(lambda x: print("loss %d" % x.sum()), X),  # noqa: UP031
        torch2jax.TracedValueError,
        "the text of a traced number",
        "needs the value",
        "j2t(jax.debug.print)",
    ),
    "a flag that is iterated": Row(
        under_jit(lambda x, flags: [x for _ in flags], X, True),
        TypeError,
        "iteration over a 0-d tensor",
        "flags (bool)",
        STATIC + "'flags',)",
    ),
    "a flag among others": Row(
        under_jit(lambda x, **options: x if options["return_dict"] else (x,), X, return_dict=True),
        torch2jax.BranchError,
        "return_dict (bool)",
        "wanted the same structure",
        STATIC + "'return_dict',)",
    ),
    "a flag, and an error of the code's": Row(
        under_jit(lambda x, n: {1: x}[n], X, 1), KeyError, "n (int32)", "Python number", STATIC + "'n',)"
    ),
    "a factor of sizes": Row(
        under_jit(lambda x, s: torch.nn.functional.interpolate(x, scale_factor=s), X[None], 2.0),
        TypeError,
        "invalid combination of arguments",
        "s (float32)",
        STATIC + "'s',)",
    ),
    "a size of several": Row(
        under_jit(lambda x, size: x.reshape(size), X, (3, 2)),
        torch2jax.TracedValueError,
        "size (tuple of int32)",
        "needs the value",
        STATIC + "'size',)",
    ),
    "a number for a function of PyTorch's": Row(
        under_jit(torch.sum, X, 1), TypeError, "args[1] (int32)", "Python number", "static_argnums=(1,)"
    ),
    "sizes among arguments": Row(
        under_jit(lambda x, *sizes: x.reshape(*sizes), X, 3, 2),
        torch2jax.TracedValueError,
        "args[1] (int32), args[2] (int32)",
        "needs the value",
        "static_argnums=(1, 2)",
    ),
    "an option that a rule must know": Row(
        under_jit(lambda x, p: x.norm(p), X, 3),
        torch2jax.TracedValueError,
        "has to know one of its options",
        "needs the value",
        STATIC + "'p',)",
    ),
    "classes of no number": Row(
        under_jit(torch.nn.functional.one_hot, jnp.array([1, 2])),
        torch2jax.TracedValueError,
        "one_hot without num_classes",
        "needs the value",
        "say num_classes=",
    ),
    "a closure of a JAX function": Row(
        on(lambda t: j2t(lambda y: y * t)(t), X),
        TypeError,
        "has met a tensor",
        "computes with arrays",
        "j2t(function)(x, tensor)",
    ),
    "a closure of a JAX function, the tensor first": Row(
        on(lambda t: j2t(lambda y: t * y)(t), X),
        TypeError,
        "has met a tensor",
        "computes with arrays",
        "j2t(function)(x, tensor)",
    ),
    "a closure of a JAX function in PyTorch": Row(
        lambda: (lambda t: j2t(lambda y: y * t)(t))(torch.ones(3)),
        TypeError,
        "has met a tensor",
        "computes with arrays",
        "j2t(function)(x, tensor)",
    ),
    "an array before a tensor": Row(
        on(lambda t: jnp.ones(3) * t, X), TypeError, "got an array of JAX", "wanted a tensor", "j2t(array)"
    ),
    "a condition in a JAX function": Row(
        lambda: j2t(lambda x: x if x.sum() > 0 else -x)(torch.ones(3)),
        TypeError,
        "Attempted boolean conversion",
        "is compiled",
        "j2t(function, jit=False)",
    ),
    "numpy in a JAX function": Row(
        lambda: j2t(lambda x: jnp.asarray(np.sin(x)) * float(x[0]))(torch.ones(3)),
        TypeError,
        "__array__",
        "is compiled",
        "j2t(function, jit=False)",
    ),
    "a traced array to j2t": Row(
        lambda: jax.jit(lambda x: LINEAR(j2t(x)))(X),
        TypeError,
        "a traced array",
        "concrete one",
        "t2j(function)(array)",
    ),
    "made-up values": Row(
        lambda: jax.jit(lambda a: bridge(lambda a: torch.from_numpy(np.linalg.inv(a.numpy())), a)(a))(jnp.eye(2)),
        np.linalg.LinAlgError,
        "Singular matrix",
        "made-up values",
        "output_shapes=...",
    ),
    "compilation as a flag": Row(
        lambda: t2j(LINEAR, compile=True), TypeError, "compile=True", "wanted a list of parts", "compile=['']"
    ),
    "the state of what is translated": Row(
        lambda: t2j(LINEAR).state_dict(), AttributeError, "'state_dict'", "a dictionary of arrays", "f.split()"
    ),
    "the parameters of what is translated": Row(
        lambda: list(t2j(LINEAR).parameters()), AttributeError, "'parameters'", "a dictionary of arrays", "f.split()"
    ),
    "a state for what is translated": Row(
        lambda: t2j(LINEAR).load_state_dict(STATE), AttributeError, "'load_state_dict'", "takes its state", "f.load("
    ),
    "training what is translated": Row(
        lambda: t2j(LINEAR).train(), AttributeError, "'train'", "before t2j(module)", "module.train()"
    ),
    "a dtype of what is translated": Row(
        lambda: t2j(LINEAR).half(), AttributeError, "'half'", "Wanted that of the module", "module.half("
    ),
    "a device of what is translated": Row(
        lambda: t2j(LINEAR).to("cuda"), AttributeError, "'to'", "Arrays are where JAX has them", "jax.device_put("
    ),
    "parameters by another name": Row(
        on(LINEAR, X, params=STATE), TypeError, "Got params=", "a state of the module", "state_dict=params"
    ),
    "variables of Flax's": Row(
        on(LINEAR, X, variables={"params": STATE}), TypeError, "Got variables=", "a state", "state_dict=variables"
    ),
    "a list that grows": Row(
        under_jit(grows, X), torch2jax.BranchError, "a list of length 0", "more than 64 paths", "keep a mask"
    ),
    "an attribute of a tensor of before": Row(
        lambda: of_before().shape,
        torch2jax.EndedCallError,
        "reading .shape",
        "wanted one of this call",
        "Return tensors",
    ),
    "torchvision without its operators": Row(
        on(without_operators, X), TypeError, "sum()", "compiled operators are missing", "torch2jax doctor"
    ),
}
OF_LATER |= OF_NEWCOMERS
ROWS = OF_LATER | {
    "a module for its state": Row(
        on(LINEAR, X, state_dict=LINEAR),
        TypeError,
        "the state is a Linear",
        "wanted one dictionary",
        "params | buffers",
    ),
    "a pair for a state": Row(
        on(LINEAR, X, state_dict=(STATE, {})), TypeError, "the state is a tuple", "wanted one", "params | buffers"
    ),
    "a number for a weight": Row(
        on(LINEAR, X, state_dict={"weight": 3.0}), TypeError, "got a float", "wanted an array", "for weight"
    ),
    "a state as Flax has it": Row(
        on(NORMED, X, state_dict={"params": STATE}),
        RuntimeError,
        "'params'",
        "names that",
        "there are '0.weight', '0.bias'",
    ),
    "a method of Flax's": Row(
        lambda: t2j(LINEAR).apply(STATE, X), AttributeError, "'apply'", "function of arrays", "state_dict=state"
    ),
    "a method of the module's": Row(
        lambda: t2j(LINEAR).eval(), AttributeError, "'eval'", "Wanted that of the module", "before t2j(module)"
    ),
    "a list": Row(
        on(LINEAR, [[1.0, 2.0, 3.0]]), TypeError, "not list", "Wanted an array for input", "jnp.asarray(input)"
    ),
    "a state of other things": Row(
        lambda: step()[0](dict(STATE), X),
        TypeError,
        "got a dict",
        "wanted what its init(*args)",
        "a dictionary of arrays for",
    ),
    "a misspelt keyword of a step": Row(
        lambda: step()[0](step()[1], X, sclae=2.0),
        TypeError,
        "sclae=",
        "(state, x, scale=, rng=)",
        "did you mean scale=?",
    ),
    "an array in the state of a function": Row(
        lambda: t2j(lambda s, x: s + x, state=X), TypeError, "got a ArrayImpl", "wanted modules", "are arguments"
    ),
    "a function that takes no state": Row(
        lambda: t2j(lambda: 1, state=(LINEAR,)),
        TypeError,
        "takes 0 arguments",
        "wanted one that",
        "the objects first",
    ),
    "a bridge without examples": Row(
        lambda: bridge(lambda x: x), TypeError, "missing 1", "Wanted an example", "torch2jax(function, *examples)"
    ),
    "a text for a bridge": Row(
        lambda: doubled()("a"), TypeError, "got a str for x", "wanted an array", "functools.partial"
    ),
    "a rule of other parameters": Row(
        by_a_rule_of_other_parameters,
        TypeError,
        "takes (x, order)",
        "wanted the parameters of",
        "test_messages.py:",
    ),
    "a module to export": Row(
        lambda: torch2jax.export(LINEAR)(X), TypeError, "got a Linear", "wanted a function of arrays", "t2j(module)"
    ),
    "weights in a list": Row(lambda: load_state([1]), TypeError, "got a list", "wanted a file", "or tensors by name"),
    "a tensor to a bridge": Row(
        lambda: doubled()(torch.ones(2, 3)), TypeError, "'torch.Tensor'", "wanted an array", "t2j(tensor)"
    ),
    "a tensor to a bridge under jit": Row(
        lambda: jax.jit(lambda x: doubled()(torch.ones(2, 3)))(X),
        TypeError,
        "'torch.Tensor'",
        "wanted an array",
        "t2j(tensor)",
    ),
    "numpy's float64": Row(
        on(nn.LSTM(3, 4), np.ones((2, 3))),
        ValueError,
        "input is float64",
        "parameters are float32",
        "input.astype('float32')",
    ),
    "integers": Row(
        on(LINEAR, jnp.ones((2, 3), int)), RuntimeError, "input is int32", "are float32", "input.astype('float32')"
    ),
    "half precision": Row(
        on(LINEAR, X.astype("float16")), RuntimeError, "input is float16", "are float32", "input.astype('float32')"
    ),
    "weights of bfloat16": Row(
        on(nn.Conv1d(3, 4, 1).bfloat16(), X[..., None]),
        RuntimeError,
        "input is float32",
        "are bfloat16",
        "input.astype('bfloat16')",
    ),
    "weights of bfloat16 as a state": Row(
        on(LINEAR, X, state_dict={name: x.astype("bfloat16") for name, x in STATE.items()}),
        RuntimeError,
        "input is float32",
        "are bfloat16",
        "input.astype('bfloat16')",
    ),
    "dtypes that differ": Row(
        on(torch.bmm, jnp.ones((1, 2, 2)), jnp.ones((1, 2, 2), int)),
        RuntimeError,
        "args[0] is float32, args[1] is int32",
        "same dtype",
        "astype('float32')",
    ),
    "a bad shape": Row(
        on(nn.Sequential(nn.Linear(4, 5)), X),
        RuntimeError,
        "input of shape (2, 3)",
        "weight of shape (5, 4)",
        "raised in the module 0 (Linear(in_features=4, out_features=5, bias=True))",
    ),
    "an unknown name": Row(
        on(LINEAR, X, state_dict={"wieght": STATE["weight"]}),
        RuntimeError,
        "'wieght'",
        "names that the module lacks",
        "nearest: 'weight'",
    ),
    "a weight of a wrong shape": Row(
        on(LINEAR, X, state_dict={"weight": STATE["bias"]}), RuntimeError, "(4,)", "wanted (4, 3)", "for weight"
    ),
    "the parameters first": Row(
        on(LINEAR, STATE, X), TypeError, "3 were given", "wanted that by name", "(*args, state_dict=state)"
    ),
    "the parameters first under jit": Row(
        under_jit(LINEAR, STATE, X), TypeError, "3 were given", "wanted that by name", "(*args, state_dict=state)"
    ),
    "the parameters first, where a second argument may be": Row(
        on(Optional(), t2j(Optional().state_dict()), X),
        TypeError,
        "Argument 0 is a state",
        "wanted that by name",
        "(*args, state_dict=state)",
    ),
    "a state for a closure": Row(
        on(lambda x: LINEAR(x), X, state_dict=STATE),
        TypeError,
        "state_dict= for a function",
        "(x, rng=)",
        "functional_call(module, state, args)",
    ),
    "no key": Row(on(nn.Dropout(), X), RuntimeError, "a random operator", "needs a key", "rng=jax.random.key(0)"),
    "a seed for a key": Row(on(nn.Dropout(), X, rng=0), TypeError, "got 0", "wanted one JAX key", "jax.random.key(0)"),
    "a generator for a key": Row(
        on(nn.Dropout(), X, rng=torch.Generator()),
        TypeError,
        "Generator",
        "wanted one JAX key",
        "jax.random.key(0)",
    ),
    "a key as an argument": Row(
        on(nn.Dropout(), X, KEY), TypeError, "Argument 1 is a random key", "wanted that by name", "rng=key"
    ),
    "a text under jit": Row(
        under_jit(lambda x, mode: x.sum() if mode == "sum" else x, X, "sum"),
        TypeError,
        "'str'",
        "abstract array",
        "static_argnames",
    ),
    "a number as text": Row(
        under_jit(lambda x: print(x.sum().item()), X),
        torch2jax.TracedValueError,
        "the text of a traced number",
        "needs the value",
        "print the tensor",
    ),
    "a tensor under jit": Row(
        lambda: jax.jit(t2j(LINEAR))(torch.ones(2, 3)), TypeError, *TO_JIT, "wanted an array: t2j(tensor)"
    ),
    "a parameter in a tree under jit": Row(
        lambda: jax.jit(t2j(lambda state: state["weight"]))(dict(LINEAR.named_parameters())),
        TypeError,
        *TO_JIT,
        "wanted an array: t2j(tensor)",
    ),
    "a tensor of complex numbers under jit": Row(
        lambda: jax.jit(bridge(lambda x: x, X))(torch.ones(2, 3, dtype=torch.complex64)),
        TypeError,
        *TO_JIT,
        "wanted an array: t2j(tensor)",
    ),
    "a generator under jit": Row(
        under_jit(lambda x, g: x, X, torch.Generator()), TypeError, *TO_JIT, "pass a key: rng=jax.random.key(0)"
    ),
    "an optimizer under jit": Row(under_jit(lambda o, x: x, SGD, X), TypeError, *TO_JIT, "state=(model, optimizer)"),
    "a scheduler under jit": Row(
        under_jit(lambda s, x: x, torch.optim.lr_scheduler.StepLR(SGD, 1), X),
        TypeError,
        *TO_JIT,
        "state=(model, optimizer, scheduler)",
    ),
    "an optimizer to a step under jit": Row(
        lambda: jax.jit(step()[0])(SGD, X), TypeError, *TO_JIT, "state=(model, optimizer)"
    ),
    "a module under jit": Row(
        under_jit(lambda module, x: module(x), LINEAR, X), TypeError, *TO_JIT, "close over the module"
    ),
    "a module of one's own under jit": Row(
        under_jit(lambda module, x: module(x), Optional(), X), TypeError, *TO_JIT, "close over the module"
    ),
    "a dataclass under jit": Row(
        under_jit(lambda batch: batch.x, Batch(X)), TypeError, *TO_JIT, "jax.tree_util.register_dataclass(Batch)"
    ),
    "a flag under jit": Row(
        under_jit(lambda x, keep: x.sum(0, keepdim=keep), X, True), TypeError, "not Tensor", "must be bool", STATIC
    ),
    "a flag that decides on shapes": Row(
        under_jit(lambda x, keep: x.sum(0) if keep else x, X, True),
        torch2jax.BranchError,
        "float32[3] where it is True",
        "wanted the same structure",
        STATIC + "'keep',)",
    ),
    "a step that accumulates": Row(
        accumulating,
        torch2jax.BranchError,
        "nothing where it is True",
        "A condition on data decides what becomes of the objects",
        STATIC[:15],
    ),
    "a flag among overloads": Row(
        under_jit(lambda x, down: torch.sort(x, descending=down), X, True),
        TypeError,
        "descending=Tensor",
        "bool descending",
        STATIC + "'down',)",
    ),
    "a dimension under jit": Row(
        under_jit(lambda x, dim: x.sum(dim), X, 1),
        torch2jax.TracedValueError,
        "dim (int32)",
        "needs the value",
        STATIC + "'dim',)",
    ),
    "a range of a value": Row(
        under_jit(lambda x: list(range(int(x.sum()))), X),
        torch2jax.TracedValueError,
        "as many iterations as a number says",
        "needs the value",
        "give the number a bound",
    ),
    "a range of a number of a tensor": Row(
        under_jit(lambda x, n: [x for _ in range(torch.tensor(2) + n)], X, np.ones((), np.int32)),
        torch2jax.TracedValueError,
        "as many iterations as a number says",
        "needs the value",
        "while i < n",
    ),
    "a length that depends on values": Row(
        under_jit(lambda x: x[x > 0].tolist(), X),
        torch2jax.TracedValueError,
        "tolist",
        "needs the value",
        "torch.where",
    ),
    "iterations of a traced number": Row(
        under_jit(lambda x, n: [x for _ in range(n)], X, 1),
        torch2jax.TracedValueError,
        "n (int32)",
        "needs the value",
        STATIC,
    ),
    "numpy under jit": Row(
        under_jit(lambda x: np.sin(x), X),
        torch2jax.TracedValueError,
        "numpy.asarray(tensor)",
        "needs the value",
        "torch2jax(function, *examples)",
    ),
    "a kernel in numpy": Row(
        under_jit(lambda x: torch.ops.messages.sine(x), X),
        torch2jax.TracedValueError,
        "Tensor.numpy()",
        "kernel of messages::sine",
        'call_torch=["messages::sine"]',
    ),
    "a function of jax within": Row(
        on(lambda x: jnp.sin(x), X), TypeError, "got a tensor", "wanted an array", "j2t(jnp.sin)(tensor)"
    ),
    "a function of jax within, under jit": Row(
        under_jit(lambda x: jax.nn.relu(x), X), TypeError, "got a tensor", "wanted an array", "j2t(jnp.sin)(tensor)"
    ),
    "a bridge within": Row(
        on(lambda x: doubled()(x), X), TypeError, "got a tensor", "wanted an array", "j2t(jnp.sin)(tensor)"
    ),
    "a function of jax to t2j": Row(
        lambda: t2j(jnp.sin), TypeError, "got jax.numpy.sin", "wanted PyTorch's", "Call it as it is"
    ),
    "nothing to t2j": Row(lambda: t2j(None), TypeError, "got None", "wanted a tensor", "have returned one?"),
    "a file to t2j": Row(lambda: t2j("model.pt"), TypeError, "'model.pt'", "wanted a tensor", "torch.load('model.pt')"),
    "a module to j2t": Row(lambda: j2t(LINEAR), TypeError, "got a Linear", "wanted JAX's", "Use t2j to convert"),
    "an array of jax within": Row(
        on(lambda x: x + jnp.ones(3), X), TypeError, "got an array of JAX", "wanted a tensor", "j2t(array)"
    ),
    "one example for batch norm": Row(
        on(NORMED, X[:1]), ValueError, "input size torch.Size([1, 3])", "more than 1 value", "module.eval()"
    ),
    "an index out of range": Row(
        on(EMBEDDING, jnp.array([5])), IndexError, "got indices from 5 to 5", "Expected idx", "for 3 rows"
    ),
    "an embedding of floats": Row(
        on(EMBEDDING, X), RuntimeError, "got torch.FloatTensor", "Long, Int", "astype('int32')"
    ),
    "a sparse tensor": Row(
        lambda: t2j(torch.eye(3).to_sparse().to("meta")),
        torch2jax.SparseLayoutError,
        "sparse_coo",
        "dense tensors",
        "to_dense()",
    ),
    "a tensor on meta, returned": Row(
        on(lambda x: x.to("meta"), X), torch2jax.OnMetaError, "got one on meta", "on one device", "state_dict=..."
    ),
    "a quantized tensor beside others": Row(
        lambda: (lambda other: t2j(lambda x: x + other)(X))(quantized()),
        torch2jax.QuantizedError,
        "got a quantized tensor",
        "wanted a dense one",
        "tensor.dequantize()",
    ),
    "a quantized tensor": Row(
        lambda: t2j(quantized()), TypeError, "got a quantized tensor", "wanted a dense one", "tensor.dequantize()"
    ),
    "a misspelt keyword": Row(
        on(LINEAR, X, return_sate_dict=True),
        TypeError,
        "'return_sate_dict'",
        "(input, state_dict=, rng=, return_state_dict=)",
        "did you mean return_state_dict=?",
    ),
    "a misspelt keyword of a function": Row(
        on(lambda x, dim=0: x.sum(dim), X, dmi=1), TypeError, "'dmi'", "(x, dim=, rng=)", "did you mean dim=?"
    ),
    "a misspelt rng": Row(on(lambda x: x, X, rgn=KEY), TypeError, "rgn=", "(x, rng=)", "did you mean rng=?"),
    "a misspelt keyword of t2j": Row(
        lambda: t2j(LINEAR, on_mising="error"), TypeError, "on_mising", "on_missing=,", "did you mean on_missing=?"
    ),
    "a state for t2j": Row(
        lambda: t2j(LINEAR, state_dict=STATE),
        TypeError,
        "Got state_dict=",
        "(thing, copy=",
        "function that t2j returns: t2j(module)(*args, state_dict=",
    ),
    "a misspelt key for t2j": Row(
        lambda: t2j(LINEAR, rgn=KEY),
        TypeError,
        "Got rgn=",
        "(thing, copy=",
        "function that t2j returns: t2j(module)(*args, rng=",
    ),
    "a misspelt keyword of j2t": Row(
        lambda: j2t(jnp.sin, jitt=False), TypeError, "jitt", "(thing, copy=, jit=)", "did you mean jit=?"
    ),
    "a misspelt keyword of torch2jax": Row(
        lambda: bridge(torch.sin, X, vmap_metod="sequential"),
        TypeError,
        "vmap_metod",
        "(fn, *example_args",
        "did you mean vmap_method=?",
    ),
    "a part that is none": Row(
        lambda: t2j(NORMED, compile=["encoder"]),
        ValueError,
        "'encoder'",
        "no part and no method",
        "there are '0', '1'",
    ),
    "a part that is none, for PyTorch": Row(
        lambda: t2j(NORMED, call_torch=["10"]), ValueError, "'10'", "no module of that name", "nearest: '1', '0'"
    ),
    "a name for a list of parts": Row(
        lambda: t2j(NORMED, compile="0"), TypeError, "compile='0'", "wanted a list", "compile=['0']"
    ),
    "an option that is none": Row(
        lambda: t2j(LINEAR, on_missing="torch"), ValueError, "'torch'", "'call_torch'", "runs in PyTorch"
    ),
    "checks that are none": Row(
        lambda: t2j(LINEAR, checks="yes"), ValueError, "'yes'", "'checkify'", "raise while the program runs"
    ),
    "an optimizer from outside": Row(
        on(trains_from_outside, X), RuntimeError, "a SGD from outside", "as its first arguments", "state=(model"
    ),
    "a step before its first state": Row(
        lambda: t2j(lambda linear, x: linear(x), state=(LINEAR,))({}, X),
        RuntimeError,
        "was called before",
        "makes its state",
        ".init(*args)",
    ),
    "a step without its state": Row(
        lambda: t2j(lambda linear, x: linear(x), state=(LINEAR,))(X),
        RuntimeError,
        "was called before",
        "the state as the first argument",
        ".init(*args)",
    ),
    "a buffer on meta": Row(
        lambda: meta_without("running_mean"),
        RuntimeError,
        "buffer 'running_mean' is on the meta device",
        "state_dict does not have it",
        "give its array",
    ),
    "a mesh with explicit axes": Row(
        on_explicit_mesh, Exception, "float32[4,2@data]", "out_sharding=", "jax.sharding.auto_axes(function"
    ),
    "a model without a plan": Row(
        lambda: sharding.specs(LINEAR, jax.make_mesh((1,), ("model",)), tensor="model"),
        ValueError,
        "Linear, which brings no plan",
        "wanted a plan",
        "pass plan=",
    ),
    "a Hessian of the bridge": Row(
        lambda: jax.hessian(lambda x: doubled()(x).sum())(X),
        TypeError,
        "runs in PyTorch",
        "reverse-mode gradients only",
        "jax.jacobian(jax.jacobian(f))",
    ),
    "a module as an example": Row(
        lambda: bridge(lambda module, x: module(x), LINEAR, X),
        TypeError,
        "of type Linear",
        "wanted tensors",
        "functools.partial",
    ),
    "a gradient of what is detached": Row(
        lambda: jax.grad(sorted_by_numpy())(jnp.ones(3)),
        jax.errors.JaxRuntimeError,
        "does not require grad",
        "JAX differentiates",
        "Write it in PyTorch's operations",
    ),
    "a file that is not there": Row(
        lambda: load_state("nothing.safetensors"),
        FileNotFoundError,
        "nothing.safetensors",
        "or the folder that holds it",
        "huggingface_hub.snapshot_download(name)",
    ),
    "an error in the bridge": Row(
        lambda: bridge(fails_on_large, X), ValueError, "too large", "fails_on_large", "raise ValueError"
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_error_tells_what_was_got_and_wanted_and_what_to_do(name):
    row = ROWS[name]
    with pytest.raises(row.error) as caught:
        row.call()
    text = "".join(traceback.format_exception(caught.value))
    for part in (row.got, row.wanted, row.do):
        assert part in text, text


BY_OTHERS = {
    "a tensor under jit": (
        lambda: jax.jit(lambda x: x)(torch.ones(2, 3)),
        ("Error interpreting argument", "torch.Tensor"),
        "t2j(tensor)",
    ),
    "a tensor to vmap": (
        lambda: jax.vmap(t2j(LINEAR))(torch.ones(2, 3)),
        ("torch.Tensor", "is not a valid JAX type"),
        "t2j(tensor)",
    ),
    "a generator to jit": (
        lambda: jax.jit(lambda x: x)(torch.Generator()),
        ("Error interpreting argument", "torch._C.Generator"),
        "rng=jax.random.key(0)",
    ),
    "an optimizer to jit": (
        lambda: jax.jit(lambda x: x)(SGD),
        ("Error interpreting argument", "torch.optim"),
        "state=(model, optimizer)",
    ),
    "a module to jit": (
        lambda: jax.jit(lambda x: x)(LINEAR),
        ("Error interpreting argument", "torch.nn"),
        "close over the module",
    ),
    "a text under jit": (
        lambda: jax.jit(t2j(lambda x, mode: x))(X, "sum"),
        ("Error interpreting argument", "str"),
        "static_argnames",
    ),
    "a module of PyTorch's under jit": (
        lambda: jax.jit(LINEAR)(X),
        ("argument 'input' (position 1) must be Tensor", "DynamicJaxprTracer"),
        "t2j(module)",
    ),
    "an array for a module of PyTorch's": (
        lambda: LINEAR(X),
        ("argument 'input' (position 1) must be Tensor", "ArrayImpl"),
        "t2j(module)",
    ),
    "integers in a gradient": (
        lambda: jax.grad(lambda state: t2j(NORMED)(X, state_dict=state).sum())(t2j(NORMED.state_dict())),
        ("grad requires real- or complex-valued inputs", "but got int32"),
        "params, buffers = t2j(model).split()",
    ),
    "a gradient of many numbers": (
        lambda: jax.grad(t2j(torch.sin))(X),
        ("Gradient only defined for scalar-output functions",),
        "jax.jacobian",
    ),
    "a string to jit": (
        lambda: jax.jit(lambda x, name: x)(X, "sum"),
        ("Error interpreting argument", "str"),
        "static_argnames",
    ),
    "a module to grad": (
        lambda: jax.grad(lambda module: t2j(module)(X).sum())(LINEAR),
        ("torch.nn", "is not a valid JAX type"),
        "params, buffers = t2j(module).split()",
    ),
    "arrays in a loss of PyTorch's": (
        lambda: torch.nn.functional.mse_loss(X, torch.ones(2, 3)),
        ("'int' object is not callable",),
        "t2j(torch.nn.functional.mse_loss)",
    ),
    "arrays in an optimizer of PyTorch's": (
        lambda: torch.optim.SGD(list(STATE.values()), 0.1),
        ("optimizer can only optimize Tensors", "ArrayImpl"),
        "optax",
    ),
    "an array and a tensor": (
        lambda: jnp.ones(3) * torch.ones(3),
        ("unsupported operand type(s) for", "ArrayImpl", "Tensor"),
        "`t2j(tensor)` is an array, `j2t(array)` a tensor",
    ),
    "the package as a function": (
        lambda: torch2jax(torch.sin),
        ("'module' object is not callable",),
        "from torch2jax import torch2jax",
    ),
}


@pytest.mark.parametrize("name", BY_OTHERS)
def test_the_documentation_tells_what_to_do_where_jax_or_pytorch_speak_first(name):
    call, words, remedy = BY_OTHERS[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
    lines = (Path(__file__).parent.parent / "docs/errors.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| *") and all(word in line for word in words)]
    assert remedy in row


def test_what_may_be_mistaken_for_wrong_is_taken():
    wanted = t2j(LINEAR)(X)
    assert jnp.array_equal(t2j(LINEAR)(torch.ones(2, 3)), wanted)
    assert jnp.allclose(t2j(LINEAR)(np.ones((2, 3))), wanted)  # of float64, as differences.md says
    assert jnp.array_equal(t2j(LINEAR)(X, state_dict=LINEAR.state_dict()), wanted)
    assert jnp.array_equal(t2j(LINEAR)(X, state_dict={"weight": STATE["weight"]}), wanted)  # the rest is the module's
    assert jnp.array_equal(t2j(lambda x: LINEAR(x.cuda().to("cuda")))(X), wanted)  # as using.md says


def test_an_error_whose_text_asks_for_values_is_itself():
    class OfValues(Exception):
        def __str__(self):
            return f"got {float(self.args[0])}"

    def fails(x):
        raise OfValues(x.sum())

    with pytest.raises(OfValues):
        jax.jit(t2j(fails))(X)


@pytest.mark.parametrize("function", [lambda x: x.numpy(), np.sin, lambda x: torch.from_numpy(np.asarray(x))])
def test_numpy_under_jit_names_the_ways_to_pytorch(function):
    with pytest.raises(torch2jax.TracedValueError, match=r"torch2jax\(function, \*examples\).*call_torch="):
        jax.jit(t2j(lambda x: function(x)))(jnp.ones(3))


def test_a_misspelt_part_names_the_users_own():
    model = Model(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"'sampel', .*\(nearest: 'sample'\)"):
        t2j(model, compile=["sampel"])
    with pytest.raises(ValueError, match=r"no method of that name \(there are '0', 'sample'\)"):
        t2j(model, compile=["insrt"])


def test_a_function_is_named_as_ever_elsewhere():
    for function in (t2j(LINEAR), t2j(torch.sin), step()[0], doubled()):
        assert str(function) == repr(function)
        try:
            raise TypeError("got a torch.Tensor")
        except TypeError:
            assert str(function) == repr(function)


def test_errors_of_users_are_exported():
    defined = [x for x in vars(torch2jax.runtime.errors).values() if isinstance(x, type) and issubclass(x, Exception)]
    assert len(defined) >= 9
    for error in defined:
        assert getattr(torch2jax, error.__name__) is error
        assert error.__name__ in torch2jax.__all__


def test_check_shows_notes():
    from torch2jax.tools.models import error_text

    error = RuntimeError("first\nsecond")
    error.add_note("what helps")
    error.add_note("--------------------\nof tracebacks")
    assert error_text(error) == "first\nwhat helps"


def test_examples_of_vmap_are_not_said_to_be_static():
    with pytest.raises(torch2jax.TracedValueError) as error:
        jax.vmap(t2j(lambda x, d: x.sum(d)))(X[None], jnp.array([0]))
    assert "static_argnames" not in "".join(getattr(error.value, "__notes__", []))


def test_no_part_of_a_tree_is_said_to_be_static():
    model = nn.BatchNorm1d(3).eval()
    model.forward = lambda x: np.asarray(x).sum()
    with pytest.raises(torch2jax.TracedValueError) as error:
        jax.jit(t2j(model))(X, state_dict=t2j(model.state_dict()))
    assert "static_argnames" not in "".join(getattr(error.value, "__notes__", []))
