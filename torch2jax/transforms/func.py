"""The derivatives of `torch.func` are JAX's: `jax.vjp`, `jax.jvp` and `jax.linearize` of functions of arrays.

What a user may have bound before (`torch.func.grad`, `jacrev`, ...) looks up what stands here when it is called.

Also here: a function of tensors while JAX transforms it as a function of arrays: arguments, results, allowed writes.
"""

import contextlib
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
import torch
from jax import lax

from ..internals.dispatch import DisableTorchFunction
from ..internals.jax import varying_axes
from ..internals.tensors import tree_flatten, tree_unflatten, treespec_pprint
from ..internals.transforms import (
    assert_non_empty_list_of_tensors,
    assert_non_empty_tensor_output,
    doesnt_support_saved_tensors_hooks,
    eager_transforms,
    jvp_str,
    make_fx,
    set_fwd_grad_enabled,
    slice_argnums,
    split_const_subgraphs,
)
from ..rules.inplace import write_in_place
from ..runtime.patches import replaces
from ..runtime.translation import Call, lift, this_call
from ..tensors.journal import next_number
from ..tensors.levels import Level
from ..tensors.rebinding import alias_of
from ..tensors.tensor import Torchish, wrap
from ..tensors.trees import TensorSlot
from ..tracing.tensor_spec import TensorSpec, conjugate
from ..tracing.traces import axes_in_types, current_trace, expect_unrecorded, running, varying


class Transformation(Level, ABC):
    """One transformation that translated code has begun, while its function runs.

    What JAX computes from the level's own arrays must not outlive it. So it is not written to tensors that were there
    before: as in PyTorch that is an error, except for arguments, which get their new values from `write_back`.
    """

    def __init__(self, call: Call):
        expect_unrecorded("a transformation")
        self.call = call
        self._since = next_number()
        self.trace: Any = None
        self._outer_trace, self._outer_tape = current_trace(), self.call.tape
        self.given: list[tuple[Torchish, Torchish, int, Torchish]] = []
        self._arguments: list[Torchish] = []
        self._specs: list[TensorSpec] = []
        self._arrays: list[Any] = []

    @abstractmethod
    def check_write(self, tensor: Torchish, array: jax.Array) -> None:
        """Raises on a write that the function must not do.

        Raises:
            RuntimeError: PyTorch refuses it too.
        """

    @contextlib.contextmanager
    def running(self, arrays: Sequence):
        """The context in which the function runs; `arrays` are some of the level's own."""
        self.trace = current_trace()
        for array in arrays:
            if isinstance(array, jax.core.Tracer):  # JAX leaves those alone that have no derivative
                self.tag = array._trace.tag  # pyright: ignore[reportAttributeAccessIssue]
        self.call.transformations.append(self)
        try:
            with self.call.nested():
                yield
        finally:
            self.call.transformations.pop()
            self.end()

    def end(self) -> None:
        """Releases the arrays of the trace that ends."""
        self._arguments, self.given = [outer for outer, *_ in self.given], []

    @contextlib.contextmanager
    def outside(self):
        """The context in which the transformation was entered, for code that runs there."""
        call = this_call()
        position = call.transformations.index(self)
        inner, drawing = call.transformations[position:], call.stream.drawing
        del call.transformations[position:]
        call.stream.drawing = [x for x in drawing if x.level not in inner]
        try:
            with running(self._outer_trace), call.at(self._outer_tape):
                yield
        finally:
            call.transformations.extend(inner)
            call.stream.drawing = drawing

    def give(self, outer: Torchish, inner: Torchish) -> Torchish:
        """Notes that the function gets `inner` for the argument `outer`."""
        origin = alias_of(inner)  # the function may let `inner` itself be of another shape
        self.given.append((outer, origin, inner._node.storage.memory.version, inner))
        return inner

    def owns(self, array: jax.Array) -> bool:
        """Returns True if an array is the level's own."""
        array = self.call.leaving(array)
        return isinstance(array, jax.core.Tracer) and getattr(array._trace, "tag", self) is self.tag

    def unowned(self, tensor: Torchish) -> Torchish:
        """A tensor whose array is not the level's own, as it is outside: without what the function recorded."""
        array, layout = tensor.buffer
        below = self.call.leaving(array)
        if below is array:
            return tensor
        found = TensorSpec.of(tensor)._replace(layout=layout, wants_grad=False).tensor(below)
        found._node.storage.history = tensor.history
        return found

    def is_new(self, tensor: Torchish) -> bool:
        """Returns True if a tensor's memory was made within the function, or for one of its arguments."""
        return tensor._node.storage.memory.number > self._since

    def take(self, tensor: torch.Tensor) -> object:
        """The placeholder of a result until `put`: the tensor itself, unless its array must leave through JAX."""
        lifted = self.call.constants.lift(tensor)
        if not self.owns(lifted.buffer.array):
            return self.unowned(lifted)
        for outer, origin, _, _ in self.given:
            if origin._node is lifted._node:
                return outer  # not a copy of it
        self._arrays.append(self.call.leaving(lifted.buffer.array))
        self._specs.append(TensorSpec.of(lifted))
        return TensorSlot(len(self._specs) - 1)

    def take_all(self, tree: tuple[object, ...]) -> tuple:
        """As `take`, for a tree.

        Raises:
            RuntimeError: a leaf of it is no tensor.
        """
        leaves, spec = tree_flatten(tree)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise RuntimeError(f"Expected tensors, got unsupported type {type(leaf)}")
        return tree_unflatten([self.take(leaf) for leaf in leaves], spec)

    def taken(self) -> list:
        """The arrays of the taken results."""
        arrays, self._arrays = self._arrays, []
        return arrays

    def put(self, tree: tuple[object, ...], arrays: Sequence[jax.Array]) -> tuple[object, ...]:
        """A tree of results from `take`, as tensors."""
        leaves, spec = tree_flatten(tree)
        tensors = [spec.result(array) for spec, array in zip(self._specs, arrays, strict=True)]
        return tree_unflatten([tensors[leaf.index] if isinstance(leaf, TensorSlot) else leaf for leaf in leaves], spec)

    def written(self) -> list:
        """The array of each argument that the function wrote to in place, None for others."""
        return [
            None if origin._node.storage.memory.version == before else self.call.array_of(origin)
            for _, origin, before, _ in self.given
        ]

    def write_back(self, arrays: list) -> None:
        """Writes to the arguments the values that the function wrote."""
        for outer, array in zip(self._arguments, arrays, strict=True):
            if array is not None:
                write_in_place(outer, wrap(array, outer.dtype))


class _DerivativeTransformation(Transformation):
    """A function that is being differentiated with respect to some of the tensors in its arguments."""

    takes_gradients = True

    def __init__(self, args: tuple, kwargs: dict, argnums: int | tuple[int, ...] | None = None):
        super().__init__(this_call())
        self._leaves, self._spec = tree_flatten((args, kwargs))
        numbers, _ = tree_unflatten(list(range(len(self._leaves))), self._spec)
        chosen = numbers if argnums is None else slice_argnums(numbers, argnums, as_tuple=False)
        self._positions, self.spec = tree_flatten(chosen)
        self.inputs = [self._input(self._leaves[position]) for position in self._positions]
        self.specs = [TensorSpec.of(tensor) for tensor in self.inputs]

    def _input(self, leaf: object) -> Torchish:
        if not isinstance(leaf, torch.Tensor):
            raise ValueError(f"Thing passed to transform API must be Tensor, got {type(leaf)}")
        return self.call.constants.lift(leaf)

    @property
    def arrays(self) -> list:
        """The arrays to differentiate with respect to: varying over the axes of `jax.shard_map`."""
        axes = axes_in_types()
        return [varying(tensor.buffer.array, axes) for tensor in self.inputs]

    def arguments(self, arrays: Sequence[jax.Array], *, require_grad: bool) -> tuple[tuple, dict]:
        """The arguments for the function, with tensors on these arrays."""
        leaves: list[object] = [
            self._constant(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves
        ]
        for position, outer, spec, array in zip(self._positions, self.inputs, self.specs, arrays, strict=True):
            inner = spec.at(array, *_geometry(outer))
            leaves[position] = self.give(outer, inner)
            if require_grad:
                inner.start_history()
        return tree_unflatten(leaves, self._spec)

    def _constant(self, leaf: torch.Tensor) -> Torchish:
        outer = self.call.constants.lift(leaf)
        spec, array, known = TensorSpec.of(outer)._replace(wants_grad=False), outer.buffer.array, outer.known
        inner = spec.at(array, *_geometry(outer)) if known is None else spec.tensor(array, known)
        return self.give(outer, inner)

    def check_write(self, tensor: Torchish, array: jax.Array) -> None:
        if not self.is_new(tensor):
            raise RuntimeError(
                "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call an in-place "
                "operation that would mutate a captured Tensor. This is not supported; please rewrite the function "
                "being transformed to explicitly accept the mutated Tensor(s) as inputs."
            )

    def gradients(self, cotangents: tuple) -> object:
        """PyTorch's gradients for JAX's cotangents of the inputs."""
        wants = any(spec.wants_grad for spec in self.specs)
        specs = [spec._replace(wants_grad=wants) for spec in self.specs]
        gradients = [spec.result(conjugate(array)) for spec, array in zip(specs, cotangents, strict=True)]
        return tree_unflatten(gradients, self.spec)


def _geometry(tensor: Torchish) -> tuple[tuple[int, ...], int]:
    with DisableTorchFunction():
        return tensor.stride(), int(tensor.storage_offset())


def _with_aux(result: object, has_aux: bool, name: str):
    if not has_aux:
        return result, ()
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True")
    return result


@replaces(eager_transforms, "grad_and_value_impl")
@doesnt_support_saved_tensors_hooks
def _grad_and_value(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
):
    level = _DerivativeTransformation(args, kwargs, argnums)
    name = "grad_and_value(f)(*args)"
    found: Any = None

    def run(*arrays: jax.Array):
        nonlocal found
        with torch.enable_grad(), level.running(arrays):
            args, kwargs = level.arguments(arrays, require_grad=True)
            output, aux = _with_aux(func(*args, **kwargs), has_aux, name)
            if not isinstance(output, torch.Tensor):
                raise RuntimeError(f"{name}: Expected f(*args) to return a Tensor, got {type(output)}")
            if output.dim() != 0:
                raise RuntimeError(
                    f"{name}: Expected f(*args) to return a scalar Tensor, got tensor with {output.dim()} dims. Maybe "
                    "you wanted to use the vjp or jacrev APIs instead?"
                )
            if output.is_complex():
                raise RuntimeError(
                    f"grad can be implicitly created only for real scalar outputs but got {output.dtype}"
                )
            array = level.call.array_of(level.call.constants.lift(output))
            found = level.take_all((output, aux))
            return [array] if output.is_floating_point() else [], (level.taken(), level.written())

    values, pull, (arrays, written) = jax.vjp(run, *level.arrays, has_aux=True)
    level.write_back(written)
    gradients = level.gradients(pull([_typed(np.ones((), value.dtype), value) for value in values]))
    output, aux = level.put(found, arrays)
    return gradients, ((output, aux) if has_aux else output)


@replaces(eager_transforms, "_vjp_with_argnums")
@doesnt_support_saved_tensors_hooks
def _vjp(
    func: Callable[..., Any], *primals: object, argnums: int | tuple[int, ...] | None = None, has_aux: bool = False
):
    level = _DerivativeTransformation(primals, {}, argnums)
    specs: list[TensorSpec] = []
    found: Any = None
    spec: Any = None

    def run(*arrays: jax.Array):
        nonlocal found, spec
        with torch.enable_grad(), level.running(arrays):
            args, _ = level.arguments(arrays, require_grad=True)
            outputs, aux = _with_aux(func(*args), has_aux, "vjp(f, *primals)")
            found = level.take_all(aux)
            flat, spec = tree_flatten(outputs)
            assert_non_empty_tensor_output(flat, "vjp(f, *primals)")
            for output in flat:
                if not (output.is_floating_point() or output.is_complex()):
                    raise RuntimeError(
                        "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with "
                        f"dtype {output.dtype}"
                    )
            lifted = [level.call.constants.lift(output) for output in flat]
            specs.extend(TensorSpec.of(output) for output in lifted)
            return [level.call.leaving(output.buffer.array) for output in lifted], (level.taken(), level.written())

    values, pull, (arrays, written) = jax.vjp(run, *level.arrays, has_aux=True)
    level.write_back(written)

    def pull_back(cotangents: object, retain_graph: bool = True, create_graph: bool | None = None):
        del retain_graph, create_graph
        flat, given = tree_flatten(cotangents)
        if given != spec:
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the "
                f"function. cotangents: {treespec_pprint(given)}, primal output: {treespec_pprint(spec)}"
            )
        wanted = zip(flat, specs, values, strict=True)
        return level.gradients(pull([_cotangent(number, *each) for number, each in enumerate(wanted)]))

    results = tree_unflatten([spec.result(value) for spec, value in zip(specs, values, strict=True)], spec)
    return (results, pull_back, level.put(found, arrays)) if has_aux else (results, pull_back)


def _cotangent(index: int, gradient: object, spec: TensorSpec, value: jax.Array):
    """JAX's cotangent for PyTorch's gradient of a result."""
    lifted = lift(gradient)
    shape = lifted.shape if spec.layout is None else tuple(lifted.shape[dim] for dim in spec.layout)
    if len(lifted.shape) != value.ndim or shape != value.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{index}] has a shape of {lifted.shape} and output[{index}] has a shape of "
            f"{torch.Size(value.shape)}."
        )
    return _typed(conjugate(_cast(lifted.buffer.arranged(spec.layout), value.dtype)), value)


def _typed(array: jax.Array | np.ndarray, other: jax.Array):
    """The array, typed as varying over the axes over which another one varies."""
    return varying(array, varying_axes(other))


def _cast(array: jax.Array, dtype: Any):
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = lax.real(array)
    return lax.convert_element_type(array, dtype)


class _Forward(_DerivativeTransformation):
    """A function that is being differentiated forwards."""

    is_forward, takes_gradients = True, False


@replaces(eager_transforms, "_jvp_with_argnums")
def _jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    argnums: int | tuple[int, ...] | None,
    *,
    strict: bool = False,
    has_aux: bool,
):
    if not isinstance(primals, tuple):
        raise RuntimeError(f"{jvp_str}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals).")
    chosen = primals if argnums is None else slice_argnums(primals, argnums)
    flat_primals, spec = tree_flatten(chosen)
    flat_tangents, tangents_spec = tree_flatten(tangents)
    if spec != tangents_spec:
        raise RuntimeError(
            f"{jvp_str}: Expected primals and tangents to have the same python structure. For example, if primals is a "
            f"tuple of 3 tensors, tangents also must be. Got primals with structure {spec} and tangents with structure "
            f"{tangents_spec}"
        )
    assert_non_empty_list_of_tensors(flat_primals, jvp_str, "primals")
    assert_non_empty_list_of_tensors(flat_tangents, jvp_str, "tangents")
    level = _Forward(primals, {}, argnums)
    given = [tangent_array(*each) for each in zip(flat_tangents, level.inputs, level.specs, strict=True)]
    specs: list[TensorSpec | Torchish] = []
    found: Any = None
    spec: Any = None

    def run(*arrays: jax.Array):
        nonlocal found, spec
        with torch.enable_grad(), set_fwd_grad_enabled(True), level.running(arrays):
            args, _ = level.arguments(arrays, require_grad=False)
            outputs, aux = _with_aux(func(*args), has_aux, jvp_str)
            found = level.take_all(aux)
            flat, spec = tree_flatten(outputs)
            assert_non_empty_tensor_output(flat, jvp_str)
            return _dependent(level, flat, specs, strict), (level.taken(), level.written())

    given = [_typed(*each) for each in zip(given, level.arrays, strict=True)]
    values, moves, (arrays, written) = jax.jvp(run, level.arrays, given, has_aux=True)
    level.write_back(written)
    pairs = zip(values, moves, strict=True)
    results = [_dual(spec, pairs) for spec in specs]
    primals_out = tree_unflatten([primal for primal, _ in results], spec)
    tangents_out = tree_unflatten([tangent for _, tangent in results], spec)
    return (primals_out, tangents_out, level.put(found, arrays)) if has_aux else (primals_out, tangents_out)


def _dependent(level: Transformation, outputs: list, specs: list[TensorSpec | Torchish], strict: bool) -> list:
    """The arrays of the outputs that depend on the inputs; `specs` gets their forms, or the outputs that do not."""
    arrays = []
    for output in outputs:
        lifted = level.call.constants.lift(output)
        if level.owns(lifted.buffer.array):
            arrays.append(level.call.leaving(lifted.buffer.array))
            specs.append(TensorSpec.of(lifted))
        elif strict:
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. This is not "
                "allowed with strict=True."
            )
        else:
            specs.append(level.unowned(lifted))
    return arrays


def tangent_array(tangent: Torchish, primal: Torchish, spec: TensorSpec):
    """The array of a tangent, in the layout of its primal.

    Raises:
        ValueError: one of them is not floating point or complex.
        RuntimeError: the tangent is of another shape.
    """
    lifted = lift(tangent)
    if not spec.is_differentiable:
        raise ValueError(f"Expected primal to be floating point or complex, but got: {primal.dtype}")
    if not (lifted.is_floating_point() or lifted.is_complex()):
        raise ValueError(f"Expected tangent to be floating point or complex, but got: {lifted.dtype}")
    if lifted.shape != primal.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not "
            f"supported. Tensor is of size {list(primal.shape)} while the given forward gradient is of size "
            f"{list(lifted.shape)}."
        )
    return _cast(lifted.buffer.arranged(spec.layout), primal.buffer.array.dtype)


def _dual(spec: TensorSpec | Torchish, pairs: Any):
    if isinstance(spec, Torchish):
        return spec, torch.zeros_like(spec)
    value, move = next(pairs)
    return spec.result(value), spec.result(move)


@replaces(eager_transforms, "_chunked_standard_basis_for_")
def _standard_basis(tensors: Sequence[torch.Tensor], tensor_numels: Sequence[int], chunk_size: int | None = None):
    """The rows of an identity matrix, cut into chunks, and each chunk into the columns of each tensor."""
    total = sum(tensor_numels)
    ends = list(itertools.accumulate(tensor_numels, initial=0))
    size = min(chunk_size or total, total)
    for start in range(0, total, size) if size else [0]:
        rows = min(size, total - start)
        yield tuple(
            _columns(tensor, start, rows, begin).view(rows, *tensor.shape)
            for tensor, begin in zip(tensors, ends, strict=False)
        )


def _columns(tensor: torch.Tensor, start: int, rows: int, begin: int) -> torch.Tensor:
    """A block of an identity matrix: `rows` from `start`, and as many columns from `begin` as `tensor` has elements."""
    full = torch.eye(max(start + rows, begin + tensor.numel()), dtype=tensor.dtype, device=tensor.device)
    return full[start : start + rows, begin : begin + tensor.numel()]


@replaces(eager_transforms, "lazy_dynamo_disallow")
def _tool_of_linearize(tool: Callable[..., object]):
    """The tool with which `linearize` traces its function, and then keeps the linear part."""
    tools = {
        make_fx: _traced_by_linearize,
        split_const_subgraphs: lambda graph: graph,
    }
    return tools.get(tool, tool)


def _traced_by_linearize(trace: Callable[..., object]):
    """The function that `linearize` applies to tangents: its own, linear at the primals."""
    known = inspect.getclosurevars(trace).nonlocals
    func, primals = known["func"], tree_unflatten(known["flat_primals"], known["primals_argspec"])
    level = _Forward(primals, {})
    specs: list[TensorSpec | Torchish] = []

    def run(*arrays: jax.Array):
        with torch.enable_grad(), set_fwd_grad_enabled(True), level.running(arrays):
            args, _ = level.arguments(arrays, require_grad=False)
            flat, _ = tree_flatten(func(*args))
            return _dependent(level, flat, specs, strict=False), level.written()

    _, push, written = jax.linearize(run, *level.arrays, has_aux=True)
    level.write_back(written)

    def graph(*tangents: Any):
        given = [tangent_array(*each) for each in zip(tangents, level.inputs, level.specs, strict=True)]
        moves = iter(push(*[_typed(*each) for each in zip(given, level.arrays, strict=True)]))
        return [torch.zeros_like(x) if isinstance(x, Torchish) else x.result(next(moves)) for x in specs]

    return lambda tangents: graph


# `functionalize`: writes and views are pure functions of arrays here anyway.


@replaces(eager_transforms, "_func_increment_nesting")
def _enter_functionalize(reapply_views: bool):
    del reapply_views
    return 0


@replaces(eager_transforms, "_func_decrement_nesting")
def _leave_functionalize() -> int:
    return 0


@replaces(eager_transforms, "_wrap_all_tensors_to_functional")
def _as_functional(tree: object, level: int, **options: object):
    del level, options
    return tree


@replaces(eager_transforms, "_unwrap_all_tensors_from_functional")
def _from_functional(tree: object, *, reapply_views: bool):
    del reapply_views
    return tree


@replaces(eager_transforms, "_propagate_functional_input_mutation")
def _propagate_nothing(unwrapped: object, wrapped: object) -> None:
    del unwrapped, wrapped


@replaces(torch, "_sync")
def _sync_nothing(tensor: object) -> None:
    del tensor
