"""Slices that begin where data decide and have a known length: ``x[:, i : i + n]``, read and written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import checkify

from tests.refusals import error_of
from torch2jax import t2j

WAYS = {"tensor": lambda p: p, "item": lambda p: p.item()}
READS = {
    "first": lambda x, i: x[i : i + 2],
    "later": lambda x, i: x[:, i : i + 2],
    "last": lambda x, i: x[..., i : i + 1],
    "sum first": lambda x, i: x[2 + i - 2 : 4 + i - 2],
    "the same, taken away": lambda x, i: x[:, i : 3 + 2 * i - i],
    "around": lambda x, i: x[:, i + 2 - 1 : i + 1 + 2],
    "twice": lambda x, i: x[:, i * 2 : 1 + 2 * i],
    "remainder": lambda x, i: x[:, (i + 3) % 4 : (i + 3) % 4 + 2],
    "two": lambda x, i: x[i : i + 2, :, i : i + 1],
    "two lengths": lambda x, i: x[1 - 1 + i : i + 1, i : i + 3],
    "with a slice": lambda x, i: x[1:, i : i + 2, ::2],
    "with a number": lambda x, i: x[1, i : i + 2, -1],
    "with a traced number": lambda x, i: x[i, i : i + 2, 1:],
    "with None": lambda x, i: x[None, :, i : i + 2, None],
    "with indices": lambda x, i: x[:, i : i + 2, torch.tensor([2, 0])],
    "with a mask": lambda x, i: x[torch.tensor([True, False, True, True]), i : i + 2],
    "with indices apart": lambda x, i: x[torch.tensor([2, 0]), i : i + 2, torch.tensor([2, 0])],
    "by steps": lambda x, i: x[:, i : i + 3 : 2],
    "by steps to the end": lambda x, i: x[:, i % 3 : i % 3 + 4 : 2],
    "from the end": lambda x, i: x[:, i - 5 : i - 3],
    "nothing": lambda x, i: x[:, i:i],
    "all": lambda x, i: x[i - i : i - i + 4, i : i + 2],
    "of a part": lambda x, i: x[1:, 1:][:, i : i + 2],
    "part of it": lambda x, i: x[:, i : i + 3][:, 1:],
    "again": lambda x, i: x[:, i : i + 3][:, i // 2 : i // 2 + 1],
    "narrow": lambda x, i: x.narrow(1, i, 2),
    "torch.narrow": lambda x, i: torch.narrow(x, -2, i, 2),
    "narrow by a difference": lambda x, i: x.narrow(1, i, i + 2 - i),
    "transposed": lambda x, i: x.mT[..., i : i + 2],
    "shape": lambda x, i: x[:, i : i + 2].reshape(4, -1) * x[:, i : i + 2].shape[1],
    "product": lambda x, i: x[:, i : i + 2] @ torch.ones(3, 2),
    "reduced": lambda x, i: x[:, i : i + 2].sum(1),
}


def written(write):
    def function(x, i):
        y = x * 1
        write(y, i)
        return y

    return function


def put(index, value):
    def write(y, i):
        y[index(i)] = value(y) if callable(value) else value

    return written(write)


def added(y, i):
    y[:, i : i + 2] += y[:, :2] * 2


def nested(y, i):
    part = y[:, i : i + 3]
    part[:, 1:].mul_(3)
    y[0, i + 1] = 5.0
    part[0] *= y[0, i + 1].sum()


def moved(y, i):
    y[:, i : i + 2] = y[:, i + 1 : i + 3].clone()


WRITES = {
    "first": put(lambda i: slice(i, i + 2), lambda y: y[2:] * 2),
    "later": put(lambda i: (slice(None), slice(i, i + 2)), lambda y: y[:, :2] * 2),
    "last": put(lambda i: (..., slice(i, i + 1)), lambda y: y[..., 1:2] * 2),
    "two": put(lambda i: (slice(i, i + 2), slice(i + 1, i + 3)), lambda y: y[:2, :2] * 2),
    "with a slice": put(lambda i: (slice(1, None), slice(i, i + 2)), lambda y: y[1:, :2] * 2),
    "with a number": put(lambda i: (1, slice(i, i + 2)), lambda y: y[0, :2] * 2),
    "with a traced number": put(lambda i: (i, slice(i, i + 2)), lambda y: y[0, :2] * 2),
    "with None": put(lambda i: (None, slice(None), slice(i, i + 2)), lambda y: y[None, :, :2] * 2),
    "with indices": put(lambda i: (torch.tensor([2, 0]), slice(i, i + 2)), lambda y: y[:2, :2] * 2),
    "by steps": put(lambda i: (slice(None), slice(i, i + 3, 2)), lambda y: y[:, :2] * 2),
    "a number": put(lambda i: (slice(None), slice(i, i + 2)), 7.0),
    "a row": put(lambda i: (slice(None), slice(i, i + 2)), lambda y: y[0, 0] * 2),
    "columns": put(lambda i: (slice(None), slice(i, i + 2)), lambda y: y[:, :1] * 2),
    "added": written(added),
    "nested": written(nested),
    "moved": written(moved),
    "copy_": written(lambda y, i: y[:, i : i + 2].copy_(y[:, 2:4] * 2)),
    "fill_": written(lambda y, i: y[i : i + 2].fill_(7.0)),
    "zero_": written(lambda y, i: y[..., i : i + 1].zero_()),
    "mul_": written(lambda y, i: y[:, i : i + 2].mul_(2)),
    "narrow": written(lambda y, i: y.narrow(1, i, 2).copy_(y[:, 2:4] * 2)),
    "narrow added": written(lambda y, i: y.narrow(0, i, 2).add_(y[2:] * 2)),
    "transposed": written(lambda y, i: y.mT[..., i : i + 2].mul_(2)),
    "an alias": written(lambda y, i: y.view(4, -1)[:, i * 3 : i * 3 + 6].mul_(2)),
}
CASES = {f"read {name}": x for name, x in READS.items()} | {f"write {name}": x for name, x in WRITES.items()}
PLACES = (0, 1, 2)


def base():
    return torch.arange(60.0).reshape(4, 5, 3).sin()


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_slices_of_a_known_length(function):
    """Jitted, and the gradient of each place in a batch."""
    given = base().requires_grad_()
    both = jax.jit(t2j(lambda x, p: (function(x, p), function(x, p.item()))))
    slope = jax.grad(lambda x, p: t2j(lambda x, p: function(x, p).square().sum())(x, p))
    slopes = jax.jit(jax.vmap(slope, (None, 0)))(t2j(base()), jnp.array(PLACES))
    for p, got in zip(PLACES, slopes, strict=True):
        expected = function(given, p)
        for result in both(t2j(base()), p):
            np.testing.assert_allclose(result, expected.detach(), rtol=1e-6)
        (gradient,) = torch.autograd.grad(expected.square().sum(), given)
        np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["read later", "read two", "read around", "write two", "write added", "write nested"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_jit(name, way):
    x, places, f = t2j(base()), jnp.array(PLACES), t2j(lambda x, p: CASES[name](x, way(p)))
    expected = [CASES[name](base(), p) for p in PLACES]
    np.testing.assert_allclose(f(x, places[1]), expected[1], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f, (None, 0))(x, places), np.stack(expected), rtol=1e-6)


def primitives(function, *args):
    return [step.primitive.name for step in jax.make_jaxpr(t2j(function))(*args).jaxpr.eqns]


SCALARS = ("add", "lt", "select_n", "convert_element_type")  # where the slice begins, as `dynamic_slice` has it
GRAPHS = {
    "write": (WRITES["later"], ["slice", "dynamic_update_slice"]),
    "write two": (WRITES["two"], ["slice", "dynamic_update_slice"]),
    "write with others": (
        put(lambda i: (slice(1, 3), slice(i, i + 2), 1), lambda y: y[2:, 3:, 0] * 2),
        ["slice", "squeeze", "broadcast_in_dim", "dynamic_update_slice"],
    ),
    "clamped": (lambda x, i: x[:, i.clamp(0, 3) : i.clamp(0, 3) + 2], ["max", "min", "dynamic_slice"]),
    "remainder": (lambda x, i: x[:, i % 4 : i % 4 + 2], ["rem", "dynamic_slice"]),
    "narrow": (READS["narrow"], ["dynamic_slice"]),
    "read": (READS["later"], ["ge", "le", "and", "dynamic_slice", "broadcast_in_dim", "mul"]),
}


@pytest.mark.parametrize(("function", "wanted"), GRAPHS.values(), ids=GRAPHS)
def test_graphs(function, wanted):
    """One slice, or one that is written: what is not seen to fit is multiplied by one, or by nan."""
    found = primitives(lambda x, i: function(x, i), t2j(base()), 1)
    assert [name for name in dict.fromkeys(found) if name not in (*SCALARS, "mul")] == [
        name for name in wanted if name != "mul"
    ]
    assert sum("dynamic" in name for name in found) == 1


DTYPES = {torch.float32: np.nan, torch.int32: -(2**31), torch.uint8: 255, torch.bool: True}


@pytest.mark.parametrize(("dtype", "nothing"), DTYPES.items(), ids=str)
def test_what_does_not_fit_is_seen(dtype, nothing):
    x, f = torch.zeros(3, 5, dtype=dtype), jax.jit(t2j(lambda x, p: x[:, p : p + 2]))
    for place in (-6, -1, 4, 7):  # where PyTorch's slices are shorter
        np.testing.assert_array_equal(f(t2j(x), place), np.full((3, 2), nothing))
    for place in (-5, -3, 0, 3):
        np.testing.assert_array_equal(f(t2j(x), place), x[:, place : place + 2])
    fill = jax.jit(t2j(lambda x, p: x.clone()[:, p : p + 2].fill_(1)))
    np.testing.assert_array_equal(fill(t2j(x), 4), np.full((3, 2), nothing))


def test_gradients_of_what_does_not_fit_are_seen():
    slope = jax.jit(jax.grad(t2j(lambda x, p: x[p : p + 2].sum())))
    np.testing.assert_array_equal(slope(jnp.ones(5), 3), [0, 0, 0, 1, 1])
    assert jnp.isnan(slope(jnp.ones(5), 4)).any()


CHECKED = {
    "read": lambda x, p: x[p : p + 2],
    "narrow": lambda x, p: x.narrow(0, p, 2),
    "write": put(lambda i: slice(i, i + 2), lambda y: y[:2]),
}


@pytest.mark.parametrize("function", CHECKED.values(), ids=CHECKED)
def test_checks(function):
    checked = jax.jit(checkify.checkify(t2j(function, checks="checkify")))
    assert checked(jnp.ones(5), 3)[0].get() is None
    assert "2 of 5 elements" in checked(jnp.ones(5), 4)[0].get()


REFUSED = {
    "value of another shape": put(lambda i: slice(i, i + 2), lambda y: y[:3]),
    "too long": lambda x, i: x.narrow(0, i, 9),
    "too many": lambda x, i: x[i : i + 2, 0, 0, 0],
    "no index": lambda x, i: x[i * 0.5 : i * 0.5 + 1],
    "no whole number": lambda x, i: x[i.item() * 0.5 : i.item() * 0.5 + 1],
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_refusals(function):
    expected = error_of(function, base(), torch.tensor(1))
    for f in (t2j(function), jax.jit(t2j(function))):
        assert isinstance(error_of(f, t2j(base()), jnp.array(1)), type(expected))


class Queue(torch.nn.Module):
    """A queue of keys, as momentum contrast has it."""

    keys: torch.Tensor
    place: torch.Tensor

    def __init__(self, begin):
        super().__init__()
        self.begin = begin
        self.register_buffer("keys", torch.zeros(4, 12))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, keys):
        begin, count = self.begin(self.place), len(keys)
        assert self.keys.shape[1] % count == 0
        scores = keys @ self.keys.clone()
        self.keys[:, begin : begin + count] = keys.T
        self.place[0] = (begin + count) % self.keys.shape[1]
        return scores.logsumexp(1).mean()


class Cache(torch.nn.Module):
    """Keys of a decoder's tokens."""

    keys: torch.Tensor
    length: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, 10, 4))
        self.register_buffer("length", torch.tensor(0))

    def forward(self, keys):
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.length.copy_(end)
        return (self.keys.sum((0, 1, 3)) * (torch.arange(10) < self.length)).sum()


class Replay(torch.nn.Module):
    """Steps of an agent: the oldest are written over."""

    seen: torch.Tensor
    actions: torch.Tensor
    ends: torch.Tensor
    place: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(12, 3))
        self.register_buffer("actions", torch.zeros(12, dtype=torch.int32))
        self.register_buffer("ends", torch.zeros(12, dtype=torch.bool))
        self.register_buffer("place", torch.tensor(0))

    def forward(self, seen):
        i, count = self.place.item(), len(seen)
        self.seen[i : i + count] = seen
        self.actions[i : i + count] += seen[:, 0].int() + 1
        self.ends[i : i + count] = seen[:, 1] > 0
        self.place.fill_((i + count) % len(self.seen))
        return self.seen[: count * 2].sum()


STATEFUL = {
    "queue by item": (lambda: Queue(lambda place: place.item()), (3, 4)),
    "queue by element": (lambda: Queue(lambda place: place[0]), (3, 4)),
    "queue by tensor": (lambda: Queue(lambda place: place), (3, 4)),
    "cache": (Cache, (2, 3, 2, 4)),
    "replay": (Replay, (4, 3)),
}


@pytest.mark.parametrize(("make", "shape"), STATEFUL.values(), ids=STATEFUL)
def test_buffers_in_a_scan(make, shape):
    module, given = make(), torch.randn(5, *shape)
    f, state = t2j(module), t2j(module.state_dict())

    def step(state, x):
        result, state = f(x, state_dict=state, return_state_dict=True)
        return state, result

    state, results = jax.jit(lambda state, given: jax.lax.scan(step, state, given))(state, t2j(given))
    expected = torch.stack([module(x) for x in given])
    np.testing.assert_allclose(results, expected, rtol=1e-5, atol=1e-6)
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(state[name], value)
    graph = [step.primitive.name for step in jax.make_jaxpr(step)(state, t2j(given[0])).jaxpr.eqns]
    assert not {"gather", "scatter"} & set(graph)


def pushed(q, p, v):
    for k in range(24):
        q[:, p : p + 2] = (v * (k + 1)).sin() + q[:, p : p + 2].cos().tanh() * v.exp().cos()
        p = (p + 2) % 8
    return q, p


def pushed_while(q, p, v):
    while q.sum() < 60:
        q[:, p : p + 2] += v
        p = (p + 2) % 8
    return q, p


@pytest.mark.parametrize("function", [pushed, pushed_while])
def test_in_loops(function):
    args = torch.zeros(3, 8), torch.tensor(2), torch.ones(3, 2)
    f = t2j(lambda q, p, v: function(q.clone(), p, v), loops="rolled")
    got = jax.jit(f)(*map(t2j, args))
    for one, other in zip(got, function(args[0].clone(), *args[1:]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert str(jax.make_jaxpr(f)(*map(t2j, args))).count("dynamic_update_slice[") <= 2


def in_a_branch(x, p):
    x = x.clone()
    if x.sum() > 0:
        x[p : p + 2] = x[:2] * 2
    return x


def test_numbers_from_around_a_branch():
    x = torch.rand(5)
    np.testing.assert_allclose(jax.jit(t2j(in_a_branch))(t2j(x), 2), in_a_branch(x, 2), rtol=1e-6)


def test_numbers_from_around_a_transformation():
    x, f = jnp.ones((5, 4)), lambda x, p: torch.func.grad(lambda x: x[p : p + 2].square().sum())(x)
    np.testing.assert_array_equal(jax.jit(t2j(f))(x, 2).sum(1), [0, 0, 8, 8, 0])
    f = t2j(lambda x, p: torch.vmap(lambda row: row[p : p + 2])(x))
    np.testing.assert_array_equal(jax.jit(f)(x, 2), x[:, :2])


def test_int_of_a_tensor_is_a_number():
    """As momentum contrast has it: the place in the queue is an ``int``."""
    queue, keys = Queue(int), torch.randn(3, 4)
    f, state = t2j(queue), t2j(queue.state_dict())
    step = jax.jit(lambda keys, state: f(keys, state_dict=state, return_state_dict=True))
    for n in range(3):
        found, state = step(t2j(keys + n), state)
        np.testing.assert_allclose(found, queue(keys + n), rtol=1e-5)
        np.testing.assert_allclose(state["keys"], queue.keys)


def test_in_64_bits():
    with jax.enable_x64(True):
        x, p = jnp.arange(6.0), jnp.array(2)
        assert p.dtype == jnp.int64
        np.testing.assert_array_equal(jax.jit(t2j(READS["first"]))(x, p), [2, 3])
        np.testing.assert_array_equal(jax.jit(t2j(WRITES["a number"]))(x.reshape(2, 3), p - 1), [[0, 7, 7], [3, 7, 7]])
