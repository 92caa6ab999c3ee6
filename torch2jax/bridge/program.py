"""Pure JAX functions of flat lists of arrays, with their derivatives and batched forms.

Also here: the arguments of a call, of which a program traces some, and is compiled for the values of others.
"""

import enum
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..runtime.caches import Cache
from ..tensors.dtypes import canonical, has_doubles
from ..tensors.traced import evaluating
from ..tensors.trees import flatten


class _LeafKind(enum.Enum):
    """The origin of a traced leaf: a tensor or an array."""

    TENSOR = "tensor"
    ARRAY = "array"


class Template(NamedTuple):
    """A tree without its leaves that are traced."""

    structure: Any
    leaves: list

    def fill(self, tensors: Sequence, arrays: Sequence = ()) -> Any:
        """The tree with `tensors` and `arrays` where these were."""
        rest = {_LeafKind.TENSOR: iter(tensors), _LeafKind.ARRAY: iter(arrays)}
        leaves = [next(rest[leaf]) if isinstance(leaf, _LeafKind) else leaf for leaf in self.leaves]
        return self.structure.unflatten(leaves)


class Arguments(NamedTuple):
    """The arguments of a call, taken apart.

    Everything that is neither a tensor, an array nor an operand is static: part of the program, and of `signature`,
    which is hashable if they are.
    """

    template: Template
    signature: Hashable
    tensors: list[torch.Tensor]
    constants: tuple[Any, ...]
    """The arrays of JAX's and numpy's, and the numbers that are operands: traced, without derivatives."""
    has_numbers: bool
    """The constants hold a Python number."""


def take_apart(args: tuple, kwargs: dict, operands: frozenset[type] = frozenset()) -> Arguments:
    """Sorts the leaves of a call's arguments into those that are traced and those that are static.

    Args:
        operands: the types of Python numbers that are traced. Integers that need more than 32 bits are static.
    """
    leaves, structure = flatten((args, kwargs))
    tensors, constants, rest, described = [], [], [], []
    has_numbers = False
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            rest.append(_LeafKind.TENSOR)
            described.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, (jax.Array, np.ndarray)):
            # numpy's may change while the program runs, or before a derivative is asked for
            array = leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
            constants.append(array)
            rest.append(_LeafKind.ARRAY)
            described.append((array.shape, array.dtype))
        elif type(leaf) in operands and (type(leaf) is float or -(2**31) <= leaf < 2**31):
            constants.append(leaf)
            rest.append(_LeafKind.ARRAY)
            described.append(type(leaf))
            has_numbers = True
        else:
            rest.append(leaf)
            described.append(_described(leaf))
    signature = structure, has_doubles(), *described
    return Arguments(Template(structure, rest), signature, tensors, tuple(constants), has_numbers)


def take_out_arrays(result: object) -> tuple[Template, list[jax.Array]]:
    """The result of a JAX function as arrays, for which PyTorch gets tensors, and the rest of it."""
    leaves, structure = flatten(result)
    is_array = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) for leaf in leaves]
    rest = [_LeafKind.TENSOR if traced else leaf for leaf, traced in zip(leaves, is_array, strict=True)]
    arrays = [jnp.asarray(leaf) for leaf, traced in zip(leaves, is_array, strict=True) if traced]
    return Template(structure, rest), arrays


def _described(leaf: object) -> tuple:
    """A static leaf. Equal ones have equal types and signs too: 1 is not True, 0.0 is not -0.0, nan is nan."""
    kind = type(leaf)
    return kind, repr(leaf) if kind is float or kind is complex else leaf


Indices = tuple[int, ...]


def kept_programs() -> Cache[Any, Any]:
    """A cache of programs: those that were used last."""
    return Cache("programs of JAX functions", 128)


class JaxProgram:
    """A function ``(constants, *arrays) -> list of arrays`` with its transformations by JAX.

    Each of these is again a program, made once, so that all compose to any depth: the vjp of a batched jvp is one
    compiled function. Arrays are concrete; `constants` is a tuple of arrays without derivatives.

    Args:
        function: the function; for arguments of one signature it gives arrays of fixed shapes and dtypes.
        jit: compile it, rather than run it operation by operation.
        x64: whether ``jax_enable_x64`` is on in it, wherever and on whichever thread it runs.
    """

    def __init__(self, function: Callable[..., list], *, jit: bool, x64: bool):
        self.function, self.jit, self.x64 = function, jit, x64
        self._derived = kept_programs()
        self._run = self._compiled(self._owning)

    def __call__(self, constants: tuple, arrays: Sequence) -> list:
        """The results, in memory that nothing else uses."""
        return self._in_mode(self._run, constants, *arrays)

    def takes_numbers(self, constants: tuple, tensors: Sequence[torch.Tensor]) -> bool:
        """The Python numbers among `constants` can be operands of the program.

        They cannot where the function asks for their values, as for an axis, or where a result is one of them.
        """

        def described(tensor: torch.Tensor):
            return jax.ShapeDtypeStruct(tuple(tensor.shape), canonical(tensor.dtype))

        try:
            with evaluating(), jax.enable_x64(self.x64):
                results = self._run.eval_shape(constants, *map(described, tensors))  # which jit keeps
        except Exception:  # with the numbers as they are it is raised again, if they are not its reason
            return False
        return not any(result.weak_type for result in results)

    def linearize(self, active: Indices, constants: tuple, arrays: Sequence) -> tuple[list, object]:
        """The results, and the residuals of `pull` for derivatives with respect to the arrays at `active`."""
        run = self._derived.obtain(("linearize", active), lambda: self._compiled(self._linearized(active)))
        results, pullback = self._in_mode(run, constants, *arrays)
        if not self.jit:  # a compiled program is done when its results are; one of several may still read arguments
            jax.block_until_ready(pullback)
        return results, pullback

    def pull(self, pullback: Any, wanted: Indices, constants: tuple, arrays: Sequence, cotangents: Sequence) -> list:
        """PyTorch's gradients with respect to the arrays at `wanted`, which are indices among the active ones.

        Args:
            pullback: what `linearize` gave for `constants` and `arrays`.
            cotangents: PyTorch's gradients with respect to the differentiable results; None for zeros.
        """
        run = self._derived.obtain(("pull", wanted), lambda: self._compiled(_pulling(wanted)))
        return self._in_mode(run, pullback, (*constants, *arrays), tuple(cotangents))

    def vjp(self, wanted: Indices, given: Indices) -> "JaxProgram":
        """PyTorch's gradients with respect to the arrays at `wanted`, from the arrays and the gradients at `given`.

        `given` counts the results; PyTorch's gradient of the others is zero.
        """
        return self._derived.obtain(("vjp", wanted, given), lambda: self._program(self._vjp(wanted, given)))

    def jvp(self, active: Indices) -> "JaxProgram":
        """The tangents of the differentiable results, from the arrays and the tangents of those at `active`."""
        return self._derived.obtain(("jvp", active), lambda: self._program(self._jvp(active)))

    def vmap(self, axes: tuple[int | None, ...], size: int) -> "JaxProgram":
        """The program over a batch of `size`, at `axes` of the arrays and at the first of every result."""
        return self._derived.obtain(("vmap", axes, size), lambda: self._program(self._vmap(axes, size)))

    def _program(self, function: Callable) -> "JaxProgram":
        return JaxProgram(function, jit=self.jit, x64=self.x64)

    def _compiled(self, function: Callable) -> Callable:
        return jax.jit(function) if self.jit else function

    def _in_mode(self, run: Callable, *args: object):
        with evaluating():  # also where JAX traces around it
            if not self.jit:
                args = jax.tree.map(_array, args)
            if has_doubles() == self.x64:
                return run(*args)
            with jax.enable_x64(self.x64):
                return run(*args)

    def _owning(self, constants: tuple, *arrays: jax.Array):
        # A result may be an argument, or an array that the function keeps. Within jit such a copy costs nothing, since
        # XLA gives every result memory of its own.
        return [jnp.copy(result) for result in self.function(constants, *arrays)]

    def _restricted(self, active: Indices, constants: tuple, arrays: Sequence[jax.Array]) -> Callable:
        """The function of the arrays at `active` alone: the differentiable results, and all of them beside."""

        def restricted(*varied: jax.Array):
            inputs = list(arrays)
            for index, array in zip(active, varied, strict=True):
                inputs[index] = array
            results = self.function(constants, *inputs)
            return [result for result in results if _is_differentiable(result)], results

        return restricted

    def _linearized(self, active: Indices) -> Callable:
        def linearized(constants: tuple, *arrays: jax.Array):
            varied = [arrays[index] for index in active]
            primals, pullback, results = jax.vjp(self._restricted(active, constants, arrays), *varied, has_aux=True)
            return [jnp.copy(result) for result in results], _ProgramPullback.of(
                pullback, (*constants, *arrays), primals
            )

        return linearized

    def _vjp(self, wanted: Indices, given: Indices) -> Callable:
        def vjp(constants: tuple, *arrays: jax.Array):
            inputs, cotangents = arrays[: len(arrays) - len(given)], arrays[len(arrays) - len(given) :]
            varied = [inputs[index] for index in wanted]
            primals, pullback, results = jax.vjp(self._restricted(wanted, constants, inputs), *varied, has_aux=True)
            positions = [position for position, result in enumerate(results) if _is_differentiable(result)]
            found = dict(zip(given, cotangents, strict=True))
            return _gradients(pullback, primals, [found.get(position) for position in positions])

        return vjp

    def _jvp(self, active: Indices) -> Callable:
        def jvp(constants: tuple, *arrays: jax.Array):
            inputs, tangents = arrays[: len(arrays) - len(active)], arrays[len(arrays) - len(active) :]
            varied = tuple(inputs[index] for index in active)
            restricted = self._restricted(active, constants, inputs)
            return jax.jvp(restricted, varied, tuple(tangents), has_aux=True)[1]

        return jvp

    def _vmap(self, axes: Sequence[int | None], size: int) -> Callable:
        def vmap(constants: tuple, *arrays: jax.Array):
            batched = jax.vmap(lambda *each: self.function(constants, *each), in_axes=axes, axis_size=size)
            return batched(*arrays)

        return vmap


class _PullbackResiduals(NamedTuple):
    """The structure of a pullback, found while it is traced."""

    structure: Any
    sources: tuple[int | None, ...]
    """The index of the program's argument that each of the arrays is, if it is one: these are not kept twice."""
    primals: tuple[jax.ShapeDtypeStruct, ...]
    """The differentiable results."""


@jax.tree_util.register_pytree_node_class
class _ProgramPullback:
    """JAX's function from cotangents to cotangents, as a compiled function gives it."""

    def __init__(self, arrays: Sequence, kept: _PullbackResiduals):
        self._arrays, self._kept = arrays, kept

    @classmethod
    def of(cls, function: Callable, arguments: Sequence, primals: Sequence) -> "_ProgramPullback":
        leaves, structure = jax.tree.flatten(function)
        positions = {id(argument): position for position, argument in enumerate(arguments)}
        sources = tuple([positions.get(id(leaf)) for leaf in leaves])
        arrays = [leaf for leaf, source in zip(leaves, sources, strict=True) if source is None]
        shapes = tuple([jax.ShapeDtypeStruct(primal.shape, primal.dtype) for primal in primals])
        return cls(arrays, _PullbackResiduals(structure, sources, shapes))

    def gradients(self, arguments: Sequence, cotangents: Sequence) -> list:
        arrays = iter(self._arrays)
        leaves = [next(arrays) if source is None else arguments[source] for source in self._kept.sources]
        return _gradients(jax.tree.unflatten(self._kept.structure, leaves), self._kept.primals, cotangents)

    def tree_flatten(self):
        return tuple(self._arrays), self._kept

    @classmethod
    def tree_unflatten(cls, kept: _PullbackResiduals, arrays: Sequence[object]):
        return cls(arrays, kept)


def _pulling(wanted: Indices) -> Callable:
    def pulling(pullback: _ProgramPullback, arguments: Sequence[jax.Array], cotangents: Sequence[jax.Array | None]):
        gradients = pullback.gradients(arguments, cotangents)
        return [jnp.copy(gradients[index]) for index in wanted]

    return pulling


def _gradients(pullback: Any, primals: Sequence[jax.ShapeDtypeStruct | jax.Array], cotangents: Sequence) -> list:
    """PyTorch's gradients, the conjugates of JAX's cotangents; None for zeros."""
    cotangents = [
        jnp.zeros(primal.shape, primal.dtype) if cotangent is None else jnp.conj(cotangent)
        for primal, cotangent in zip(primals, cotangents, strict=True)
    ]
    return [jnp.conj(gradient) for gradient in pullback(cotangents)]


def _array(value: object):
    return jax.device_put(value.copy(), may_alias=True) if isinstance(value, np.ndarray) else value


def _is_differentiable(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.inexact)
