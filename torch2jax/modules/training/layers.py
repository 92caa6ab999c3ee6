"""States of steps with stacked layers: those of modules, and of optimizers with the moments stacked too."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ..layers import (
    has_layers,
    name_of_row,
    names_of_layers,
    names_when_stacked,
    stack_layers,
    stacked,
    unstack_layers,
)

State = dict[str, dict[str, Any]]


def with_layers_stacked(state: State, objects: Mapping[str, object]) -> dict[str, Any]:
    """A state with the layers of all modules stacked, and with them the moments of optimizers.

    Args:
        objects: what the parts of the state are of.
    """
    found, layers = dict(state), {}
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            found[name] = stack_layers(state[name])
            layers[name] = names_when_stacked(state[name]).values()
    return _with_moments(found, objects, layers)


def with_moments_stacked(state: State, given: State, objects: Mapping[str, object]) -> State:
    """A state with the moments stacked that an optimizer has made for parameters which are stacked in another."""
    modules = [name for name, thing in objects.items() if isinstance(thing, torch.nn.Module)]
    layers = {name: [names_of_layers(each, given[name]) for each in given[name]] for name in modules}
    return _with_moments(dict(state), objects, layers)


def _with_moments(state: State, objects: Mapping[str, Any], layers: Mapping[str, Iterable[Sequence[str]]]) -> State:
    """A state with the moments stacked of parameters that are stacked.

    Args:
        layers: the names of what is stacked together, for each module.
    """
    rows = []
    for name, stacks in layers.items():
        parameters = dict(objects[name].named_parameters(remove_duplicate=False))
        for names in stacks:
            if len(names) > 1 and names[0] in parameters:
                rows.append([parameters[each] for each in names])
    for name, thing in objects.items():
        if isinstance(thing, Optimizer):
            state[name] = _moments(state[name], thing, rows)
    return state


def _moments(
    part: Mapping[str, object], optimizer: Optimizer, rows: Sequence[Sequence[torch.Tensor]]
) -> dict[str, object]:
    """The optimizer's state with one entry for the moments of stacked parameters."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    positions = {id(p): position for position, p in enumerate(every)}
    found = dict(part)
    for row in rows:
        indices = [positions[id(p)] for p in row if id(p) in positions]
        word = name_of_row(indices) if len(indices) == len(row) else None
        if word is None:
            continue
        before = f"state.{indices[0]}."
        for moment in [name.removeprefix(before) for name in part if name.startswith(before)]:
            names = [f"state.{position}.{moment}" for position in indices]
            if len({getattr(part.get(name), "shape", None) for name in names}) == 1 and names[-1] in part:
                found[f"state.{word}.{moment}"] = stacked([found.pop(name) for name in names])
    return found


def parts_with_layers(state: object, objects: Mapping[str, object]) -> list[str]:
    """The parts of a state that have entries for several layers."""
    if not isinstance(state, Mapping):
        return []
    return [name for name, thing in objects.items() if has_layers(_of_layers(state.get(name), thing))]


def with_layers_apart(state: dict, objects: Mapping[str, object], parts: Sequence[str]) -> dict:
    """A state whose parts with these names are unstacked."""
    apart = {}
    for name in parts:
        of_layers = _of_layers(state[name], objects[name])
        rest = {each: value for each, value in state[name].items() if each not in of_layers}
        apart[name] = {**rest, **unstack_layers(of_layers)}
    return {**state, **apart} if apart else state


def _of_layers(part: object, thing: object) -> dict[str, object]:
    """The parts of a state that may be stacked by layer; outside of modules ``*`` is one number for all parameters."""
    if not isinstance(part, Mapping):
        return {}
    return {name: value for name, value in part.items() if isinstance(thing, torch.nn.Module) or "::" in name}
