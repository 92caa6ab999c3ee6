"""`export`: a translated function as a JAX program in one file, for several sizes if they are symbolic.

The graphs for several sizes are merged into one, with expressions for the numbers that differ. They have the same
equations, or the code takes other ways for other sizes. JAX binds each anew, on arrays with symbolic dimensions: its
own rules see to it that the equation is right for all sizes.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

from ...runtime.errors.locations import nearest
from ...tensors.known import for_all_sizes
from .sizes import NotAnExpressionError, Sizes, SizesError, asking, reading

_INLINED = ("jit", "pjit")
_RUNS = itertools.count()
_run = jax.make_user_context(-1)  # within which functions that are jitted run again for sizes that they have seen


def generalized(function: Callable, arguments: Sequence) -> Callable:
    """A function for all values of the symbols in the shapes of arguments.

    Args:
        function: of arrays of these shapes and dtypes, to a tree of arrays.
        arguments: with attributes ``shape`` and ``dtype``; symbols in the shapes are of one scope.

    Returns:
        A function of the same arrays to the same tree, to be traced with symbolic dimensions.

    Raises:
        SizesError: what `function` does depends on sizes otherwise than by numbers that are polynomials of them.
    """
    sizes = Sizes([argument.shape for argument in arguments])
    trees: list = []

    def traced(sample: int) -> ClosedJaxpr:
        def flat(*arrays: jax.Array):
            results, tree = jax.tree.flatten(function(*arrays))
            trees.append(tree)
            return results

        shapes = [jax.ShapeDtypeStruct(sizes.at(each.shape, sample), each.dtype) for each in arguments]
        with _run(next(_RUNS)), for_all_sizes():
            return jax.make_jaxpr(flat)(*shapes)

    traced(0)  # what it finds out in its first run, it knows in all others
    graphs, readings = [], []
    for sample in range(len(sizes.samples)):
        with reading() as read:
            graphs.append(traced(sample))
        readings.append(read)
    with asking(readings, sizes):
        traced(0)
    if any(tree != trees[0] for tree in trees):
        raise SizesError("the code does something different for other sizes: the structure of its results differs")

    def program(*arrays: jax.Array):
        return trees[0].unflatten(_Evaluation(sizes).inline(graphs, list(arrays)))

    return program


class _Evaluation:
    def __init__(self, sizes: Sizes):
        self._sizes = sizes

    def run(self, jaxprs: Sequence[Jaxpr], consts: Sequence, arrays: Sequence) -> list:
        """The results of jaxprs that differ in nothing but numbers."""
        _expect_equal([len(jaxpr.eqns) for jaxpr in jaxprs], "operations")
        environments: list[dict] = [{} for _ in jaxprs]  # of each, the place of its variables in `values`
        values: list = []

        def define(variables: Sequence, value: object) -> None:
            for environment, variable in zip(environments, variables, strict=True):
                environment[variable] = len(values)
            values.append(value)

        def read(atoms: Sequence[object]):
            if isinstance(atoms[0], Literal):
                return self._number([literal.val for literal in atoms], np.dtype(atoms[0].aval.dtype))  # pyright: ignore
            positions: Any = [environment.get(atom) for environment, atom in zip(environments, atoms, strict=True)]
            _expect_equal(positions, "operands")
            return values[positions[0]]

        for variables, value in zip(zip(*(jaxpr.constvars for jaxpr in jaxprs), strict=True), consts, strict=True):
            define(variables, value)
        for variables, value in zip(zip(*(jaxpr.invars for jaxpr in jaxprs), strict=True), arrays, strict=True):
            define(variables, value)
        for equations in zip(*(jaxpr.eqns for jaxpr in jaxprs), strict=True):
            _expect_equal([equation.primitive for equation in equations], "operations")
            operands = [read(atoms) for atoms in zip(*(equation.invars for equation in equations), strict=True)]
            results = self._bind(equations, operands)
            for variables, value in zip(
                zip(*(equation.outvars for equation in equations), strict=True), results, strict=True
            ):
                define(variables, value)
        return [read(atoms) for atoms in zip(*(jaxpr.outvars for jaxpr in jaxprs), strict=True)]

    def _bind(self, equations: Sequence, operands: list) -> list:
        primitive = equations[0].primitive
        if primitive.name in _INLINED:
            return self.inline([equation.params["jaxpr"] for equation in equations], operands)
        if primitive.name == "custom_vjp_call":
            raise SizesError("the graph has a backward pass of its own, as a torch.autograd.Function has")
        if primitive.name == "custom_jvp_call":
            return self._custom_jvp(equations, operands)
        params = {}
        for name in equations[0].params:
            params[name] = self._merged([equation.params[name] for equation in equations], f"{name} of {primitive}")
        results = primitive.bind(*operands, **params)
        return list(results) if primitive.multiple_results else [results]

    def inline(self, graphs: Sequence[ClosedJaxpr], operands: list) -> list:
        """The results of the program that these graphs are samples of."""
        consts = self._constants([graph.consts for graph in graphs])
        return self.run([graph.jaxpr for graph in graphs], consts, operands)

    def _custom_jvp(self, equations: Sequence, operands: list) -> list:
        function = jax.custom_jvp(
            lambda *xs: tuple(self.inline([equation.params["call_jaxpr"] for equation in equations], list(xs)))
        )

        def derivative(primals: Sequence[object], tangents: Sequence[object]):
            derivatives = [
                equation.params["jvp_jaxpr_fun"].call_wrapped(*[False] * len(primals)) for equation in equations
            ]
            is_zero = derivatives[0][2]
            consts = self._constants([consts for _, consts, _ in derivatives])
            results = self.run([jaxpr for jaxpr, *_ in derivatives], consts, [*primals, *tangents])
            values, others = tuple(results[: len(is_zero)]), iter(results[len(is_zero) :])
            return values, tuple(
                jnp.zeros_like(value) if zero else next(others) for value, zero in zip(values, is_zero, strict=True)
            )

        function.defjvp(derivative)
        return list(function(*operands))

    def _number(self, numbers: Sequence, dtype: np.dtype):
        """A number of the graph, or one computed from sizes where it or its inverse is a polynomial of them."""
        if _are_equal(numbers):
            return numbers[0]
        if all(float(number).is_integer() for number in numbers):
            return jnp.asarray(self._expression([int(number) for number in numbers], "a number"), dtype)
        inverse = [round(1 / float(number)) if number else 0 for number in numbers]
        if all(i and dtype.type(1 / i) == number for i, number in zip(inverse, numbers, strict=True)):
            return 1 / jnp.asarray(self._expression(inverse, "a number"), dtype)
        raise SizesError(f"a number depends on sizes: it is {', '.join(map(str, numbers))} for {self._sizes}")

    def _constants(self, found: Sequence[Sequence]) -> list:
        _expect_equal(list(map(len, found)), "constants")
        return [self._constant(values) for values in zip(*found, strict=True)]

    def _constant(self, values: Sequence):
        first, last = values[0], values[-1]
        if all(value.shape == () for value in values) and not jax.dtypes.issubdtype(first.dtype, jax.dtypes.extended):
            return self._number([np.asarray(value) for value in values], first.dtype)
        if all(value is first or (value.shape == first.shape and np.array_equal(value, first)) for value in values):
            return first
        raise SizesError(
            f"an array of constants depends on sizes: its shape is {list(first.shape)} for one and "
            f"{list(last.shape)} for another; wanted one that is computed from an argument"
        )

    def _merged(self, values: Sequence, what: str) -> Any:
        """One value for a parameter, with symbolic dimensions for the integers that differ."""
        first = values[0]
        if isinstance(first, (Jaxpr, ClosedJaxpr)):
            if any(str(value) != str(first) for value in values):
                raise SizesError(f"the {what} depends on sizes, which is not supported of programs within the graph")
            return first
        if _are_equal(values):
            return first
        if all(type(value) in (int, np.int32, np.int64) for value in values):
            return self._expression([int(value) for value in values], what)
        if isinstance(first, (tuple, list)):
            _expect_equal(list(map(len, values)), f"dimensions ({what})")
            parts = [self._merged(part, what) for part in zip(*values, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            names = [field.name for field in dataclasses.fields(first)]
            parts = {name: self._merged([getattr(value, name) for value in values], what) for name in names}
            return dataclasses.replace(first, **parts)
        raise SizesError(f"the {what} depends on sizes: it is {', '.join(map(str, values))} for {self._sizes}")

    def _expression(self, numbers: Sequence[int], what: str) -> object:
        try:
            return self._sizes.expression(numbers)
        except NotAnExpressionError as error:
            raise SizesError(f"{what} depends on sizes, and is no polynomial of them: {error}") from None


def _are_equal(values: Sequence) -> bool:
    first = values[0]
    if isinstance(first, float):
        return all(type(value) is float and (value == first or (value != value and first != first)) for value in values)
    return all(type(value) is type(first) and np.array_equal(value, first) for value in values)


def _expect_equal(found: Sequence, what: str) -> None:
    if any(each != found[0] for each in found):
        raise SizesError(
            f"the code does something different for other sizes: the graph has {found[0]} {what} for one and "
            f"{next(each for each in found if each != found[0])} for another"
        )


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export(
    function: Callable,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[jax.export.DisabledSafetyCheck] = (),
) -> Callable[..., jax.export.Exported]:
    """Exports a function of arrays, as `jax.export.export` does, for processes without PyTorch.

    Args:
        function: a function that `t2j` returned, or any JAX function, jitted or not.
        platforms: the platforms of the program: ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``; by default that of this
            process.
        disabled_checks: safety checks of `jax.export.export` to disable, such as for custom calls that you know to be
            stable in the versions that run the program.

    Returns:
        A function that takes the arguments of `function`, arrays or `jax.ShapeDtypeStruct`s, and returns the
        `jax.export.Exported`. Its ``call`` takes and returns the same trees, made of dictionaries, lists and tuples: a
        `ModelOutput`, a cache or a dataclass becomes a dictionary, and a named tuple a tuple. Arguments that are not
        arrays are constants of the program: pass ``None`` in their place in the call, and leave out such keywords. With
        symbolic dimensions (`jax.export.symbolic_shape`), the program works for all sizes that the constraints allow.

        ``exported.serialize(vjp_order=1)`` returns the bytes of a file with its gradient; it needs ``flatbuffers``.

    Raises:
        TypeError: `function` is a PyTorch module.
        NotImplementedError: the graph has an operation that a platform lacks, or calls this process, as code that runs
            in PyTorch does.
        ValueError: a platform is unknown, and not that of this process. Or the graph has a custom call that JAX does
            not guarantee to be stable; the error names it. Or, with symbolic dimensions, the code tests a condition on
            sizes that the constraints do not decide, which the error names, or makes a graph whose numbers are not
            polynomials of sizes.

    Example:
        >>> import jax, torch
        >>> from torch2jax import export, t2j
        >>> exported = export(t2j(torch.nn.GELU()), platforms=["cpu", "tpu"])(jax.ShapeDtypeStruct((3,), "float32"))
        >>> exported.call(jax.numpy.zeros(3))
        Array([0., 0., 0.], dtype=float32)
    """

    if isinstance(function, torch.nn.Module):
        raise TypeError(
            f"export got a {type(function).__name__}, which takes tensors; wanted a function of arrays: t2j(module)"
        )
    unknown = set(platforms or ()).difference(PLATFORMS, (jax.default_backend(),))
    if unknown:
        name = min(unknown)
        raise ValueError(f"export got the platform {name!r}; wanted some of {PLATFORMS}{nearest(name, PLATFORMS)}")

    def exported(*args: object, **kwargs: object) -> jax.export.Exported:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]
        tree_of_positions = plain(tree.unflatten(index if held else None for index, held in enumerate(is_array)))
        positions = jax.tree.leaves(tree_of_positions)
        arguments = [leaves[position] for position in positions]

        def of_leaves(*arrays: jax.Array):
            values = list(leaves)
            for position, array in zip(positions, arrays, strict=True):
                values[position] = array
            args, kwargs = tree.unflatten(values)
            return plain(function(*args, **kwargs))

        if any(jax.export.is_symbolic_dim(size) for leaf in arguments for size in leaf.shape):
            of_leaves = generalized(of_leaves, arguments)

        def program(*args: object, **kwargs: object):
            return of_leaves(*jax.tree.leaves((args, kwargs)))

        program.__name__ = program.__qualname__ = getattr(function, "__name__", "program")
        plain_args, plain_kwargs = jax.tree.map(leaves.__getitem__, tree_of_positions)
        plain_kwargs = {name: value for name, value in plain_kwargs.items() if value is not None}
        try:
            exporting = jax.export.export(jax.jit(program), platforms=platforms, disabled_checks=disabled_checks)
            return exporting(*plain_args, **plain_kwargs)
        except (NotImplementedError, ValueError) as error:
            text = _message_of(error)
            if text is None:
                raise
            raise type(error)(text) from error

    return exported


def _message_of(error: Exception) -> str | None:
    """The message for JAX's refusal to export a graph; None if the error is about something else."""
    message = str(error)
    if isinstance(error, ValueError):
        if "custom calls" not in message:
            return None
        names = sorted(set(re.findall(r"custom_call @([\w.$]+)|call_target_name = \"(.*?)\"", message)))
        text = ", ".join("".join(found) for found in names) or message
        return f"cannot export custom calls whose names JAX does not keep from version to version: {text}"
    lacks = re.search(r"primitive '(.*?)' not found for platforms? (.*)", message)
    if lacks:
        return f"JAX has no {lacks[1]} for {lacks[2].strip('[]')}: leave it out of the platforms"
    if "host_callbacks" in message:
        return (
            "cannot export a graph that calls this process, as what runs in PyTorch (torch2jax, call_torch, "
            'on_missing="call_torch") and callbacks do'
        )
    return None


def plain(tree: object) -> Any:
    """A tree with the same leaves, its containers as dictionaries, lists and tuples.

    A container with names for what it holds, as a `ModelOutput`, a cache or a dataclass, becomes a dictionary, a named
    tuple a tuple; keys are strings. What such a container holds beside arrays is left out.

    Args:
        tree: a pytree of JAX's.
    """
    if tree is None or jax.tree_util.all_leaves([tree]):
        return tree
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    keys, values = [path[0] for path, _ in children], [plain(child) for _, child in children]
    if isinstance(tree, list):
        return values
    if isinstance(tree, tuple) or any(isinstance(key, (SequenceKey, FlattenedIndexKey)) for key in keys):
        return tuple(values)
    return {_name(key): value for key, value in zip(keys, values, strict=True)}


def _name(key: Any) -> str:
    return key.name if isinstance(key, GetAttrKey) else str(key.key)  # the files of programs know no other keys
