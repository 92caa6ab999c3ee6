"""PyTorch's dispatch: operators, modes, and the contexts and switches that turn parts of it off and on.

Contexts act on the thread that enters them. Modes see every call of a function and every operator, whatever their
arguments are. Of operators there are the classes, kernels and signatures.

Also here: functions that PyTorch's compiler leaves alone. The first call of one imports the compiler, which takes a
second.
"""

import contextlib
import functools
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._library import simple_registry, utils
from torch.utils import _device, _python_dispatch

_C: object = torch._C

DisableTorchFunction = torch._C.DisableTorchFunction
"""A context in which ``__torch_function__`` of modes and tensor classes is not called."""

DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""A context in which ``__torch_function__`` of tensor classes is not called; that of modes is."""

EnableTorchFunction = _C._EnableTorchFunction
"""A context that enables both again within the contexts above, from its construction on."""

DisableTorchDispatch = torch._C._DisableTorchDispatch
"""A context without ``__torch_dispatch__`` of modes and tensor classes: kernels run on tensors' metadata."""

DisableAutocast = torch._C._DisableAutocast
"""Operators are not cast, as outside of all regions of mixed precision."""

AutoDispatchBelowADInplaceOrView = torch._C._AutoDispatchBelowADInplaceOrView
"""Operators skip the kernels of autograd, and those that note views and writes."""

ForceDispatchKeyGuard = torch._C._ForceDispatchKeyGuard
"""The dispatcher includes and excludes these sets of keys, and no others."""

dispatch_tls_local_include_set = torch._C._dispatch_tls_local_include_set
"""The keys that the dispatcher includes on this thread."""

dispatch_tls_local_exclude_set = torch._C._dispatch_tls_local_exclude_set
"""The keys that the dispatcher leaves out on this thread."""

is_torch_function_enabled = torch._C._is_torch_function_enabled
"""Returns True if ``__torch_function__`` of tensor classes is enabled."""

disabled_torch_function_impl = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of a class that wants none: calls run as if its tensors were plain ones."""


len_torch_function_stack = torch._C._len_torch_function_stack
"""The number of function modes on this thread's stack."""

get_function_stack_at = torch._C._get_function_stack_at
"""Returns one of the modes by its index, counted from the outermost."""

get_current_function_mode_stack = torch.overrides._get_current_function_mode_stack
"""Returns all modes, the outermost first."""

push_on_torch_function_stack = torch._C._push_on_torch_function_stack
"""Enters a mode of functions."""

pop_torch_function_stack = torch._C._pop_torch_function_stack
"""Leaves the innermost mode, and returns it."""

TorchDispatchMode = _python_dispatch.TorchDispatchMode
"""The class of modes of operators."""

len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
"""The number of dispatch modes on this thread's stack, PyTorch's own included."""

get_current_dispatch_mode_stack = _python_dispatch._get_current_dispatch_mode_stack
"""Returns all modes, the outermost first."""

push_on_torch_dispatch_stack = torch._C._push_on_torch_dispatch_stack
"""Enters a mode of operators, without a word to the rest of the process."""

pop_torch_dispatch_stack = torch._C._pop_torch_dispatch_stack
"""Leaves the innermost mode, and returns it, if its argument is None."""

TorchDispatchModeKey = _C._TorchDispatchModeKey
"""The kinds of modes that are PyTorch's own: ``FAKE``, ``FUNCTIONAL`` and ``PROXY``, which records for `make_fx`."""

get_dispatch_mode = _C._get_dispatch_mode
"""The mode of a kind that is entered, None without one."""

DeviceContext = _device.DeviceContext
"""The class of ``with torch.device(...)`` as a mode of functions."""

DEVICE_CONTEXT = torch._GLOBAL_DEVICE_CONTEXT
"""Its ``device_context`` is what `torch.set_default_device` entered on this thread, if it was called at all."""


OpOverload = torch._ops.OpOverload
"""The class of ``torch.ops.aten.add.Tensor``; see `attributes` for what is asked of one."""

OpOverloadPacket = torch._ops.OpOverloadPacket
"""The class of ``torch.ops.aten.add``, all overloads."""

HigherOrderOperator = torch._ops.HigherOrderOperator
"""The class of operators on functions, as of ``torch.ops.higher_order.cond``; its ``py_kernels`` are by keys."""

DispatchKey = torch._C.DispatchKey
"""The keys that kernels are registered for."""

DispatchKeySet = torch._C.DispatchKeySet
"""A set of keys, of which a call goes to the highest."""

dispatch_get_all_op_names = torch._C._dispatch_get_all_op_names
"""The names of all overloads, as ``aten::add.Tensor``."""

dispatch_dump = torch._C._dispatch_dump
"""A text with a line for each kernel of an overload: its key, and where it was registered."""

dispatch_has_kernel = torch._C._dispatch_has_kernel
"""Returns True if there is an operator of this name."""

dispatch_has_kernel_for_dispatch_key = torch._C._dispatch_has_kernel_for_dispatch_key
"""Returns True if an overload has a kernel that was registered for just this key."""

dispatch_has_computed_kernel_for_dispatch_key = torch._C._dispatch_has_computed_kernel_for_dispatch_key
"""Returns True if an overload would run under this key, by a kernel for it or by one for several."""

jit_get_schemas_for_operator = torch._C._jit_get_schemas_for_operator
"""The signatures of all overloads of an operator, by its name."""

jit_resolve_packet = torch._C._jit_resolve_packet
"""The name of the overload that takes these arguments."""

find_torch_dispatch_rule = simple_registry.find_torch_dispatch_rule
"""The rule that a library registered for an operator and a class of tensors or modes; None without."""

mutated_args_kwargs = utils.mutated_args_kwargs
"""The arguments that an operator writes to, by its signature: positions, and names."""

nn: Any = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
"""The module of the functions in C++ that `torch.nn.functional` calls, each named as its operator."""

parse_to = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
"""The device, dtype, ``non_blocking`` and memory format that arguments of `torch.Tensor.to` say."""


DISABLED = "__dynamo_disable"
"""The attribute of a function for the one that PyTorch calls instead, once the compiler is imported."""

_code = torch._disable_dynamo(lambda: None).__code__  # which all of them share, and no other function has
_cell = _code.co_freevars.index("fn")


@contextlib.contextmanager
def compiler_not_imported() -> Iterator[None]:
    """A context in which PyTorch's functions of that kind call themselves, unless the compiler is there already.

    Most of its kernels for meta tensors are such functions. While there is no compiler, nothing compiles them.
    """
    functions = () if "torch._dynamo" in sys.modules else _functions()
    changed = [function for function in functions if DISABLED not in vars(function)]
    try:
        for function in changed:
            setattr(function, DISABLED, function)
        yield
    finally:
        for function in changed:
            if vars(function).get(DISABLED) is function:  # another thread may have been here
                delattr(function, DISABLED)


@functools.cache
def _functions() -> tuple[types.FunctionType, ...]:
    disabled = (found for found in gc.get_referrers(_code) if type(found) is types.FunctionType)
    functions = (found.__closure__[_cell].cell_contents for found in disabled if found.__closure__)
    return tuple(x for x in functions if type(x) is types.FunctionType and x.__module__.startswith("torch."))
