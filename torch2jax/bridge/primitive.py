"""The JAX primitive of a call of PyTorch: one equation, its derivative, its batched forms, and its calls on shards.

The derivative is a second primitive that is linear in its tangents. It cannot be evaluated, only transposed: PyTorch
code has reverse-mode gradients here and no forward mode. Where it is left over, its lowering says so.

In programs for several devices whose types do not say how arrays are sharded, XLA's partitioner decides, and would
gather the inputs of a call that it knows nothing of. So the call is left to a partitioning rule, which refuses inputs
that arrive sharded.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from ..internals.jax import prim_requires_devices_during_lowering
from . import ffi, scope
from .derivative import batched, gradient
from .function import CudaSite, Site, TorchFunction


def needs_devices(primitive: Primitive) -> None:
    """Has JAX tell the lowering rule of a primitive for which devices it lowers, which partitioning rules need."""
    prim_requires_devices_during_lowering.add(primitive)


def refusing_shards(call: Callable, name: str, operands: Sequence, results: Sequence) -> Callable:
    """``call``, as a function that XLA does not compile for inputs that it has sharded.

    Args:
        call: from arrays to a list of arrays.
        name: what an error calls it.
        operands, results: types of what it takes and returns.
    """

    def partition(mesh: Mesh, argument_types: Sequence[Any], result_types: Sequence[object]):
        for index, argument in enumerate(argument_types):
            if not argument.sharding.is_fully_replicated:
                raise ValueError(
                    f"input {index} of {name} is sharded as {argument.sharding} and there is no out_specs=. Call it "
                    "inside jax.shard_map, or on a mesh with explicit axes pass out_specs=, to call it on each shard; "
                    "or gather the input first, with jax.lax.with_sharding_constraint"
                )
        replicated = NamedSharding(mesh, PartitionSpec())
        return mesh, call, [replicated] * len(result_types), tuple(replicated for _ in argument_types)

    guarded = custom_partitioning(call)
    guarded.def_partition(partition, sharding_rule=_unrelated(operands, results))
    return guarded


def _unrelated(operands: Sequence, results: Sequence) -> str:
    """The rule that no dimension of a result comes from one of an operand."""
    names = (f"d{index}" for index in itertools.count())
    write = lambda types: ", ".join(" ".join(next(names) for _ in type_.shape) for type_ in types)
    return f"{write(operands)} -> {write(results)}"


class Result(tuple):
    """Shape and dtype of a result, short enough for a jaxpr."""

    __slots__ = ()

    def __new__(cls, shape: Sequence[int], dtype: DTypeLike):
        return super().__new__(cls, (tuple(shape), jnp.dtype(dtype)))

    shape = property(lambda self: self[0])
    dtype = property(lambda self: self[1])

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def with_axis(self, size: int) -> "Result":
        return Result((size, *self.shape), self.dtype)


torch_call_p = Primitive("torch_call")
torch_call_p.multiple_results = True
needs_devices(torch_call_p)
_replicated_p = Primitive("torch_call_replicated")  # a call that XLA has found to have whole inputs on every device
_replicated_p.multiple_results = True
_tangent_p = Primitive("torch_call_tangent")
_tangent_p.multiple_results = True


def call_torch(function: TorchFunction, results: tuple[Result, ...], *arrays: jax.Array) -> list[jax.Array]:
    """Calls PyTorch on arrays, now or in the program that is being traced."""
    return torch_call_p.bind(*_vary_together(arrays), function=function, results=results)


def _vary_together(arrays: Sequence[jax.Array]):
    """Inside ``shard_map``, marks all operands as varying over the axes that any of them varies over.

    Its transpose sums the gradients of an operand that was the same everywhere.
    """
    axes = frozenset().union(*(_varying(array) for array in arrays))
    return [_vary(array, tuple(sorted(axes - _varying(array)))) for array in arrays]


def _varying(array: jax.Array) -> frozenset:
    return jax.typeof(array).manual_axis_type.varying


def _vary(array: jax.Array, axes: tuple[str, ...]):
    return jax.lax.pcast(array, axes, to="varying") if axes else array


# --- Types and evaluation


def _abstract(*avals: ShapedArray, results: tuple[Result, ...], **_):
    like = next((aval for aval in avals if not aval.sharding.mesh.empty), None)
    if like is None:
        return [ShapedArray(shape, dtype) for shape, dtype in results]
    replicated = NamedSharding(like.sharding.mesh, PartitionSpec())
    return [like.update(shape=s, dtype=d, weak_type=False, sharding=replicated) for s, d in results]


def _evaluate(*arrays: jax.Array, function: TorchFunction, results: tuple[Result, ...]):
    programs = function.settings.programs()
    key = (function, results)
    program = None if programs is None else programs.get(key)
    if program is None:
        program = jax.jit(functools.partial(torch_call_p.bind, function=function, results=results))
        if programs is not None:
            programs[key] = program
    config: Any = jax.config
    if config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs:
        return _run_watched(program, arrays, function)
    return program(*arrays)


def _run_watched(
    program: Callable[..., list[jax.Array]], arrays: Sequence[jax.Array], function: TorchFunction
) -> list[jax.Array]:
    """Runs the program of a call where JAX runs programs step by step: the call itself would come back here."""
    config: Any = jax.config
    wanted = {"nan": config.jax_debug_nans, "inf": config.jax_debug_infs}
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        results = program(*arrays)
        for kind, test in (("nan", jnp.isnan), ("inf", jnp.isinf)):
            if wanted[kind] and any(jnp.issubdtype(x.dtype, jnp.inexact) and test(x).any() for x in results):
                raise FloatingPointError(f"invalid value ({kind}) encountered in {function}, which PyTorch computed")
    return results


torch_call_p.def_abstract_eval(_abstract)
torch_call_p.def_impl(_evaluate)
_replicated_p.def_abstract_eval(_abstract)


# --- Lowering


def _lower(
    platform: str,
    site_type: type[Site],
    ctx: mlir.LoweringRuleContext,
    *operands: object,
    function: TorchFunction,
    results: tuple[Result, ...],
):
    site = site_type(function, ctx.avals_in, results)
    ctx.module_context.add_keepalive(site)
    if not _is_partitioned(ctx):
        return _lower_site(platform, ctx, *operands, site=site, results=results)
    call = functools.partial(_replicated_p.bind, site=site, results=results)
    guarded = refusing_shards(call, function.name, ctx.avals_in, results)
    return mlir.lower_fun(guarded, multiple_results=True)(ctx, *operands)


def _is_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Returns True if XLA may split the program over devices around the call, outside of ``shard_map``."""
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", frozenset())
    return not manual and getattr(context, "num_devices", 1) > 1


def _lower_site(
    platform: str, ctx: mlir.LoweringRuleContext, *operands: object, site: Site, results: tuple[Result, ...]
):
    if site.function.settings.method == "callback":
        shapes = [jax.ShapeDtypeStruct(*result) for result in results]
        call = lambda *arrays: jax.pure_callback(site.on_arrays, shapes, *arrays)
        return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
    target = ffi.register_target(platform)
    if platform == "cpu":
        scope.prepare()
    return jax.ffi.ffi_lowering(target)(ctx, *operands, site=np.int64(ffi.register(site, site.identity)))


def _lower_elsewhere(
    ctx: mlir.LoweringRuleContext, *operands: object, function: TorchFunction, results: tuple[Result, ...]
):
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(
        f"{function} cannot be called on {platforms}: PyTorch runs on the CPU and on CUDA. Place the computation on "
        'the CPU, pass method="callback", which runs it on the host, or translate the function with t2j'
    )


def _lower_callback_elsewhere(
    ctx: mlir.LoweringRuleContext, *operands: object, function: TorchFunction, results: tuple[Result, ...]
):
    if function.settings.method == "callback":
        return _lower("cpu", Site, ctx, *operands, function=function, results=results)
    return _lower_elsewhere(ctx, *operands, function=function, results=results)


mlir.register_lowering(torch_call_p, _lower_callback_elsewhere)
mlir.register_lowering(torch_call_p, functools.partial(_lower, "cpu", Site), platform="cpu")
mlir.register_lowering(torch_call_p, functools.partial(_lower, "CUDA", CudaSite), platform="cuda")
mlir.register_lowering(_replicated_p, functools.partial(_lower_site, "cpu"), platform="cpu")
mlir.register_lowering(_replicated_p, functools.partial(_lower_site, "CUDA"), platform="cuda")


# --- Derivatives


def _jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], *, function: TorchFunction, results: tuple[Result, ...]
):
    outs = torch_call_p.bind(*primals, function=function, results=results)
    wanted = tuple(index for index in function.inputs if type(tangents[index]) is not ad.Zero)
    out_tangents = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if wanted and function.results:
        moving = [tangents[index] for index in wanted]
        types = tuple(results[index] for index in function.results)
        operands = _vary_together([*primals, *moving])
        linear = _tangent_p.bind(*operands, function=function, wanted=wanted, results=types)
        for index, tangent in zip(function.results, linear, strict=True):
            out_tangents[index] = tangent
    return outs, out_tangents


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    function: TorchFunction,
    wanted: tuple[int, ...],
    results: tuple[Result, ...],
):
    if function.depth < 1:
        raise TypeError(
            f"{function} defines no gradient of this order: pass a larger depth= to torch2jax, which says how often "
            "it may be differentiated, or register a derivative with PyTorch if t2j calls an operator that has none"
        )
    primals = operands[: -len(wanted)]
    pairs = zip(function.results, cotangents, strict=True)
    given = tuple(index for index, weight in pairs if type(weight) is not ad.Zero)
    weights = [weight for weight in cotangents if type(weight) is not ad.Zero]
    types = tuple(Result(jnp.shape(primals[index]), jnp.result_type(primals[index])) for index in wanted)
    gradients = call_torch(gradient(function, wanted, given), types, *primals, *weights)
    return [None] * len(primals) + gradients


_NO_FORWARD_MODE = (
    "{} runs in PyTorch and has reverse-mode gradients only, so jax.jvp, jax.jacfwd, jax.linearize and jax.hessian do "
    "not work on it. Use jax.grad, jax.vjp or jax.jacobian; jax.jacobian(jax.jacobian(f)) is the Hessian. "
    "jax.lax.custom_root and custom_linear_solve take derivatives forwards: a jax.custom_vjp around the solver has "
    "its own"
)


def _refuse_forward(*operands: object, function: TorchFunction, **_):
    raise TypeError(_NO_FORWARD_MODE.format(function))


ad.primitive_jvps[torch_call_p] = _jvp
ad.primitive_jvps[_tangent_p] = lambda primals, tangents, **params: _refuse_forward(**params)
ad.primitive_transposes[_tangent_p] = _transpose
_tangent_p.def_abstract_eval(_abstract)
_tangent_p.def_impl(_refuse_forward)
mlir.register_lowering(_tangent_p, lambda ctx, *operands, **params: _refuse_forward(**params))


# --- Batching


def _batch(
    arrays: Sequence[jax.Array], axes: Sequence[int | None], *, function: TorchFunction, results: tuple[Result, ...]
):
    size = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)
    method = function.settings.vmap_method
    if method.startswith("sequential"):
        return _one_by_one(torch_call_p, arrays, axes, method, function=function, results=results)
    if method == "torch_vmap":
        function = batched(function, tuple(axes))
    else:
        # The gradient of an input that all examples share differs between them: it needs its own row for each.
        shared = 1 if method == "expand_dims" and not function.is_gradient else size
        arrays = [_with_axis(array, axis, shared) for array, axis in zip(arrays, axes, strict=True)]
    types = tuple(result.with_axis(size) for result in results)
    return torch_call_p.bind(*arrays, function=function, results=types), (0,) * len(results)


def _with_axis(array: jax.Array, axis: int | None, size: int):
    if axis is None:
        return jnp.broadcast_to(array, (size, *array.shape))
    return jnp.moveaxis(array, axis, 0)


def _one_by_one(
    primitive: Primitive, arrays: Sequence[jax.Array], axes: Sequence[int | None], method: str, **params: object
):
    mapped = [jnp.moveaxis(array, axis, 0) for array, axis in zip(arrays, axes, strict=True) if axis is not None]

    def step(carry: tuple[()], rows: list[jax.Array]):
        of_one = iter(rows)
        operands = [array if axis is None else next(of_one) for array, axis in zip(arrays, axes, strict=True)]
        return carry, primitive.bind(*operands, **params)

    _, outs = jax.lax.scan(step, (), mapped, unroll=method == "sequential_unrolled")
    return outs, (0,) * len(outs)


batching.primitive_batchers[torch_call_p] = _batch
batching.primitive_batchers[_tangent_p] = functools.partial(
    lambda arrays, axes, **params: _one_by_one(_tangent_p, arrays, axes, "sequential", **params)
)


def sharding_of(array: object) -> NamedSharding | None:
    """The sharding of an array over the axes of a mesh, or None if every device has all of it."""
    if isinstance(array, jax.Array) and not isinstance(array, Tracer):
        sharding = array.sharding
        if sharding.is_fully_replicated or len(sharding.device_set) == 1:
            return None
        if not isinstance(sharding, NamedSharding):
            raise ValueError(f"torch2jax got an array sharded as {sharding}; wanted a NamedSharding over a mesh")
        return sharding
    sharding = getattr(jax.typeof(array), "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and _axes(sharding.spec) else None


def _axes(spec: PartitionSpec) -> list[str]:
    axes = []
    for entry in spec:
        if entry is not None and entry is not PartitionSpec.UNCONSTRAINED:
            axes.extend(entry if isinstance(entry, tuple) else (entry,))
    return axes


def refuse_sharded(arrays: Sequence) -> None:
    """Raises if an array is sharded: a PyTorch function needs all of its inputs, and nothing is gathered silently.

    Raises:
        ValueError: one is.
    """
    for array in arrays:
        sharding = sharding_of(array)
        if sharding is not None:
            raise ValueError(
                f"torch2jax got an input sharded as {sharding.spec} over the mesh {sharding.mesh.shape_tuple} and no "
                "out_specs=. Pass out_specs= to call the function on each shard, call it inside jax.shard_map, or "
                "gather the input first, with jax.sharding.reshard(x, jax.P())"
            )


def map_shards(call: Callable, arrays: Sequence, out_specs: object, structure: object) -> Callable | None:
    """The function that calls ``call`` on every device with its shards, or None if no array is sharded.

    Args:
        call: takes the shards in the structure of the arguments.
        arrays: concrete, or traced with explicit mesh axes.
        out_specs: how the results of the shards make up the whole ones, as in ``jax.shard_map``.
        structure: of the arguments.

    Raises:
        ValueError: the arrays are sharded over different meshes.
    """
    shardings = [sharding_of(array) for array in arrays]
    meshes = {sharding.mesh for sharding in shardings if sharding is not None}
    if not meshes:
        return None
    if len(meshes) > 1:
        raise ValueError(f"torch2jax got inputs sharded over different meshes: {meshes}")
    (mesh,) = meshes
    specs = [PartitionSpec() if sharding is None else sharding.spec for sharding in shardings]
    names = {name for spec in specs for name in _axes(spec)}
    _check_axes(out_specs, mesh, names)
    in_specs = jax.tree.unflatten(structure, specs)
    return jax.shard_map(call, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names)


def _check_axes(out_specs: object, mesh: Mesh | AbstractMesh, names: set[str]) -> None:
    for spec in jax.tree.leaves(out_specs, is_leaf=lambda node: isinstance(node, PartitionSpec)):
        for name in _axes(spec):
            if name not in names:
                raise ValueError(f"out_specs names the mesh axis {name!r}, over which no input is sharded ({names})")


def local_results(
    results: tuple[Result, ...], structure: object, out_specs: object, mesh: Mesh | AbstractMesh
) -> tuple[Result, ...]:
    """The results of one shard, given those of all together."""
    is_spec = lambda node: isinstance(node, PartitionSpec)
    tree = jax.tree.unflatten(structure, results)
    is_result = lambda node: isinstance(node, Result)
    spread = lambda spec, part: jax.tree.map(lambda _: spec, part, is_leaf=is_result)
    specs = jax.tree.leaves(jax.tree.map(spread, out_specs, tree, is_leaf=is_spec), is_leaf=is_spec)
    return tuple(_local(result, spec, mesh) for result, spec in zip(results, specs, strict=True))


def _local(result: Result, spec: PartitionSpec, mesh: Mesh | AbstractMesh) -> Result:
    shape = list(result.shape)
    for dimension, entry in enumerate(spec):
        if entry is not None:
            names = entry if isinstance(entry, tuple) else (entry,)
            parts = math.prod(mesh.shape[name] for name in names)
            if shape[dimension] % parts:
                raise ValueError(f"output_shapes has the size {shape[dimension]}, which {parts} shards do not divide")
            shape[dimension] //= parts
    return Result(shape, result.dtype)
