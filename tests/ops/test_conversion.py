import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.ops.database import compare
from torch2jax import t2j

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_values_between_all_dtypes(source, target):
    x = torch.tensor([0.0, 1.0, 2.5, 100.75, 3.0]).to(source)
    if source.is_floating_point or source.is_complex:
        x = torch.cat([x, torch.tensor([-1.5, -3.0]).to(source)])
    compare(t2j(lambda x: x.to(target))(x), x.to(target))


@pytest.mark.parametrize("target", [torch.uint8, torch.int8, torch.int16])
def test_floats_wrap_around_in_small_integers(target):
    x = torch.tensor([300.0, -1.0, -200.0, 70000.0])
    compare(t2j(lambda x: x.to(target))(x), x.to(target))


def test_what_changes_nothing_returns_the_tensor_itself():
    def f(x):
        same = [
            x.to(torch.float32), x.to("cpu"), x.to(x), x.float(), x.type(torch.float32), x.type_as(x), x.cpu(),
            x.to(dtype=None, device=None), x.to("cpu", torch.float32), x.type("torch.FloatTensor"),
            x.to(memory_format=torch.contiguous_format), x.to(tensor=x),
        ]  # fmt: skip
        assert all(y is x for y in same)
        copies = [x.to(torch.float32, copy=True), x.to(torch.float32, False, True), x.to("cuda"), x.double().float()]
        for copy in copies:
            assert copy is not x
            copy.add_(1)
        same[0].add_(1)
        return x

    for call in (t2j(f), jax.jit(t2j(f))):
        np.testing.assert_array_equal(call(jnp.zeros(3)), np.ones(3))


def test_forms_of_to():
    def f(x):
        i = x.long()
        assert x.to(i).dtype == torch.int64
        assert x.to(i, non_blocking=True).dtype == torch.int64
        assert x.to("cuda", torch.float16).device.type == "cuda"
        assert x.to("cuda", torch.float16).dtype == torch.float16
        assert x.to(device=torch.device("cuda:1")).device.index == 1
        assert x.to(torch.int32, non_blocking=True, copy=True).dtype == torch.int32
        assert x.cuda().is_cuda
        assert x.cuda(1).cpu().is_cpu
        assert x.to(i.cuda()).is_cuda
        assert x.type() == "torch.FloatTensor"
        assert x.cuda().long().type() == "torch.cuda.LongTensor"
        assert x.type(torch.IntTensor).dtype == torch.int32
        assert x.type("torch.cuda.HalfTensor").is_cuda
        with pytest.raises(ValueError, match="invalid type"):
            x.type("torch.Unknown")
        with pytest.raises(RuntimeError, match="device"):
            x.to("badger")
        return i

    assert t2j(f)(jnp.ones(2)).dtype == jnp.int32


def test_memory_format():
    def f(x):
        y = x.to(memory_format=torch.channels_last)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert not y.is_contiguous()
        assert y.half().is_contiguous(memory_format=torch.channels_last)
        assert y.float(memory_format=torch.contiguous_format).is_contiguous()
        assert x.transpose(0, 1).double().stride() == x.transpose(0, 1).stride()
        return y

    x = jnp.arange(48.0).reshape(2, 3, 2, 4)
    np.testing.assert_array_equal(t2j(f)(x), x)


def test_names_of_dtypes_stay_logical_without_x64():
    def f(x):
        assert x.double().dtype == torch.float64
        assert (x.double() + x).dtype == torch.float64
        assert x.long().dtype == torch.int64
        assert x.double().element_size() == 8
        return x.double()

    assert t2j(f)(jnp.ones(2)).dtype == jnp.float32


def test_gradient_passes_between_floats_and_stops_at_integers():
    f = t2j(lambda x: (x.half().float() * 3).sum() + x.long().float().sum())
    np.testing.assert_array_equal(jax.grad(f)(jnp.ones(2)), [3, 3])

    def without(x):
        with torch.no_grad():
            y = x.to(torch.float64)
        assert not y.requires_grad
        return (y * x).sum()

    np.testing.assert_array_equal(jax.grad(t2j(without))(jnp.full(2, 5.0)), [5, 5])


def test_conversions_leave_no_trace_where_nothing_changes():
    jaxpr = jax.make_jaxpr(t2j(lambda x: x.float().to("cuda").double().contiguous()))(jnp.ones(2))
    assert not jaxpr.eqns


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32], ids=str)
def test_floats_wrap_around_in_integers(dtype):
    x = torch.tensor([1.9, -1.9, 127, 128, 300, -1, -129, -300, 32768, 65536, -70000, 1e6, 2147483520, -2147483648])
    expected = x.to(dtype).to(torch.float64).numpy()
    for function in (t2j(lambda x: x.to(dtype)), jax.jit(t2j(lambda x: x.to(dtype)))):
        for given in (x, x.double()):
            np.testing.assert_array_equal(np.asarray(function(t2j(given)), np.float64), expected)


def test_the_type_of_tensors_is_the_default():
    assert t2j(lambda x: x.type(torch.Tensor))(jnp.arange(2)).dtype == jnp.float32
