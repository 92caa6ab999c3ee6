"""8-bit floats are refused where PyTorch has no kernel for them, and have its values where it has: the whole database.

A sample of it, by the names of its entries; with ``--full`` all of it.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from tests.ops.database.outcome import quiet
from tests.ops.database.samples import Case, cases, entries, entry, full_name
from torch2jax import j2t, t2j
from torch2jax.calls import float8_kernels, refusals
from torch2jax.calls.call import this_call
from torch2jax.tensors.dtypes import canonical

EVERY = 8
_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
# What is made of other functions here: it refuses a matrix of no elements, too.
_APART = (
    "linalg.",
    "svd",
    "empty",
    "chalf",
    "constant_pad_nd",
)


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        names = [full_name(op) for op in entries() if torch.float32 in op.supported_dtypes("cpu")]
        names = [name for name in names if not any(part in name for part in _APART)]
        if not metafunc.config.getoption("full"):
            names = [name for name in names if zlib.crc32(name.encode()) % EVERY == 0]
        metafunc.parametrize("name", names)


def _case(name: str, dtype: torch.dtype) -> Case | None:
    """The first sample of an entry with its numbers of floating point in 8 bits, if it has any."""
    for case in cases(entry(name), torch.float32, 1):
        is_floating = [x.dtype == torch.float32 and x.layout == torch.strided for x in case.tensors]
        if any(is_floating):
            pairs = zip(case.tensors, is_floating, strict=True)
            case.tensors = [x.detach().to(dtype) if floating else x for x, floating in pairs]
            return case
    return None


def _leaves(result) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.layout == torch.strided]


def _outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return error


def test_entry(name):
    with quiet():
        case = _case(name, _DTYPES[zlib.crc32(name.encode()) // EVERY % len(_DTYPES)])
        if case is None:
            return
        expected = _outcome(case.function, *case.twins())
        found = _outcome(lambda: t2j(lambda *x: _leaves(case.function(*x)))(*case.twins(), rng=jax.random.key(0)))
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), f"{found!r:.200}; PyTorch raises {expected!r:.200}"
        return
    assert not isinstance(found, Exception), found
    for array, tensor in zip(found, _leaves(expected), strict=True):
        assert array.dtype == canonical(tensor.dtype)
        np.testing.assert_allclose(array.astype(jnp.float32), tensor.float(), rtol=1e-6)


X = torch.tensor([0.5, -1.0, 2.0])
REFUSED = {
    "a number": lambda x, y: x * 2,
    "another dtype": lambda x, y: x * y,
    "in place": lambda x, y: y.clone().add_(x),
    "cat": lambda x, y: torch.cat([y, x]),
    "stack": lambda x, y: torch.stack([x, y]),
    "a sum": lambda x, y: x.sum(),
    "a comparison": lambda x, y: x < x,
    "a sign": lambda x, y: -x,
    "what it asks for": lambda x, y: torch.rand(3, dtype=x.dtype),
    "a large one": lambda x, y: x.repeat(2**19).reshape(3, -1) * 2,
    "an index": lambda x, y: x.gather(0, (y > 0).long()),
    "a softmax": lambda x, y: torch.softmax(x, 0),
    "moved by a kernel": lambda x, y: torch.pixel_shuffle(x[:1].expand(4, 2, 2), 2),
    "moved back": lambda x, y: torch.pixel_unshuffle(x[:1].expand(1, 2, 2), 2),
    "channels": lambda x, y: torch.channel_shuffle(x[:1].expand(1, 4, 2, 2), 2),
    "an outer product": lambda x, y: torch.addr(y.expand(3, 3), x, y),
    "a step": lambda x, y: torch.heaviside(x, x),
    "places of it": lambda x, y: torch.searchsorted(y, x),
    "buckets of it": lambda x, y: torch.bucketize(y, x),
}


@pytest.mark.parametrize("f", REFUSED.values(), ids=REFUSED.keys())
def test_refused(f):
    x, function = X.to(torch.float8_e4m3fn), t2j(f)
    with pytest.raises(Exception, match="Float8") as wanted:
        f(x, X)
    for run in (function, jax.jit(function)):
        with pytest.raises(type(wanted.value), match=r"Float8(.|\n)*float8_e4m3fn, which it does not take: convert it"):
            run(t2j(x), t2j(X), rng=jax.random.key(0))
    mapped = jax.vmap(lambda x: function(x, X, rng=jax.random.key(0)))
    with pytest.raises(type(wanted.value), match="Float8"):
        mapped(t2j(x[None]))


ERRORS = {
    "segments": lambda x, y: torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 2])),
    "a step of another dtype": lambda x, y: torch.heaviside(x, y),
    "one of another dtype": lambda x, y: torch.inner(x, y),
}


@pytest.mark.parametrize("f", ERRORS.values(), ids=ERRORS.keys())
def test_refused_in_other_words(f):
    x, function = X.to(torch.float8_e4m3fn), t2j(f)
    with pytest.raises((RuntimeError, NotImplementedError)) as wanted:
        f(x, X)
    for run in (function, jax.jit(function)):
        with pytest.raises(type(wanted.value)):
            run(t2j(x), t2j(X))


def test_pytorch_is_asked_once_for_the_same(monkeypatch):
    asked = []

    def refusal_of(call, function, *args):
        asked.append(function)
        return refusals.refusal_of(call, function, *args)

    monkeypatch.setattr(float8_kernels, "refusal_of", refusal_of)
    monkeypatch.setattr(float8_kernels, "_served", set())

    def f(x):
        return [torch.roll(x, 1), torch.roll(x, 2), x * x]

    x = X.to(torch.float8_e4m3fn)
    for shape in ((3,), (3,), (1, 3)):
        jax.make_jaxpr(t2j(f))(t2j(x.reshape(shape)))
    assert asked.count(torch.roll) == 4  # two shifts of two shapes
    for shape in ((3,), (3,)):
        with pytest.raises(NotImplementedError, match="Float8"):
            jax.make_jaxpr(t2j(lambda x: -x))(t2j(x.reshape(shape)))


ASKED_FOR = {
    "a sum": lambda x: x.sum(dtype=torch.float8_e5m2),
    "a softmax": lambda x: torch.softmax(x, 0, torch.float8_e4m3fn),
    "drawn": lambda x: torch.rand(3, dtype=torch.float8_e4m3fn),
    "a constant": lambda x: x * CONSTANT,
    "what a cast gives": lambda x: x.to(torch.float8_e5m2) * 2,
    "zeros": lambda x: torch.zeros(3, dtype=torch.float8_e4m3fn) * x,
}
CONSTANT = X.to(torch.float8_e4m3fn)


@pytest.mark.parametrize("f", ASKED_FOR.values(), ids=ASKED_FOR.keys())
def test_refused_where_no_argument_is_one(f):
    with pytest.raises(Exception, match="Float8") as wanted:
        f(X)
    function = t2j(f)
    for run in (function, function, jax.jit(function)):  # by a plan, if the first has left one
        with pytest.raises(type(wanted.value), match="Float8"):
            run(t2j(X), rng=jax.random.key(0))


def test_nobody_is_asked_without_one():
    def f(x):
        asked = [bool(this_call().features.checks)]
        for dtype in (torch.int8, torch.float16, torch.float8_e4m3fn):
            x = x.to(dtype)
            asked.append(bool(this_call().features.checks))
        assert asked == [False, False, False, True]
        return x.float()

    for run in (t2j(f), t2j(f), jax.jit(t2j(f))):
        np.testing.assert_array_equal(run(t2j(X)), X.to(torch.int8).float())


def test_a_call_within_hands_on_what_it_has_begun():
    inner = t2j(lambda x: x.to(torch.float8_e4m3fn))

    def f(x):
        y = j2t(inner)(x)
        assert this_call().features.checks
        return y * 2

    with pytest.raises(NotImplementedError, match="Float8"):
        t2j(f)(t2j(X))


def test_zero_among_powers_of_two():
    def f(x):
        return torch.zeros(2, dtype=x.dtype).float(), torch.where(x.float() > 1, x, 0.0).float()

    x = torch.tensor([4.0, 0.5]).to(torch.float8_e8m0fnu)
    for run in (t2j(f), jax.jit(t2j(f))):
        for found, wanted in zip(run(t2j(x)), f(x), strict=True):
            np.testing.assert_array_equal(found, wanted)


SERVED = {
    "a product of two": lambda x: (x * x).float(),
    "moved": lambda x: torch.cat([x.roll(1), x.view(-1)[:2], x[x.float() > 0]]).float(),
    "a matrix product": lambda x: (x[:, None] @ x[None]).float(),
    "added to one": lambda x: torch.addmm(x.expand(3, 3), x[:, None], x[None]).float(),
    "a layer": lambda x: torch.nn.functional.linear(x[None].expand(2, 3), x.expand(4, 3), x[[0, 1, 2, 0]]).float(),
    "written": lambda x: x.clone().fill_(3).copy_(x.float() * 2).float(),
    "equal": lambda x: (x == x) & ~x.isnan(),
    "the same bits": lambda x: x.view(torch.uint8),
    "the place of a number": lambda x: torch.searchsorted(torch.tensor([0.0, 1.0, 3.0]), x[2]),
    "the bucket of a number": lambda x: torch.bucketize(x[2], torch.tensor([0.0, 1.0, 3.0])),
    "multiples": lambda x: torch.inner(torch.tensor([0.5, 1.0]), x[2]),
}


@pytest.mark.parametrize("f", SERVED.values(), ids=SERVED.keys())
def test_served(f):
    x = torch.tensor([0.4375, -1.375, 2.25]).to(torch.float8_e4m3fn)
    for run in (t2j(f), jax.jit(t2j(f))):
        found = run(t2j(x))
        np.testing.assert_array_equal(found.compact() if hasattr(found, "compact") else found, f(x))
