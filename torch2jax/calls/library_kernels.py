"""Operators of ``torch.library``, by their own kernels if these are written in Python."""

import re
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch

from ..internals.dispatch import (
    DispatchKey,
    DispatchKeySet,
    HigherOrderOperator,
    OpOverload,
    dispatch_dump,
    mutated_args_kwargs,
)
from ..internals.tensors import tree_leaves
from ..internals.transforms import autograd_function, pyfunctorch
from ..rules.features import NEXT, Feature, in_every_call
from ..runtime.errors import NoRuleError, TracedValueError
from ..runtime.patches import replaces, runs_instead_of
from ..runtime.translation import Call, kept, lift, this_call
from ..tensors.tensor import Torchish
from ..tensors.traced import is_traced
from ..transforms.vmap import innermost_batch, run_rule

# In the order of PyTorch's dispatcher.
_OF_BATCHES = "FuncTorchBatched"
_ABOVE = ("BackendSelect", "AutogradCPU", "Autograd", "AutogradCUDA")
_BELOW = (
    "CompositeImplicitAutograd",
    "CPU",
    "CompositeExplicitAutograd",
    "CUDA",
    "CompositeExplicitAutogradNonFunctional",
)
_RUNTIME_KEYS = {"Autograd": "AutogradCPU", **{key: key for key in (_OF_BATCHES, *_ABOVE, "CUDA") if key != "Autograd"}}
_PYTHON_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?: registered at .*\.py:\d+ :: ", re.MULTILINE)
_NAMESPACES = frozenset(("aten", "prim", "prims", "profiler", "higher_order"))


def has_kernel(operator: OpOverload | HigherOrderOperator) -> bool:
    """Returns True if an operator of another library has a kernel that Python code registered."""
    if isinstance(operator, HigherOrderOperator):
        return bool(_kernels_of(operator))
    return operator.namespace not in _NAMESPACES and next(_keys(operator, (*_ABOVE, *_BELOW)), None) is not None


def _keys(operator: OpOverload, keys: tuple[str, ...]) -> Iterator[str]:
    # `torch.library` keeps a list of its own, which loses an operator that is defined again.
    registered: list[str] = _PYTHON_KERNEL.findall(dispatch_dump(operator.name()))
    return (key for key in keys if key in registered)


def _kernels_of(operator: HigherOrderOperator) -> list[Callable]:
    """The functions that an operator on functions may run, in the order of PyTorch's dispatcher."""
    keys = [getattr(DispatchKey, key) for key in (*_ABOVE, *_BELOW) if key]
    return [operator.py_kernels[key] for key in keys if key in operator.py_kernels]


@in_every_call
class _Libraries(Feature):
    """The standing feature that runs the kernels which libraries have written in Python."""

    def run_unruled(self, call: Call, operator: OpOverload, args: tuple, kwargs: dict) -> object:
        if isinstance(operator, HigherOrderOperator):
            return kept(_Kernels).run_higher(operator, args, kwargs) if has_kernel(operator) else NEXT
        is_elsewhere = call.last_resort is not None and call.last_resort.calls_missing
        return kept(_Kernels).run(operator, args, kwargs) if not is_elsewhere and has_kernel(operator) else NEXT


class _Kernels:
    """The kernels that a call is running."""

    def __init__(self):
        self._running: list[tuple[OpOverload, str]] = []
        self._higher: list[tuple] = []

    def run_higher(self, operator: HigherOrderOperator, args: tuple, kwargs: dict) -> object:
        """Runs the kernel of an operator on functions; called within that, the operator runs the next one."""
        given = (operator, *args)
        depth = sum(len(x) == len(given) and all(map(is_, x, given)) for x in self._higher)
        kernels = _kernels_of(operator)
        if depth == len(kernels):
            raise NoRuleError(f"torch.ops.higher_order.{operator.name()}")
        self._higher.append(given)
        try:
            with this_call().inside():
                return kernels[depth](*args, **kwargs)
        finally:
            self._higher.pop()

    def run(self, operator: OpOverload, args: tuple, kwargs: dict) -> Any:
        """Runs the kernel of an operator that PyTorch would: that for batches or its derivative's, which run others.

        Raises:
            TracedValueError: it asks for values that are traced.
        """
        if _has_examples(args):
            for key in _keys(operator, (_OF_BATCHES,)):
                return self._run(operator, key, args, kwargs)
        above = (key for key in _keys(operator, _ABOVE) if (operator, key) not in self._running)
        key = next(above, None)
        return self.run_below(operator, args, kwargs) if key is None else self._run(operator, key, args, kwargs)

    def run_below(self, operator: OpOverload, args: tuple, kwargs: dict) -> object:
        """Runs the kernel of an operator that computes its values."""
        key = next(_keys(operator, _BELOW), None)
        if key is None:
            return this_call().run_missing(operator, args, kwargs)
        if not operator._schema.is_mutable:
            return self._run(operator, key, args, kwargs)
        result = self._run(operator, key, args, kwargs)
        indices, names = mutated_args_kwargs(operator._schema)
        written = [args[index] for index in indices if index < len(args)] + [kwargs.get(name) for name in names]
        for tensor in tree_leaves(written):
            if isinstance(tensor, Torchish):
                tensor.count_write()
        return result

    def _run(self, operator: OpOverload, key: str, args: tuple, kwargs: dict) -> Any:
        self._running.append((operator, key))
        try:
            return _run(operator, key, args, kwargs)
        finally:
            self._running.pop()


def _has_examples(args: tuple) -> bool:
    return bool(this_call().transformations) and innermost_batch(args) is not None


def _run(operator: OpOverload, key: str, args: tuple, kwargs: dict) -> Any:
    # Not through `operator._op_dk`, which asks again whether the call is overridden.
    runtime_key = _RUNTIME_KEYS.get(key, "CPU")
    keys = DispatchKeySet(getattr(DispatchKey, runtime_key))
    try:
        with this_call().inside():
            return operator._handle.redispatch_boxed(keys, *args, **kwargs)  # pyright: ignore
    except TracedValueError as error:
        name = operator.name()
        note = (
            f"The Python kernel of {name} asks for it. Where it leaves PyTorch, as with numpy(), run the operator in "
            f'PyTorch: t2j(..., call_torch=["{name}"]), or torch2jax(fn, *examples) of the function that calls it.'
        )
        if note not in getattr(error, "__notes__", ()):  # the kernel runs within that of the derivative
            error.add_note(note)
        raise


@replaces(OpOverload, "redispatch")
def _redispatch(operator: OpOverload, keyset: object, *args: object, **kwargs: object):
    del keyset  # what is registered with torch.library.register_autograd goes on so
    return kept(_Kernels).run_below(operator, args, kwargs)


@replaces(torch._C, "_any_requires_grad")
def _any_requires_grad(*args: object, **kwargs: object):
    """As PyTorch's function; it may raise a request for the derivatives of traced tensors."""
    tensors = [lift(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return any(x.history is not None or is_traced(x.read()) for x in tensors)


@replaces(torch._C, "_any_output_is_alias_to_input_or_output")
def _any_output_is_alias(args: object, kwargs: object, outputs: object):
    """Returns True if two results, or a result and an argument, share memory."""
    given, made = _memories((args, kwargs)), _memories(outputs)
    return len(set(made)) < len(made) or not set(given).isdisjoint(made)


def _memories(tree: object) -> list[int]:
    """The memory of each tensor that has elements."""
    tensors = [lift(x) for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return [id(x._node.storage.memory) for x in tensors if x.numel()]


@runs_instead_of(pyfunctorch.retrieve_current_functorch_interpreter, with_original=True)
def _interpreter(original: Callable[[], object]):
    return None if this_call().transformations else original()


@runs_instead_of(autograd_function.custom_function_call_vmap_helper)
def _run_for_batch(
    interpreter: object, vmap_function: Callable[..., object], op: object, *operands: object, **kwargs: object
):
    """Runs the function that was registered with ``torch.library.register_vmap``."""
    del interpreter, op
    batch: Any = innermost_batch(operands)
    return run_rule(lambda info, dims, *batched: vmap_function(info, dims, *batched, **kwargs), operands, batch)
