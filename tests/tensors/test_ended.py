"""What a call leaves in objects from outside: PyTorch's own tensors, or ended ones; and what PyTorch has left there."""

import concurrent.futures
import copy
import functools
import math
import pickle
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from torch2jax import EndedCallError, StaleGradientError, t2j
from torch2jax.tensors import ended

X = jnp.asarray(np.random.default_rng(0).normal(size=3).astype(np.float32))


def _sinusoids(n):
    table = torch.zeros(n, 4)
    place, rate = torch.arange(n).unsqueeze(1), torch.exp(torch.arange(0, 4, 2) * (-math.log(10000.0) / 4))
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)
    return table.sum(1)


def _written(n):
    table = torch.zeros(n).add_(1).mul_(torch.arange(n))
    table[1:] = torch.arange(n - 1).float()
    table[0] = 5.0
    table.index_fill_(0, torch.tensor([n - 1]), 9.0)
    table.copy_(table.clone() + 1)
    return table.clamp_(max=8)


def _rotary(n):
    angles = torch.outer(torch.arange(n).float(), 1 / 10000 ** (torch.arange(0, 4, 2).float() / 4))
    return torch.cat([angles.cos(), angles.sin()], -1).sum(-1)


def _rotations(n):
    return torch.view_as_real(torch.polar(torch.ones(n), torch.arange(n).float()))[..., 1]


def _mask(n):
    return torch.triu(torch.full((n, n), float("-inf")), 1)[-1].masked_fill(torch.arange(n) > 0, 3.0)


CONSTANTS = {
    "a range": lambda n: torch.arange(n) / n,
    "integers": torch.arange,
    "float64": lambda n: torch.arange(n, dtype=torch.float64) / 4,
    "bfloat16": lambda n: torch.linspace(0, 1, n).bfloat16(),
    "a window": torch.hann_window,
    "one value": lambda n: torch.full((n,), 2.5),
    "numbers": lambda n: torch.tensor([1.5 * i for i in range(n)]),
    "numpy's": lambda n: torch.from_numpy(np.hanning(n)).float(),
    "expanded": lambda n: torch.ones(1).mul(3).expand(n),
    "a part": lambda n: torch.arange(2 * n).float()[n:].flip(0),
    "large": lambda n: (torch.arange(n * 5000).view(n, 5000) % 7).float().sum(1),
    "sinusoids": _sinusoids,
    "written": _written,
    "rotary": _rotary,
    "complex": _rotations,
    "a mask": _mask,
    "the rule's": lambda n: torch.topk(torch.arange(n).float(), n).values,
    "linear algebra": lambda n: torch.linalg.inv(torch.eye(n) * 2).sum(0),
    "a parameter": lambda n: nn.Parameter(torch.ones(n)),
}


def _backward(f, x):
    x = x.detach().requires_grad_()
    f(x).sum().backward()
    return x.grad


def _either(f, x):
    return f(x) if x.sum() > 0 else f(x) * 2


WAYS = {
    "eager": lambda f, x: t2j(f)(x),
    "jit": lambda f, x: jax.jit(t2j(f))(x),
    "grad": lambda f, x: jax.grad(lambda x: t2j(f)(x).sum())(x),
    "vmap": lambda f, x: jax.vmap(t2j(f))(jnp.stack([x, x])),
    "within another": lambda f, x: jax.jit(t2j(lambda x: t2j(f)(x)))(x),
    "backward": lambda f, x: jax.jit(t2j(functools.partial(_backward, f)))(x),
    "both branches": lambda f, x: jax.jit(t2j(functools.partial(_either, f)))(x),
}


def _serves_pytorch(table, expected):
    assert type(table) is torch.Tensor
    assert (table.dtype, table.shape) == (expected.dtype, expected.shape)
    assert isinstance(table, nn.Parameter) == isinstance(expected, nn.Parameter)
    assert table.requires_grad == expected.requires_grad
    torch.testing.assert_close(table.detach(), expected.detach(), rtol=1e-6, atol=1e-6)
    assert type(table + 1) is torch.Tensor
    torch.cat([table, table])
    repr(table)
    assert torch.equal(copy.deepcopy(table), table)
    assert torch.equal(pickle.loads(pickle.dumps(table.detach())), table)


@pytest.mark.parametrize("first", ["eager", "jit", "vmap", "backward"])
@pytest.mark.parametrize("x64", [False, True])
def test_a_cached_constant_is_pytorchs_own(first, x64):
    cached = functools.cache(lambda kind: CONSTANTS[kind](3))

    def f(x):
        return sum(x * cached(kind) for kind in CONSTANTS)

    with jax.enable_x64(x64):
        WAYS[first](f, X)
    for kind, make in CONSTANTS.items():
        _serves_pytorch(cached(kind), make(3))


@pytest.mark.parametrize(("first", "x64"), [("eager", False), ("jit", True)])
def test_it_serves_all_later_calls(first, x64):
    cached = functools.cache(CONSTANTS["rotary"])

    def f(x):
        return x * cached(x.shape[-1]) + 1

    with jax.enable_x64(x64):
        expected = {way: jax.tree.map(np.asarray, run(lambda x: x * _rotary(3) + 1, X)) for way, run in WAYS.items()}
        WAYS[first](f, X)
        for way, run in WAYS.items():
            np.testing.assert_allclose(run(f, X), expected[way], rtol=1e-5, err_msg=way)
        for shape in ((2, 3), (5,)):
            got = jax.jit(t2j(f))(jnp.ones(shape))
            np.testing.assert_allclose(got, torch.ones(shape) * _rotary(shape[-1]) + 1, rtol=1e-5)


class _Holder:
    shared: typing.ClassVar[dict] = {}

    def __init__(self):
        self.table, self.tables = None, {}


def _places():
    """Ways to keep a table, each by what gives it for a length."""
    holder, listed, module, by_global = _Holder(), [], nn.Identity(), {}
    module.tables = {}

    def in_dict(tables):
        def get(n):
            if n not in tables:
                tables[n] = CONSTANTS["a range"](n)
            return tables[n]

        return get

    def in_attribute(n):
        if holder.table is None or len(holder.table) < n:
            holder.table = CONSTANTS["a range"](n)
        return holder.table[:n]

    def in_module(n):
        if getattr(module, "table", None) is None:
            module.table = CONSTANTS["a range"](n)
        return module.table[:n]

    def in_list(n):
        if not listed:
            listed.append((CONSTANTS["a range"](n),))
        return listed[0][0]

    def in_closure():
        table = None

        def get(n):
            nonlocal table
            if table is None:
                table = CONSTANTS["a range"](n)
            return table

        return get

    def generated():
        table = yield
        while True:
            table = CONSTANTS["a range"](3) if table is None else table
            yield table

    source = generated()
    next(source)
    return {
        "functools.cache": functools.cache(CONSTANTS["a range"]),
        "functools.lru_cache": functools.lru_cache(maxsize=2)(CONSTANTS["a range"]),
        "a global dictionary": in_dict(by_global),
        "a dictionary of an object": in_dict(holder.tables),
        "a dictionary of a class": in_dict(_Holder.shared),
        "a dictionary of a module": in_dict(module.tables),
        "an attribute": in_attribute,
        "an attribute of a module": in_module,
        "a list": in_list,
        "a closure": in_closure(),
        "a generator": lambda n: next(source),
    }


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("place", _places())
def test_it_may_be_kept_anywhere(place, jit):
    _Holder.shared.clear()
    get = _places()[place]

    def f(x):
        return x + get(3)

    for shape in ((3,), (2, 3), (3,)):
        call = jax.jit(t2j(f)) if jit else t2j(f)
        np.testing.assert_allclose(call(jnp.ones(shape)), torch.ones(shape) + torch.arange(3) / 3, rtol=1e-6)
    _serves_pytorch(get(3), torch.arange(3) / 3)
    np.testing.assert_allclose(jax.jit(t2j(f))(jnp.ones((4, 3)))[0], torch.ones(3) + torch.arange(3) / 3, rtol=1e-6)


def test_tables_share_memory_as_they_did():
    kept = {}

    def f(x):
        table = torch.arange(6.0)
        kept.update(table=table, part=table[2:4], transposed=table.view(2, 3).t())
        return x

    for run in (t2j(f), jax.jit(t2j(f))):
        run(X)
        kept["table"][2] = 9.0
        assert kept["part"][0] == 9.0
        assert kept["transposed"].stride() == (1, 3)
        assert kept["transposed"][2, 0] == 9.0


@pytest.mark.parametrize("jit", [False, True])
def test_what_stands_for_a_buffer_shares_its_memory(jit):
    """A module that is translated hands out its own buffer, as in PyTorch."""
    kept = []

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(3.0))

        def forward(self, x):
            kept.append(self.table)
            return x + self.table

    layer = Layer()
    (jax.jit(t2j(layer)) if jit else t2j(layer))(X)
    assert type(kept[0]) is torch.Tensor
    assert kept[0].data_ptr() == layer.table.data_ptr()


def test_a_table_that_pytorch_writes_to_later_is_written_for_graphs_to_come():
    cached = functools.cache(lambda n: torch.arange(n) * 1.0)
    call = jax.jit(t2j(lambda x: x + cached(x.shape[-1])))
    before = call(X)
    cached(3).add_(1)
    np.testing.assert_array_equal(call(X), before)
    np.testing.assert_allclose(jax.jit(t2j(lambda x: x + cached(3)))(X), before + 1, rtol=1e-6)


LEFT = {
    "an input": lambda x: x,
    "of an input": lambda x: x * 2,
    "a part of that": lambda x: (x * 2)[:2],
    "written with it": lambda x: torch.zeros(3).add_(x),
    "a part written with it": lambda x: torch.zeros(4).index_copy_(0, torch.arange(3), x),
    "random": lambda x: torch.rand(3),
    "random in place": lambda x: torch.zeros(3).uniform_(),
    "of a random parameter": lambda x: nn.Linear(2, 2).weight,
}
TOUCHES = {
    "==": lambda y, left: y[: len(left)] == left,
    "reflected ==": lambda y, left: left == y,
    "!=": lambda y, left: y != left,
    "+": lambda y, left: y + left,
    "reflected +": lambda y, left: left + y,
    "number": lambda y, left: left + 1,
    "shape": lambda y, left: left.shape,
    "dtype": lambda y, left: left.dtype,
    "len": lambda y, left: len(left),
    "bool": lambda y, left: bool(left),
    "item": lambda y, left: left.item(),
    "subscript": lambda y, left: left[0],
    "repr": lambda y, left: repr(left),
    "numpy": lambda y, left: left.numpy(),
    "detach": lambda y, left: left.detach(),
    "cat": lambda y, left: torch.cat([y, left]),
    "in place": lambda y, left: y.add_(left),
    "part written": lambda y, left: y.__setitem__(slice(None), left),
    "where": lambda y, left: torch.where(y > 0, left, y),
    "keyword": lambda y, left: torch.add(input=y, other=left),
    "copy": lambda y, left: copy.copy(left),
    "returned": lambda y, left: left.clone(),
}
LATER = {
    "PyTorch": lambda f: f(torch.ones(3)),
    "eager": lambda f: t2j(f)(X),
    "jit": lambda f: jax.jit(t2j(f))(X),
    "grad": lambda f: jax.grad(lambda x: t2j(f)(x).sum())(X),
    "vmap": lambda f: jax.vmap(t2j(f))(X[None]),
}


def _left(what, jit):
    """What a call has left of something."""
    kept = []

    def f(x):
        kept.append(what(x))
        return x

    run = t2j(f)
    (jax.jit(run) if jit else run)(X, rng=jax.random.key(0))
    return kept


@pytest.fixture
def no_keepers(monkeypatch):
    """Nothing is looked for that keeps a tensor: in a process with as many objects as this one, it takes a second."""
    monkeypatch.setattr(ended, "keeper_of", lambda value: None)


@pytest.mark.usefixtures("no_keepers")
@pytest.mark.parametrize(("jit", "later"), [(False, "PyTorch"), (False, "jit"), *((True, later) for later in LATER)])
def test_every_use_of_another_tensor_is_an_error(jit, later):
    kept = _left(lambda x: x * 2, jit)
    for touch in TOUCHES.values():
        with pytest.raises(EndedCallError, match=r"ended, at .*test_ended\.py:\d+ in "):
            LATER[later](lambda y, touch=touch: touch(y, kept[0]))


@pytest.mark.usefixtures("no_keepers")
@pytest.mark.parametrize("jit", [False, True])
def test_what_an_input_decides_is_over(jit):
    for what, make in LEFT.items():
        kept = _left(make, jit)
        with pytest.raises(EndedCallError) as caught:
            kept[0] * 2
        assert "float32 tensor" in str(caught.value), what


def test_the_message_names_what_keeps_it_and_the_line():
    holder = types.SimpleNamespace(last=None)

    def f(x):
        holder.last = x * 2
        return x

    jax.jit(t2j(f))(X)
    line = f.__code__.co_firstlineno + 1
    with pytest.raises(
        EndedCallError,
        match=rf"float32 tensor of shape \(3,\) .* made at \S+:{line} in f and is kept by the attribute last of a S",
    ):
        holder.last + 1


def test_an_argument_that_is_ended():
    (left,) = _left(lambda x: x * 2, True)
    with pytest.raises(EndedCallError):
        t2j(lambda x: x)(left)
    with pytest.raises(EndedCallError):
        copy.deepcopy(left)


def test_a_module_that_has_one_may_be_translated():
    layer = nn.Linear(3, 3)
    layer.seen = _left(lambda x: x * 2, False)
    t2j(layer)(X)


def test_after_an_exception():
    kept = []

    def f(x):
        kept.extend([torch.arange(3) * 2, x * 2])
        raise ZeroDivisionError

    for run in (t2j(f), jax.jit(t2j(f))):
        kept.clear()
        with pytest.raises(ZeroDivisionError):
            run(X)
        assert torch.equal(kept[0], torch.arange(3) * 2)
        with pytest.raises(EndedCallError):
            kept[1] + 1


# What PyTorch has left.


class Biased(nn.Module):
    """As LeViT and EfficientFormer keep the biases of attention."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("places", torch.arange(3).flip(0), persistent=False)
        self.kept = {}

    def forward(self, x):
        if self.training:
            return x + self.biases[:, self.places]
        key = str(x.device)
        if key not in self.kept:
            self.kept[key] = self.biases[:, self.places]
        return x + self.kept[key]


def _filled(grad=True):
    net = Biased().eval()
    with torch.set_grad_enabled(grad):
        net(torch.ones(2, 3))
    return net


def _gradient(net):
    state = t2j(dict(net.named_parameters()))
    return jax.grad(lambda state: t2j(net)(jnp.ones((2, 3)), state_dict=state).sum())(state)["biases"]


@pytest.mark.parametrize("is_closed_over", [False, True])
@pytest.mark.parametrize("way", ["eager", "jit", "vmap"])
def test_a_cache_that_has_lost_its_gradients_is_an_error(way, is_closed_over):
    net = _filled()
    with pytest.raises(StaleGradientError, match=r"\(2, 3\) \(kept by the entry 'cpu' of the attribute kept of a Bias"):
        WAYS[way](net.forward if is_closed_over else net, jnp.ones((2, 3)))


def test_its_gradient_is_an_error_until_it_is_cleared():
    net = _filled()
    with pytest.raises(StaleGradientError, match="clear what keeps it"):
        _gradient(net)
    net.kept.clear()
    np.testing.assert_array_equal(_gradient(net), np.ones((2, 3)))
    np.testing.assert_array_equal(_gradient(_filled().train()), np.ones((2, 3)))
    for way in (t2j(_filled(grad=False)), jax.jit(t2j(_filled(grad=False)))):
        assert way(jnp.ones((2, 3))).shape == (2, 3)
    with torch.no_grad():
        net(torch.ones(2, 3))
    np.testing.assert_allclose(jax.jit(t2j(net))(X), net(j_as_tensor(X)).detach(), rtol=1e-6)


def j_as_tensor(x):
    return torch.from_numpy(np.array(x))


STALE_USES = {
    "operator": lambda x, c: x * c,
    "a view": lambda x, c: x + c[None],
    "cat": lambda x, c: torch.cat([x, c]),
    "linear": lambda x, c: nn.functional.linear(x, c[None]),
    "in place": lambda x, c: x.clone().add_(c),
    "a part written": lambda x, c: x.clone().index_copy_(0, torch.arange(3), c),
    "returned": lambda x, c: c,
    "a view returned": lambda x, c: c[:2],
}
HARMLESS_USES = {
    "detached": lambda x, c: x * c.detach(),
    "shape": lambda x, c: x * c.shape[0] * len(c),
    "integers": lambda x, c: x * c.argmax(),
    "compared": lambda x, c: x * (c > 0),
    "without gradients": lambda x, c: torch.no_grad()(lambda: x * c)(),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("use", STALE_USES)
def test_a_constant_with_lost_gradients(use, jit):
    constant = nn.Parameter(torch.ones(3)) * 2
    run = t2j(lambda x: STALE_USES[use](x, constant))
    with pytest.raises(StaleGradientError, match="MulBackward0"):
        (jax.jit(run) if jit else run)(X)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("use", HARMLESS_USES)
def test_what_loses_no_gradients(use, jit):
    constant = nn.Parameter(torch.ones(3)) * 2
    run = t2j(lambda x: HARMLESS_USES[use](x, constant))
    got = (jax.jit(run) if jit else run)(X)
    np.testing.assert_allclose(got, HARMLESS_USES[use](j_as_tensor(X), constant.detach()), rtol=1e-6)


def test_an_argument_with_gradients_is_the_callers():
    constant = nn.Parameter(torch.ones(3)) * 2
    np.testing.assert_allclose(t2j(lambda x, c: x * c)(X, constant), X * 2)
    np.testing.assert_allclose(jax.jit(lambda x: t2j(lambda x, c: x * c)(x, constant))(X), X * 2)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.parametrize("is_closed_over", [False, True])
def test_a_weight_that_is_computed_anew_each_time(normed, is_closed_over):
    layer = normed(nn.Linear(3, 3)).train()
    layer(torch.ones(2, 3))
    layer.eval()
    expected = layer(torch.ones(2, 3)).detach()
    run = t2j(lambda x: layer(x)) if is_closed_over else t2j(layer)
    np.testing.assert_allclose(jax.jit(run)(jnp.ones((2, 3))), expected, rtol=1e-5, atol=1e-6)


def test_threads_that_the_code_starts_are_told_that_they_belong_to_no_call():
    def in_threads(x):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            return sum(threads.map(lambda y: y * 2, [x, x + 1]))

    with pytest.raises(EndedCallError, match="If the translated code has started this thread"):
        jax.jit(t2j(in_threads))(jnp.ones(3))
