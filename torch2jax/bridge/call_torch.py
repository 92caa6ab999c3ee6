"""`torch2jax`: a JAX function that runs PyTorch."""

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ..rules.inline import INLINED
from ..runtime.caches import Cache
from ..runtime.errors.locations import user_level
from ..runtime.errors.tracebacks import TellsOfArguments, boundary
from ..tensors.dtypes import canonical, dtype_j2t
from ..tensors.trees import ordered
from .ffi import check_version
from .function import BridgeOptions
from .primitive import call_torch, local_results, map_shards, refuse_sharded
from .specialise import Example, Specialised, as_examples, declared, specialise

VMAP_METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "torch_vmap")
_METHODS = ("ffi", "callback")


@boundary
def torch2jax(
    fn: Callable,
    *example_args: object,
    example_kw: dict[str, object] | None = None,
    depth: int = 2,
    nondiff_argnums: int | tuple[int, ...] | list[int] | None = None,
    nondiff_mask: object = None,
    output_shapes: object = None,
    out_specs: object = None,
    output_sharding_spec: object = None,
    use_zeros: bool = True,
    use_torch_vjp: bool = True,
    vmap_method: str = "sequential",
    lock: object = False,
    method: str = "ffi",
    mutates: bool | None = None,
) -> Callable:
    """Returns a JAX function that calls PyTorch, also inside ``jax.jit``, on JAX's own memory.

    On the CPU inputs are not copied and outputs once; on CUDA the function runs on XLA's stream. Its inputs live as
    long as the call: clone what it keeps. Calls may be dropped, repeated or reordered, as for any pure function.

    Args:
        fn: a function that takes tensors in any trees and returns tensors or numbers in any tree.
        *example_args: tensors, arrays or ``jax.ShapeDtypeStruct`` like its arguments. A call with other shapes or
            dtypes specializes the function for these too, with one warning.
        example_kw: the same for its keyword arguments.
        depth: how often the function may be differentiated, in reverse mode; 0 for no gradients.
        nondiff_argnums: positional arguments that are constants in gradients. Integer and bool arrays always are.
        nondiff_mask: a tree of bools like `example_args`, or a prefix of it: True for constants.
        output_shapes: the tree of results: ``torch.Size``, tuples of ints, ``jax.ShapeDtypeStruct``, arrays or tensors.
            With it `fn` is not called in advance, and lists, tuples and single results get the declared structure.
            Without it, `fn` is called once, on meta tensors if it accepts them.
        out_specs: for inputs that are sharded over the axes of a mesh: `fn` is called on each shard, and the specs
            say, as in ``jax.shard_map``, how the results form the whole. `output_shapes` are those of the whole.
        output_sharding_spec: an older name of `out_specs`.
        use_zeros: accepted for compatibility: gradients of constants are zeros either way.
        use_torch_vjp: compute gradients by ``torch.func.vjp``. If that fails, ``torch.autograd.grad`` computes them,
            with one warning. With False ``torch.autograd.grad`` always computes them.
        vmap_method: ``"sequential"``, ``"sequential_unrolled"``, ``"expand_dims"`` and ``"broadcast_all"`` as in
            ``jax.ffi.ffi_call``; ``"torch_vmap"`` batches through ``torch.vmap``.
        lock: True to run all calls under one lock of the process, or a lock: for functions with state that run on
            several devices at a time.
        method: ``"ffi"``, or ``"callback"`` for ``jax.pure_callback``, which is slower, and independent of XLA's
            interface.
        mutates: whether `fn` writes to its arguments. By default this is detected, and `fn` writes to copies. A
            function whose Python code reads values, or memory through ``numpy()``, gets copies of all arguments. False
            promises that it writes to none.

    Returns:
        A function of arrays in the trees of the examples. ``jax.jvp`` and ``jax.hessian`` of it raise a TypeError that
        says what to do; ``jax.jacobian(jax.jacobian(f))`` works.

    Raises:
        TypeError: an example, output shape or dtype is not one that both PyTorch and JAX have.
        ValueError: `vmap_method` or `method` is unknown, or an input is sharded and `out_specs` is missing.
        NotImplementedError: the installed jaxlib has an unknown interface, or the platform is neither CPU nor GPU.
        jax.errors.JaxRuntimeError: at a call: `fn` raised, and the message ends with PyTorch's traceback; or the
            results do not have the declared number, shapes and dtypes.

    Example:
        >>> import jax, torch
        >>> from torch2jax import torch2jax
        >>> def halved(x):  # a list that grows until the data say stop
        ...     found = [x]
        ...     while found[-1].norm() > 1:
        ...         found.append(found[-1] / 2)
        ...     return found[-1]
        >>> f = torch2jax(halved, jax.ShapeDtypeStruct((2,), "float32"))
        >>> jax.jit(f)(jax.numpy.array([3.0, 4.0]))
        Array([0.375, 0.5  ], dtype=float32)
    """
    del use_zeros
    if not callable(fn):
        raise TypeError(f"torch2jax got a {type(fn).__name__}; wanted a function. t2j converts tensors to arrays")
    if vmap_method not in VMAP_METHODS:
        raise ValueError(f"got vmap_method={vmap_method!r}; wanted one of {', '.join(VMAP_METHODS)}")
    if method not in _METHODS:
        raise ValueError(f"got method={method!r}; wanted one of {', '.join(_METHODS)}")
    if method == "ffi":
        check_version()
    return _SpecialisedCalls(
        fn,
        (as_examples(example_args), as_examples(example_kw or {})),
        depth=depth,
        constants=_constants(nondiff_argnums, nondiff_mask),
        output_shapes=output_shapes,
        out_specs=output_sharding_spec if out_specs is None else out_specs,
        settings=BridgeOptions(vmap_method, use_torch_vjp, method, lock),
        mutates=mutates,
    )


def torch2jax_auto(fn: Callable, output_shapes: object = None, **options: Any) -> Callable:
    """Like `torch2jax`, with the arguments of the first call as examples.

    Args:
        fn: as in `torch2jax`.
        output_shapes: as in `torch2jax`.
        **options: the other options of `torch2jax`, except `example_kw`.
    """
    made: list[Callable] = []

    @functools.wraps(fn, updated=())
    @boundary
    def call(*args: object, **kwargs: object):
        if not made:
            examples = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(*_type(leaf)), (args, kwargs))
            made.append(torch2jax(fn, *examples[0], example_kw=examples[1], output_shapes=output_shapes, **options))
        return made[0](*args, **kwargs)

    return call


def _type(leaf: object) -> tuple:
    aval = jax.typeof(leaf)
    return aval.shape, aval.dtype


def _constants(argnums: int | Sequence[int] | None, mask: Any) -> Callable[[tuple], list[bool]]:
    """Returns the function from positional arguments to flags of their leaves, True for constants in gradients."""
    numbers = () if argnums is None else (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def constants(args: tuple) -> list[bool]:
        chosen = tuple(index in numbers or index - len(args) in numbers for index in range(len(args)))
        given = False if mask is None else tuple(mask)
        pairs = zip(_spread(chosen, args), _spread(given, args), strict=True)
        return [bool(a or b) for a, b in pairs]

    return constants


def _spread(prefix: object, tree: object) -> list:
    """A leaf of `prefix` for each leaf of `tree`."""
    return jax.tree.leaves(jax.tree.map(lambda value, part: jax.tree.map(lambda _: value, part), prefix, tree))


class _SpecialisedCalls(TellsOfArguments):
    """The function that `torch2jax` returns, with its specialisations."""

    def __init__(
        self,
        fn: Callable,
        examples: tuple[tuple, dict],
        *,
        depth: int,
        constants: Callable[[tuple], list[bool]],
        output_shapes: object,
        out_specs: object,
        settings: BridgeOptions,
        mutates: bool | None,
    ):
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._constants = constants
        self._programs = Cache("single calls of PyTorch functions", 1024)
        settings = dataclasses.replace(settings, programs=weakref.ref(self._programs))
        self._options = {"depth": depth, "settings": settings, "mutates": mutates}
        self._out_specs = out_specs
        leaves, self._structure = jax.tree.flatten(examples)
        self._dtypes = [leaf.dtype for leaf in leaves]
        self._of_examples: dict[object, Specialised] = {}
        self._of_others: Cache[object, Specialised] = Cache("specialised PyTorch functions", 1024)
        self._warned = False
        self._outputs = None if output_shapes is None else declared(output_shapes, examples)
        if out_specs is None or self._outputs is None:
            self._of_examples[self._key(self._structure, leaves)] = self._specialised(examples, self._outputs)
        self._jitted = jax.jit(self._trace, inline=INLINED)

    def __repr__(self) -> str:
        return f"torch2jax({self._fn!r})"

    @boundary
    def __call__(self, *args: object, **kwargs: object) -> Any:
        try:
            leaves, structure = jax.tree.flatten((args, kwargs))
        except ValueError:  # keys that it cannot sort
            args, kwargs = ordered((args, kwargs))
            leaves, structure = jax.tree.flatten((args, kwargs))
        # Traced for a gradient, the inner jit's jaxpr would stay in JAX's caches, and the function with it.
        run = self._trace if any(isinstance(leaf, Tracer) for leaf in leaves) else self._jitted
        if self._out_specs is not None:
            mapped = map_shards(self._on_shard, leaves, self._out_specs, structure)
            return run(*args, **kwargs) if mapped is None else mapped(args, kwargs)
        if jax.device_count() > 1:
            refuse_sharded(leaves)
        return run(*args, **kwargs)

    def _trace(self, *args: object, **kwargs: object):
        leaves, structure = jax.tree.flatten((args, kwargs))
        refuse_sharded(leaves)
        return self._call(leaves, structure, self._outputs)

    def _on_shard(self, args: tuple, kwargs: dict[str, object]):
        leaves, structure = jax.tree.flatten((args, kwargs))
        outputs = self._outputs
        if outputs is not None:
            mesh = jax.sharding.get_abstract_mesh()
            outputs = (local_results(*outputs, self._out_specs, mesh), outputs[1])
        self._warned = True  # shards are of other shapes than the examples
        return self._call(leaves, structure, outputs)

    def _call(self, leaves: list, structure: object, outputs: object):
        types = [_type(leaf) for leaf in leaves]
        examples = [Example(shape, self._dtype(index, dtype)) for index, (shape, dtype) in enumerate(types)]
        key = self._key(structure, examples)
        known = self._of_examples.get(key) or self._of_others.get(key)
        if known is None:
            self._warn(types)
            given = outputs if self._out_specs is not None else None
            known = self._of_others[key] = self._specialised(jax.tree.unflatten(structure, examples), given)
        arrays = [jax.numpy.asarray(leaf) for leaf in leaves]
        return jax.tree.unflatten(known.structure, call_torch(known.function, known.results, *arrays))

    def _dtype(self, index: int, dtype: np.dtype):
        """The dtype of an array in PyTorch: int64 as in the example, although JAX holds it as int32."""
        if index < len(self._dtypes) and canonical(self._dtypes[index]) == dtype:
            return self._dtypes[index]
        return dtype_j2t(dtype)

    @staticmethod
    def _key(structure: object, examples: Sequence[Example]):
        return structure, tuple((example.shape, canonical(example.dtype)) for example in examples)

    def _specialised(self, examples: tuple[tuple, dict], outputs: Any) -> Specialised:
        fixed = self._constants(examples[0]) + [False] * len(jax.tree.leaves(examples[1]))
        return specialise(self._fn, examples, tuple(fixed), outputs=outputs, **self._options)

    def _warn(self, types: Sequence[tuple]) -> None:
        if not self._warned:
            self._warned = True
            found = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types)
            warnings.warn(
                f"{self!r} was called with {found}, unlike its examples; it is specialised for them too, and for "
                "further shapes without a warning",
                stacklevel=user_level(),
            )
