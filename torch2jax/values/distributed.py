"""`DTensor`s within a call: PyTorch's part of a tensor is the whole, an array that XLA shards.

A tensor of a call that is a `DTensor` has all values, and a *layout*: the `DeviceMesh`, and the placements that code
has asked for. What is computed of it is one too, whose placements are XLA's to choose, unless they are sure to be those
of the operands. So nothing is ever sent but by XLA, and a value never depends on where it lies.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch
from torch.overrides import get_default_nowrap_functions

from ..internals.dispatch import DisableTorchFunction, DisableTorchFunctionSubclass
from ..internals.tensors import tree_leaves, tree_map
from ..rules.array_rule import InnerRule
from ..rules.features import Incoming, comes_in
from ..runtime.translation import Call
from ..tensors.distributed import class_of_calls, is_split, mesh_in_force, parts_over, spec_of
from ..tensors.history import Source
from ..tensors.sharding_constraints import laid_out
from ..tensors.tensor import Torchish
from ..tensors.wrapped import Derived, as_class

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_LAYOUT = "_torch2jax_layout"
_KEEPING = frozenset(("alias", "clone", "contiguous", "detach", "detach_", "dropout", "requires_grad_", "to"))
_GRADIENT = torch.Tensor.grad.__get__  # pyright: ignore


class FullLayout(NamedTuple):
    """The mesh and the placements that code has given a `DTensor`."""

    mesh: Any
    """The `DeviceMesh`."""
    placements: tuple | None
    """One for each dimension of the mesh; None where XLA chooses them."""


class ChosenByXLA:
    """A placement that XLA chooses: none that code could ask for."""

    def is_shard(self, dim: int | None = None) -> bool:
        del dim
        return False

    def is_replicate(self) -> bool:
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        del reduce_op
        return False

    def __repr__(self) -> str:
        return "chosen by XLA"


_CHOSEN = ChosenByXLA()


class FullTensor(Derived):
    """The base of the call's own `DTensor` classes; see `class_of_calls`."""

    @classmethod
    def of_result(
        cls, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], result: Any
    ) -> object:
        if func == _GRADIENT and result is not None:
            return distributed(result, *layout_of(args[0]))
        if func in get_default_nowrap_functions():
            return result
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, FullTensor)]
        return tree_map(functools.partial(_of_result, func, operands), result)

    @property
    def device_mesh(self) -> "DeviceMesh":
        return layout_of(self).mesh

    @property
    def placements(self) -> tuple:
        mesh, placements = layout_of(self)
        return (_CHOSEN,) * mesh.ndim if placements is None else placements


def layout_of(tensor: object) -> FullLayout:
    """The layout of a `DTensor` of a call."""
    return vars(tensor)[_LAYOUT]


def distributed(tensor: Torchish, mesh: object, placements: tuple | None) -> Any:
    """Another tensor on the same memory, which is a `DTensor` of a layout."""
    result = as_class(tensor, class_of_calls(FullTensor))
    vars(result)[_LAYOUT] = FullLayout(mesh, placements)
    return result


def plain(tensor: Torchish) -> Torchish:
    """Another tensor on the same memory, which is none."""
    return as_class(tensor, torch.Tensor)


def placed(tensor: Torchish, mesh: Any, placements: tuple) -> Any:
    """A `DTensor` of the same values, with a sharding constraint if there is a mesh."""
    given = mesh_in_force(mesh)
    if given is None or tensor.known is not None:
        return distributed(tensor, mesh, placements)
    options = {"mesh": given, "spec": spec_of(given, mesh, placements, tuple(tensor.shape))}
    with DisableTorchFunctionSubclass():
        return distributed(_REDISTRIBUTE((tensor,), options), mesh, placements)


@comes_in
class _DTensors(Incoming):
    """PyTorch's own `DTensor`s, which come in whole, with their sharding as a constraint."""

    def takes(self, kind: type) -> bool:
        return is_split(kind)

    def lift(self, call: "Call", tensor: "DTensor") -> Any:
        """The call's tensor; if this process has a part of the values alone, their use is an error."""
        with DisableTorchFunction():
            is_full = not any(parts_over(tensor.device_mesh, tensor.placements))
            values = getattr(tensor, tensor.__tensor_flatten__()[0][0]).detach() if is_full else None
        if values is None:
            return call.constants.bind_missing(tensor, _part_alone(tensor))
        return call.constants.bind_copy(tensor, values)

    def array(self, tensor: Any, array: jax.Array) -> Any:
        given = mesh_in_force(tensor.device_mesh)
        if given is None:
            return array
        return laid_out(array, given, spec_of(given, tensor.device_mesh, tuple(tensor.placements), array.shape))

    def made(self, tensor: Any, lifted: Any) -> Any:
        made = distributed(lifted, tensor.device_mesh, tuple(tensor.placements))
        history = lifted.history
        if isinstance(history, Source):
            history.variable = made
        if isinstance(tensor, torch.nn.Parameter):
            made._is_param = True
        return made


def _part_alone(tensor: "DTensor") -> RuntimeError:
    """The error for a `DTensor` of which this process has only a part."""
    return RuntimeError(
        f"got a DTensor of shape {tuple(tensor.shape)} with {tuple(tensor.placements)}, of which this process has a "
        "part; wanted the whole array: give it in state_dict=, as t2j(module.state_dict()) before the module was split"
    )


_REDISTRIBUTE = InnerRule(laid_out, "redistribute")


def _of_result(function: Callable, operands: list[Any], result: object) -> object:
    if type(result) is not Torchish:
        return result
    mesh, placements = layout_of(operands[0])
    is_kept = placements is not None and all(layout_of(x) == (mesh, placements) for x in operands)
    is_kept = is_kept and result.shape == operands[0].shape and _is_elementwise(function)
    is_kept = is_kept and not any(placement.is_partial() for placement in placements or ())
    return distributed(result, mesh, placements if is_kept else None)


@functools.cache
def _is_elementwise(function: Callable) -> bool:
    """Returns True if PyTorch declares each element of the result to depend on the one at the same index alone."""
    name = getattr(function, "__name__", "")
    return name in _KEEPING or any(torch.Tag.pointwise in operator.tags for operator in _operators(name))


def _operators(name: str) -> Iterator[Any]:
    stripped = name.removeprefix("__i" if name.startswith("__i") and name != "__invert__" else "__").strip("_")
    for candidate in dict.fromkeys((name.partition(".")[0], stripped, stripped.removeprefix("r"))):
        packet = getattr(torch.ops.aten, candidate, None)
        if packet is not None and hasattr(packet, "overloads"):
            yield from (getattr(packet, overload) for overload in packet.overloads())
