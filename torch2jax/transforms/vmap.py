"""`torch.vmap` is JAX's: `jax.vmap` of a function of arrays.

PyTorch's own Python code checks arguments and results, and cuts them into chunks; what it asks of C++ stands here.

Also here: views, of which one of an example becomes one of all examples at once; random numbers: the same for each
example, all different, or an error; and `torch.autograd.Function`, with the batching rule that a function itself
defines.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax
from torch.autograd import functional

from ..internals.dispatch import DisableTorchFunction
from ..internals.tensors import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from ..internals.transforms import (
    VmapInfo,
    add_batch_dim,
    has_overridden_vmap_rule,
    unwrap_batched,
    validate_vmap_returns_tuple_of_two_elements,
    vmap_internals,
    vmap_module,
    wrap_outputs_maintaining_identity,
)
from ..rules.inplace import write_in_place
from ..rules.registry import implements_tensors
from ..runtime.errors import BatchedValueError, TracedValueError
from ..runtime.patches import replaces
from ..runtime.translation import lift, this_call
from ..tensors.storage import Storage, View
from ..tensors.tensor import Torchish, make_region, make_view_of_shape
from ..tensors.traced import is_traced
from ..tensors.view_kind import ViewKind
from ..tracing.execution import Drawing
from ..tracing.tensor_spec import TensorSpec
from ..tracing.traces import example_of, examples_in
from .func import Transformation

Kinds = tuple[ViewKind, ...]
Geometry = tuple[tuple[int, ...], int]


def example_among(outer: Torchish, spec: TensorSpec, dim: int, array: jax.Array) -> Torchish:
    """One example of a tensor of some form along `dim`, with the strides that it has among the others."""
    with DisableTorchFunction():
        strides, offset = outer.stride(), int(outer.storage_offset())
    return spec.example(dim).at(array, (*strides[:dim], *strides[dim + 1 :]), offset)


def kinds_between(root: Storage | View, node: Storage | View) -> Kinds | None:
    """The views that lead from one node to another, the first on top of `root`; None if the node is no view of it."""
    kinds = []
    while node is not root:
        if isinstance(node, Storage):
            return None
        kinds.append(node.kind)
        node = node.parent
    return tuple(reversed(kinds))


def batched_view(
    outer: Torchish, dim: int, inner: Torchish, kinds: Kinds, example: Torchish, out_dim: int, array: jax.Array
) -> Torchish | None:
    """The view of `outer`, all examples along `dim`, that corresponds to `example`, a view of the single example
    `inner`.

    None if no view does: where one example can be viewed so, all in memory need not be.

    Args:
        kinds: how `example` views its own.
        out_dim: where the result has the dimension of the examples.
        array: its values.
    """
    geometry = _geometry(outer, dim, inner, example, out_dim)
    bits = {kind.bit for kind in kinds if kind.bit is not None}
    if geometry is None or len(bits) > 1 or any(kind.traced for kind in kinds):
        return None
    kind = ViewKind(
        functools.partial(_read, kinds, dim, out_dim),
        functools.partial(_write, kinds, dim, out_dim),
        overlaps=any(kind.overlaps for kind in kinds),
        bit=next(iter(bits), None),
    )
    node = View(outer._node, kind)
    node._array, node._version = array, node.storage.memory.version
    return make_view_of_shape(outer, node, array.shape, example.dtype, *geometry)


def batched_region(outer: Torchish, dim: int, inner: Torchish, example: Torchish, out_dim: int) -> Torchish | None:
    """As `batched_view`, for an `example` that is a strided region of the memory of `inner`."""
    geometry = _geometry(outer, dim, inner, example, out_dim)
    if geometry is None or example._node.bits != inner._node.bits:
        return None
    shape = list(example.shape)
    shape.insert(out_dim, outer.shape[dim])
    return make_region(outer, tuple(shape), *geometry, example.dtype)


def _read(kinds: Kinds, dim: int, out_dim: int, array: jax.Array) -> jax.Array:
    return jax.vmap(functools.partial(_read_one, kinds), dim, out_dim)(array)


def _write(kinds: Kinds, dim: int, out_dim: int, array: jax.Array, value: jax.Array) -> object:
    return jax.vmap(functools.partial(_write_one, kinds), (dim, out_dim), dim)(array, value)


def _read_one(kinds: Kinds, array: jax.Array) -> jax.Array:
    for kind in kinds:
        array = kind.read(array)
    return array


def _write_one(kinds: Kinds, array: jax.Array, value: jax.Array) -> object:
    if not kinds:
        return value
    first, *rest = kinds
    return first.write(array, _write_one(tuple(rest), first.read(array), value))


def _geometry(outer: Torchish, dim: int, inner: Torchish, example: Torchish, out_dim: int) -> Geometry | None:
    """Strides and offset of the view of all examples that is on each as `example` on `inner`; None if there is none.

    An example has the strides that it has among the others, and perhaps a memory of its own.
    """
    size, width = inner.dtype.itemsize, example.dtype.itemsize
    step, begin = outer.stride()[dim] * size, int(outer.storage_offset() - inner.storage_offset()) * size
    if step % width or begin % width:
        return None
    strides = list(example.stride())
    strides.insert(out_dim, step // width)
    return tuple(strides), int(example.storage_offset()) + begin // width


class Mapped(Drawing):
    """The keys within one function that ``torch.vmap`` is mapping.

    Args:
        randomness: ``"same"`` for each example, ``"different"``, or ``"error"``.
        axis_name: JAX's name of the dimension of the examples; needed where their random numbers must differ.
        level: the transformation.
    """

    def __init__(self, randomness: str, axis_name: str | None, level: Transformation):
        self.randomness, self.axis_name, self.level = randomness, axis_name, level

    def expect_allowed(self) -> None:
        if self.randomness == "error" and not self.level.is_functorchs:
            raise RuntimeError(
                "vmap: We do not yet support calling random operations inside of vmap. Please perform random "
                "operations outside of vmap as a workaround"
            )
        if self.randomness == "error":
            raise RuntimeError(
                "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
                "'different' randomness flags on vmap or perform the randomness operation out of vmap"
            )

    def key(self, key: jax.Array) -> jax.Array:
        return jax.random.fold_in(key, lax.axis_index(self.axis_name)) if self.randomness == "different" else key


def differing_axes() -> list[str | None]:
    """The names of the dimensions whose examples draw something different, the innermost last."""
    return [x.axis_name for x in _mapped() if x.randomness == "different"]


def _mapped() -> list[Mapped]:
    return [x for x in this_call().stream.drawing if isinstance(x, Mapped)]


def check_operands(arrays: list) -> None:
    """Refuses to draw the same for each example from parameters that are not the same.

    Raises:
        RuntimeError: as PyTorch does.
    """
    for mapped in _mapped():
        if mapped.randomness == "same" and any(mapped.level.owns(array) for array in arrays):
            raise RuntimeError(
                "vmap: Vmap does not currently support same randomness with a batched tensor input. Please file an "
                "issue with functorch"
            )


def check_target(target: Any, arrays: list) -> None:
    """Refuses to draw something different for each example into one tensor from outside, that has no examples.

    Raises:
        RuntimeError: as PyTorch does.
    """
    for mapped in _mapped():
        is_batched = any(mapped.level.owns(array) for array in (target.buffer.array, *arrays))
        if mapped.randomness == "different" and not is_batched and not mapped.level.is_new(target):
            raise RuntimeError(
                "vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same "
                "randomness. If this is necessary for your usage, please file an issue with functorch."
            )


def draw_for_each(
    body: Callable, key: jax.Array, shape: tuple[int, ...], dtype: object, operands: list, axis_names: list
) -> jax.Array:
    """``body(key, shape, dtype, *operands)`` for each example: one draw for all, as the same code draws for a batch.

    Args:
        operands: numbers, and arrays that broadcast to `shape` from the left.
        axis_names: the dimensions whose examples are to be different, the innermost last.
    """
    if not axis_names:
        return body(key, shape, dtype, *operands)
    positions = [position for position, operand in enumerate(operands) if isinstance(operand, jax.Array)]

    def with_arrays(arrays: Sequence[jax.Array]) -> list:
        filled = list(operands)
        for position, array in zip(positions, arrays, strict=True):
            filled[position] = array
        return filled

    @jax.custom_batching.custom_vmap
    def draw(index: jax.Array, key: jax.Array, *arrays: jax.Array):
        return body(jax.random.fold_in(key, index), shape, dtype, *with_arrays(arrays))

    @draw.def_vmap
    def draw_all(size: int, is_batched: Sequence[bool], index: jax.Array, key: jax.Array, *arrays: jax.Array):
        del index
        spread = [_spread(array, own, size, len(shape)) for array, own in zip(arrays, is_batched[2:], strict=True)]
        drawn = draw_for_each(body, key, (size, *shape), dtype, with_arrays(spread), axis_names[:-1])
        return drawn, True

    return draw(lax.axis_index(axis_names[-1]), key, *[operands[position] for position in positions])


def _spread(array: jax.Array, is_batched: bool, size: int, ndim: int) -> jax.Array:
    """An operand of all examples: one number each broadcasts as the examples themselves do."""
    if not is_batched:
        return array if array.ndim == 0 else lax.broadcast(array, (size,))
    return lax.reshape(array, (size, *[1] * (ndim + 1 - array.ndim), *array.shape[1:]))


_UNBATCHED_WRITE = (
    "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other` in extra_args "
    "that has more elements than `self`. This happened due to `other` being vmapped over but `self` not being vmapped "
    "over in a vmap. Please try to use out-of-place operators instead of inplace arithmetic."
)


class Batch(Transformation):
    """A function of one example that is being run on all at once."""

    def __init__(self, size: int, dims: list[int], out_dims: object, randomness: str):
        super().__init__(this_call())
        self.size, self.dims, self.randomness = size, dims, randomness
        wanted = {dim for dim in tree_leaves(out_dims) if isinstance(dim, int)}
        self.axes: list[tuple[int, bool]] = [
            (dim, is_dependent) for dim in sorted(wanted) for is_dependent in (False, True)
        ]
        self._outputs: list[list[object]] = [[] for _ in self.axes]
        self._out_forms: list[list[TensorSpec]] = [[] for _ in self.axes]
        self._aliases: list[_Alias] = []

    def check_write(self, tensor: Torchish, array: jax.Array) -> None:
        if not self.is_new(tensor) and self.owns(array):
            raise RuntimeError(_UNBATCHED_WRITE)

    def is_batched(self, tensor: torch.Tensor) -> bool:
        return self.owns(self.call.constants.lift(tensor).buffer.array)

    def has_examples(self, tensor: Torchish) -> bool:
        """As `is_batched`, also if derivatives of the examples have been taken since."""
        return examples_in(tensor.read(), self.tag)[1] is not None

    def batched(self, tensor: Torchish) -> tuple[Torchish, int | None]:
        """The tensor with all examples, outside of the batch, and their dimension; None if it is no example."""
        array = tensor.read()
        found, dim = examples_in(array, self.tag)
        if found is array:
            return tensor, None
        return TensorSpec.of(tensor)._replace(layout=None, strides=None).result(found), dim

    def example(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """One example of a tensor from outside of the batch that has them along a dimension."""
        if dim is None:
            return tensor
        lifted = self.call.constants.lift(tensor)
        array = example_of(self.trace, lifted.read(), dim % lifted.dim())
        return TensorSpec.of(lifted)._replace(layout=None, strides=None).result(array)

    def unbatch(self, tensor: torch.Tensor, out_dim: int) -> object:
        """A result with the dimension of the examples, or a placeholder until the arrays have left JAX."""
        ndim = tensor.dim() + 1
        if not -ndim <= out_dim < ndim:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {out_dim})"
            )
        if not self.is_batched(tensor):
            tensor = self.unowned(self.call.constants.lift(tensor)).unsqueeze(out_dim)
            return tensor.expand([self.size if dim == out_dim % ndim else -1 for dim in range(ndim)])
        lifted = self.call.constants.lift(tensor)
        spec, array, alias = TensorSpec.of(lifted), self.call.leaving(lifted.buffer.array), self._alias(lifted)
        if alias is not None:
            spec, array = spec._replace(layout=None), self.call.array_of(lifted)
        number = self.axes.index((out_dim, spec.layout is not None))
        self._outputs[number].append(array)
        self._out_forms[number].append(spec.with_examples(out_dim % ndim))
        return _Output(number, len(self._outputs[number]) - 1, out_dim % ndim, alias)

    def _alias(self, tensor: Torchish) -> "_Alias | None":
        """The argument that the tensor is a view of, and how; None if it is none."""
        for (outer, origin, _, inner), dim in zip(self.given, self.dims, strict=True):
            kinds = kinds_between(origin._node, tensor._node)
            if kinds is not None or (tensor._node.storage is origin._node and not tensor._node.storage.is_outgrown):
                is_argument = tensor is inner and kinds is not None and not kinds
                self._aliases.append(_Alias(outer, dim, origin, kinds, origin if is_argument else tensor))
                return self._aliases[-1]
        return None

    def end(self) -> None:
        super().end()
        for alias in self._aliases:
            for tensor in (alias.inner, alias.example):
                tensor._node.forget()
                if is_traced(tensor._node.storage.buffer.array):
                    tensor._node.storage.empty()

    def outputs(self) -> list[list]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def results(self, tree: object, arrays: list[list], wants_grad: bool) -> Any:
        """The results, of arrays that have left JAX; views of arguments as views of them."""

        def put(leaf: object):
            if not isinstance(leaf, _Output):
                return leaf
            array = arrays[leaf.number][leaf.index]
            aliased = None if leaf.alias is None else leaf.alias.of_all(leaf.out_dim, array)
            if aliased is not None:
                return aliased
            spec = self._out_forms[leaf.number][leaf.index]
            return spec._replace(wants_grad=spec.wants_grad or wants_grad).result(array)

        return tree_map(put, tree)


class _Alias:
    """A tensor that is a view of one example of an argument, which has the examples along a dimension."""

    def __init__(self, outer: Torchish, dim: int, inner: Torchish, kinds: Kinds | None, example: Torchish):
        self.outer, self.dim, self.inner, self.kinds, self.example = outer, dim, inner, kinds, example

    def of_all(self, out_dim: int, array: jax.Array) -> torch.Tensor | None:
        if self.kinds is None:
            return batched_region(self.outer, self.dim, self.inner, self.example, out_dim)
        if not self.kinds:
            outer = self.outer if self.example is self.inner else self.outer.view_as(self.outer)
            return outer if out_dim == self.dim else outer.movedim(self.dim, out_dim)
        return batched_view(self.outer, self.dim, self.inner, self.kinds, self.example, out_dim, array)


class _Output:
    """The place of a result."""

    def __init__(self, number: int, index: int, out_dim: int, alias: _Alias | None):
        self.number, self.index, self.out_dim, self.alias = number, index, out_dim, alias


def batch_of(tensor: Torchish) -> Batch | None:
    """The innermost batch, if the tensor is an example of it; else None."""
    levels = this_call().transformations
    return levels[-1] if levels and isinstance(levels[-1], Batch) and levels[-1].is_batched(tensor) else None


def of_all_examples(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the examples of all active ``torch.vmap``s, for a decision that all examples share."""
    lifted = lift(tensor)
    for level in reversed(this_call().transformations):
        if isinstance(level, Batch):
            lifted, _ = level.batched(lifted)
    return lifted


@replaces(vmap_module, "_flat_vmap")
def _flat_vmap(
    func: Callable[..., object],
    batch_size: int,
    flat_in_dims: Sequence[int | None],
    flat_args: Sequence[object],
    args_spec: Any,
    out_dims: object,
    randomness: str,
    **kwargs: object,
):
    pairs = [(position, dim) for position, dim in enumerate(flat_in_dims) if dim is not None]
    positions, dims = [position for position, _ in pairs], [dim for _, dim in pairs]
    level = Batch(batch_size, dims, out_dims, randomness)
    level.is_functorchs = not hasattr(func, "of_autograd")
    call = level.call
    tensors = [call.constants.lift(flat_args[position]) for position in positions]
    specs = [TensorSpec.of(tensor) for tensor in tensors]
    axes = [dim if spec.layout is None else spec.layout.index(dim) for spec, dim in zip(specs, dims, strict=True)]
    name = f"torch.vmap {len(call.transformations)}" if randomness == "different" else None
    found: object = None

    def run(arrays: Sequence[Any]):
        nonlocal found
        examples = list(flat_args)
        with level.running(arrays), call.stream.within(Mapped(randomness, name, level)):
            for position, tensor, spec, dim, array in zip(positions, tensors, specs, dims, arrays, strict=True):
                examples[position] = level.give(tensor, example_among(tensor, spec, dim, array))
            results = func(*tree_unflatten(examples, args_spec), **kwargs)
            found = unwrap_batched(results, out_dims, level, batch_size, func)  # pyright: ignore[reportArgumentType]
            found = tree_map_only(Torchish, level.unowned, found)
            return level.outputs(), [[] if array is None else [array] for array in level.written()]

    out_axes = ([0 if is_dependent else dim for dim, is_dependent in level.axes], dims)
    arrays = [tensor.buffer.array for tensor in tensors]
    mapped = jax.vmap(run, in_axes=(axes,), out_axes=out_axes, axis_size=batch_size, axis_name=name)
    try:
        outputs, written = mapped(arrays)
    except BatchedValueError:
        raise
    except TracedValueError as error:
        raise BatchedValueError(error) from error
    level.write_back([array[0] if array else None for array in written])
    return level.results(found, outputs, any(spec.wants_grad for spec in specs))


@replaces(vmap_module, "is_batchedtensor")
def _is_batched(tensor: Torchish) -> bool:
    return batch_of(tensor) is not None


@replaces(vmap_module, "_remove_batch_dim")
def _remove_batch_dim(tensor: Torchish, level: Batch, batch_size: int, out_dim: int):
    return level.unbatch(tensor, out_dim)


@replaces(vmap_module, "lazy_load_decompositions")
def _load_nothing() -> None:
    pass


@replaces(vmap_internals, "_vmap")
@replaces(functional, "_vmap")
@replaces(importlib.import_module("torch.autograd.gradcheck"), "_vmap")  # its parent has a function of that name
def _vmap_of_autograd(
    func: Callable[..., object], in_dims: Any = 0, out_dims: Any = 0, allow_none_pass_through: bool = False
):
    """The vmap that autograd batches gradients with; results may be None."""

    def mapped(*args: object):
        outputs: Any = None

        def run(*examples: object):
            nonlocal outputs
            outputs = func(*examples)
            if isinstance(outputs, torch.Tensor) or not allow_none_pass_through:
                return outputs
            return tuple(output for output in outputs if output is not None)

        run.of_autograd = True
        results = torch.vmap(run, in_dims, out_dims)(*args)
        if isinstance(outputs, torch.Tensor) or not allow_none_pass_through:
            return results
        found = iter(results)
        return tuple(None if output is None else next(found) for output in outputs)

    return mapped


@implements_tensors(add_batch_dim)
def _add_batch_dim(tensor: torch.Tensor, in_dim: int, level: int):
    raise NotImplementedError(
        "torch._vmap_internals._vmap, imported by its name before, got a tensor of a translated call; wanted "
        "torch.vmap, or torch.func.vmap"
    )


def batch_of_operands(function: Any, args: tuple) -> Batch | None:
    """The innermost batch that some arguments of a function are examples of, if the function has a rule for it.

    Raises:
        RuntimeError: it says nothing of batches, or two things.
    """
    batch = innermost_batch(args)
    if batch is None:
        return None
    name, is_overridden = function.__name__, has_overridden_vmap_rule(function)
    if function.generate_vmap_rule and is_overridden:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an overridden vmap "
            "staticmethod. Please set generate_vmap_rule=False or delete the overridden vmap staticmethod to avoid "
            "ambiguity."
        )
    if not function.generate_vmap_rule and not is_overridden:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it does not have vmap support. Please override and implement the "
            "vmap staticmethod or set generate_vmap_rule=True."
        )
    return batch if is_overridden else None  # JAX batches whatever a function does


def innermost_batch(args: tuple) -> Batch | None:
    """The innermost batch that some tensors among arguments are examples of."""
    tensors = [x for x in tree_leaves(args) if isinstance(x, Torchish)]
    batches = [
        level for level in reversed(this_call().transformations) if isinstance(level, Batch) and level.is_functorchs
    ]
    return next((batch for batch in batches if any(batch.has_examples(x) for x in tensors)), None)


def run_rule(rule: Callable, args: tuple, batch: Batch) -> Any:
    """The result of a function for one example, by its rule for all of them, which runs outside of the batch.

    Raises:
        RuntimeError: the rule does not give an output, and where that has the examples.
    """
    leaves, spec = tree_flatten(args)
    for leaf in leaves:
        if isinstance(leaf, Torchish):
            leaf.read()  # a view of an example is one inside
    with batch.outside():
        parts = [batch.batched(leaf) if isinstance(leaf, Torchish) else (leaf, None) for leaf in leaves]
        batched, dims = (tree_unflatten(list(x), spec) for x in zip(*parts, strict=True))
        versions = [_version(outer) for outer, _ in parts]
        result = rule(VmapInfo(batch.size, batch.randomness), dims, *batched)
        validate_vmap_returns_tuple_of_two_elements(result)
    output, out_dims = result
    for leaf, (outer, dim), version in zip(leaves, parts, versions, strict=True):
        if version != _version(outer):
            example: Any = batch.example(outer, dim)
            write_in_place(leaf, example)
    return wrap_outputs_maintaining_identity(output, batched, args, batch.example, out_dims=out_dims)


def _version(value: object) -> int | None:
    return value._node.storage.memory.version if isinstance(value, Torchish) else None
