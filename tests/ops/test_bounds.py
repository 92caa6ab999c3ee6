"""Indices, classes, lengths and parameters that PyTorch refuses are refused wherever their values are known.

``python -m tests.ops.test_bounds`` asks every entry of the operator database that takes integers, for more samples.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops.database import Case, cases, dtypes_of, entries, entry, full_name, has_entry
from tests.refusals import refusal
from torch2jax import t2j

INTEGERS = (torch.int64, torch.int32)
WAYS = ("eager", "a constant under jit", "a constant in jax.vmap", "jax.vmap", "torch.vmap")
# The entries of the database that read by their integers.
NAMES = (
    *("gather", "index_add", "index_copy", "index_fill", "index_put", "index_reduce.amax", "index_select", "narrow"),
    *("put", "scatter", "scatter_add", "scatter_reduce.sum", "take", "take_along_dim", "repeat_interleave"),
    *("nn.functional.cross_entropy", "nn.functional.nll_loss", "nn.functional.multi_margin_loss"),
    *("nn.functional.multilabel_margin_loss", "nn.functional.ctc_loss", "nn.functional.linear_cross_entropy"),
    *("nn.functional.embedding", "nn.functional.embedding_bag", "nn.functional.max_unpool1d"),
    *("nn.functional.max_unpool2d", "nn.functional.max_unpool3d", "_segment_reduce.lengths"),
    *("_segment_reduce.offsets", "linalg.ldl_solve", "linalg.lu_solve", "lu_solve", "lu_unpack", "tensor_split", "cov"),
)
NAMES = tuple(name for name in NAMES if has_entry(name))  # PyTorch 2.11 has no linear_cross_entropy
# PyTorch's own decomposition refuses by another index than ours.
OTHER_TYPE = ("nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none")


def spoilt(case: Case):
    """The tensors of a case, with a number that leads nowhere in one of its integer tensors, and the place of that."""
    for place, tensor in enumerate(case.tensors):
        if tensor.dtype in INTEGERS and tensor.numel():
            for bad in (1000, -1000):
                tensors = case.twins()
                tensors[place] = tensors[place].clone()
                tensors[place][(0,) * tensor.ndim] = bad
                yield (place, bad), tensors


def refused_by_pytorch(name: str, limit: int):
    """Cases of an entry of which PyTorch takes the tensors, but not the spoilt ones: these, and its error."""
    seen = set()
    for case in cases(entry(name), torch.float32, limit):
        for key, tensors in spoilt(case):
            if key in seen or refusal(case.function, *case.twins()) is not None:
                continue
            error = refusal(case.function, *(x.clone() for x in tensors))
            if error is not None:
                seen.add(key)
                yield case, tensors, error


def calls(function, tensors) -> dict:
    """How `function` is called in each of the ways."""
    arrays = [t2j(x) for x in tensors]
    floats = [i for i, x in enumerate(tensors) if x.dtype not in INTEGERS]
    stacked = [jnp.stack([x] * 2) for x in arrays]

    def typed(*given):
        return function(*(x.to(like.dtype) for x, like in zip(given, tensors, strict=True)))

    def closed(*given):
        filled = list(tensors)
        for place, x in zip(floats, given, strict=True):
            filled[place] = x
        return function(*filled)

    def batched(*given):
        return torch.vmap(function, randomness="different")(*(torch.stack([x] * 2) for x in given))

    return {
        "eager": lambda: t2j(typed)(*arrays),
        "a constant under jit": lambda: jax.jit(t2j(closed))(*(arrays[i] for i in floats)),
        "a constant in jax.vmap": lambda: jax.vmap(t2j(closed))(*(stacked[i] for i in floats)),
        "jax.vmap": lambda: jax.vmap(t2j(typed))(*stacked),
        "torch.vmap": lambda: t2j(batched)(*tensors),
    }


def disagreements(name: str, limit: int) -> tuple[int, list[str]]:
    """How many spoilt cases of an entry PyTorch refuses, and what is wrong with our refusals of them."""
    count, wrong = 0, []
    for case, tensors, error in refused_by_pytorch(name, limit):
        count += 1
        for way, call in calls(case.function, tensors).items():
            found = refusal(call)
            # within a batch PyTorch refuses by the operators that it decomposes into, and we may need the values
            wanted = Exception if "vmap" in way or name in OTHER_TYPE else type(error)
            if not isinstance(found, wanted):
                wrong.append(f"{case}\n{way}: got {found!r}, wanted {error!r}")
    return count, wrong


@pytest.mark.parametrize("name", NAMES)
def test_integers_that_lead_nowhere_are_refused_as_pytorch_refuses_them(name):
    count, wrong = disagreements(name, 6)
    assert count
    assert wrong == []


ROWS = np.arange(12.0, dtype=np.float32).reshape(3, 4)
KNOWN = {
    "a class out of range": (IndexError, lambda x: F.cross_entropy(x, torch.tensor([0, 4, 1]))),
    "a class of pixels": (IndexError, lambda x: F.nll_loss(x[None, :, :, None], torch.full((1, 4, 1), 7))),
    "one_hot": (RuntimeError, lambda x: F.one_hot(torch.tensor([5]), 3)),
    "take_along_dim": (RuntimeError, lambda x: torch.take_along_dim(x, torch.tensor([-1]))),
    "a sorter": (RuntimeError, lambda x: torch.searchsorted(x[0], x[1], sorter=torch.tensor([0, 1, 2, 9]))),
    "masked_scatter": (RuntimeError, lambda x: x.masked_scatter(torch.ones(3, 4, dtype=torch.bool), torch.ones(2))),
    "weights": (RuntimeError, lambda x: torch.multinomial(torch.tensor([-1.0, 2.0]), 1)),
    "probabilities": (RuntimeError, lambda x: torch.bernoulli(torch.tensor([2.0]))),
    "a deviation": (RuntimeError, lambda x: torch.normal(0.0, torch.tensor([-1.0]))),
    "a rate": (RuntimeError, lambda x: torch.poisson(torch.tensor([-1.0]))),
    "floor_divide": (RuntimeError, lambda x: x.int() // torch.tensor(0)),
    "floor_divide of rows": (RuntimeError, lambda x: x.int() // torch.tensor([1, 0, 1, 1])),
    "floor_divide by Python's 0": (RuntimeError, lambda x: x.int() // 0),
    "floor_divide in place": (RuntimeError, lambda x: x.int().floor_divide_(torch.tensor(0))),
    "remainder": (RuntimeError, lambda x: x.int() % torch.tensor(0)),
    "fmod": (RuntimeError, lambda x: torch.fmod(x.int(), torch.tensor(0))),
    "div": (RuntimeError, lambda x: torch.div(x.int(), torch.tensor(0), rounding_mode="trunc")),
    "rfloordiv": (RuntimeError, lambda x: 7 // torch.tensor([1, 0])),
}


@pytest.mark.parametrize("name", KNOWN)
def test_constants_are_refused_with_and_without_a_program(name):
    error, function = KNOWN[name]
    with pytest.raises(error):
        function(torch.tensor(ROWS))
    run = functools.partial(t2j(function), rng=jax.random.key(0))
    for call in (run, jax.jit(run), lambda x: jax.vmap(run)(x[None])):
        with pytest.raises(error):
            call(ROWS)


ARRAYS = {
    "weights": (lambda x: torch.multinomial(x, 1), -ROWS),
    "probabilities": (torch.bernoulli, ROWS),
    "a deviation": (lambda x: torch.normal(0.0, x), -ROWS),
    "a rate": (torch.poisson, -ROWS),
    "floor_divide": (lambda x: 3 // x.int(), ROWS),
    "remainder": (lambda x: torch.remainder(x.int(), x.int()), ROWS),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_refused_unless_a_program_has_them(name):
    function, array = ARRAYS[name]
    run = t2j(function)
    for _ in range(4):  # what recurs takes another way
        with pytest.raises(RuntimeError):
            run(array, rng=jax.random.key(0))
    with pytest.raises(RuntimeError):
        jax.vmap(lambda x: run(x, rng=jax.random.key(0)))(array)
    jax.jit(run)(array, rng=jax.random.key(0))


def test_what_is_ignored_or_whole_is_taken():
    classes = torch.tensor([0, -100, 3])
    assert jnp.isfinite(t2j(lambda x: F.cross_entropy(x, classes))(ROWS))
    assert jnp.isfinite(t2j(lambda x: F.cross_entropy(x, torch.tensor([0, 7, 3]), ignore_index=7))(ROWS))
    assert jnp.isinf(t2j(lambda x: x // torch.tensor(0.0))(ROWS[1])).all()
    nested = jax.vmap(jax.vmap(t2j(lambda x, i: x[i] + x.gather(0, i)), (0, None)), (None, 0))
    np.testing.assert_allclose(nested(ROWS, jnp.array([[1], [3]])), 2 * ROWS.T[[1, 3], :, None])
    with pytest.raises(RuntimeError, match="index 4 is out of bounds"):
        jax.vmap(jax.vmap(t2j(lambda x, i: x.gather(0, i)), (0, None)), (None, 0))(ROWS, jnp.array([[1], [4]]))


def _main() -> None:
    for op in entries():
        if torch.float32 in dtypes_of(op):
            count, wrong = disagreements(full_name(op), 12)
            if count:
                print(f"{full_name(op)}: {count} refused by PyTorch", *wrong, sep="\n  ", flush=True)


if __name__ == "__main__":
    _main()
