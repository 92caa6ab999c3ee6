"""`torch.autograd.Function` under ``torch.vmap``: the batching rule that a function itself defines."""

from collections.abc import Callable
from typing import Any

from ..internals.functorch import (
    VmapInfo,
    has_overridden_vmap_rule,
    validate_vmap_returns_tuple_of_two_elements,
    wrap_outputs_maintaining_identity,
)
from ..internals.pytree import tree_flatten, tree_leaves, tree_unflatten
from ..rules.inplace import write_in_place
from ..tensors.tensor import Torchish
from .call import this_call
from .vmap import Batch

__all__ = ["batch_of", "innermost_batch", "run_rule"]


def batch_of(function: Any, args: tuple) -> Batch | None:
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
    """What a function gives for one example, by its rule for all of them, which runs outside of the batch.

    Raises:
        RuntimeError: the rule does not give an output, and where that has the examples.
    """
    leaves, spec = tree_flatten(args)
    for leaf in leaves:
        if isinstance(leaf, Torchish):
            leaf.read()  # a view of an example is one inside
    with batch.outside():
        parts = [batch.whole(leaf) if isinstance(leaf, Torchish) else (leaf, None) for leaf in leaves]
        wholes, dims = (tree_unflatten(list(x), spec) for x in zip(*parts, strict=True))
        versions = [_version(whole) for whole, _ in parts]
        result = rule(VmapInfo(batch.size, batch.randomness), dims, *wholes)
        validate_vmap_returns_tuple_of_two_elements(result)
    output, out_dims = result
    for leaf, (whole, dim), version in zip(leaves, parts, versions, strict=True):
        if version != _version(whole):
            example: Any = batch.example(whole, dim)
            write_in_place(leaf, example)
    return wrap_outputs_maintaining_identity(output, wholes, args, batch.example, out_dims=out_dims)


def _version(value: object) -> int | None:
    return value._node.storage.memory.version if isinstance(value, Torchish) else None
