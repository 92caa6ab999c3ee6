"""What an error advises is right: who does it gets what PyTorch gives."""

import datetime
import decimal
import fractions
import functools
import json
import re
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from torch import nn

import torch2jax
from tests.test_messages import grows
from torch2jax import j2t, t2j, torch2jax as bridge

X = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
ONES = np.ones(3, np.float32)
LINEAR = nn.Linear(3, 4)
NORMED = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
STATE = t2j(LINEAR.state_dict())
KEY = jax.random.key(0)


@torch.library.custom_op("advice::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() ** 3)


@cube.register_fake
def _(x):
    return torch.empty_like(x)


class Advice(NamedTuple):
    """A program that fails, what its error says, the program that does that, and what PyTorch gives."""

    fails: Callable[[], Any]
    says: str
    follows: Callable[[], Any]
    wanted: Callable[[], Any]


def jitted(function, *args, **options):
    """A call of a function of tensors under `jax.jit`.

    Args:
        options: of `t2j`, or of `jax.jit`.
    """
    of_jit = {name: options.pop(name) for name in ("static_argnames", "static_argnums") if name in options}
    return lambda: jax.jit(t2j(function, **options), **of_jit)(*map(_array, args))


def plain(function, *args):
    return lambda: function(*[torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args])


def static(function, *args, name=None, place=None):
    """Of a call with a flag, size or dimension, which `jax.jit` makes an array."""
    way = {"static_argnames": (name,)} if name else {"static_argnums": (place,)}
    ((option, value),) = way.items()
    return Advice(
        jitted(function, *args), re.escape(f"{option}={value}"), jitted(function, *args, **way), plain(function, *args)
    )


def instead(fails, says, follows, *args):
    """Of a line that another can stand for."""
    return Advice(jitted(fails, *args), says, jitted(follows, *args), plain(fails, *args))


def _array(value):
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def doubles_while_small(x):
    n = 0
    while x.sum() < 100:
        x, n = x * 2, n + 1
    return x * n


def of_steps(x, n):
    for _ in range(n):
        x = x * 2
    return x


def of_steps_while(x, n):
    i = 0
    while i < n:
        x = x * 2
        i += 1
    return x


RECURRENT = nn.GRU(3, 4, batch_first=True)


def last_of_packed(x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return RECURRENT(packed)[1][0]


def shown(function):
    """What a program prints while it runs."""

    def run():
        seen = []
        jax.block_until_ready(function(lambda *values: seen.append([float(x) for x in values])))
        jax.effects_barrier()
        return seen

    return run


def gradient(function, x):
    x = torch.tensor(x, requires_grad=True)
    function(x).sum().backward()
    return x.grad


def _backwards(**options):
    f = t2j(doubles_while_small, **options)
    return jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.asarray(ONES))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.square(x.detach().numpy()))

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class WithNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.sort = LINEAR, Sorts()

    def forward(self, x):
        return self.linear(x) * self.sort(x)


class Sorts(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sort(x.detach().numpy()))[:, :1]


MODEL = WithNumpy()
LINEAR_AND_SOFTMAX = lambda x, dim: LINEAR(x).softmax(dim)
CHOOSES = lambda x, flag: x * 2 if flag else x.sum()
RESIZES = lambda x, s: F.interpolate(x, scale_factor=s)
STATIC = {
    "a dimension": static(lambda x, dim: x.sum(dim), X, 1, name="dim"),
    "a flag of PyTorch's": static(lambda x, keep: x.sum(0, keepdim=keep), X, True, name="keep"),
    "a flag that decides on shapes": static(CHOOSES, X, False, name="flag"),
    "a flag that is looked up": static(lambda x, n: x * {1: 2}[n], X, 1, name="n"),
    "copies": static(lambda x, n: torch.stack([x] * n), X, 2, name="n"),
    "a size": static(lambda x, n: x.reshape(n, -1), X, 3, name="n"),
    "a shape": static(lambda x, size: x.reshape(size), X, (3, 2), name="size"),
    "sizes of images": static(lambda x, size: F.interpolate(x, size=size), X[None, None], (4, 4), name="size"),
    "a factor": static(RESIZES, X[None, None], 2.0, name="s"),
    "an order of a norm": static(lambda x, p: x.norm(p), X, 3, name="p"),
    "a slope": static(lambda x, s: F.leaky_relu(x, s), -X, 1, name="s"),
    "by place": static(torch.sum, X, 1, place=1),
    "among others": static(lambda x, *dims: x.permute(*dims), X, 1, 0, place=1)._replace(
        follows=jitted(lambda x, *dims: x.permute(*dims), X, 1, 0, static_argnums=(1, 2)),
        says=r"static_argnums=\(1, 2\)",
    ),
    "of a module": static(LINEAR_AND_SOFTMAX, X, 1, name="dim"),
    "bound before": static(lambda x, dim: x.sum(dim), X, 1, name="dim")._replace(
        says="or bind it before, with functools.partial",
        follows=jitted(functools.partial(lambda dim, x: x.sum(dim), 1), X),
    ),
}
VALUES = {
    **{
        f"a number for {name}": Advice(
            jitted(lambda x, function=function: function(x.sum().item()), X),
            r"return it from the function, and go on with it outside of jax\.jit",
            lambda function=function: function(float(jitted(lambda x: x.sum(), X)())),
            lambda function=function: function(float(X.sum())),
        )
        for name, function in {
            "Decimal": lambda v: float(decimal.Decimal(v)),
            "Fraction": lambda v: float(fractions.Fraction(v)),
            "JSON": lambda v: json.dumps({"loss": v}),
            "timedelta": lambda v: datetime.timedelta(seconds=v).total_seconds(),
        }.items()
    },
    "iterations with a bound": Advice(
        jitted(lambda x, n: torch.stack([x * i for i in range(n)]).sum(0), X, 3),
        r"n\.clamp\(max=100\)",
        jitted(lambda x, n: of_steps_while(x, n.clamp(max=100)), X, 3),
        plain(of_steps, X, 3),
    ),
    "a size with a bound": instead(
        lambda x: torch.arange(x.sum().long()),
        r"x\.clamp\(max=100\)",
        lambda x: torch.arange(x.sum().long().clamp(max=10)),
        X,
    ),
    "a size of which the bound is said": Advice(
        jitted(lambda x: torch.arange(x.sum().long()), X),
        r"t2j\(bounds=\)",
        jitted(lambda x: torch.arange(x.sum().long()), X, bounds={"test_advice.py:<lambda>": 10}),
        plain(lambda x: torch.arange(x.sum().long()), X),
    ),
    "the largest elements": instead(
        lambda x: x.topk(x[1, 1].long())[0],
        r"if it is a size, write tensor\.item\(\) in its place",
        lambda x: x.topk(x[1, 1].long().clamp(max=3).item())[0],
        X,
    ),
    "a dimension": instead(
        lambda x: (x @ x.T).sum(x[1, 1].long()),
        r"if it is a dimension, choose it by conditions, as in `x\.sum\(0\) if d == 0 .*`; if it is a size",
        lambda x: (x @ x.T).sum(0) if x[1, 1].long() == 0 else (x @ x.T).sum(1),
        X,
    ),
    "a dimension that is a number": instead(
        lambda x: (x @ x.T).sum(x[1, 1].long().item()),
        r"if it is a dimension, choose it by conditions, as in `x\.sum\(0\) if d == 0 .*`; call",
        lambda x: (x @ x.T).sum(0) if x[1, 1].long().item() == 0 else (x @ x.T).sum(1),
        X,
    ),
    "a packed sequence": instead(
        last_of_packed,
        r"a packed sequence needs .* output\[torch\.arange\(len\(lengths\)\), lengths - 1\]",
        lambda x, lengths: RECURRENT(x)[0][torch.arange(len(lengths)), lengths - 1],
        np.arange(24, dtype=np.float32).reshape(2, 4, 3) / 9,
        np.array([2, 4]),
    ),
    "classes": Advice(
        jitted(F.one_hot, np.array([0, 2])),
        "say num_classes=",
        jitted(lambda i: F.one_hot(i, num_classes=3), np.array([0, 2])),
        plain(F.one_hot, np.array([0, 2])),
    ),
    "a text": Advice(
        jitted(lambda x: print(f"{x.sum():.3f}"), X),
        r"j2t\(jax\.debug\.print\)\('\{:\.3f\}', tensor\)",
        shown(lambda show: jax.jit(t2j(lambda x: [j2t(jax.debug.callback)(show, x.sum()), x][1]))(X)),
        lambda: [[float(X.sum())]],
    ),
    "a text of a number": Advice(
        jitted(lambda x: print(f"{x.sum().item()}"), X),
        r"j2t\(jax\.debug\.print\)",
        shown(lambda show: jax.jit(t2j(lambda x: [j2t(jax.debug.callback)(show, x.sum().item()), x][1]))(X)),
        lambda: [[float(X.sum())]],
    ),
    "numpy": Advice(
        jitted(lambda x: torch.from_numpy(np.sort(x.numpy())), X),
        r"torch2jax\(function, \*examples\)",
        lambda: jax.jit(bridge(lambda x: torch.from_numpy(np.sort(x.numpy())), X))(X),
        plain(lambda x: torch.from_numpy(np.sort(x.numpy())), X),
    ),
    "numpy in a part": Advice(
        jitted(MODEL, X), r"call_torch=\[\.\.\.\]", jitted(MODEL, X, call_torch=["sort"]), plain(MODEL, X)
    ),
    "without jit": Advice(
        jitted(lambda x: x * float(np.asarray(x).sum()), X),
        "call the function without jit",
        lambda: t2j(lambda x: x * float(np.asarray(x).sum()))(X),
        plain(lambda x: x * float(np.asarray(x).sum()), X),
    ),
    "closed over": Advice(
        jitted(lambda x, n: x * n.numpy().sum(), X, ONES),
        "close over it",
        jitted(lambda x: x * torch.ones(3).numpy().sum(), X),
        plain(lambda x, n: x * n.numpy().sum(), X, ONES),
    ),
    "a choice": instead(
        lambda x: x * 2 if np.asarray(x.sum() > 1) else x,
        r"torch\.where",
        lambda x: torch.where(x.sum() > 1, x * 2, x),
        X,
    ),
}
BRANCHES = {
    "of shapes": Advice(
        jitted(lambda x: x if x.sum() > 0 else x[0], X),
        "wanted the same structure",
        jitted(lambda x: torch.where(x.sum() > 0, x, x[0]), X),
        plain(lambda x: x if x.sum() > 0 else x[0], X),
    ),
    "a list that grows": Advice(
        jitted(grows, ONES),
        r"torch\.while_loop|jax\.lax\.while_loop around the call",
        lambda: jax.lax.while_loop(lambda x: x.sum() < 100, t2j(lambda x: x * 2), jnp.asarray(ONES)),
        plain(lambda x: grows(x)[-1], ONES),
    ),
    "many iterations, backwards": Advice(
        lambda: _backwards(),
        r"t2j\(\.\.\., max_steps=N\)",
        lambda: _backwards(max_steps=20),
        lambda: gradient(doubles_while_small, ONES),
    ),
}


MIXED = {
    "a function of JAX's": Advice(
        lambda: t2j(lambda x: jnp.sin(x))(X),
        r"j2t\(jnp\.sin\)\(tensor\)",
        lambda: t2j(lambda x: j2t(jnp.sin)(x))(X),
        plain(torch.sin, X),
    ),
    "an array": Advice(
        lambda: t2j(lambda x: jnp.ones(3) * x)(X),
        r"j2t\(array\)",
        lambda: t2j(lambda x: j2t(jnp.ones(3)) * x)(X),
        plain(lambda x: torch.ones(3) * x, X),
    ),
    "a closure": Advice(
        lambda: t2j(lambda x: j2t(lambda y: jnp.sin(y) * x)(x))(X),
        r"j2t\(function\)\(x, tensor\)",
        lambda: t2j(lambda x: j2t(lambda y, z: jnp.sin(y) * z)(x, x))(X),
        plain(lambda x: x.sin() * x, X),
    ),
    "values in a JAX function": Advice(
        lambda: j2t(lambda x: x if x.sum() > 0 else -x)(torch.ones(3)),
        r"j2t\(function, jit=False\)",
        lambda: j2t(lambda x: x if x.sum() > 0 else -x, jit=False)(torch.ones(3)),
        lambda: torch.ones(3),
    ),
    "values in a JAX function, with a gradient": Advice(
        lambda: j2t(lambda x: x * float(x.sum()))(torch.ones(3)),
        r"j2t\(function, jit=False\)",
        lambda: gradient(j2t(lambda x: x * x if x.sum() > 0 else x, jit=False), ONES),
        lambda: gradient(lambda x: x * x, ONES),
    ),
    "values in a JAX function under jit": Advice(
        jitted(lambda x: j2t(lambda y: y if y.sum() > 0 else -y)(x), X),
        r"jnp\.where or jax\.lax\.cond",
        jitted(lambda x: j2t(lambda y: jnp.where(y.sum() > 0, y, -y))(x), X),
        plain(lambda x: x, X),
    ),
    "a number in a JAX function": Advice(
        lambda: j2t(lambda x, n: x * len(range(n)))(torch.ones(3), torch.tensor(2)),
        "a Python number, which is known",
        lambda: j2t(lambda x, n: x * len(range(n)))(torch.ones(3), 2),
        lambda: torch.ones(3) * 2,
    ),
    "PyTorch on traced arrays": Advice(
        lambda: jax.jit(lambda x: t2j(LINEAR(j2t(x))))(X),
        r"t2j\(function\)\(array\)",
        lambda: jax.jit(lambda x: t2j(LINEAR)(x))(X),
        plain(LINEAR, X),
    ),
    "made-up values": Advice(
        lambda: jax.jit(lambda a: bridge(lambda a: torch.from_numpy(np.linalg.inv(a.numpy())), a)(a))(2 * jnp.eye(2)),
        r"torch2jax\(function, \*examples, output_shapes=\.\.\.\)",
        lambda: jax.jit(
            lambda a: bridge(lambda a: torch.from_numpy(np.linalg.inv(a.numpy())), a, output_shapes=(2, 2))(a)
        )(2 * jnp.eye(2)),
        lambda: torch.eye(2) / 2,
    ),
    "concrete examples": Advice(
        lambda: bridge(lambda a: torch.from_numpy(np.linalg.inv(a.numpy())), jax.ShapeDtypeStruct((2, 2), "float32")),
        "Give torch2jax concrete examples",
        lambda: bridge(lambda a: torch.from_numpy(np.linalg.inv(a.numpy())), jnp.eye(2))(2 * jnp.eye(2)),
        lambda: torch.eye(2) / 2,
    ),
    "numpy of what is differentiated": Advice(
        lambda: jax.grad(t2j(lambda x: torch.from_numpy(np.square(x.numpy())).sum()))(X),
        r"torch\.autograd\.Function around it",
        lambda: jax.grad(t2j(lambda x: Square.apply(x).sum()))(X),
        lambda: gradient(lambda x: x * x, X),
    ),
}
MODULES = {
    "a state first": Advice(
        lambda: t2j(LINEAR)(STATE, X),
        r"\(\*args, state_dict=state\)",
        lambda: t2j(LINEAR)(X, state_dict=STATE),
        plain(LINEAR, X),
    ),
    "a state by another name": Advice(
        lambda: t2j(LINEAR)(X, params=STATE),
        "state_dict=params",
        lambda: t2j(LINEAR)(X, state_dict=STATE),
        plain(LINEAR, X),
    ),
    "a state's dictionary": Advice(
        lambda: t2j(LINEAR).state_dict(),
        r"params, buffers = f\.split\(\), and f\(\*args, state_dict=params \| buffers\)",
        lambda: (lambda f, params, buffers: f(X, state_dict=params | buffers))(t2j(LINEAR), *t2j(LINEAR).split()),
        plain(LINEAR, X),
    ),
    "evaluation": Advice(
        lambda: t2j(NORMED).eval()(X),
        r"module\.eval\(\), and then t2j\(module\)",
        lambda: t2j(NORMED.eval())(X),
        lambda: NORMED.eval()(torch.from_numpy(X)),
    ),
    "one example for batch norm": Advice(
        lambda: t2j(NORMED.train())(X[:1]),
        r"module\.eval\(\) before t2j\(module\)",
        lambda: t2j(NORMED.eval())(X[:1]),
        lambda: NORMED.eval()(torch.from_numpy(X[:1])),
    ),
    "a dtype of a module": Advice(
        lambda: t2j(LINEAR).double(),
        r"before t2j\(module\): module\.double\(",
        lambda: t2j(nn.Linear(3, 4).double())(X.astype(np.float64)).shape,
        lambda: (2, 4),
    ),
    "a method": Advice(
        lambda: t2j(LINEAR).extra_repr(),
        r"t2j\(module\.extra_repr\)",
        lambda: t2j(LINEAR.extra_repr)(),
        lambda: LINEAR.extra_repr(),
    ),
    "integers": Advice(
        lambda: t2j(LINEAR)(np.ones((2, 3), int)),
        r"input\.astype\('float32'\)",
        lambda: t2j(LINEAR)(np.ones((2, 3), int).astype("float32")),
        lambda: LINEAR(torch.ones(2, 3)),
    ),
    "channels behind": Advice(
        lambda: t2j(nn.Conv2d(3, 4, 3))(jnp.ones((2, 8, 8, 3))),
        r"jnp\.moveaxis\(x, 3, 1\)",
        lambda: t2j(nn.Conv2d(3, 4, 3))(jnp.moveaxis(jnp.ones((2, 8, 8, 3)), 3, 1)).shape,
        lambda: (2, 4, 6, 6),
    ),
    "a closure's state": Advice(
        lambda: t2j(lambda x: LINEAR(x))(X, state_dict=STATE),
        r"torch\.func\.functional_call\(module, state, args\)",
        lambda: t2j(lambda state, x: torch.func.functional_call(LINEAR, state, (x,)))(STATE, X),
        plain(LINEAR, X),
    ),
    "a list": Advice(
        lambda: t2j(LINEAR)(X.tolist()),
        r"jnp\.asarray\(input\)",
        lambda: t2j(LINEAR)(jnp.asarray(X.tolist())),
        plain(LINEAR, X),
    ),
    "no key": Advice(
        lambda: t2j(nn.Dropout(0.0001))(X),
        r"rng=jax\.random\.key\(0\)",
        lambda: t2j(nn.Dropout(0.0001))(X, rng=jax.random.key(0)).shape,
        lambda: (2, 3),
    ),
    "a part to compile": Advice(
        lambda: t2j(LINEAR, compile=True),
        r"compile=\[''\]",
        lambda: t2j(LINEAR, compile=[""])(X),
        plain(LINEAR, X),
    ),
    "compilation by a name": Advice(
        lambda: t2j(NORMED, compile="0"),
        r"compile=\['0'\]",
        lambda: t2j(NORMED.eval(), compile=["0"])(X),
        lambda: NORMED.eval()(torch.from_numpy(X)),
    ),
    "a kernel in numpy": Advice(
        jitted(lambda x: torch.ops.advice.cube(x), X),
        r'call_torch=\["advice::cube"\]',
        jitted(lambda x: torch.ops.advice.cube(x), X, call_torch=["advice::cube"]),
        plain(lambda x: x**3, X),
    ),
    "an operator without a rule": Advice(
        lambda: t2j(lambda x: torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0]))(ONES),
        r'on_missing="call_torch"',
        jitted(lambda x: torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0]), ONES, on_missing="call_torch"),
        plain(lambda x: torch.ops.aten._test_optional_floatlist(x, [1.0, 2.0, 3.0]), ONES),
    ),
    "a batch of PyTorch's around": Advice(
        lambda: (
            jax.vmap(t2j(nn.Linear(3, 4)))(torch.ones(2, 3)) if False else torch.vmap(t2j(LINEAR))(torch.ones(2, 3))
        ),
        r"take jax\.grad or jax\.vmap of it",
        lambda: jax.vmap(t2j(LINEAR))(jnp.ones((2, 3))),
        lambda: LINEAR(torch.ones(2, 3)),
    ),
}
GROUPS = {"static": STATIC, "values": VALUES, "branches": BRANCHES, "mixed": MIXED, "modules": MODULES}
ALL = {f"{group}: {name}": advice for group, found in GROUPS.items() for name, advice in found.items()}


def _plainly(value):
    if isinstance(value, torch2jax.Padded):
        value = value.compact()
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    return value


@pytest.mark.filterwarnings("ignore:t2j runs in PyTorch itself")
@pytest.mark.parametrize("name", ALL)
def test_who_does_what_an_error_says_gets_what_pytorch_gives(name):
    advice = ALL[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        advice.fails()
    text = "".join(traceback.format_exception_only(caught.value))
    assert re.search(advice.says, text), text
    found, wanted = _plainly(advice.follows()), _plainly(advice.wanted())
    if isinstance(wanted, str):
        assert found == wanted
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: np.argmax(x),
        lambda x: np.stack([x, x]),
        lambda x: np.asarray(x),
        lambda x: x.numpy(),
        lambda x: scipy.special.logsumexp(x),
    ],
)
def test_a_value_that_a_library_takes_names_the_line_that_calls_the_library(asks):
    with pytest.raises(torch2jax.TracedValueError) as caught:
        jax.jit(t2j(asks))(ONES)
    assert f"{asks.__code__.co_filename}:{asks.__code__.co_firstlineno} in <lambda>. Under" in str(caught.value)
