"""`torch.autocast`: the casts that PyTorch's dispatcher applies to an operator's tensors before it runs.

Each operator has a policy, or none, and what an operator with one calls is not cast again. Which operators have one is
asked of PyTorch, for each device; the lists here tell only the policies from each other. The region that counts is the
innermost, whatever device it names, and it acts on all tensors: JAX alone decides where these are.
"""

import functools
import types
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

import torch

from ..internals.dispatch import (
    DisableAutocast,
    DisableTorchFunction,
    OpOverload,
    dispatch_has_kernel,
    dispatch_has_kernel_for_dispatch_key,
)
from ..runtime.translation import Call, this_call
from ..tensors.dtypes import autocast_region as region
from ..tensors.history import Source
from ..tensors.journal import journal
from ..tensors.tensor import Torchish
from .features import DIVIDED, NEXT, Feature, in_every_call


class CastPolicy(Enum):
    """The cast that autocast applies to the arguments of an operator."""

    LOWER = "lower_precision_fp"
    FLOAT32 = "fp32"
    SUM_IN_FLOAT32 = "fp32_set_opt_dtype"
    WIDEST = "promote"
    LOWER_BUT_STATE = "what CPU does to a layer of GRUs, which has no policy itself"
    BANNED = "banned"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Those that have one of the policies; what else PyTorch registers is computed in float32.
_LOWER = _names("""
    _addmm_activation _convolution _mps_convolution _native_multi_head_attention _scaled_dot_product_flash_attention
    _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d
    conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution cudnn_convolution
    cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mkldnn_rnn_layer
    mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
""")
_SUM_IN_FLOAT32 = _names("cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax prod softmax sum")
_WIDEST = _names("""
    addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_copy index_put scatter_add stack tensordot vdot
""")
_FLOAT32_ON_CPU = _names("binary_cross_entropy grid_sampler prod")
# Functions that are operators under another name, or made of one that decides the dtype of all they do.
_AS = {"cross_entropy_loss": "nll_loss", "nll_loss_nd": "nll_loss", "square": "pow"}
# Functions made of operators with policies that a rule for the whole would hide, where they have none themselves.
_DIVIDED = _names("__rdiv__ einsum gru_cell inner lstm_cell pad rnn_relu_cell rnn_tanh_cell tensordot")
# Layers for which PyTorch calls libraries that have a policy.
_RECURRENT = _names("gru lstm rnn_relu rnn_tanh")
# Devices whose lists come with an extension of PyTorch's are taken for CUDA.
_KEYS = {"cpu": "AutocastCPU", "maia": "AutocastMAIA", "mps": "AutocastMPS", "mtia": "AutocastMTIA"}
_KEYS |= {"xpu": "AutocastXPU"}


class Treatment(NamedTuple):
    """The treatment of an operator, or of a function that stands for one, in an autocast region."""

    policy: CastPolicy | None = None
    device: str = "cpu"
    is_operator: bool = False
    """True if its rule runs outside of the region; else it consists of operators that are treated themselves."""
    is_divided: bool = False
    """True if a rule for the whole would hide operators that have policies."""

    def cast(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments as the operator receives them; call it with autocast suspended.

        Raises:
            RuntimeError: the operator is banned, or gets tensors of another low precision than the region's.
        """
        if self.policy is None or kwargs.get("out") is not None:
            return args, kwargs
        with DisableTorchFunction():
            return self._cast(args, kwargs)

    def _cast(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if self.policy is CastPolicy.BANNED:
            raise RuntimeError(
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
                "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which combine them with the sigmoid "
                "before them and are safe to autocast."
            )
        if self.policy is CastPolicy.SUM_IN_FLOAT32:
            first = args[0] if args else next(iter(kwargs.values()), None)
            given = any(isinstance(x, torch.dtype) for x in (*args, *kwargs.values()))
            return args, kwargs if given or not _is_eligible(first) else {**kwargs, "dtype": torch.float32}
        dtype = torch.float32 if self.policy is CastPolicy.FLOAT32 else torch.get_autocast_dtype(self.device)
        if self.policy is CastPolicy.WIDEST:
            dtype = _widest(dtype, (args, kwargs))
        if self.policy is CastPolicy.LOWER_BUT_STATE:
            first, *others = args
            to_dtype = functools.partial(_cast, dtype=dtype)
            return (to_dtype(first), *(x if isinstance(x, torch.Tensor) else _mapped(to_dtype, x) for x in others)), {}
        return _mapped(functools.partial(_cast, dtype=dtype), (args, kwargs))


@in_every_call
class _Autocast(Feature):
    """The standing feature that casts operands as PyTorch's dispatcher does, where a region is entered."""

    def run_cast(self, call: Call, function: Callable, rule: object, args: tuple, kwargs: dict) -> object:
        device: Any = region()
        is_operator = isinstance(function, OpOverload)
        treatment = of_operator(function, device) if is_operator else of_function(function, rule, device)
        if not treatment.is_operator:
            return DIVIDED if treatment.is_divided else NEXT
        with DisableAutocast():
            return (call.dispatch_aten if is_operator else call.dispatch)(function, *treatment.cast(args, kwargs))


def of_function(function: Callable[..., object], rule: Any, device: str) -> Treatment:
    """The treatment of a function of PyTorch's Python interface that has this rule, or none."""
    return _of_function(function, function.__name__ if rule is None else rule.name, device)


@functools.cache
def _of_function(function: Callable[..., object], name: str, device: str) -> Treatment:
    policy = _policy(name, None, device)
    if name in _RECURRENT:
        policy = CastPolicy.LOWER_BUT_STATE if (name, device) == ("gru", "cpu") else CastPolicy.LOWER
    if policy is not None:
        return Treatment(policy, device, is_operator=True)
    is_open = isinstance(function, types.FunctionType) or _is_composite(name, None) or not _overloads(name, None)
    return Treatment(is_operator=not is_open, is_divided=name in _DIVIDED)


@functools.cache
def of_operator(operator: OpOverload, device: str) -> Treatment:
    """The treatment of an operator of PyTorch's dispatcher."""
    if operator.namespace != "aten":
        return Treatment()
    name, overload = operator.overloadpacket.__name__, operator._overloadname
    policy = _policy(name, overload, device)
    if policy is not None:
        return Treatment(policy, device, is_operator=True)
    is_open = _is_composite(name, overload)
    return Treatment(is_operator=not is_open, is_divided=name in _DIVIDED)


def _policy(name: str, overload: str | None, device: str) -> CastPolicy | None:
    meant = _AS.get(name, name)
    key = _KEYS.get(device, "AutocastCUDA")
    if not _registers(meant, overload if meant == name else None, key):
        return None
    if device == "cpu" and meant in _FLOAT32_ON_CPU:
        return CastPolicy.FLOAT32
    if meant == "binary_cross_entropy":
        return CastPolicy.BANNED
    for names, policy in (
        (_LOWER, CastPolicy.LOWER),
        (_SUM_IN_FLOAT32, CastPolicy.SUM_IN_FLOAT32),
        (_WIDEST, CastPolicy.WIDEST),
    ):
        if meant in names:
            return policy
    return CastPolicy.FLOAT32


def _registers(name: str, overload: str | None, key: str) -> bool:
    """Returns True if an operator (any overload of it if None) has an autocast kernel."""
    return any(dispatch_has_kernel_for_dispatch_key(x, key) for x in _overloads(name, overload))


def _is_composite(name: str, overload: str | None) -> bool:
    """Returns True if an operator is nothing but a composition of others in PyTorch."""
    key = "CompositeImplicitAutograd"
    return any(dispatch_has_kernel_for_dispatch_key(x, key) for x in _overloads(name, overload))


def _overloads(name: str, overload: str | None) -> list[str]:
    """The names of an operator's overloads, as the dispatcher has them."""
    packet = getattr(torch.ops.aten, name, None)
    names = [] if packet is None else packet.overloads() if overload is None else [overload]
    found = [f"aten::{name}" if x == "default" else f"aten::{name}.{x}" for x in names]
    return [x for x in found if dispatch_has_kernel(x)]


def _is_eligible(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _widest(lower: torch.dtype, arguments: Iterable[object]) -> torch.dtype:
    """float32 if one of the tensors is that, else `lower`, which all must be."""
    found: set[torch.dtype] = set()
    _mapped(lambda x: found.add(x.dtype) if _is_eligible(x) else None, arguments)
    if torch.float32 in found:
        return torch.float32
    if found - {lower}:
        got = ", ".join(sorted(map(str, found)))
        raise RuntimeError(
            f"Unexpected floating ScalarType in at::autocast::prioritize: got tensors of {got} in a region of {lower}; "
            "cast them to that or to float32"
        )
    return lower


def _mapped(function: Callable[[torch.Tensor], Any], value: object) -> Any:
    """Maps the tensors in arguments, which PyTorch's signatures hold at most in lists."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        mapped = [_mapped(function, x) for x in value]
        return mapped if isinstance(value, list) else tuple(mapped)
    if isinstance(value, dict):
        return {key: _mapped(function, x) for key, x in value.items()}
    return value


def _cast(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype or not _is_eligible(tensor):
        return tensor
    call = this_call()
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):  # from outside of the call
        tensor = call.constants.lift(tensor)
    if not _is_kept(tensor):
        with call.inside():
            return tensor.to(dtype)
    key, array = (id(tensor), dtype, torch.is_grad_enabled()), tensor.read()
    kept = call.casts.get(key)
    if kept is None or kept[0] is not array:  # it was written to
        cast = call.dispatch(torch.Tensor.to, (tensor, dtype), {})
        kept = call.casts[key] = (array, cast, tensor)  # the tensor, so that its id stays its own
    return kept[1]


def _is_kept(tensor: Torchish) -> bool:
    """Returns True if the cast of a tensor is cached: that of a weight, as in PyTorch.

    Not within a trace of JAX's own, which it would outlive.
    """
    if not torch.is_autocast_cache_enabled() or journal() is not None or this_call().transformations:
        return False
    return isinstance(tensor, Torchish) and tensor.dtype is torch.float32 and isinstance(tensor.history, Source)
