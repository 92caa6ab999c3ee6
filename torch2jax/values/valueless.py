"""Tensors without values within a call: PyTorch itself runs their functions, as if there were no call.

Tensors on the meta device and fake ones have shapes and dtypes and nothing else, so that there is nothing for JAX to
compute. Code asks PyTorch by them what it would do.

Also here: tensors of PyTorch's quantized dtypes that code closes over. They are constants, so PyTorch itself computes.

What it gives of them in other dtypes (`dequantize`, `int_repr`, scales) are tensors of the call. Nothing is traced.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from ..internals.dispatch import (
    DisableTorchDispatch,
    DisableTorchFunction,
    EnableTorchFunction,
    ForceDispatchKeyGuard,
    OpOverload,
    dispatch_has_computed_kernel_for_dispatch_key,
    dispatch_tls_local_include_set,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    pop_torch_dispatch_stack,
    pop_torch_function_stack,
    push_on_torch_dispatch_stack,
    push_on_torch_function_stack,
)
from ..internals.tensors import FakeTensorMode
from ..rules.features import NEXT, Feature, HasSparse, InFakeMode, handles_without_values, in_every_call
from ..runtime.errors import NoRuleError, OnMetaError, QuantizedError, TracedValueError
from ..runtime.layers import SPARSE
from ..runtime.patches import runs_instead_of
from ..runtime.translation import Call, CallMode, current, hidden, kept, this_call
from ..tensors.dtypes import SPARSE_LAYOUTS, canonical, is_integral
from ..tensors.journal import Memory
from ..tensors.tensor import OF_NO_SUBCLASS, Torchish, make_region
from ..tensors.trees import flatten, map_arguments

Values = Literal["none", "shapes", "all"]


def run_natively(
    call: Call,
    func: Callable[..., object],
    args: tuple,
    kwargs: dict,
    *,
    values: Values,
    made: torch.dtype | None = None,
) -> object:
    """Runs a function in PyTorch itself.

    Args:
        values: which it may ask for.
        made: the dtype of the tensor that it makes on the meta device, for which it asks for none.

    Raises:
        TracedValueError: it might ask for one that is traced.
    """
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "meta" and _takes_form_alone(func):
        return call.dispatch(func, *map_arguments(functools.partial(_filled, call), (args, kwargs)))
    placeholders = kept(Placeholders) if values == "none" or made is not None else Placeholders(values)
    args, kwargs = placeholders.of((args, kwargs))
    with natively(call):
        result = func(*args, **kwargs)
        if made is not None and isinstance(result, torch.Tensor) and result.dtype != made:
            result = result.to(made)  # PyTorch knows the default dtype of the process, not the call's own
    return placeholders.undone(result)


def run_on_values(
    call: Call, func: Callable[..., object], args: tuple, kwargs: dict, written: tuple[int, ...]
) -> object:
    """Runs a function in PyTorch on the values of its arguments, and writes back to some of them.

    Raises:
        TracedValueError: a value is traced.
    """
    placeholders = Placeholders("all")
    given = placeholders.of(args)
    with natively(call):
        result = func(*given, **kwargs)
    for index in written:
        args[index].copy_(call.constants.lift_own(given[index]))
    own = lambda leaf: call.constants.lift_own(leaf) if type(leaf) is torch.Tensor else leaf
    return map_arguments(own, placeholders.undone(result))


def _takes_form_alone(func: Callable[..., object]) -> bool:
    """Returns True if a function makes a new tensor like another one, as ``torch.rand_like``."""
    name = getattr(func, "__name__", "").partition(".")[0]
    return name.endswith("_like") or name.startswith("new_")


def _filled(call: Call, leaf: Any) -> Any:
    """A tensor of the call of the form of one on the meta device; anything else is itself."""
    if type(leaf) not in OF_NO_SUBCLASS or not leaf.is_meta:
        return leaf
    return call.dispatch(torch.empty_strided, (tuple(leaf.shape), leaf.stride()), {"dtype": leaf.dtype})


class Placeholders:
    """PyTorch's own tensors for tensors of a call, of their shapes, strides and aliasing, with their values if known.

    Args:
        values: which must be known. "none": what is traced is not a number, and nothing is to be written; "shapes":
            what PyTorch may ask for a shape, as a mask, must be known; "all": everything.
    """

    def __init__(self, values: Values = "none"):
        self._values: Values = values
        self._memories: dict[int, _Reserved] = {}
        self._made: dict[int, tuple[Torchish, torch.Tensor, _Reserved]] = {}
        self._tensors: dict[int, Torchish] = {}

    def of(self, tree: Any) -> Any:
        """A tree with them in place of tensors of the call."""
        return map_arguments(lambda leaf: self.tensor(leaf) if isinstance(leaf, Torchish) else leaf, tree)

    def undone(self, tree: object) -> object:
        """A tree with the tensors of the call in their place."""
        return map_arguments(lambda leaf: self._tensors.get(id(leaf), leaf), tree)

    def tensor(self, tensor: Torchish) -> torch.Tensor:
        """The stand-in for a tensor of the call.

        Raises:
            TracedValueError: it is to have values, and these are traced.
        """
        with DisableTorchFunction(), DisableTorchDispatch():  # also within a fake mode
            reserved = self._reserved(tensor)
        if id(tensor) not in self._made or self._made[id(tensor)][2] is not reserved:
            with DisableTorchFunction(), DisableTorchDispatch():
                made = self._make(tensor, reserved.flat)
            self._made[id(tensor)], self._tensors[id(made)] = (tensor, made, reserved), tensor
        return self._made[id(tensor)][1]

    def _reserved(self, tensor: Torchish) -> "_Reserved":
        """The memory in place of a tensor's, in its present version."""
        memory = tensor._node.storage.memory
        reserved = self._memories.get(id(memory))
        if reserved is None or reserved.version != memory.version:
            reserved = self._memories[id(memory)] = _Reserved(memory, memory.version, self._flat(tensor))
        return reserved

    def _flat(self, tensor: Torchish) -> torch.Tensor:
        flat = make_region(tensor, (_elements(tensor),), (1,), 0)
        values = flat.real_values
        if values is None and (self._values == "all" or (self._values == "shapes" and is_integral(tensor.dtype))):
            raise TracedValueError("what runs in PyTorch")
        with DisableTorchFunction(), DisableTorchDispatch():
            if values is None:
                return torch.full(
                    (_elements(tensor),), 0 if is_integral(tensor.dtype) else torch.nan, dtype=tensor.dtype
                )
            return values.clone() if self._values != "none" else values.detach()

    def _make(self, tensor: Torchish, flat: torch.Tensor) -> torch.Tensor:
        made = flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        requires_grad = tensor.history is not None
        if getattr(tensor, "_is_param", False):
            return torch.nn.Parameter(made, requires_grad)
        return made.requires_grad_(requires_grad)


class _Reserved(NamedTuple):
    """Real memory in place of some of the call's, at one version of that."""

    memory: Memory
    version: int
    flat: torch.Tensor


def _elements(tensor: Torchish) -> int:
    """The number of elements of a tensor's dtype that its memory holds."""
    storage = tensor._node.storage
    return storage.memory.size * storage.dtype.itemsize // canonical(tensor.dtype).itemsize


@contextlib.contextmanager
def natively(call: Call):
    """A context in which nothing of a translated call is in force: not its modes, its patches and its dispatch keys."""
    with (
        _without_calls(len_torch_function_stack, _pop_function_mode, push_on_torch_function_stack),
        _without_calls(len_torch_dispatch_stack, _pop_dispatch_mode, push_on_torch_dispatch_stack),
        EnableTorchFunction(),
        ForceDispatchKeyGuard(dispatch_tls_local_include_set(), call.keys),
        hidden(),
    ):
        yield


def _pop_function_mode() -> object:
    return pop_torch_function_stack()


def _pop_dispatch_mode() -> object:
    return pop_torch_dispatch_stack(None)


@contextlib.contextmanager
def _without_calls(count: Callable[[], int], pop: Callable[[], object], push: Callable[[Any], None]):
    """A context in which the modes of calls are not on a stack of modes."""
    modes = [pop() for _ in range(count())][::-1]
    for mode in modes:
        if not isinstance(mode, CallMode):
            push(mode)
    try:
        yield
    finally:
        for _ in range(count()):
            pop()
        for mode in modes:
            push(mode)


@handles_without_values(OnMetaError)
def _run_on_meta(error: OnMetaError, call: Call, function: Callable[..., object], args: tuple, kwargs: dict) -> object:
    return run_natively(call, function, args, kwargs, values="shapes", made=error.made)


@runs_instead_of(FakeTensorMode.from_tensor, with_original=True)
def _from_tensor(original: Callable[..., object], mode: object, tensor: torch.Tensor, **options: object):
    call = current()
    if call is None or not isinstance(tensor, Torchish):
        return original(mode, tensor, **options)
    return run_natively(call, original, (mode, tensor), options, values="none")


@handles_without_values(InFakeMode)
def _run_in_fake_mode(error: InFakeMode, call: Call, function: Any, args: tuple, kwargs: dict) -> object:
    del error
    return run_natively(call, function, args, kwargs, values="none")


@in_every_call
class _Unknown(Feature):
    """The standing feature that names operators which PyTorch does not have either."""

    def run_missing(self, call: Call, operator: OpOverload, args: tuple, kwargs: dict) -> object:
        tensors = any(isinstance(leaf, torch.Tensor) for leaf in flatten((args, kwargs))[0])
        key = "CPU" if tensors else "Undefined"
        if not dispatch_has_computed_kernel_for_dispatch_key(operator.name(), key):
            try:
                run_natively(call, operator, args, kwargs, values="none")
            except NotImplementedError as error:
                raise NoRuleError(f"torch.ops.{operator}", unknown=str(error).partition("\n")[0]) from error
        return NEXT


def _check_operator(
    original: Callable[..., object],
    operator: object,
    args: tuple[object, ...],
    kwargs: dict[str, object] | None = None,
    *more: object,
    **options: object,
):
    """Runs ``torch.library.opcheck`` in PyTorch itself: it checks an operator's own kernels."""
    args, kwargs = Placeholders("all").of((args, kwargs))
    with natively(this_call()):
        return original(operator, args, kwargs, *more, **options)


runs_instead_of(torch.library.opcheck, with_original=True)(_check_operator)
for _check in ("schema", "autograd_registration", "fake", "aot_autograd"):
    _name = f"torch.testing._internal.optests.generate_tests.safe_{_check}_check"
    runs_instead_of(_name, with_original=True)(_check_operator)


@handles_without_values(QuantizedError)
def _run_quantized(
    error: QuantizedError, call: Call, function: Callable[..., object], args: tuple, kwargs: dict
) -> object:
    """Runs a function in PyTorch itself, where all its tensors are from outside.

    Raises:
        QuantizedError: one is of the call, or is written to.
    """
    if function is torch.Tensor.__deepcopy__:  # of the structure of a module: nothing writes to it
        return args[0]
    leaves = flatten((args, kwargs))[0]
    if _writes(function) or kwargs.get("out") is not None or any(isinstance(x, Torchish) for x in leaves):
        raise error
    with natively(call), torch.no_grad():
        result = function(*args, **kwargs)
    return map_arguments(lambda x: _own(call, x), result)


def _own(call: Call, value: object) -> Any:
    """The result as the call's code sees it: a quantized tensor stays PyTorch's."""
    if not isinstance(value, torch.Tensor):
        return value
    with DisableTorchFunction():
        is_quantized = value.is_quantized
    return value if is_quantized else call.constants.lift_own(value)


def _writes(function: Any) -> bool:
    name: str = getattr(function, "__name__", "")
    with contextlib.suppress(AttributeError):
        if function._schema.is_mutable:
            return True
    is_special = name.startswith("__") and name.endswith("__")
    return name in ("__setitem__", "__set__") or name.startswith("__i") if is_special else name.endswith("_")


# Of a sparse layout, from outside.


def is_sparse(tensor: torch.Tensor) -> bool:
    """Returns True for tensors of a sparse layout, the call's own and those from outside."""
    if isinstance(tensor, SPARSE.classes):
        return True
    with DisableTorchFunction():
        return tensor.layout in SPARSE_LAYOUTS


def expect_strided(args: tuple, kwargs: dict) -> None:
    """Called where strided tensors were refused: a sparse argument, asked for its strides, may be the reason.

    Raises:
        HasSparse: there is one from outside among the arguments.
    """
    with DisableTorchFunction():
        for x in flatten((args, kwargs))[0]:
            if isinstance(x, torch.Tensor) and is_sparse(x):
                raise HasSparse from None


@in_every_call
class _Strided(Feature):
    """The standing feature that looks for the reason where strided tensors were refused: a sparse one from outside."""

    def run_again(
        self, call: "Call", function: Callable, args: tuple, kwargs: dict, error: Exception, run: Callable[..., Any]
    ) -> object:
        del call, function, error, run
        expect_strided(args, kwargs)
        return NEXT
