"""Parallelism plans of a model or of the user: styles by the names of modules and parameters."""

import dataclasses
import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from ..runtime.errors.locations import user_level

TENSOR, EXPERTS = "tensor", "experts"

_Dimension = Callable[[torch.nn.Module, str, torch.Tensor], int | None]


class Layout(NamedTuple):
    """The sharding of a tensor over an axis: split along a dimension, or replicated."""

    dim: int | None
    """May be negative; None if it is whole."""


_REPLICATED, _SPLIT = Layout(None), Layout(-1)


@dataclass(frozen=True)
class Style:
    """The treatment of a module, or of one parameter."""

    dimension: _Dimension = lambda module, name, tensor: None
    """The dimension of a parameter that is split, None if it stays whole: by its module, its name there, and itself."""
    inputs: Sequence[Layout | None] = ()
    """The layouts of positional arguments; None for one that is left alone."""
    keywords: Mapping[str, Layout] = field(default_factory=dict)
    outputs: Sequence[Layout | None] = ()
    axis: str = TENSOR
    """The axis of the mesh that they are split over."""


def _columns(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> int | None:
    if isinstance(module, torch.nn.Embedding):
        return 1
    return max(tensor.ndim - 2, 0)


def _rows(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> int | None:
    if isinstance(module, torch.nn.Embedding):
        return 0
    return None if name == "bias" else tensor.ndim - 1


def _packed_rows(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> int | None:
    return None if tensor.ndim == 1 else tensor.ndim - 1


def _first(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> int | None:
    return 0


def _second(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> int | None:
    return 1


_COLUMNS = Style(_columns, (_REPLICATED,), outputs=(_SPLIT,))
_COLUMNS_GATHERED = Style(_columns, (_REPLICATED,), outputs=(_REPLICATED,))
_ROWS = Style(_rows, (_SPLIT,), outputs=(_REPLICATED,))
_REDUCED = Style(outputs=(_REPLICATED,))
_ALONE = Style()

# Those of transformers, by name, with the names that older releases have. What only concerns processes that talk to
# each other (sums of gradients, local parameters) says nothing here: XLA sees one program.
_NAMED = {
    "colwise": _COLUMNS,
    "packed_colwise": Style(_columns),
    "local_colwise": Style(_columns),
    "local_packed_colwise": Style(_columns),
    "colwise_gather_output": _COLUMNS_GATHERED,
    "colwise_rep": _COLUMNS_GATHERED,
    "rowwise": _ROWS,
    "rowwise_rep": _ROWS,
    "rowwise_split_input": _ROWS,
    "packed_rowwise": Style(_packed_rows),
    "local_rowwise": Style(_rows),
    "local_packed_rowwise": Style(_packed_rows),
    "embedding_rowwise": Style(_first, outputs=(_REPLICATED,)),
    "embedding_colwise": Style(_second, outputs=(_REPLICATED,)),
    "sequence_parallel": Style(inputs=(Layout(1),), outputs=(Layout(1),)),
    "grouped_gemm": Style(_first, axis=EXPERTS),
    "moe_tp_experts": _REDUCED,
    "all_reduce": _REDUCED,
    "gather": _REDUCED,
    "replicate": _ALONE,
    "replicated_with_grad_allreduce": _ALONE,
    "mla_kv_a_proj": _ALONE,
    "moe_identity_expert": _ALONE,
    "local_params": _ALONE,
    "local": _ALONE,
    "isolated": _ALONE,
    "ep_router": _ALONE,
    "ep_dispatch_experts": _ALONE,
}


def style_of(style: object, path: str) -> Style:
    """Reads a style: the name of one of transformers', or an object of `torch.distributed.tensor.parallel`.

    Args:
        path: where in the plan it stands, for errors.

    Raises:
        ValueError: nothing is known by that name, or it has a layout that is neither split nor whole.
        TypeError: it is neither.
    """
    if isinstance(style, str):
        if style not in _NAMED:
            raise ValueError(f"the plan has the style {style!r} for {path!r}; known are {', '.join(_NAMED)}")
        return _NAMED[style]
    from torch.distributed.tensor import parallel  # takes half a second, and who has such styles has it

    if isinstance(style, parallel.SequenceParallel):
        along = _layouts(style.sequence_sharding, path)
        return Style(inputs=along, outputs=along)
    if isinstance(style, parallel.ColwiseParallel):
        return Style(_columns, (_REPLICATED,), outputs=_layouts(style.output_layouts, path))
    if isinstance(style, parallel.RowwiseParallel):
        return Style(_rows, (_SPLIT,), outputs=_layouts(style.output_layouts, path))
    if isinstance(style, parallel.PrepareModuleInputOutput):
        both = style.prepare_module_input, style.prepare_module_output
        before, after = (style_of(part, path) for part in both)
        return Style(inputs=before.inputs, keywords=before.keywords, outputs=after.outputs)
    if isinstance(style, parallel.PrepareModuleInput):
        wanted = cast("dict[str, Any]", style.desired_input_kwarg_layouts)
        keywords = {name: _layout(x, path) for name, x in wanted.items() if x is not None}
        return Style(inputs=_layouts(style.desired_input_layouts, path), keywords=keywords)
    if isinstance(style, parallel.PrepareModuleOutput):
        return Style(outputs=_layouts(style.desired_output_layouts, path))
    raise TypeError(
        f"the plan has a {type(style).__name__} for {path!r}; wanted the name of a style, or one of "
        "torch.distributed.tensor.parallel"
    )


def _layouts(placements: object, path: str) -> tuple[Layout | None, ...]:
    if placements is None:
        return ()
    found = placements if isinstance(placements, (tuple, list)) else (placements,)
    return tuple(None if placement is None else _layout(placement, path) for placement in found)


def _layout(placement: Any, path: str) -> Layout:
    if placement.is_replicate():
        return _REPLICATED
    if placement.is_shard():
        return Layout(placement.dim)
    raise ValueError(f"the plan has the layout {placement!r} for {path!r}; wanted Shard(dim) or Replicate()")


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

    def __init__(self, module: torch.nn.Module, plan: object, split: Mapping[str, bool]):
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
    """Returns True if a path of a plan, where a star stands for one part, matches a module or parameter."""
    parts, patterns = name.split("."), path.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _plan_of_model(module: torch.nn.Module, split: Mapping[str, bool]) -> dict[str, object]:
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


def _carried(module: torch.nn.Module, attribute: str) -> dict[str, object]:
    """The plans of the outermost modules that have one."""
    found: dict[str, object] = {}
    roots: list[str] = []
    for name, part in module.named_modules():
        plan = getattr(part, attribute, None)
        if isinstance(plan, Mapping) and plan and not any(name.startswith(root) for root in roots):
            prefix = name + "." if name else ""
            roots.append(prefix)
            found.update({prefix + path: style for path, style in plan.items()})
    return found
