"""The styles of a plan: which dimension of a parameter is split, and how a module's tensors are sharded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

__all__ = ["EXPERTS", "TENSOR", "Layout", "Style", "style_of"]

TENSOR, EXPERTS = "tensor", "experts"

_Dimension = Callable[[torch.nn.Module, str, torch.Tensor], int | None]


class Layout(NamedTuple):
    """How a tensor is sharded over an axis: split along a dimension, or replicated."""

    dim: int | None
    """May be negative; None if it is whole."""


_WHOLE, _SPLIT = Layout(None), Layout(-1)


@dataclass(frozen=True)
class Style:
    """What becomes of a module, or of one parameter."""

    dimension: _Dimension = lambda module, name, tensor: None
    """The dimension of a parameter that is split, None if it stays whole: by its module, its name there, and itself."""
    inputs: Sequence[Layout | None] = ()
    """Those of positional arguments, None for one that is left alone."""
    keywords: Mapping[str, Layout] = field(default_factory=dict)
    outputs: Sequence[Layout | None] = ()
    axis: str = TENSOR
    """Which axis of the mesh they are split over."""


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


_COLUMNS = Style(_columns, (_WHOLE,), outputs=(_SPLIT,))
_COLUMNS_GATHERED = Style(_columns, (_WHOLE,), outputs=(_WHOLE,))
_ROWS = Style(_rows, (_SPLIT,), outputs=(_WHOLE,))
_REDUCED = Style(outputs=(_WHOLE,))
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
    "embedding_rowwise": Style(_first, outputs=(_WHOLE,)),
    "embedding_colwise": Style(_second, outputs=(_WHOLE,)),
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


def style_of(style: Any, path: str) -> Style:
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
        return Style(_columns, (_WHOLE,), outputs=_layouts(style.output_layouts, path))
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


def _layouts(placements: Any, path: str) -> tuple[Layout | None, ...]:
    if placements is None:
        return ()
    found = placements if isinstance(placements, (tuple, list)) else (placements,)
    return tuple(None if placement is None else _layout(placement, path) for placement in found)


def _layout(placement: Any, path: str) -> Layout:
    if placement.is_replicate():
        return _WHOLE
    if placement.is_shard():
        return Layout(placement.dim)
    raise ValueError(f"the plan has the layout {placement!r} for {path!r}; wanted Shard(dim) or Replicate()")
