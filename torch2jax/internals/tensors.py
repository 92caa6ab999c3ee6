"""Tensors and storages as objects, their dtypes and strides, and trees of them.

Tensors and storages are made, exchanged and passed on. Dtypes, dimensions and strides are computed as PyTorch's own
Python code does. The trees are PyTorch's pytrees, for code in which PyTorch itself flattens its containers, and those
that users registered.

Also here: PyTorch's jagged tensors, which wrap their values and offsets; and the module that reads tensors from files,
in which torch2jax replaces functions.
"""

import torch
import torch._prims_common as _common
from torch import _tensor, _utils
from torch._subclasses import fake_tensor
from torch.nested._internal import nested_tensor
from torch.utils import _pytree

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue]
"""A tensor of a class with a shape, a dtype, strides and a device, and no data."""

convert = _tensor._convert
"""A function's results, with its tensors of a derived class."""

swap_tensor_impl = torch._C._swap_tensor_impl  # pyright: ignore[reportAttributeAccessIssue]
"""Exchanges the C++ tensors of two Python objects."""

StorageBase = torch._C.StorageBase
"""The class of C++ below ``torch.UntypedStorage``, with its methods."""

storage_use_count = torch._C._storage_Use_Count
"""The number of owners of a storage, by its ``_cdata``."""

to_dlpack = torch._C._to_dlpack
"""A tensor's memory as a capsule of DLPack, without a version."""

to_dlpack_versioned = torch._C._to_dlpack_versioned  # pyright: ignore[reportAttributeAccessIssue]
"""The same with one."""

FakeTensorMode = fake_tensor.FakeTensorMode
"""The mode in which tensors have a device and no values; its ``from_tensor`` makes them."""


ELEMENTWISE_TYPE_PROMOTION_KIND = _common.ELEMENTWISE_TYPE_PROMOTION_KIND
"""The rule from dtypes of arguments to those of an operator: ``DEFAULT``, ``INT_TO_FLOAT``, ``ALWAYS_BOOL``, …"""

elementwise_dtypes = _common.elementwise_dtypes
"""The dtypes that an elementwise operator computes in and returns, for tensors and numbers."""

computation_dtype = _common.get_computation_dtype
"""The dtype that an elementwise operator computes in, for operands of a dtype."""

canonicalize_dim = _common.canonicalize_dim
"""A dimension counted from the front; IndexError for one that is not there."""

canonicalize_dims = _common.canonicalize_dims
"""The same of one or several."""

corresponding_real_dtype = _common.corresponding_real_dtype
"""The dtype of a complex dtype's parts."""

corresponding_complex_dtype = _common.corresponding_complex_dtype
"""The dtype whose parts are of a dtype."""

alert_not_deterministic = _common.alert_not_deterministic
"""Raises the error, or warning, that `torch.use_deterministic_algorithms` asked for, if it did."""


tree_flatten = _pytree.tree_flatten
"""The leaves of a tree, and its structure; None is a leaf."""

tree_unflatten = _pytree.tree_unflatten
"""The tree of leaves and a structure."""

tree_leaves = _pytree.tree_leaves
"""The leaves alone."""

tree_map = _pytree.tree_map
"""The tree with a function's results in place of its leaves."""

tree_map_only = _pytree.tree_map_only
"""The same for leaves of a class, with all others as they are."""

tree_any = _pytree.tree_any
"""Returns True if a predicate holds for any leaf."""

treespec_pprint = _pytree.treespec_pprint
"""A structure as text, as errors show it."""


NestedTensor = nested_tensor.NestedTensor
"""Their class. Its ragged size is a symbol for the tensor of offsets, as an object."""

nested_view_from_jagged: object = torch._nested_view_from_jagged  # pyright: ignore[reportAttributeAccessIssue]
"""The jagged tensor of values and offsets: to PyTorch's autograd, a view of the values."""


rebuilding = _utils
"""The module of the functions that pickled tensors name."""
