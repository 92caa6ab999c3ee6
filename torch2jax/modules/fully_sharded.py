"""Modules that `torch.distributed.fsdp.fully_shard` has wrapped, whose copies have a state without processes.

PyTorch's hooks run around the forward pass of a copy as around that of the module; what they do is in
`ops.distributed.data_parallel`.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..internals.distributed import (
    Gathered,
    StateOfCopy,
    drop_processes,
    gathered_by,
    is_fully_sharded,
    mesh_of_groups,
    policy_of,
    reduces_gradients,
    state_of,
)

_STATE = "_torch2jax_fully_sharded"


class FullySharded:
    """The parameters that the forward passes of some modules find whole.

    Args:
        requested: what code has asked for, as PyTorch's methods note it.
        parameters: where they are.
    """

    def __init__(self, requested: object, parameters: Iterable[Gathered]):
        self.requested = requested
        # The modules have this: else their arrays would live until Python looks for cycles.
        self._parameters = [(weakref.ref(owner), name, layout) for owner, name, layout in parameters]
        self._replaced: list[list[tuple[dict, str, object, object]]] = []

    @classmethod
    def of(cls, state: object) -> "FullySharded":
        """The state made of one of PyTorch's."""
        return cls(state, gathered_by(state))

    def copied(self, copies: dict[int, Any]) -> "FullySharded":
        """The one of copies of the modules, by the ids of these."""
        owners = [(reference(), name, layout) for reference, name, layout in self._parameters]
        gathered = [Gathered(copies[id(x)], name, layout) for x, name, layout in owners if id(x) in copies]
        return FullySharded(StateOfCopy.of(self.requested), gathered)

    @property
    def owned_names(self) -> list[tuple[torch.nn.Module | None, str]]:
        return [(reference(), name) for reference, name, _ in self._parameters]

    @property
    def policy(self) -> Any:
        return policy_of(self.requested)

    @property
    def mesh(self) -> object:
        return mesh_of_groups(self.requested)

    @property
    def is_synced(self) -> bool:
        """True if gradients are averaged after the next backward pass."""
        return reduces_gradients(self.requested)

    def enter(self, module: torch.nn.Module, full_of: Callable[..., object]) -> None:
        """Replaces the parameters of a module by the results of `full_of` for each and its layout, until `leave`."""
        parts, replaced = set(module.modules()), []
        self._replaced.append(replaced)
        made: dict[int, object] = {}
        for reference, name, layout in self._parameters:
            owner = reference()
            table: dict[str, object] = vars(owner)["_parameters"] if owner in parts else {}
            before = table.get(name)
            if before is None:
                continue
            if id(before) not in made:
                made[id(before)] = full_of(before, layout)
            replaced.append((table, name, before, made[id(before)]))
            table[name] = made[id(before)]

    def leave(self) -> None:
        """Undoes the last `enter`."""
        for table, name, before, tensor in self._replaced.pop():
            if table.get(name) is tensor:  # the module may have put another there
                table[name] = before

    def leave_all(self) -> None:
        """Leaves all that is still entered, where an error has ended a forward pass."""
        while self._replaced:
            self.leave()


def own_state(module: torch.nn.Module) -> FullySharded | None:
    """The state of a copy, or of a module that translated code has wrapped; None for others."""
    return vars(module).get(_STATE)


def set_state(module: torch.nn.Module, state: FullySharded) -> None:
    """Sets the state of a module."""
    vars(module)[_STATE] = state


def states_of(module: torch.nn.Module) -> dict[int, object]:
    """The states of the wrapped parts of a module, by their ids: none of them is copied, as they have processes."""
    found = [own_state(part) or state_of(part) for part in module.modules() if is_fully_sharded(type(part))]
    return {id(state): state for state in found}


def give_states(module: torch.nn.Module, copies: dict[int, Any]) -> None:
    """Gives the copies of wrapped parts of a module states of their own.

    Args:
        copies: of the parts of the module, by their ids.
    """
    made: dict[int, FullySharded] = {}
    for part in module.modules():
        if is_fully_sharded(type(part)):
            state = own_state(part) or state_of(part)
            if id(state) not in made:
                own = state if isinstance(state, FullySharded) else FullySharded.of(state)
                made[id(state)] = own.copied(copies)
            drop_processes(copies[id(part)])
            set_state(copies[id(part)], made[id(state)])
