"""A PyTorch function specialized for arguments of given shapes: its inputs, and its results.

Also here: a description of a function in words that differ for other functions, and agree between processes.
"""

import contextlib
import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch
from jax.core import Tracer

from ..internals.dispatch import compiler_not_imported
from ..runtime.translation import current
from ..tensors.dtypes import canonical, dtype_j2t, has_doubles, is_integral
from ..tensors.tensor import Torchish
from ..tensors.trees import map_results
from .function import BridgeOptions, TorchFunction, WriteTracker
from .primitive import Result
from .scope import in_fresh_thread

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def identity_of(function: Callable) -> str | None:
    """A description of a function's code by its location, and of what it holds; None if something there has none.

    The values of weights are no part of it: programs get them from the function, where they call it.
    """
    words = _words(function, 8)
    return None if words is None else hashlib.sha256(words.encode()).hexdigest()


def _words(value: object, depth: int) -> str | None:
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth == 0:
        return None
    if isinstance(value, torch.nn.Module):
        return f"{type(value).__module__}.{type(value).__qualname__} {value!r} {value.training}"
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return _joined(("method", value.__func__, value.__self__), depth)
    if isinstance(value, functools.partial):
        return _joined(("partial", value.func, value.args, value.keywords), depth)
    if isinstance(value, dict):
        return _joined(("dict", *(x for item in value.items() for x in item)), depth)
    if isinstance(value, (tuple, list)):
        return _joined((type(value).__name__, *value), depth)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        location = f"{value.__module__}.{value.__qualname__} {code.co_filename}:{code.co_firstlineno}"
        try:
            held = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a cell is empty
            return None
        body = code.co_code.hex(), tuple(x for x in code.co_consts if isinstance(x, _PLAIN)), code.co_names
        return _joined((location, *body, value.__defaults__, value.__kwdefaults__, *held), depth)
    return None


def _joined(values: tuple, depth: int) -> str | None:
    words = [_words(value, depth - 1) for value in values]
    return None if None in words else f"({', '.join(map(str, words))})"


_from_numpy = torch.from_numpy  # which translated code has something else for


@dataclasses.dataclass(frozen=True)
class Example:
    """An argument as far as its type goes.

    Attributes:
        shape: of the argument.
        dtype: PyTorch's, which may be wider than that of the array that holds it.
        value: a concrete tensor or array to try the function on, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Any = dataclasses.field(default=None, compare=False)

    def meta(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    @property
    def has_value(self) -> bool:
        """There is a value to try the function on; zeros stand in for others."""
        return self.value is not None and not isinstance(self.value, Tracer)

    def concrete(self) -> torch.Tensor:
        if isinstance(self.value, torch.Tensor):
            return self.value.detach().clone()
        if self.has_value:
            return _from_numpy(np.array(self.value, dtype=_numpy_dtype(self.dtype))).to(self.dtype)
        return torch.zeros(self.shape, dtype=self.dtype)


def _numpy_dtype(dtype: torch.dtype):
    """A dtype of numpy's own that holds the values of `dtype`, which may be bfloat16 or narrower."""
    return np.float32 if dtype.is_floating_point and dtype.itemsize < 4 else jax.numpy.dtype(str(dtype)[6:])


@dataclasses.dataclass(frozen=True)
class Specialised:
    """A function specialised to arguments of certain shapes, with its results and their structure."""

    function: TorchFunction
    results: tuple[Result, ...]
    structure: Any


def as_examples(tree: object) -> Any:
    """Replaces tensors, arrays, ``ShapeDtypeStruct`` and numbers by an `Example`."""
    return map_results(_as_example, tree)


def _as_example(leaf: Any) -> Example | None:
    if leaf is None or isinstance(leaf, Example):
        return leaf
    if isinstance(leaf, torch.Tensor):
        has_value = not leaf.is_meta and not isinstance(leaf, Torchish)  # one of a call in progress is the call's alone
        return Example(tuple(leaf.shape), leaf.dtype, leaf if has_value else None)
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = np.asarray(leaf, dtype=canonical(torch.as_tensor(leaf).dtype))
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(
            f"torch2jax got an example argument of type {type(leaf).__name__}; wanted tensors, jax arrays or "
            "jax.ShapeDtypeStruct, in any tree. Bind other values first, with functools.partial"
        )
    is_value = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
    return Example(tuple(leaf.shape), dtype_j2t(leaf.dtype), leaf if is_value else None)


def declared(output_shapes: object, examples: object) -> tuple[tuple[Result, ...], object]:
    """The results and structure of a user's ``output_shapes``; shapes without a dtype get that of the first float
    input.

    Raises:
        TypeError: something in it is no shape.
    """
    leaves = [leaf for leaf in jax.tree.leaves(examples) if leaf.dtype.is_floating_point]
    default = leaves[0].dtype if leaves else torch.get_default_dtype()

    def result(leaf: Any) -> Result:
        if _is_shape(leaf):
            return Result(leaf, canonical(default))
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"output_shapes has {leaf!r}; wanted a torch.Size, a tuple of ints, a ShapeDtypeStruct, an array or "
                "a tensor, in a tree like the outputs"
            )
        torch_dtype = leaf.dtype if isinstance(leaf.dtype, torch.dtype) else dtype_j2t(leaf.dtype)
        return Result(leaf.shape, canonical(torch_dtype))

    leaves, structure = jax.tree.flatten(output_shapes, is_leaf=_is_shape)
    return tuple(result(leaf) for leaf in leaves), structure


def _is_shape(node: object) -> bool:
    return isinstance(node, torch.Size) or (
        isinstance(node, tuple) and not hasattr(node, "_fields") and all(type(size) is int for size in node)
    )


def specialise(
    fn: Callable,
    examples: tuple[tuple, dict],
    fixed: tuple[bool, ...],
    *,
    depth: int,
    settings: BridgeOptions,
    outputs: tuple[tuple[Result, ...], object] | None,
    mutates: bool | None,
) -> Specialised:
    """Finds out what `fn` returns, unless `outputs` says it, and the arguments that it writes to.

    Args:
        fn: the user's function.
        examples: its positional and keyword arguments, with an `Example` for each array.
        fixed: for each array, whether it is taken as a constant in gradients.
        depth: how often it may be differentiated.
        settings: what holds for all derived functions too.
        outputs: results and their structure, in which case `fn` is not called.
        mutates: whether it writes to its arguments; None to find out.
    """
    leaves, structure = jax.tree.flatten(examples)
    run = functools.partial(_run_flat, fn, structure)
    copies = None if mutates is None else (mutates,) * len(leaves)
    if outputs is None:
        results, out_structure, found = _tried(fn, run, leaves)
        copies = found if copies is None else copies
    else:
        results, out_structure = outputs
    function = TorchFunction(
        _Checked(run, out_structure),
        _name(fn),
        tuple(leaf.dtype for leaf in leaves),
        inputs=tuple(i for i, leaf in enumerate(leaves) if not is_integral(leaf.dtype) and not fixed[i]),
        results=tuple(i for i, result in enumerate(results) if jax.numpy.issubdtype(result.dtype, np.inexact)),
        depth=depth,
        settings=settings,
        copies=copies,
        identity=identity_of(fn),
    )
    return Specialised(function, results, out_structure)


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _run_flat(fn: Callable, structure: object, *tensors: torch.Tensor):
    args, kwargs = jax.tree.unflatten(structure, tensors)
    return fn(*args, **kwargs)


class _Checked:
    """The flat function: its results in order, once they are found to have the expected structure."""

    def __init__(self, run: Callable, structure: Any):
        self.run = run
        self.structure = structure
        self.single = jax.tree_util.treedef_is_leaf(structure) and structure.num_leaves == 1

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        result = self.run(*tensors)
        if self.single and isinstance(result, torch.Tensor):
            return [result]
        leaves, structure = _flatten(result)
        if structure != self.structure and _in_tuples(structure) != _in_tuples(self.structure):
            raise ValueError(f"got results {structure}; wanted {self.structure}, as declared or inferred")
        return leaves


def _in_tuples(structure: Any) -> object:
    """The structure with tuples for all sequences, and none around a single result: callers confuse these."""

    def in_tuples(node: object):
        if isinstance(node, (tuple, list)):
            return tuple(map(in_tuples, node))
        return {key: in_tuples(value) for key, value in node.items()} if isinstance(node, dict) else node

    tree = in_tuples(jax.tree.unflatten(structure, range(structure.num_leaves)))
    while isinstance(tree, tuple) and len(tree) == 1:
        (tree,) = tree
    return jax.tree.structure(tree)


def _flatten(result: object) -> tuple[list[torch.Tensor], object]:
    leaves, structure = jax.tree.flatten(map_results(lambda leaf: leaf, result))
    return [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf) for leaf in leaves], structure


@contextlib.contextmanager
def _buffers_kept(fn: Callable) -> Iterator[None]:
    """Puts back the buffers of a module, such as running statistics, that trying it out has changed."""
    module = getattr(fn, "__self__", fn)
    buffers = list(module.buffers()) if isinstance(module, torch.nn.Module) else []
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def _tried(fn: Callable, run: Callable, examples: list[Example]):
    """What `_infer` finds, also where translated code asks: its modes would take the function's tensors for its own."""
    found: list = []
    wide = has_doubles()

    def try_out():
        with jax.enable_x64(wide), _buffers_kept(fn):
            found.append(_infer(run, examples))

    try_out() if current() is None else in_fresh_thread(try_out)
    return found[0]


def _infer(run: Callable, examples: list[Example]):
    """Results, their structure, and which inputs may be written to: on meta tensors, or else by one concrete run."""
    try:
        with compiler_not_imported():
            return _try_on(run, [example.meta() for example in examples])
    except Exception:
        pass  # what the concrete run raises is no consequence of it
    with torch.random.fork_rng(devices=[]):
        try:
            return _try_on(run, [example.concrete() for example in examples])
        except Exception as error:
            if not all(example.has_value for example in examples):
                error.add_note(_MADE_UP)
            raise


_MADE_UP = (
    "The function was run on made-up values, zeros, to learn the shapes of its results: an example was traced, or had "
    "a shape only. Give torch2jax concrete examples, outside of jax.jit and jax.grad, or say the shapes: "
    "torch2jax(function, *examples, output_shapes=...)"
)


def _try_on(run: Callable, tensors: list[torch.Tensor]):
    with WriteTracker(tensors) as tracker:
        leaves, structure = _flatten(run(*tensors))
    results = tuple(Result(leaf.shape, canonical(leaf.dtype)) for leaf in leaves)
    return results, structure, tracker.may_be_written()
