"""Conversion between tensors and arrays, by copy or in shared memory.

Also here: tied tensors, several names of one memory, for which a state has one array.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optree
import torch

from ..internals.dispatch import DisableTorchFunction
from ..runtime.errors import QuantizedError, SparseLayoutError, StridedNestedError
from .distributed import array_of_distributed, is_distributed
from .dtypes import canonical, dtype_j2t, dtype_t2j, values_in_dtype
from .traced import evaluating

_MOST_DIMENSIONS = 64  # of numpy, and of PyTorch's own kernels


def tensor_to_array(tensor: torch.Tensor, *, copy: bool = True) -> jax.Array:
    """The jax array of a tensor's values; 64-bit types narrow while ``jax_enable_x64`` is off.

    The bounds of 64-bit integers become those of 32 bits. Another integer that these do not hold is an error.

    Args:
        tensor: a dense tensor of any shape; it may require grad, be non-contiguous, or carry a conj or neg bit.
        copy: give the array memory of its own. Otherwise it has the tensor's where the layout allows it, so that it
            changes when the tensor is written to, also while JAX still computes with it: for a tensor that nobody else
            has.

    Of a `DTensor` it is the whole, with the sharding that its placements say.

    Raises:
        OverflowError: 32 bits do not hold an integer, while ``jax_enable_x64`` is off.
        TypeError: the tensor is sparse, quantized, nested, or of a dtype that JAX lacks.
        ValueError: the tensor has no data (meta device), or is a `DTensor` that no sharding says.
    """
    if is_distributed(tensor):
        return array_of_distributed(tensor.detach(), tensor_to_array)
    return array_of_values(values_of(tensor), copy=copy)


def array_of_values(tensor: torch.Tensor, *, copy: bool = True) -> jax.Array:
    """As `tensor_to_array`, for the result of `values_of`."""
    wanted = canonical(tensor.dtype)
    is_in_dtype = wanted == dtype_t2j(tensor.dtype) and tensor.numel() > 0
    if is_in_dtype and not tensor.is_cpu:
        return jax.dlpack.from_dlpack(tensor.clone() if copy else tensor if is_dense(tensor) else tensor.contiguous())
    if tensor.is_cpu and (copy or not is_in_dtype or not tensor.is_contiguous()):
        # PyTorch's own copy: it is there before JAX looks, and PyTorch can no longer resize what numpy has.
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    # Not committed to a device, as DLPack's arrays are: a jitted step that gives new state for old would compile
    # twice, since what it gives is committed where any argument is.
    with evaluating():  # a value, also while JAX traces
        values = to_numpy(tensor)
        return jax.device_put(values if is_in_dtype else values_in_dtype(values, wanted), may_alias=True)


def without_values(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """The shape and the dtype of the array that a tensor would be, such as one on the meta device.

    Raises:
        TypeError: the tensor is sparse, quantized, nested, or of a dtype that JAX lacks.
    """
    _check_layout(tensor)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), canonical(tensor.dtype))


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """A detached tensor whose memory holds the values of a dense tensor: no lazy conjugate, negation or zeros.

    Raises:
        TypeError: the tensor is sparse, quantized or nested.
        ValueError: the tensor has no data (meta device).
    """
    _check_dense(tensor)
    if tensor._is_zerotensor():  # the derivative of a constant: it has no memory
        tensor = torch.zeros_like(tensor)
    return tensor.detach().resolve_conj().resolve_neg()


def _check_dense(tensor: torch.Tensor) -> None:
    _check_layout(tensor)
    if tensor.is_meta:
        raise ValueError("got a meta tensor, which has no data; wanted a tensor with data. Materialise it first")


def _check_layout(tensor: torch.Tensor) -> None:
    if tensor.ndim > _MOST_DIMENSIONS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMENSIONS} dims are supported, got {tensor.ndim}")
    if tensor.is_nested:
        raise StridedNestedError
    if tensor.is_quantized:
        raise TypeError(*QuantizedError(tensor.dtype).args)
    if tensor.layout is not torch.strided:
        raise SparseLayoutError(f"got a {tensor.layout} tensor")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The numpy array of a tensor's values, in ml_dtypes' types where numpy has none; on the CPU without a copy."""
    tensor = tensor.cpu()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and float8: numpy knows them through ml_dtypes only
        flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))  # what is empty may have any strides
        return flat.view(torch.uint8).numpy().view(dtype_t2j(tensor.dtype)).reshape(tensor.shape)


def array_to_tensor(array: object, *, copy: bool = False, gathers: bool = False) -> torch.Tensor:
    """The tensor of a jax array's values.

    Args:
        array: a concrete jax array or numpy array of any shape.
        copy: give the tensor memory of its own. Otherwise it has the array's: JAX takes that to be immutable, so that
            nobody may write to the tensor.
        gathers: take an array that is sharded over several devices from these.

    Raises:
        TypeError: the array is traced, or of a dtype that PyTorch lacks.
        RuntimeError: the array was deleted or donated.
        ValueError: the array is sharded over several devices, and is not to be gathered.
    """
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            "j2t got a traced array, which has no values yet; wanted a concrete one. Within jax.jit, grad and vmap "
            "PyTorch code is called on arrays by t2j(function)(array), in which they are tensors; j2t(array) is for "
            "outside"
        )
    if not isinstance(array, jax.Array):
        with evaluating():  # a value, also while JAX traces
            array, copy = jnp.array(array), False
    if array.is_deleted():
        raise RuntimeError("j2t got an array that was deleted or donated to a jitted call; keep a copy of it")
    if len(array.sharding.device_set) > 1:
        if gathers:
            return array_to_tensor(np.asarray(array))
        raise ValueError(
            f"j2t got an array sharded over {len(array.sharding.device_set)} devices; wanted one on a single device. "
            "Gather it first, with jax.device_put(array, jax.devices()[0])"
        )
    dtype = dtype_j2t(array.dtype)
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype)
    tensor = torch.from_dlpack(array)
    return tensor.clone() if copy else tensor


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns True if the elements of a strided tensor fill their memory without gaps or overlaps, in some order."""
    return tensor.layout is torch.strided and (tensor.is_contiguous() or fills_memory(tensor.shape, tensor.stride()))


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a dense tensor; None if it is contiguous, or has gaps or overlaps, so that a copy would be."""
    return None if tensor.is_contiguous() or not is_dense(tensor) else tensor.stride()


def fills_memory(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """As `is_dense`, for a shape and strides."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


class Tie(NamedTuple):
    """The earlier tensor that shares memory with the tensor of a name."""

    first: str
    is_same: bool
    """True if both are all of the memory, in one shape; False for a part or a view of it."""


def ties(tensors: Mapping[str, Any]) -> dict[str, Tie]:
    """The names of tensors that have no memory of their own, and whose they have.

    Such a tensor is another as a whole (the same object, or another object of the same memory), or lies within one that
    has no gaps. Of several that are the same the first stands for all. What is no tensor has no tie.
    """
    with DisableTorchFunction():
        memories = {name: _memory(tensor) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
        if len(set(memories.values())) == len(memories):
            return {}  # as almost always
        groups: dict[int, list[str]] = {}
        for name, memory in memories.items():
            groups.setdefault(memory, []).append(name)
        found: dict[str, Tie] = {}
        for memory, names in groups.items():
            if len(names) > 1:
                found |= _ties_of_one_memory({name: tensors[name] for name in names}, memory)
    return {name: found[name] for name in memories if name in found}


def _ties_of_one_memory(tensors: Mapping[str, torch.Tensor], memory: int) -> dict[str, Tie]:
    if memory in map(id, tensors.values()):  # these are all the same object
        first, *others = tensors
        return dict.fromkeys(others, Tie(first, True))
    regions = {name: region_of(tensor) for name, tensor in tensors.items()}
    firsts: dict[tuple, str] = {}
    found, around = {}, None  # the name of what begins before and ends last
    for name in sorted(regions, key=lambda name: (regions[name].start, -regions[name].stop)):
        first = firsts.setdefault(_geometry(tensors[name]), name)
        if around is not None and regions[name].stop <= regions[around].stop:
            first = around
        elif is_dense(tensors[name]):
            around = name
        if first != name:
            found[name] = Tie(first, _geometry(tensors[name]) == _geometry(tensors[first]))
    return found


def region_of(tensor: torch.Tensor) -> range:
    """The bytes of its storage from the first to the last one of a tensor that has elements."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.storage_offset()
    return range(begin * tensor.element_size(), (begin + span) * tensor.element_size())


def distinct(tensors: Mapping[str, object]) -> Mapping[str, Any]:
    """Tensors by names, each under one name."""
    tied = ties(tensors)
    if not tied:
        return tensors
    kept = [(name, tensor) for name, tensor in tensors.items() if name not in tied]
    return type(tensors)(kept) if isinstance(tensors, dict) else dict(kept)  # pyright: ignore[reportCallIssue]


def untied(tree: Any) -> Any:
    """A tree, in which each ``module.state_dict()`` has one name for each tensor."""
    return optree.tree_map(lambda x: distinct(x) if _is_state(x) else x, tree, is_leaf=_is_state, none_is_leaf=True)


def _is_state(thing: object) -> bool:
    return isinstance(thing, dict) and hasattr(thing, "_metadata")  # which PyTorch puts there


def _memory(tensor: torch.Tensor) -> int:
    """A key that tensors on one memory share; an empty or sparse tensor, or a wrapper, has a key of its own."""
    try:
        return tensor.untyped_storage()._cdata if tensor.numel() else id(tensor)
    except (RuntimeError, NotImplementedError):  # it is sparse, or wraps others
        return id(tensor)


def _geometry(tensor: torch.Tensor) -> tuple:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
