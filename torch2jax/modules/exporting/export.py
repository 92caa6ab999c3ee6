"""`export`: a translated function as a JAX program in one file."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import torch
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

from ...runtime.errors.names import nearest
from .generalized import generalized

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
