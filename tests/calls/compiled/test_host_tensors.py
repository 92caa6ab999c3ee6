"""Tensors around compiled parts, which are PyTorch's own: memory that they share, and how they lie there."""

import itertools
import warnings

import jax
import numpy as np
import pytest
import torch

from torch2jax import t2j

from ...ops.database.samples import dtypes_of, entries

ROWS = torch.arange(12.0).reshape(4, 3)
_OTHERS = (".", "jiterator")  # namespaces, as linalg, whose functions compute new tensors; what needs a GPU


class Module(torch.nn.Module):
    """Code around a part, and in it.

    Args:
        code: takes the part and the arguments.
        part: what the part does; by default it gives what it gets.
    """

    def __init__(self, code, part=lambda x: x):
        super().__init__()
        self.code, self.does = code, part

    def part(self, x):
        return self.does(x)

    def forward(self, *args):
        return self.code(self.part, *args)


def compare(module: Module, *args: torch.Tensor) -> None:
    """PyTorch and the translation agree, in a first call and in one that finds its programs."""
    expected = module(*[x.clone() for x in args])
    translated = t2j(module, compile=["part"])
    for _ in range(2):
        for got, want in zip(translated(*map(t2j, args)), expected, strict=True):
            if isinstance(want, torch.Tensor):
                np.testing.assert_allclose(got, want.resolve_conj(), 1e-6, 1e-6)
            else:
                assert got == want


def _into(part, x, y):
    other = y.clone()
    x.set_(other)
    other.add_(1)
    return x, other, x.data_ptr() == other.data_ptr()


def _out_of(part, x, y):
    other = y.clone()
    other.set_(x)
    other.add_(1)
    return x, other, x.data_ptr() == other.data_ptr()


def _data(part, x, y):
    other = y.clone()
    x.data = other
    other.add_(1)
    return x, other


@pytest.mark.parametrize("code", [_into, _out_of, _data])
def test_memory_that_is_set_is_shared(code):
    compare(Module(code), torch.zeros(3), torch.ones(4))


def test_memory_with_views_is_not_set_without_a_word():
    def code(part, x, y):
        other = y.clone()
        view = other[1:]
        x.set_(other)
        return x, view

    with pytest.raises(NotImplementedError, match="would share memory with another"):
        t2j(Module(code), compile=["part"])(*map(t2j, (torch.zeros(3), torch.ones(4))))


def test_views_of_another_dtype_share_memory():
    def code(part, x):
        other = x.clone()
        seen = torch.view_as_complex(other)
        seen.mul_(2)
        return other, seen

    compare(Module(code), torch.randn(3, 2))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32])
def test_views_of_another_dtype_that_a_part_gives_share_memory(dtype):
    def code(part, x):
        other = torch.zeros_like(x)
        seen = part(other)
        seen.fill_(3)
        return other, seen, seen.dtype == dtype

    compare(Module(code, lambda x: x.view(dtype)), torch.randn(3, 2))


def test_results_lie_in_memory_as_in_pytorch():
    def code(part, x, y):
        turned = part(x)
        copies = turned.clone(), turned.sin(), y * turned.sin(), y * turned
        return *copies, [each.stride() for each in copies]

    compare(Module(code, lambda x: x.select(0, 0).t()), torch.randn(2, 3, 2), torch.randn(3, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize(
    "part",
    [
        lambda row: row.as_strided((2,), (1,), 0).clone(),
        lambda row: row.as_strided((2, 2), (3, 1)).clone(),
        lambda row: row + row.storage_offset(),
        lambda row: row + row.untyped_storage().nbytes(),
        lambda row: row + (row.data_ptr() - row._base.data_ptr()),
    ],
)
def test_rows_tell_where_they_are(part, dtype):
    compare(Module(lambda part, x: [part(x[1]), part(x[2])], part), ROWS.to(dtype))


def test_results_written_to_out_may_grow_after_a_part_has_had_them():
    def code(part, x):
        small = x[0] + 1
        part(small)
        torch.sin(x, out=small)
        return [small.fill_(2), small.untyped_storage().nbytes()]

    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        compare(Module(code), ROWS)


@pytest.mark.filterwarnings("ignore:part is not compiled")
def test_what_comes_from_outside_may_turn():
    def turn(x):
        copy = turning.clone()
        turning.t_()
        return copy

    turning = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    module = Module(lambda part, x: [turn(x), part(x), turn(x), turning], turn)
    expected = [tuple(x.shape) for x in module(torch.ones(2))]
    turning.t_()
    assert [tuple(x.shape) for x in t2j(module, compile=["part"])(t2j(torch.ones(2)))] == expected
    assert turning.shape == (2, 3)


def tensors_in(result) -> list[torch.Tensor]:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return [x for x in items if isinstance(x, torch.Tensor) and x.layout is torch.strided]


def functions_that_share():
    """The functions of the database that give views of a tensor, or the tensor itself, and which result that is."""
    for op in entries():
        if torch.float32 not in dtypes_of(op) or op.variant_test_name or any(x in op.name for x in _OTHERS):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 1):
            x = sample.input
            for function in filter(None, (op.op, op.method_variant)):
                try:
                    given = x.detach().clone()
                    memory = given.untyped_storage().data_ptr()
                    results = tensors_in(function(given, *sample.args, **sample.kwargs))
                except (
                    AttributeError,
                    IndexError,
                    RuntimeError,
                    TypeError,
                    ValueError,
                ):  # not of a tensor
                    continue
                at = [i for i, y in enumerate(results) if y.untyped_storage().data_ptr() == memory]
                if at:
                    yield op.name, function, given.shape, sample, at[0]


def test_what_shares_memory_in_pytorch_does_so_around_parts():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [*functions_that_share()]
    assert len(cases) > 80

    def seen(each) -> torch.Tensor:
        _, function, shape, sample, at = each
        x = torch.ones(shape) * 2
        y = tensors_in(function(x, *sample.args, **sample.kwargs))[at]
        x.fill_(7.0)
        return y.abs().sum()

    class Seeing(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x), [*map(seen, cases)]

    module = Seeing(torch.nn.Identity())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, got = module(torch.ones(2))[1], t2j(module, compile=["0"])(np.ones(2, np.float32))[1]
    assert not [each[0] for each, a, b in zip(cases, got, expected, strict=True) if abs(a - b.item()) > 1e-3]


LARGE = torch.ones(900, 300)


def test_views_that_only_jax_gives_share_memory():
    def code(part, x):
        x = x * 2
        y = x.expand_as(LARGE)
        x.fill_(7.0)
        return part(y.sum()), x

    compare(Module(code), torch.ones(300))


def test_views_of_rows_that_only_jax_gives_are_read():
    def code(part, x):
        x = x * 2
        y = x[1].expand_as(LARGE)
        total = y.sum()
        del y
        x.fill_(7.0)  # once nobody sees the row any more
        return part(total), x

    compare(Module(code), torch.ones(2, 300))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, row, y: x.fill_(7.0),
        lambda x, row, y: row.add_(1),
        lambda x, row, y: x.__setitem__(0, 1),
        lambda x, row, y: torch.sin(row, out=row),
        lambda x, row, y: y[0].fill_(7.0),
        lambda x, row, y: x.normal_(),
    ],
)
def test_rows_that_jax_shows_are_not_written_without_a_word(write):
    def code(part, x):
        x = x * 2
        row = x[1]
        y = row.expand_as(LARGE)
        write(x, row, y)
        return part(y.sum()), x

    with pytest.raises(NotImplementedError, match="share memory"):
        t2j(Module(code), compile=["part"])(np.ones((2, 300), np.float32), rng=jax.random.key(0))
