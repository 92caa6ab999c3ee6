"""`x[...]` and `x[...] = v` in all their forms: eager, jitted, and their gradients, against PyTorch."""

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.ops.database import compare
from tests.refusals import error_of
from torch2jax import t2j

ROWS = torch.tensor([2, 0])
WRAPPED = torch.tensor([-1, 1])
GRID = torch.tensor([[0, 1], [3, 2]])
ROW_MASK = torch.tensor([True, False, True, False])
MASK = torch.arange(20).reshape(4, 5) % 3 == 0
SCALAR = torch.tensor(2)
NEGATIVE = torch.tensor(-2)
FLAG = torch.tensor(True)

# What is subscripted has shape (4, 5, 3). Tensors in a subscript are inputs of the translated function.
BASIC = {
    "int": 1,
    "negative int": -1,
    "ints": (1, -2),
    "slice": slice(1, 3),
    "step": slice(None, None, 2),
    "slices": (slice(1, None), slice(None, -1)),
    "ellipsis": ...,
    "ellipsis and int": (..., 1),
    "None": None,
    "None between": (slice(None), None, 2),
    "int and slice": (0, slice(1, 4)),
    "empty": slice(2, 2),
    "True": True,
    "nothing": (),
}
INDEXED = {
    "rows": ROWS,
    "negative rows": WRAPPED,
    "list": [3, 1],
    "grid": GRID,
    "columns": (slice(None), ROWS),
    "last": (..., ROWS),
    "pairs": (ROWS, WRAPPED),
    "pairs apart": (ROWS, slice(None), WRAPPED),
    "broadcast": (GRID, ROWS),
    "outer": (ROWS[:, None], ROWS),
    "slice and rows": (slice(1, 3), ROWS),
    "None and rows": (None, ROWS),
    "rows and int": (ROWS, 1),
    "int and rows": (1, ROWS),
    "rows between": (slice(1, 3), ROWS, slice(None, 2)),
    "no rows": torch.zeros(0, dtype=torch.int64),
    "scalar": SCALAR,
    "negative scalar": NEGATIVE,
    "scalars": (SCALAR, NEGATIVE),
    "scalar and slice": (slice(1, 3), SCALAR),
    "scalar and rows": (SCALAR, ROWS),
    "rows and scalar": (ROWS, SCALAR, ROWS),
    "scalar and None": (SCALAR, None, ..., NEGATIVE),
}
MASKED = {
    "mask of rows": ROW_MASK,
    "mask of columns": (slice(None), torch.tensor([True, False, False, True, True])),
    "mask of two": MASK,
    "mask of all": torch.arange(60).reshape(4, 5, 3) % 4 == 0,
    "mask of the last two": (..., (torch.arange(15).reshape(5, 3) % 2 == 0)),
    "no true": torch.zeros(4, dtype=torch.bool),
    "mask and int": (ROW_MASK, 1),
    "int and mask": (1, torch.tensor([True, False, False, True, True])),
    "slice and mask": (slice(1, 3), torch.tensor([True, False, False, True, True])),
    "mask and slice": (ROW_MASK, slice(1, 3)),
    "mask and rows": (ROW_MASK, WRAPPED),
    "rows and mask": (WRAPPED, torch.tensor([True, False, False, True, False])),
    "mask and one row": (ROW_MASK, torch.tensor([1])),
    "two masks": (ROW_MASK, slice(None), torch.tensor([True, False, True])),
    "flag": FLAG,
}
BYTES = {"mask of bytes": ROW_MASK.to(torch.uint8)}  # PyTorch writes numbers through no such mask
FOUR, FIVE, THREE = map(torch.arange, (4, 5, 3))
GRIDS = {
    "all": (FOUR[:, None], FIVE),
    "apart from each other": (FOUR[:, None, None, None], FIVE),
    "in another order": (FOUR, FIVE[:, None]),
    "three, some of each": (FOUR[1:, None, None], FIVE[None, ::2, None], THREE[1:]),
    "behind a dimension": (slice(None), FIVE[:, None], THREE - 3),
    "one of the first": (torch.tensor([[2]]), FIVE[1:4]),
    "one of each": (torch.tensor([[2]]), torch.tensor([1])),
}
READABLE = BASIC | INDEXED
WRITABLE = BASIC | INDEXED | MASKED


def base():
    return torch.arange(60, dtype=torch.float32).reshape(4, 5, 3) / 7


def split(subscript):
    """The tensors of a subscript, and how to put others in their place."""
    items = subscript if isinstance(subscript, tuple) else (subscript,)
    tensors = [item for item in items if isinstance(item, torch.Tensor)]

    def join(given):
        given = iter(given)
        joined = tuple(next(given) if isinstance(item, torch.Tensor) else item for item in items)
        return joined if isinstance(subscript, tuple) else joined[0]

    return tensors, join


def write(subscript, value):
    def function(x):
        x = x.clone()
        x[subscript] = value
        return x

    return function


def arrays(tensors):
    return [t2j(tensor) for tensor in tensors]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
class TestReads:
    @pytest.mark.parametrize("subscript", (READABLE | MASKED | BYTES).values(), ids=READABLE | MASKED | BYTES)
    def test_eager(self, subscript):
        tensors, join = split(subscript)
        actual = t2j(lambda x, *given: x[join(given)])(t2j(base()), *arrays(tensors))
        compare(actual, base()[subscript])

    @pytest.mark.parametrize("subscript", READABLE.values(), ids=READABLE)
    def test_jit(self, subscript):
        tensors, join = split(subscript)
        actual = jax.jit(t2j(lambda x, *given: x[join(given)]))(t2j(base()), *arrays(tensors))
        compare(actual, base()[subscript])

    @pytest.mark.parametrize("subscript", (READABLE | MASKED | BYTES).values(), ids=READABLE | MASKED | BYTES)
    def test_gradient_with_known_indices(self, subscript):
        def loss(x):
            return (x[subscript] ** 2).sum()

        x = base().requires_grad_()
        loss(x).backward()
        compare(jax.jit(jax.grad(t2j(loss)))(t2j(base())), x.grad)

    @pytest.mark.parametrize("subscript", GRIDS.values(), ids=GRIDS)
    def test_known_indices_that_walk_through_dimensions_are_slices(self, subscript):
        function = t2j(lambda x: x[subscript])
        compare(jax.jit(function)(t2j(base())), base()[subscript])
        names = {equation.primitive.name for equation in jax.make_jaxpr(function)(t2j(base())).eqns}
        assert names <= {"slice", "squeeze", "transpose", "reshape", "broadcast_in_dim"}

    @pytest.mark.parametrize("subscript", [(GRID, ROWS), (WRAPPED, ROWS), (torch.arange(3), torch.arange(3))])
    def test_other_known_indices_are_not(self, subscript):
        function = t2j(lambda x: x[subscript])
        compare(jax.jit(function)(t2j(base())), base()[subscript])
        assert "gather" in {equation.primitive.name for equation in jax.make_jaxpr(function)(t2j(base())).eqns}

    def test_vmap(self):
        index = jnp.array([3, 0, -1])
        actual = jax.vmap(t2j(lambda x, i: x[i]), (None, 0))(t2j(base()), index)
        compare(actual, base()[[3, 0, -1]])


TENSORS = {
    "scalar": lambda shape: torch.tensor(-1.5),
    "full": lambda shape: torch.arange(shape.numel(), dtype=torch.float32).reshape(shape) - 3,
    "broadcast": lambda shape: torch.arange(shape[-1] if shape else 1, dtype=torch.float32) - 2,
    "leading one": lambda shape: torch.full((1, *shape), 4.0),
}


class TestWrites:
    @pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
    @pytest.mark.parametrize("subscript", WRITABLE.values(), ids=WRITABLE)
    def test_values(self, subscript, jit):
        tensors, join = split(subscript)
        kinds = TENSORS if jit else ("broadcast",)
        values = {kind: TENSORS[kind](base()[subscript].shape) for kind in kinds}

        def assign(x, values, *given):
            written = {}
            for kind, value in {**values, "number": 7.5}.items():
                written[kind] = x.clone()
                written[kind][join(given)] = value
            return written

        translated = t2j(assign)
        actual = (jax.jit(translated) if jit else translated)(t2j(base()), t2j(values), *arrays(tensors))
        for kind, expected in assign(base(), values, *tensors).items():
            compare(actual[kind], expected, kind)

    @pytest.mark.parametrize("subscript", WRITABLE.values(), ids=WRITABLE)
    def test_gradients(self, subscript):
        tensors, join = split(subscript)

        def loss(x, value, *given):
            x = x * 2
            x[join(given)] = value
            return (x**2).sum()

        x = base().requires_grad_()
        value = TENSORS["full"](base()[subscript].shape).requires_grad_()
        loss(x, value, *tensors).backward()
        actual = jax.jit(jax.grad(t2j(loss), (0, 1)))(t2j(base()), t2j(value), *arrays(tensors))
        for got, want in zip(actual, (x.grad, value.grad), strict=True):
            compare(got, want)

    @pytest.mark.parametrize("subscript", READABLE.values(), ids=READABLE)
    def test_in_place_operator(self, subscript):
        tensors, join = split(subscript)

        def increment(x, *given):
            x = x.clone()
            x[join(given)] += 1.5
            return x

        compare(jax.jit(t2j(increment))(t2j(base()), *arrays(tensors)), increment(base(), *tensors))

    @pytest.mark.parametrize("subscript", BASIC.values(), ids=BASIC)
    def test_another_dtype_is_cast(self, subscript):
        value = torch.ones(base()[subscript].shape, dtype=torch.int32)
        compare(t2j(write(subscript, value))(t2j(base())), write(subscript, value)(base()))

    def test_every_alias_sees_the_write(self):
        def function(x, i, mask):
            x = x.clone()
            row, flat = x[1], x.view(-1)
            x[i] = 5
            x[:, 2][mask] = -1
            return row, flat

        index, mask = torch.tensor(1), ROW_MASK
        actual = jax.jit(t2j(function))(t2j(base()), t2j(index), t2j(mask)[:, None] & jnp.ones(3, bool))
        expected = function(base(), index, mask[:, None] & torch.ones(3, dtype=torch.bool))
        for got, want in zip(actual, expected, strict=True):
            compare(got, want)

    def test_a_view_at_a_traced_index_is_written_through(self):
        def function(x, i):
            x = x.clone()
            x[i].add_(1)
            x[:, i][1:].zero_()
            return x

        index = torch.tensor(-1)
        compare(jax.jit(t2j(function))(t2j(base()), t2j(index)), function(base(), index))

    def test_accumulation(self):
        def function(x, index, value):
            return x.index_put((index,), value, accumulate=True)

        index, value = torch.tensor([1, 1, -1]), torch.ones(5, 3)
        compare(jax.jit(t2j(function))(t2j(base()), t2j(index), t2j(value)), function(base(), index, value))


class TestGraphs:
    def primitives(self, function, *args):
        return [equation.primitive.name for equation in jax.make_jaxpr(t2j(function))(*args).eqns]

    def test_constant_progressions_are_slices(self):
        x = t2j(base())
        assert self.primitives(lambda x: x[[0, 2]], x) == ["slice"]
        assert self.primitives(lambda x: x[:, torch.tensor([1, 2, 3])], x) == ["slice"]
        assert self.primitives(lambda x: x[torch.tensor([3, 2, 1])], x) == ["slice", "rev"]
        assert self.primitives(lambda x: x[torch.tensor([0, 1, 2, 3])], x) == []

    def test_known_indices_are_not_wrapped(self):
        assert self.primitives(lambda x: x[torch.tensor([0, 3, 1])], t2j(base())) == ["broadcast_in_dim", "gather"]

    def test_a_mask_is_a_selection(self):
        def function(x, mask):
            x[mask] = 0
            return x

        names = self.primitives(function, t2j(base()), t2j(MASK))
        assert names[-1] == "select_n"
        assert set(names[:-1]) <= {"broadcast_in_dim", "reshape"}  # by which JAX's releases add a dimension

    def test_adding_in_place_writes_once(self):
        def function(x):
            x[0] += 1
            return x

        assert self.primitives(function, t2j(base())).count("dynamic_update_slice") == 1

    def test_adding_at_a_traced_index_writes_once(self):
        def function(x, i, j):
            x[i] += 1
            x[:, j] *= 2
            return x

        index = (t2j(SCALAR), t2j(SCALAR))
        assert self.primitives(function, t2j(base()), *index).count("dynamic_update_slice") == 2
        compare(jax.jit(t2j(function))(t2j(base()), *index), function(base(), SCALAR, SCALAR))


REFUSED = {
    "negative step": lambda x: x[::-1],
    "negative step written": write(slice(None, None, -1), 0),
    "int out of range": lambda x: x[4],
    "index out of range": lambda x: x[torch.tensor([0, 4])],
    "negative index out of range": lambda x: x[torch.tensor([-5])],
    "index out of range written": write(torch.tensor([0, 4]), 0),
    "too many": lambda x: x[0, 0, 0, 0],
    "too many tensors": lambda x: x[ROWS, ROWS, ROWS, ROWS],
    "float index": lambda x: x[torch.tensor([1.0])],
    "mask of another shape": lambda x: x[torch.ones(3, dtype=torch.bool)],
    "mask of another shape written": write(torch.ones(3, dtype=torch.bool), 0),
    "indices that do not broadcast": lambda x: x[torch.tensor([0, 1]), torch.tensor([0, 1, 2])],
    "value of another shape": write(ROWS, torch.ones(4, 3)),
    "values of another number": write(ROW_MASK, torch.ones(3, 5, 3)),
    "value of another dtype": write(ROWS, torch.ones(2, 5, 3, dtype=torch.int32)),
    "expanded": lambda x: x[0].expand(2, 5, 3).__setitem__(slice(None), torch.ones(2, 5, 3)),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_refusals_are_of_the_type_that_pytorch_raises(function):
    expected = error_of(function, base())
    actual = error_of(t2j(function), t2j(base()))
    assert isinstance(actual, type(expected)), f"{actual!r}, but PyTorch: {expected!r}"
    assert str(actual)


@pytest.mark.parametrize(
    "function",
    [lambda x, i: x[i : 2 * i], lambda x, i: x[x[:, 0, 0] > i]],
    ids=["slice", "mask"],
)
def test_lengths_that_depend_on_traced_values(function):
    expected = function(base(), torch.tensor(1))
    padded = jax.jit(t2j(function))(t2j(base()), jnp.int32(1))
    compare(padded.compact(), expected)
    assert not padded.values[len(expected) :].any()
    compare(t2j(function)(t2j(base()), jnp.int32(1)), expected)


@pytest.mark.parametrize(
    "function",
    [lambda x, i: x[:, i : 2 * i], lambda x, i: x[:, x[0, :, 0] > i]],
    ids=["slice", "mask"],
)
def test_later_lengths_that_depend_on_traced_values(function):
    expected = function(base(), torch.tensor(1))
    padded = jax.jit(t2j(function))(t2j(base()), jnp.int32(1))
    assert padded.axis == 1
    compare(padded.compact(), expected)
    compare(t2j(function)(t2j(base()), jnp.int32(1)), expected)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_lists_of_scalar_tensors_are_indices(transform):
    def clear(x, places):
        rows, columns = zip(*places, strict=True)
        x = x.clone()
        x[rows, columns] = 0
        return x, x[list(rows), 1:]

    x, places = torch.randn(4, 5), torch.tensor([[0, 1], [2, 3]])
    for got, want in zip(transform(t2j(clear))(t2j(x), t2j(places)), clear(x, places), strict=True):
        compare(got, want)
