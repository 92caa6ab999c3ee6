"""Tensors and arrays as each other."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch2jax import j2t, t2j
from torch2jax.tensors.dtypes import canonical

SHARED = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.uint16,
    torch.uint32,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def some(shape, dtype) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) % 2).to(dtype).reshape(shape)


def test_bounds_of_int64_stay_bounds():
    bounds = torch.tensor([torch.iinfo(torch.int64).min, -1, torch.iinfo(torch.int64).max])
    np.testing.assert_array_equal(t2j(bounds), [-(2**31), -1, 2**31 - 1])

    def largest(x, mask):
        return torch.where(mask, x, torch.tensor(torch.iinfo(x.dtype).min)).amax()

    assert t2j(largest)(torch.tensor([-5, -3]), torch.tensor([True, False])) == -5


@pytest.mark.parametrize("dtype", SHARED, ids=str)
def test_empty_tensors_may_have_any_strides(dtype):
    assert t2j(torch.zeros(8, dtype=dtype)[::2][:0]).shape == (0,)


@pytest.mark.parametrize("dtype", SHARED, ids=str)
@pytest.mark.parametrize("shape", [(), (64,), (4, 8)], ids=str)
def test_tensor_and_array_share_memory_where_asked(dtype, shape):
    tensor = some(shape, dtype)
    array = t2j(tensor, copy=False)
    assert array.shape == shape
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    back = j2t(array, copy=False)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.dtype == dtype
    assert torch.equal(back.to(torch.complex64), tensor.to(torch.complex64))


@pytest.mark.parametrize("dtype", SHARED, ids=str)
def test_empty(dtype):
    array = t2j(torch.empty((0, 3), dtype=dtype))
    assert array.shape == (0, 3)
    assert array.dtype == canonical(dtype)
    assert j2t(array).shape == (0, 3)
    assert j2t(array).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex128], ids=str)
def test_64_bit_types_narrow_silently_without_x64(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = t2j(some((3, 4), dtype))
    assert array.dtype.itemsize == dtype.itemsize // 2
    np.testing.assert_array_equal(np.asarray(array), some((3, 4), dtype).numpy())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex128], ids=str)
def test_64_bit_types_share_memory_with_x64(dtype):
    with jax.enable_x64(True):
        tensor = some((8, 8), dtype)
        array = t2j(tensor, copy=False)
        assert array.dtype == canonical(dtype)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.arange(12.0)[1:],
        torch.ones(1, 3).expand(4, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag,
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
    ],
    ids=["transposed", "strided", "offset", "expanded", "channels_last", "conj", "neg", "requires_grad", "parameter"],
)
def test_layouts_and_bits(tensor):
    for copy in (True, False):
        array = t2j(tensor, copy=copy)
        np.testing.assert_array_equal(np.asarray(array), tensor.detach().resolve_conj().resolve_neg().numpy())


def test_a_tensor_without_values_gives_its_shape_and_dtype():
    state = torch.nn.Linear(3, 2, device="meta", dtype=torch.bfloat16).state_dict()
    assert dict(t2j(state)) == {
        "weight": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16),
        "bias": jax.ShapeDtypeStruct((2,), jnp.bfloat16),
    }
    assert t2j(torch.empty(3, dtype=torch.int64, device="meta")).dtype == jnp.int32
    with pytest.raises(TypeError, match="sparse"):
        t2j(torch.eye(3).to_sparse().to("meta"))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), TypeError, "nested"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), TypeError, "quantized"),
        (lambda: torch.empty(3, dtype=torch.complex32), TypeError, "complex32"),
    ],
    ids=["nested", "quantized", "complex32"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_cannot_convert(make, error, words):
    with pytest.raises(error, match=words):
        t2j(make())


def test_traced_array_is_refused():
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda x: j2t(x))(jnp.ones(3))


def test_deleted_array_is_refused():
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        j2t(array)


def test_sharded_array_is_refused(eight_devices):
    mesh = jax.sharding.Mesh(jax.devices()[:2], "x")
    array = jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    with pytest.raises(ValueError, match="sharded"):
        j2t(array)


def test_dtypes():
    assert t2j(torch.float32) == jnp.float32
    assert t2j(torch.int64) == jnp.int64
    with jax.enable_x64(True):
        assert t2j(torch.int64) == jnp.int64
    assert j2t(jnp.bfloat16) == torch.bfloat16
    assert j2t(np.dtype("complex64")) == torch.complex64
    with pytest.raises(TypeError, match="int4"):
        j2t(jnp.zeros(2, jnp.int4))


def test_trees_keep_their_containers_and_other_leaves():
    tree = {"a": [torch.ones(2), (torch.zeros(1), "text")], "b": None, "c": 3}
    arrays = t2j(tree)
    assert isinstance(arrays["a"][1], tuple)
    assert arrays["a"][1][1] == "text"
    assert arrays["b"] is None
    assert arrays["c"] == 3
    assert isinstance(arrays["a"][0], jax.Array)
    assert torch.equal(j2t(arrays)["a"][0], torch.ones(2))
