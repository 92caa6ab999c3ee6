import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare, entries, samples
from torch2jax import t2j
from torch2jax.tensors.dtypes import canonical


def test_files_are_read_and_not_written(tmp_path):
    path = tmp_path / "numbers"
    np.arange(4, dtype=np.float32).tofile(path)

    def function(shared):
        x = torch.from_file(str(path), shared=shared, size=3, dtype=torch.float32)
        assert x.untyped_storage().filename is None
        return x.add_(1)

    compare(t2j(function)(False), torch.tensor([1.0, 2, 3]))
    assert np.fromfile(path, np.float32).tolist() == [0, 1, 2, 3]
    with pytest.raises(NotImplementedError, match="shared=False"):
        t2j(function)(True)


UNINITIALISED = ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"]


@pytest.mark.parametrize("name", UNINITIALISED)
def test_uninitialised_memory_has_shape_and_dtype(name):
    (op,) = entries(name)
    for sample in samples(op, torch.float32, 6):
        expected = op(sample.input, *sample.args, **sample.kwargs)
        strides = []

        def function(sample=sample, strides=strides):
            result = op(sample.input, *sample.args, **sample.kwargs)
            strides.append(result.stride())
            return result

        actual = t2j(function)()
        assert actual.shape == tuple(expected.shape)
        assert actual.dtype == canonical(expected.dtype)
        assert strides == [expected.stride()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3),
        lambda: torch.zeros((2, 3)),
        lambda: torch.zeros(size=(2, 3)),
        lambda: torch.zeros([2, 3], dtype=torch.int64),
        lambda: torch.zeros(torch.tensor(2), 3),
        lambda: torch.zeros(()),
        lambda: torch.ones(torch.Size([2]), dtype=torch.bool),
        lambda: torch.full((2,), 3),
        lambda: torch.full((2,), True),
        lambda: torch.full((2,), 1.5, dtype=torch.int32),
        lambda: torch.full((2,), 1j),
        lambda: torch.full((2,), torch.tensor(2.5)),
        lambda: torch.full(size=(2,), fill_value=7.0),
        lambda: torch.scalar_tensor(True),
        lambda: torch.tensor([]),
        lambda: torch.tensor([[], []]),
        lambda: torch.tensor(3),
        lambda: torch.tensor([1, 2.5]),
        lambda: torch.tensor([True, False]),
        lambda: torch.tensor([1 + 2j]),
        lambda: torch.tensor([1, 2], dtype=torch.bfloat16),
        lambda: torch.tensor(np.arange(3)),
        lambda: torch.tensor([np.float64(1), np.float64(2)]),
        lambda: torch.as_tensor([1, 2]),
        lambda: torch.as_tensor(np.ones(2, np.float32), dtype=torch.int32),
        lambda: torch.asarray([1.0, 2.0]),
        lambda: torch.from_numpy(np.arange(6).reshape(2, 3)),
        lambda: torch.zeros(2).new_tensor([1, 2]),
        lambda: torch.zeros(2).new_ones(2, 3),
        lambda: torch.zeros(2).new_full((2,), 4, dtype=torch.int64),
        lambda: torch.zeros(2, dtype=torch.int32).new_zeros((1, 2)),
        lambda: torch.arange(5),
        lambda: torch.arange(1, 5),
        lambda: torch.arange(start=1, end=5, step=2),
        lambda: torch.arange(5, 0, -2),
        lambda: torch.arange(0, 1, 0.1),
        lambda: torch.arange(0.5, 3.5, dtype=torch.int64),
        lambda: torch.arange(torch.tensor(4)),
        lambda: torch.arange(3, 3),
        lambda: torch.linspace(-1, 1, 7),
        lambda: torch.linspace(0, 10, 4, dtype=torch.int64),
        lambda: torch.linspace(2, 3, 1),
        lambda: torch.linspace(0, 1, 0),
        lambda: torch.linspace(torch.tensor(0.0), torch.tensor(3.0), 4),
        lambda: torch.logspace(0, 3, 4),
        lambda: torch.logspace(0, 3, 4, base=2),
        lambda: torch.eye(3),
        lambda: torch.eye(2, 4, dtype=torch.int64),
        lambda: torch.tril_indices(3, 4, -1),
        lambda: torch.triu_indices(4, 3),
        lambda: torch.vander(torch.tensor([1.0, 2.0, 3.0])),
        lambda: torch.arange(3, out=torch.empty(3)),
        lambda: torch.zeros(2, out=torch.ones(2, dtype=torch.int32)),
    ],
)
def test_forms(make):
    expected = make()
    for call in (t2j(make), jax.jit(t2j(make))):
        compare(call(), expected)


WINDOWS = ["hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window"]


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("periodic", [True, False])
def test_windows(name, periodic):
    function = getattr(torch, name)
    for length in (0, 1, 2, 5, 8):
        compare(t2j(lambda length=length: function(length, periodic))(), function(length, periodic))
    with pytest.raises(RuntimeError, match="floating point"):
        t2j(lambda: function(4, dtype=torch.int64))()


def test_window_parameters():
    compare(t2j(lambda: torch.hamming_window(6, True, 0.3, 0.7))(), torch.hamming_window(6, True, 0.3, 0.7))
    compare(t2j(lambda: torch.kaiser_window(6, False, 5.0))(), torch.kaiser_window(6, False, 5.0))


def test_range_keeps_its_end():
    with pytest.warns(UserWarning, match="deprecated"):
        expected = torch.range(1, 4, 0.5)
    with pytest.warns(UserWarning, match="deprecated"):
        actual = t2j(lambda: torch.range(1, 4, 0.5))()
    compare(actual, expected)


def test_tensor_of_traced_scalars():
    def f(x):
        return torch.tensor([[x[0], 1.0], [2, x[1] * 3]])

    x = jnp.asarray([4.0, 5.0])
    for call in (t2j(f), jax.jit(t2j(f))):
        np.testing.assert_array_equal(call(x), [[4, 1], [2, 15]])
    # As in PyTorch, the numbers are copied out: no gradient passes.
    np.testing.assert_array_equal(jax.grad(lambda x: t2j(f)(x).sum())(x), [0, 0])


def test_tensor_promotes_mixed_scalars():
    def f(i, x):
        result = torch.tensor([i, x, True])
        assert result.dtype == torch.float32
        assert torch.tensor([i, True]).dtype == torch.int64
        return result

    np.testing.assert_array_equal(t2j(f)(torch.tensor(2), torch.tensor(0.5)), [2, 0.5, 1])


def test_full_of_a_traced_value():
    f = jax.jit(t2j(lambda x: torch.full((2, 2), x.sum()) + torch.full_like(x, x[0])))
    np.testing.assert_array_equal(f(jnp.asarray([1.0, 2.0])), [[4, 4], [4, 4]])


@pytest.mark.parametrize("function", [torch.linspace, torch.logspace])
def test_ends_of_ranges_are_numbers(function):
    for ends in ((None, 3.0), (0.0, None), (None, None)):
        with pytest.raises(RuntimeError, match=f"{function.__name__} only supports 0-dimensional start and end"):
            jax.jit(t2j(lambda x, ends=ends: function(*(x if y is None else y for y in ends), 3)))(jnp.ones(3))


def test_linspace_between_traced_values():
    f = jax.jit(t2j(lambda x: torch.linspace(x.min(), x.max(), 5)))
    np.testing.assert_allclose(f(jnp.asarray([1.0, 3.0])), [1, 1.5, 2, 2.5, 3])


def test_like_keeps_strides_and_device_label():
    def f(x):
        x = x.to("cuda").to(memory_format=torch.channels_last)
        for y in (torch.zeros_like(x), torch.full_like(x, 2), torch.empty_like(x)):
            assert y.is_contiguous(memory_format=torch.channels_last)
            assert y.device.type == "cuda"
        assert torch.ones_like(x, memory_format=torch.contiguous_format).is_contiguous()
        assert x.new_zeros(2).device.type == "cuda"
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert torch.zeros(2, device=torch.device("cuda", 1)).get_device() == 1
        return torch.ones_like(x)

    assert t2j(f)(jnp.zeros((2, 3, 4, 4))).shape == (2, 3, 4, 4)


def test_default_dtype_is_asked_at_every_call():
    def f():
        return [torch.zeros(2), torch.tensor(1.5), torch.arange(0.0, 2.0), torch.eye(2)]

    assert {x.dtype for x in t2j(f)()} == {jnp.dtype("float32")}
    torch.set_default_dtype(torch.float16)
    try:
        assert {x.dtype for x in t2j(f)()} == {jnp.dtype("float16")}
    finally:
        torch.set_default_dtype(torch.float32)


def test_requires_grad_is_kept():
    def f():
        assert torch.zeros(2, requires_grad=True).requires_grad
        assert torch.tensor([1.0], requires_grad=True).requires_grad
        assert not torch.ones(2).requires_grad
        return torch.arange(2.0, requires_grad=True) * 2

    np.testing.assert_array_equal(t2j(f)(), [0, 2])


def test_bounds_of_int64_stay_bounds_without_x64():
    def f(x):
        info = torch.iinfo(torch.int64)
        largest = torch.full((2,), info.max)
        assert (x < largest).all()
        assert (x < info.max).all()
        assert (x > info.min).all()
        return torch.minimum(x, largest)

    np.testing.assert_array_equal(t2j(f)(torch.tensor([-5, 5])), [-5, 5])


def test_default_devices_are_labels():
    def f():
        with torch.device("cuda"):
            made = [torch.zeros(2), torch.arange(3), torch.tensor([1]), torch.hann_window(3), torch.rand(2)]
        assert {x.device.type for x in made} == {"cuda"}
        return torch.zeros(2)

    t2j(f)(rng=jax.random.key(0))


def test_as_tensor_shares_and_tensor_copies():
    def f(x):
        assert torch.as_tensor(x) is x
        torch.tensor(x.tolist()).add_(1)
        x.new_tensor([1.0]).add_(1)
        torch.asarray(x, copy=True).add_(1)
        torch.asarray(x).add_(1)
        return x

    np.testing.assert_array_equal(t2j(f)(jnp.zeros(2)), [1, 1])


@pytest.mark.parametrize(
    ("make", "primitives"),
    [
        (lambda: torch.arange(100000), {"iota"}),
        (lambda: torch.zeros(300, 300), {"broadcast_in_dim"}),
        (lambda: torch.ones(300, 300, dtype=torch.int64), {"broadcast_in_dim"}),
        (lambda: torch.full((300, 300), 2.5), {"broadcast_in_dim"}),
        (lambda: torch.eye(300), {"iota", "eq", "convert_element_type"}),
        (lambda: torch.arange(1, 1000, 2), {"iota", "mul", "add"}),
    ],
)
def test_graph_stays_compact(make, primitives):
    jaxpr = jax.make_jaxpr(t2j(make))()
    assert {equation.primitive.name for equation in jaxpr.eqns} == primitives
    assert not jaxpr.consts


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.arange(0, 10, -1), RuntimeError, "inconsistent with step sign"),
        (lambda: torch.arange(0, 10, 0), RuntimeError, "step must be nonzero"),
        (lambda: torch.zeros(-1), RuntimeError, "negative"),
        (lambda: torch.eye(-1), RuntimeError, "greater or equal to 0"),
        (lambda: torch.linspace(0, 1, -1), RuntimeError, "non-negative"),
        (lambda: torch.tensor([[1], [1, 2]]), ValueError, "expected sequence"),
        (lambda: torch.full((2,), torch.ones(2)), TypeError, "fill_value"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        t2j(make)()


def test_initialisers_in_the_forward_pass():
    def f():
        weight = torch.empty(64, 64)
        torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
        bias = torch.nn.init.zeros_(torch.empty(64))
        torch.nn.init.constant_(bias, 2.0)
        return weight, bias, torch.nn.init.eye_(torch.empty(3, 3)), torch.nn.init.trunc_normal_(torch.empty(1000))

    weight, bias, eye, normal = t2j(f)(rng=jax.random.key(0))
    assert abs(weight).max() <= 1 / 8
    assert abs(weight.std() - 1 / 8 / math.sqrt(3)) < 0.005
    np.testing.assert_array_equal(bias, np.full(64, 2))
    np.testing.assert_array_equal(eye, np.eye(3))
    assert abs(normal.std() - 0.88) < 0.15


def test_ranges_of_integers_have_ends_of_integers():
    def ranges(start, end):
        return torch.linspace(start, end, 8, dtype=torch.int64), torch.logspace(start, end, 3, dtype=torch.int64)

    for known in (True, False):
        call = t2j(ranges) if known else jax.jit(t2j(ranges))
        actual = call(torch.tensor(3.7), torch.tensor(0.6)) if known else call(jnp.float32(3.7), jnp.float32(0.6))
        for got, want in zip(actual, ranges(3.7, 0.6), strict=True):
            np.testing.assert_allclose(got, want.numpy(), atol=0 if known else 1)


def test_counts_of_ranges_are_not_negative():
    for function in (torch.linspace, torch.logspace):
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(RuntimeError, match="non-negative"):
                t2j(lambda function=function, dtype=dtype: function(0, 1, -1, dtype=dtype))()


def test_tensors_in_a_sequence_are_numbers():
    def shapes(x):
        return [torch.tensor([x]), torch.tensor([[x[0], 1.0], [x.view(1, 1), 2]]), torch.as_tensor((x, x))]

    x = torch.tensor([2.5])
    for got, want in zip(t2j(shapes)(t2j(x)), shapes(x), strict=True):
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want.numpy())
    with pytest.raises(ValueError, match="only one element tensors"):
        t2j(lambda x: torch.tensor([x]))(t2j(torch.ones(2)))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_zeros_that_lie_in_memory_as_another_tensor(batch):
    def like_another(x):
        other = torch.ones(2, 3, 4).transpose(0, 1)[1:]
        zeros = torch.ops.aten._new_zeros_with_same_feature_meta(x, other, self_num_batch_dims=batch)
        storage = zeros.untyped_storage().nbytes()
        return zeros, torch.tensor([*zeros.stride(), zeros.storage_offset(), storage])

    for found, wanted in zip(
        t2j(like_another)(np.ones((5, 2), "float32")), like_another(torch.ones(5, 2)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.uint8, torch.bool]
)
def test_what_was_not_written_shows_where_algorithms_are_deterministic(dtype):
    def function():
        return (
            torch.empty(2, 3, dtype=dtype),
            torch.empty_like(torch.zeros(3, 2, dtype=dtype)),
            torch.zeros(1, dtype=dtype).new_empty(2),
            torch.empty_strided((2, 3), (1, 4), dtype=dtype),
            torch.empty_permuted((2, 3, 2), (1, 0, 2), dtype=dtype),
        )

    torch.use_deterministic_algorithms(True)
    try:
        expected, found = function(), t2j(function)()
    finally:
        torch.use_deterministic_algorithms(False)
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_array_equal(np.asarray(got).astype(complex), want.to(torch.complex128).numpy())


RANGES = {
    "out": lambda: torch.range(0, 3, out=torch.empty(0)),
    "out of integers": lambda: torch.range(0, 3, out=torch.empty(0, dtype=torch.int64)),
    "half": lambda: torch.arange(0, 2.6, 0.3, dtype=torch.float16),
    "integers from floats": lambda: torch.arange(0, 10, 2.5, dtype=torch.int64),
    "booleans": lambda: torch.arange(False, True),
    "one": lambda: torch.cartesian_prod(torch.arange(3)),
    "empty": lambda: torch.cartesian_prod(torch.arange(3), torch.arange(0)),
}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("function", RANGES.values(), ids=RANGES)
def test_ranges(function):
    with jax.enable_x64(True):
        expected = t2j(function())
        for got in (t2j(function)(), jax.jit(t2j(function))()):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


def test_ranges_are_real():
    for function in (torch.arange, t2j(torch.arange)):
        with pytest.raises(RuntimeError, match="value cannot be converted to type"):
            function(1j)


def test_what_is_made_on_meta_takes_no_memory():
    def function():
        return torch.empty(2 * 10**8, 3, 2 * 10**8, device="meta").shape[0]

    assert t2j(function)() == 2 * 10**8


OF_THE_DEFAULT = {
    "tensor of nothing": lambda: torch.tensor(()),
    "tensor of nested nothing": lambda: torch.tensor([[], []]),
    "tensor of an empty range": lambda: torch.tensor(range(0)),
    "full": lambda: torch.full((2,), 1.0),
    "full of a complex number": lambda: torch.full((2,), 1j),
    "linspace": lambda: torch.linspace(0, 1, 3),
}


@pytest.mark.parametrize("function", OF_THE_DEFAULT.values(), ids=OF_THE_DEFAULT)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes_by_the_default(function, dtype):
    before, found = torch.get_default_dtype(), []

    def made():
        torch.set_default_dtype(dtype)
        found.append(function().dtype)

    try:
        made()
    finally:
        torch.set_default_dtype(before)
    t2j(made)()
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [torch.linspace, torch.logspace])
@pytest.mark.parametrize("ends", [(0, 1j), (0j, 1), (0j, torch.tensor(1j))], ids=str)
def test_ranges_refuse_a_dtype_that_does_not_hold_their_ends(make, ends):
    with pytest.raises(RuntimeError) as expected:
        make(*ends, 5, dtype=torch.float32)
    with pytest.raises(RuntimeError) as got:
        t2j(lambda: make(*ends, 5, dtype=torch.float32))()
    assert str(got.value).startswith(str(expected.value))
