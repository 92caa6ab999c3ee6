"""`torch.distributed`: modules in which torch2jax replaces functions, and arrays of all devices at once.

Also here: the state of a module that `torch.distributed.fsdp.fully_shard` has wrapped.

And PyTorch's sharding rules for operators of `DTensor`s: of their results, and of their operands.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jax._src import shard_map
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.distributed import c10d_logger as _logger, distributed_c10d

from .dispatch import DisableTorchFunction

# Modules in which something is exchanged.

c10d = distributed_c10d
"""The module of process groups and of the collectives over them."""

c10d_logger = _logger
"""The module that logs errors of process groups."""

world = distributed_c10d._world
"""All that PyTorch knows of process groups: the default one, and the ranks and names of each. What comes in its place
(its own tests do that with threads) is asked by every function of the module."""

ShardMapTracer = shard_map.ShardMapTracer
"""An array within `jax.shard_map` that computes at once: ``val`` has those of all devices along a first dimension, for
the axes ``mat.varying``; its trace has the ``mesh``."""


def current_device_mesh() -> object:
    """The `DeviceMesh` that code has entered (``with mesh:``); RuntimeError if there is none."""
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_current_mesh()


_FSDP = "torch.distributed.fsdp"
_STATES = _FSDP + "._fully_shard._fsdp_state"


class Gathered(NamedTuple):
    """A parameter that the module's forward pass finds whole."""

    owner: torch.nn.Module
    """The module that has it."""
    name: str
    layout: tuple[Any, tuple] | None
    """The `DeviceMesh` and placements of one that is a `DTensor` also within the pass, as of tensor parallelism."""


def is_fully_sharded(kind: type) -> bool:
    """Returns True if a class of modules is one that `fully_shard` has made."""
    module = sys.modules.get(_FSDP)
    base = getattr(module, "FSDPModule", None)
    return base is not None and issubclass(kind, base)


def wrapped_class(kind: type) -> type:
    """The class of the module that `fully_shard` has wrapped."""
    return kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]  # releases before 2.12 have it at this place


@functools.cache
def class_of_wrapped(kind: type) -> type:
    """The class that a module of a class has once it is wrapped."""
    base = sys.modules[_FSDP].FSDPModule  # who wraps has imported it
    return type(f"FSDP{kind.__name__}", (base, kind), {"__module__": kind.__module__})


def state_of(module: Any) -> Any:
    """PyTorch's state of such a module."""
    return module._get_fsdp_state()


def drop_processes(module: torch.nn.Module) -> None:
    """Removes from a copy of such a module all that concerns processes, and its links to the module."""
    for name, method in list(vars(module).items()):
        if isinstance(method, types.MethodType) and method.__func__.__globals__["__name__"].startswith(_FSDP):
            vars(module)[name] = types.MethodType(_forward_method(inspect.unwrap(method.__func__)), module)
    for table in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in table.items():
            found = inspect.unwrap(hook, stop=lambda each: hasattr(each, "__self__"))
            if type(getattr(found, "__self__", None)).__module__.startswith(_FSDP):
                table[key] = found
    for table in (module._state_dict_pre_hooks, module._load_state_dict_pre_hooks):
        for key, hook in list(table.items()):
            if str(getattr(getattr(hook, "hook", hook), "__module__", "")).startswith(_FSDP):
                del table[key]


def _forward_method(method: Callable[..., object]) -> Callable[..., object]:
    """A method that runs as a forward pass (``register_fsdp_forward_method``)."""
    function = getattr(method, "__func__", method)

    @functools.wraps(function)
    def run(self, *args, **kwargs):
        state = state_of(self)
        args, kwargs = state._pre_forward(self, args, kwargs)
        return state._post_forward(self, args, function(self, *args, **kwargs))

    return run


def _groups_of(state: Any) -> list[Any]:
    """The groups of parameters that are gathered together; releases before 2.12 have one."""
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in (groups if groups is not None else [state._fsdp_param_group]) if group is not None]


def reduces_gradients(state: object) -> bool:
    """Returns True if gradients are averaged after the next backward pass (``set_requires_gradient_sync``)."""
    return all(group.reduce_grads for group in _groups_of(state))


def is_of_several(state: Any) -> bool:
    """Returns True if the state is that of a list of modules."""
    return len(state._modules) > 1


class StateOfCopy:
    """The state of a wrapped module within calls: its methods note there what code asks for.

    Args:
        policy: the `MixedPrecisionPolicy`.
        groups: PyTorch's groups of parameters, whose settings are taken over.
        mesh: the `DeviceMesh`, where there are no groups.
    """

    def __init__(self, policy: object, groups: Iterable[object] = (), mesh: object = None):
        self._mp_policy = policy
        self._fsdp_param_groups = [_GroupSettings(**{name: getattr(x, name) for name in _DEFAULTS}) for x in groups]
        if not self._fsdp_param_groups:
            self._fsdp_param_groups.append(_GroupSettings(mesh_info=types.SimpleNamespace(mesh=mesh)))
        self._fsdp_param_group = self._fsdp_param_groups[0]  # of releases before 2.12
        self._state_ctx = types.SimpleNamespace()

    @classmethod
    def of(cls, state: Any) -> "StateOfCopy":
        return cls(state._mp_policy, _groups_of(state))

    def _reset_iter_state(self) -> None:
        pass

    def _pre_forward(self, module: object, args: tuple, kwargs: dict) -> tuple[object, ...]:
        return sys.modules[_STATES].FSDPState._pre_forward(self, module, args, kwargs)

    def _post_forward(self, module: object, args: tuple, result: object) -> object:
        return sys.modules[_STATES].FSDPState._post_forward(self, module, args, result)


_DEFAULTS = {
    "_all_gather_comm": None,
    "_all_reduce_hook": None,
    "_reduce_scatter_comm": None,
    "all_reduce_grads": True,
    "gradient_divide_factor": None,
    "mesh_info": None,
    "reduce_grads": True,
}
_COMMUNICATION = ("NoneType", "DefaultAllGather", "DefaultReduceScatter")


class _GroupSettings(types.SimpleNamespace):
    """The settings of a group of parameters, which XLA gathers when it wants to."""

    def __init__(self, **given: object):
        super().__init__(**_DEFAULTS | given)

    def _nothing(self, *args: object, **kwargs: object) -> None:
        pass

    lazy_init = unshard = wait_for_unshard = reshard = _nothing


def policy_of(state: Any) -> object:
    """The `MixedPrecisionPolicy` of a state.

    Raises:
        NotImplementedError: code has changed how gradients are sent.
    """
    for group in _groups_of(state):
        comms = type(group._all_gather_comm).__name__, type(group._reduce_scatter_comm).__name__
        is_default = all(name in _COMMUNICATION for name in comms)
        if not is_default or group._all_reduce_hook is not None or group.gradient_divide_factor is not None:
            raise NotImplementedError(
                "fully_shard: got a module with a communication or a divisor of code's own; wanted PyTorch's: change "
                "the gradients after the backward pass"
            )
        if group.reduce_grads and not group.all_reduce_grads:
            raise NotImplementedError(
                "fully_shard: got set_requires_all_reduce(False); wanted set_requires_gradient_sync(False), which "
                "leaves out both sums"
            )
    return state._mp_policy


def mesh_of_groups(state: object) -> object:
    """The `DeviceMesh` over which the parameters of a state are split; None for the default one.

    Raises:
        NotImplementedError: there are several.
    """
    meshes = [group.mesh_info.mesh for group in _groups_of(state)]
    if any(mesh != meshes[0] for mesh in meshes):
        raise NotImplementedError(
            "fully_shard: got parameters of one module over several meshes; wanted one: wrap the parts with the others "
            "by themselves"
        )
    return meshes[0] if meshes else None


def gathered_by(state: object) -> list[Gathered]:
    """The parameters of a state of PyTorch's."""
    return [each for group in _groups_of(state) for parameter in group.fsdp_params for each in _gathered_of(parameter)]


def _gathered_of(parameter: Any) -> Iterator[Gathered]:
    spec = getattr(parameter, "_unsharded_dtensor_spec", None) or getattr(parameter, "_tp_spec", None)
    layout = None if spec is None else (spec.mesh, tuple(spec.placements))
    info = parameter._module_info
    yield Gathered(info.module, info.param_name, layout)
    for owner, name in zip(info.shared_modules, info.shared_param_names, strict=True):
        yield Gathered(owner, name, layout)


class Decision(NamedTuple):
    """The way in which an operator runs on parts."""

    operator: Any
    args: tuple
    """The given arguments, with the specs that operands must have."""
    results: object
    """The spec of each result; None for a result that is no tensor."""


def spec_of(mesh: Any, placements: tuple, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The spec of a `DTensor`: it has ``placements``, and ``tensor_meta`` with ``shape``, ``stride`` and ``dtype``."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    return DTensorSpec(mesh, placements, tensor_meta=TensorMeta(torch.Size(shape), stride, dtype))


def is_spec(thing: object) -> bool:
    """Returns True if a thing is such a spec."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    return isinstance(thing, DTensorSpec)


def decided(operator: Any, args: tuple, kwargs: dict) -> Decision:
    """PyTorch's decision for an operator.

    Args:
        args, kwargs: its arguments, with specs for `DTensor`s.

    Raises:
        NotImplementedError: PyTorch has no rule for it, or data decide the shape of what it gives.
        RuntimeError: its rule refuses the operands.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import OpSchema

    rules = DTensor._op_dispatcher.sharding_propagator
    others = getattr(rules, "op_to_schema_info_for_single_dim_strategy", {})
    info = rules.op_to_schema_info.get(operator) or others.get(operator)
    find: Callable = getattr(rules, "propagate_op_sharding_non_cached")  # noqa: B009 - for type checkers
    schema = OpSchema(operator, args, kwargs, schema_info=info)
    try:
        with DisableTorchFunction():
            found = find(schema)
    except DynamicOutputShapeException as error:
        raise NotImplementedError("data decide the shape of the result") from error
    wanted = found.redistribute_schema if found.needs_redistribute else None
    if wanted is None:
        return Decision(operator, args, found.output_spec)
    return Decision(wanted.op, tuple(wanted.args_schema), found.output_spec)


def needs_full_operands(operator: Callable[..., object]) -> bool:
    """True if PyTorch does more for an operator than to run it on parts, so that it runs on whole operands here."""
    from torch.distributed.tensor import DTensor

    return operator in DTensor._op_dispatcher._custom_op_handlers and operator not in _ON_PARTS


_aten = torch.ops.aten
_ON_PARTS = (_aten.convolution.default, _aten.convolution_backward.default)  # but where devices need their neighbours'
