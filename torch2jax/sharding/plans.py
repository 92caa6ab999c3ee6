"""Parallelism plans of a model or of the user, by the names of modules and parameters."""

import dataclasses
import fnmatch
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import user_level
from .styles import EXPERTS, TENSOR, Style, style_of

__all__ = ["ShardingPlan"]


class ShardingPlan:
    """The styles of a module's parts.

    Args:
        module: the module; it is only read.
        plan: styles by path, as those of `torch.distributed.tensor.parallel.parallelize_module` and of transformers
            (``*`` stands for any name between two dots), a style for the whole module, or None for the plans that
            modules of transformers have.
        split: for ``"tensor"`` and ``"experts"`` whether there is an axis to split over. Without one for tensors there
            is no plan.

    Raises:
        ValueError: the module has no plan, or a style is unknown.
        TypeError: a style is of another kind.
    """

    def __init__(self, module: torch.nn.Module, plan: Any, split: Mapping[str, bool]):
        self.styles: dict[str, Style] = {}
        """By the names of modules and parameters."""
        if not any(split.values()):
            return
        self._modules = dict(module.named_modules())
        self._names = [*self._modules, *(name for name, _ in module.named_parameters(remove_duplicate=False))]
        found = _plan_of_model(module, split) if plan is None else plan if isinstance(plan, Mapping) else {"": plan}
        for path, style in found.items():
            self._add(path, style_of(style, path), is_users=plan is not None)

    def of_parameter(self, name: str) -> Style | None:
        """The style of a parameter: its own, or that of its module."""
        owner = name.rpartition(".")[0]
        wrapped = owner.removesuffix(".base_layer")  # as peft holds the layers that it adapts
        return self.styles.get(name) or self.styles.get(owner) or self.styles.get(wrapped)

    def _add(self, path: str, style: Style, is_users: bool) -> None:
        names = [name for name in self._names if _matches(name, path)]
        if not names and is_users:
            warnings.warn(f"the plan names {path!r}, which no module or parameter bears", stacklevel=user_level())
        for name in names:
            is_embedding = isinstance(self._modules.get(name), torch.nn.Embedding)
            self.styles[name] = dataclasses.replace(style, inputs=()) if is_embedding else style  # indices stay whole


def _matches(name: str, path: str) -> bool:
    """Whether a path of a plan names a module or parameter: a star stands for anything between two dots."""
    parts, patterns = name.split("."), path.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _plan_of_model(module: torch.nn.Module, split: Mapping[str, bool]) -> dict[str, Any]:
    of_tensors = _carried(module, "_tp_plan") if split[TENSOR] else {}
    of_experts = _carried(module, "_ep_plan") if split[EXPERTS] else {}
    for kind, attribute, plan in ((TENSOR, "_tp_plan", of_tensors), (EXPERTS, "_ep_plan", of_experts)):
        if split[kind] and not plan:
            raise ValueError(
                f"got an axis for {kind}= and {type(module).__name__}, which brings no plan ({attribute} is missing or "
                "empty; most models of transformers have one); wanted a plan: pass plan=, a dictionary of styles by "
                "path, such as {'*.fc1': 'colwise', '*.fc2': 'rowwise'}; or leave the axis out"
            )
    within = tuple(path + "." for path in of_experts)
    kept = {path: x for path, x in of_tensors.items() if path not in of_experts and not path.startswith(within)}
    return {**kept, **of_experts}


def _carried(module: torch.nn.Module, attribute: str) -> dict[str, Any]:
    """The plans of the outermost modules that have one."""
    found: dict[str, Any] = {}
    roots: list[str] = []
    for name, part in module.named_modules():
        plan = getattr(part, attribute, None)
        if isinstance(plan, Mapping) and plan and not any(name.startswith(root) for root in roots):
            prefix = name + "." if name else ""
            roots.append(prefix)
            found.update({prefix + path: style for path, style in plan.items()})
    return found
