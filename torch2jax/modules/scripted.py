"""TorchScript within translated code: PyTorch's interpreter runs it, and calls the operators on the call's tensors."""

import copy
import types
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..calls.modes import AtenMode
from ..internals.dispatch import DisableTorchDispatch, DisableTorchFunction
from ..internals.modules import (
    BufferDict,
    ConcreteModuleType,
    ModuleDict,
    ParameterDict,
    ScriptFunction,
    ScriptMethod,
    wrap_cpp_module,
)
from ..runtime.patches import replaces
from ..runtime.translation import Call, this_call


class _Interpreted(AtenMode):
    """Serves the interpreter, which calls operators.

    It writes the values of ``torch.tensor`` into the memory of an empty tensor. So that is PyTorch's own, and becomes
    the call's at the first operator that gets it. What the rule of an operator raises is kept: the interpreter drops
    it, and raises an error without its message.
    """

    def __init__(self, call: Call):
        super().__init__(call)
        self.error: BaseException | None = None
        self._filled: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Callable, types: tuple[object, ...], args: tuple = (), kwargs: dict[str, object] | None = None
    ):
        kwargs = kwargs or {}
        if func is torch.ops.aten.empty.memory_format and kwargs.get("device") in (None, _CPU):
            with DisableTorchFunction(), DisableTorchDispatch():
                made = func(*args, **kwargs)
            self._filled[id(made)] = made
            return made
        for value in jax.tree.leaves((args, kwargs)) if self._filled else ():
            if self._filled.pop(id(value), None) is not None:
                this_call().constants.lift_own(value)
        try:
            return func(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise


_CPU = torch.device("cpu")


def _has(code: Any, kind: str) -> bool:
    """Returns True if a script, or one that it calls, has a node of a kind."""
    graph = code.inlined_graph  # the nodes live as long
    return bool(graph.findAllNodes(kind))


def _expect_no_lists(code: Any) -> None:
    """Refuses a script that reads a tensor's memory, which the call's tensors do not have.

    Raises:
        NotImplementedError: it calls ``tolist``.
    """
    if _has(code, "prim::tolist"):
        raise NotImplementedError(
            f"the script {code.name} calls tolist(), which reads the memory of a tensor; wanted tensor[i].item() "
            "there, or the Python function that was scripted, which t2j takes"
        )


def _run(call: Callable, code: object, args: tuple, kwargs: dict) -> Any:
    _expect_no_lists(code)
    errors = _Interpreted(this_call())
    try:
        # Optimized code is compiled for what the first calls got.
        with torch.jit.optimized_execution(False), errors:
            return call(code, *args, **kwargs)
    except RuntimeError as error:
        cause = error if errors.error is None else errors.error
        if "does not require grad" in str(cause) or _has(code, "prim::fork"):
            cause.add_note(_WAY)
        if cause is error:
            raise
        raise cause from error


_WAY = (
    "TorchScript takes gradients by PyTorch, which does not record this call, and torch.jit.fork runs on other "
    "threads, which are not in it: give t2j the Python function or nn.Module that was scripted"
)


_call_function = vars(ScriptFunction)["__call__"]
_call_method = vars(ScriptMethod)["__call__"]


@replaces(torch._C.ScriptFunction, "__call__")
def _function(function: ScriptFunction, *args: object, **kwargs: object):
    return _run(_call_function, function, args, kwargs)


@replaces(torch._C.ScriptMethod, "__call__")
def _method(method: ScriptMethod, *args: object, **kwargs: object):
    return _run(_call_method, method, args, kwargs)


def bound_method(method: ScriptMethod) -> types.MethodType:
    """A method of a TorchScript module as one of its module in Python."""

    def run(module: object, *args: object, **kwargs: object):
        return getattr(module, method.name)(*args, **kwargs)

    run.__name__ = method.name
    return types.MethodType(run, wrap_cpp_module(method.owner))


_script = torch.jit.script


@replaces(torch.jit, "script")
def _as_python(obj: object, *args: Any, **kwargs: object):
    """A module stays Python, since its tensors may be the call's. Libraries compile functions on import."""
    return obj if isinstance(obj, torch.nn.Module) else _script(obj, *args, **kwargs)


@replaces(torch.jit, "freeze")
@replaces(torch.jit, "optimize_for_inference")
@replaces(torch.jit, "trace")
@replaces(torch.jit, "trace_module")
def _as_it_is(thing: object = None, *args: object, **kwargs: object):
    """Leaves code Python that would be compiled: it does the same for all inputs."""
    return thing


@replaces(torch.jit, "save")
def _refuse_to_save(m: object, *args: object, **kwargs: object):
    raise NotImplementedError(
        "torch.jit.save was called in translated code, where tensors have no memory that could go into a file; save "
        "the module before or after the call"
    )


@replaces(torch.jit.RecursiveScriptModule, "__deepcopy__")
def _copy_module(module: torch.nn.Module, memo: dict[int, object]):
    """As PyTorch's function, which would copy the memory of tensors that `memo` replaces."""
    copied = wrap_cpp_module(_copied(module._c, memo))
    pairs = (each.named_modules(remove_duplicate=False) for each in (module, copied))
    for (_, before), (_, after) in zip(*pairs, strict=True):
        _copy_python(before, after)
    return copied


def _copy_python(module: object, copied: object) -> None:
    """Copies the Python part of a module: methods that are not compiled, attributes."""
    for name, value in vars(module).items():
        if isinstance(value, types.MethodType) and value.__self__ is module:
            vars(copied)[name] = types.MethodType(value.__func__, copied)
        elif name not in vars(copied) and not isinstance(value, ScriptMethod):
            vars(copied)[name] = value


def _copied(module: Any, memo: dict[Any, Any]) -> Any:
    """A copy of TorchScript's own object, with the copies of its tensors and parts in their places."""
    key = ("torchscript", hash(module))
    if key in memo:
        return memo[key][1]
    result = copy.copy(module)
    memo[key] = (module, result)
    for name, part in ModuleDict(module).items():
        result.setattr(name, _copied(part, memo))
    parameters: Any = ParameterDict(module)
    buffers: Any = BufferDict(module)
    for name, _ in (*parameters.items(), *buffers.items()):
        result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    declared: Any = ConcreteModuleType.from_jit_type(module._type())
    for name, (kind, _) in declared.get_attributes().items():
        if kind.kind() in _HOLDERS:
            result.setattr(name, copy.deepcopy(module.getattr(name), memo))
    return result


_HOLDERS = ("TensorType", "ListType", "DictType", "TupleType", "OptionalType")
