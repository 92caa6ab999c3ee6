"""The gradient attributes of a tensor, and its hooks. `transforms/engine.py` computes gradients."""

# Properties are looked up on the class, where pyright takes them for their values.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

import warnings

import torch
from torch.utils.hooks import BackwardHook

from ..internals.dispatch import DisableTorchFunction
from ..internals.transforms import LegacyVariableBase, set_grad_enabled
from ..rules.inplace import MADE_IN_FUNCTION
from ..rules.options import Tag
from ..rules.registry import implements_tensors, tag
from ..runtime.errors.locations import user_level
from ..runtime.errors.unwinding import Restart
from ..runtime.patches import exchange, replaces, runs_instead_of
from ..runtime.translation import current, lift
from ..tensors.history import Node, Source, added
from ..tensors.tensor import Restriction, Torchish
from ..tracing.user_code import set_gradient
from ..transforms.backward import is_source
from ..transforms.engine import retain
from ..transforms.hooks import hooks_of
from ..transforms.inputs import ask, requires_grad

Tensor = torch.Tensor


@implements_tensors(Tensor.requires_grad.__get__, tags=[Tag.AUTOGRAD])
def _requires_grad(self):
    tensor = lift(self)
    return requires_grad(tensor) or _shows_what_requires_grad(tensor)


def _shows_what_requires_grad(tensor) -> bool:
    """True if a tensor is a view of one that requires grad, made without gradients: PyTorch reports a leaf."""
    made = tensor._restriction
    if made is None or made.kind not in ("no_grad", "inference") or tensor._viewed is None:
        return False
    return requires_grad(tensor._viewed)


@implements_tensors(Tensor.requires_grad_, tags=[Tag.AUTOGRAD])
def requires_grad_(self, requires_grad=True):
    if requires_grad:
        _expect_no_transformation("requires_grad_", " (or perhaps using torch.autograd.functional.* APIs)")
    return set_requires_grad(self, requires_grad)


def _expect_no_transformation(name: str, likewise: str = "") -> None:
    """Refuses functions that PyTorch refuses within `torch.func` and `torch.vmap`.

    Raises:
        RuntimeError: it is within one.
    """
    if any(level.is_functorchs for level in current().transformations):
        raise RuntimeError(
            f"You are attempting to call Tensor.{name}(){likewise} inside of a function being transformed by a "
            "functorch transform. This is unsupported, please attempt to use the functorch transforms (e.g. grad, vjp, "
            f"jacrev, jacfwd, hessian) or call {name}() outside of a function being transformed instead."
        )


def expect_constant(function: str, **arguments: torch.Tensor) -> None:
    """Refuses arguments that require grad where a function has no derivative with respect to them.

    An input of the call that JAX differentiates passes: the function itself says what comes of that.

    Raises:
        RuntimeError: one of them requires grad.
    """
    for name, argument in arguments.items():
        history = lift(argument).history
        if history is not None and not history.is_given and torch.is_grad_enabled():
            raise RuntimeError(
                f"The function '{function}' is not differentiable with respect to argument '{name}'. This input "
                "cannot have requires_grad True."
            )


@implements_tensors(Tensor.requires_grad.__set__, tags=[Tag.AUTOGRAD])
def set_requires_grad(self, requires_grad):
    tensor = lift(self)
    if requires_grad and tensor._node.storage.memory.is_inference and not torch.is_inference_mode_enabled():
        raise RuntimeError("Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.")
    if tensor.history is None and not requires_grad:
        ask(tensor)
    if requires_grad == (tensor.history is not None):
        return self
    if requires_grad:
        tensor.start_history()
    elif not _is_leaf(tensor):
        raise RuntimeError(
            "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
            "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
        )
    else:
        tensor.end_history()
    return self


@implements_tensors(Tensor.is_leaf.__get__, tags=[Tag.AUTOGRAD])
def _is_leaf(self):
    tensor = lift(self)
    return not requires_grad(tensor) or is_source(tensor) or _is_inference_view(tensor)


@implements_tensors(torch.is_inference, Tensor.is_inference)
def is_inference(input):
    return lift(input)._node.storage.memory.is_inference


def _is_inference_view(tensor) -> bool:
    return tensor._restriction is not None and tensor._restriction.kind == "inference"


@implements_tensors(Tensor.grad_fn.__get__, tags=[Tag.AUTOGRAD])
def _grad_fn(self):
    tensor = lift(self)
    history, made = tensor.history, tensor._restriction
    if made is not None and made.kind in _REFUSED_HISTORIES and made.writes < tensor._writes[0]:
        _expect_no_history(tensor, made)
    if history is None:
        ask(tensor)
    if history is None or is_source(tensor) or _is_inference_view(tensor):
        return None
    node = Node("View", (history,)) if isinstance(history, Source) else history
    if node.end is None and current().tape is not None:
        node.end = current().tape.end_of(tensor)
    return node


@implements_tensors(Tensor.output_nr.__get__)
def _output_nr(self):
    tensor = lift(self)
    if not requires_grad(tensor) or is_source(tensor):
        return 0
    if current().tape is None:
        raise Restart(tape=1)
    return tensor.history.number_of(current().tape.end_of(tensor))


def _expect_no_history(tensor, made: Restriction) -> None:
    """Refuses to report the history of a view whose memory was written to unseen by autograd."""
    if any(isinstance(x, Torchish) and x.history is not None for x in (tensor._viewed, tensor)):
        raise RuntimeError(_REFUSED_HISTORIES[made.kind].format(kind=made.kind, name=made.name, number=made.number))


_MADE_IN_MODE = (
    "A view was created in {kind} mode and its base or another view of its base has been modified inplace "
    "with grad mode enabled. Given that this use case is ambiguous and error-prone, it is forbidden."
)
_REFUSED_HISTORIES = {
    "no_grad": _MADE_IN_MODE,
    "inference": _MADE_IN_MODE,
    "custom": "Output {number} of {name} is a view and its base or another view of its base has been modified inplace. "
    + MADE_IN_FUNCTION,
}


@implements_tensors(Tensor.grad.__get__, tags=[Tag.AUTOGRAD])
def _grad(self):
    tensor = lift(self)
    if tensor._gradient is None and tensor.history is not None and not _is_leaf(tensor) and not tensor.retains_grad:
        warnings.warn(
            "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
            "populated during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf "
            "Tensor, use .retain_grad() on the non-leaf Tensor.",
            UserWarning,
            stacklevel=user_level(),
        )
    return tensor._gradient


@implements_tensors(Tensor.grad.__set__, tags=[Tag.AUTOGRAD])
def _set_grad(self, value):
    tensor = lift(self)
    if value is None:
        set_gradient(tensor, None)
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__}")
    value = lift(value)
    if value is tensor:
        raise RuntimeError("can't assign Variable as its own grad")
    if value.dtype != tensor.dtype:
        raise RuntimeError(f"assigned grad has data of a different type: got {value.dtype}, wanted {tensor.dtype}")
    if value.shape != tensor.shape:
        raise RuntimeError(
            f"assigned grad has data of a different size: got {list(value.shape)}, wanted {list(tensor.shape)}"
        )
    set_gradient(tensor, value)


@implements_tensors(Tensor.grad.__delete__, tags=[Tag.AUTOGRAD])
def _delete_grad(self):
    set_gradient(lift(self), None)


def _refusing_deletion(message: str):
    def refuse(self):
        raise RuntimeError(message)

    return refuse


for _attribute, _message in (
    (Tensor.data, "Deleting tensor data is not allowed. Delete tensor instead!"),
    (Tensor.requires_grad, "requires_grad must be a bool"),
    (Tensor._grad_fn, "Deletion of _grad_fn not allowed. Detach tensor instead!"),
    (Tensor._backward_hooks, "Deletion of _backwards_hooks not allowed!"),
):
    implements_tensors(_attribute.__delete__)(_refusing_deletion(_message))


@implements_tensors(Tensor.register_hook, tags=[Tag.AUTOGRAD])
def register_hook(self, hook):
    tensor = lift(self)
    if not requires_grad(tensor):
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    return added(hooks_of(tensor, hook), hook)


@runs_instead_of(BackwardHook._apply_on_tensors, with_original=True)
def _apply_hooks_of_module(original, self, fn, args):
    """Puts identities around a module, whose nodes have its hooks; not where no hook sees the derivative."""
    execution = current().execution
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) for x in args):
        execution.expect_hook([self.user_hooks, self.user_pre_hooks])
        if execution.inputs is not None and execution.inputs.is_forwards:
            return args, None
    return original(self, fn, args)


@implements_tensors(Tensor.register_post_accumulate_grad_hook, tags=[Tag.AUTOGRAD])
def register_post_accumulate_grad_hook(self, hook):
    tensor = lift(self)
    if not requires_grad(tensor):
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if not is_source(tensor):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    current().execution.expect_hook(hook, tensor)
    return added(tensor.history.accumulated, hook)


@implements_tensors(Tensor.retain_grad, tags=[Tag.AUTOGRAD])
def retain_grad(self):
    _expect_no_transformation("retain_grad")
    tensor = lift(self)
    if not requires_grad(tensor):
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    retain(tensor)


@implements_tensors(Tensor.retains_grad.__get__, tags=[Tag.AUTOGRAD])
def _retains_grad(self):
    return lift(self)._retains_grad


@implements_tensors(torch._C._set_grad_enabled, tags=[Tag.AUTOGRAD])
def _set_grad_enabled(mode):
    levels = current().transformations
    if not levels or not levels[-1].is_forward:
        with DisableTorchFunction():
            set_grad_enabled(mode)


@replaces(torch._C._functions, "UndefinedGrad")
def _undefined_grad():
    def without_gradient(tensor):
        """The tensor, with a gradient that is undefined."""
        result = tensor.detach().clone()
        result.descend((tensor,), "UndefinedGrad")
        if result.history is not None and current().tape is not None:
            result.history.undefined = {0}
        return result

    return without_gradient


@replaces(torch._C._functions, "DelayedError")
def _delayed_error(msg, num_inputs):
    del num_inputs

    def with_error(*tensors):
        """The tensors; a backward pass that comes by is an error."""
        results = tuple(_refusing(lift(tensor), msg) for tensor in tensors)
        return results[0] if len(results) == 1 else results

    return with_error


def _refusing(tensor, message: str):
    result = tensor.clone()
    result.refuse(message)
    return result


def _variable(cls, data=None, requires_grad=False, volatile=None):
    """``torch.autograd.Variable(data, requires_grad)``, as old code has it: another tensor on the same memory."""
    call = current()
    if call is None:
        return LegacyVariableBase.__new__(cls, data, requires_grad, volatile)
    del volatile
    result = torch.empty(0) if data is None else call.constants.lift(data).detach()
    return result.requires_grad_(requires_grad)


exchange(torch.autograd.Variable, "__new__", staticmethod(_variable), may_lack=True)


# What has no rule, as PyTorch's own of a tensor that requires no grad serves, or raises.
tag(torch.autograd.backward, torch.autograd.grad, Tensor.backward, tags=[Tag.AUTOGRAD])
tag(Tensor.is_leaf.__set__, Tensor.grad_fn.__set__, Tensor.retains_grad.__set__, tags=[Tag.AUTOGRAD])
for _name in ("_backward_hooks", "_grad", "_grad_fn", "_post_accumulate_grad_hooks", "grad_dtype"):
    _property = getattr(Tensor, _name, None)
    if _property is not None:
        tag(_property.__get__, _property.__set__, tags=[Tag.AUTOGRAD])
