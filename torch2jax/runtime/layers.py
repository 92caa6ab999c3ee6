"""The layers: parts of the package that most code never needs, each of which is loaded when code first does.

This is the only file that names them. A layer is some modules, and what code does before these are needed:

- it calls a PyTorch function whose rule they have (`functions`), which the registry asks for only if no rule is known;
- it comes to a function of PyTorch that they replace (`patched`);
- it has imported a library that they serve (`imported`), which the first call after that sees;
- it uses something of theirs, as an attribute of the layer: ``BRIDGE.last_resort(...)``.

All rooms may ask a layer for something, also those below its modules. The core tells objects of a layer from others by
`Layer.classes`, which are none before its modules are imported: then there are no such objects.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..internals.dispatch import DisableTorchFunction
from .translation import hidden

K = TypeVar("K", bound=type)
_PACKAGE = __name__.partition(".")[0]
_lock = threading.RLock()
_around: list[Callable[["Layer"], contextlib.AbstractContextManager[None]]] = []


def around_loading(context: Callable[["Layer"], contextlib.AbstractContextManager[None]]) -> object:
    """Declares the decorated context manager as one in which a layer is loaded."""
    _around.append(context)
    return context


class Layer:
    """A part of the package; its attributes are those of its modules.

    Args:
        modules: what is imported, in this order.
        functions: PyTorch functions with a rule there: the paths of functions, and the names of operators, or the
            namespaces of libraries, as "aten::_to_sparse" and "quantized::".
        patched: functions and objects of PyTorch that they replace in translated calls, and that code comes to first
            of all these: "module:name" and "module:Class.name".
        imported: modules of libraries for which there is something.
    """

    def __init__(
        self,
        *modules: str,
        functions: Sequence[str] = (),
        patched: Sequence[str] = (),
        imported: Sequence[str] = (),
    ):
        self.modules, self.functions, self.patched, self.imported = modules, functions, patched, imported
        self.is_loaded = False
        self._is_loading = False
        self._loaded: list[object] = []
        self.classes: tuple[type, ...] = ()
        """The classes whose objects the core has to know from others; none before their modules are imported."""

    def has(self, kind: K) -> K:
        """Declares that the decorated class is one of `classes`."""
        self.classes = (*self.classes, kind)
        return kind

    def load(self) -> None:
        """Imports the modules, as if no call was in progress."""
        if self.is_loaded:
            return
        with _lock:
            if self.is_loaded or self._is_loading:
                return
            self._is_loading = True
            try:
                with contextlib.ExitStack() as stack:
                    for context in (hidden(), DisableTorchFunction(), *(around(self) for around in _around)):
                        stack.enter_context(context)
                    self._loaded = [importlib.import_module(f"{_PACKAGE}.{name}") for name in self.modules]
                self.is_loaded = True
            finally:
                self._is_loading = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a layer has no {name}", name=name, obj=self)
        self.load()
        for module in self._loaded:
            if hasattr(module, name):
                found = self.__dict__[name] = getattr(module, name)
                return found
        raise AttributeError(f"none of {', '.join(self.modules)} has {name}", name=name, obj=self)


BRIDGE = Layer("bridge.call_torch", "bridge.j2t", "bridge.compat", "bridge.last_resort")
"""PyTorch called from JAX, and JAX from PyTorch."""
COMPILED = Layer("calls.compiled.part", "calls.compiled.host_functions")
"""Parts of a program that are compiled once, and PyTorch's own small tensors around them."""
CONTROL = Layer("control.driver")
"""Conditions and loops on traced values, read from the source."""
GENERATION = Layer("ops.control_flow.generation", imported=("transformers",))
"""``generate`` of transformers, as one loop."""
_OF_JAGGED = """
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward _nested_tensor_from_tensor_list
    _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned
"""
JAGGED = Layer("ops.jagged", functions=[f"aten::{name}" for name in _OF_JAGGED.split()])
"""Jagged tensors, for which `values.wrapper_subclasses` loads it."""
_FAKE = """
    fake_quantize_per_tensor_affine fake_quantize_per_channel_affine _fused_moving_avg_obs_fq_helper
    fused_moving_avg_obs_fake_quant _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _int_mm
"""
_OF_QUANTIZED = """
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask _scaled_mm _scaled_mm_v2
    _scaled_grouped_mm _scaled_grouped_mm_v2 _convert_weight_to_int4pack_for_cpu _weight_int4pack_mm_for_cpu
"""
_AO = "torch.ao.quantization."
QUANTIZED = Layer(
    "ops.quantization",
    "ops.packed_products",
    "ops.scaled_products",
    functions=[
        *(f"torch.{name}" for name in _FAKE.split()),
        *(f"aten::{name}" for name in (_FAKE + _OF_QUANTIZED).split()),
    ],
    patched=[
        _AO + "observer:UniformQuantizationObserverBase._calculate_qparams",
        _AO + "observer:MovingAverageMinMaxObserver.forward",
        _AO + "fake_quantize:FakeQuantize.forward",
    ],
)
"""Fake quantization with its observers, and products of quantized matrices."""
_C10D, _MESH = "torch.distributed.distributed_c10d:", "torch.distributed.device_mesh:"
_DATA_PARALLEL = "torch.nn.parallel.distributed:DistributedDataParallel."
_COLLECTIVES = """
    all_reduce all_reduce_coalesced reduce broadcast all_gather all_gather_single all_gather_into_tensor gather
    scatter reduce_scatter reduce_scatter_single reduce_scatter_tensor all_to_all all_to_all_single isend irecv send
    recv all_gather_object gather_object broadcast_object_list scatter_object_list barrier
"""
_OF_GROUPS = "_world _get_default_group _resolve_process_group _new_group_with_tag destroy_process_group"
_OF_MESHES = "__getitem__ get_group get_all_groups get_coordinate get_local_rank"
DISTRIBUTED = Layer(
    "ops.distributed",
    "ops.distributed.groups",
    "values.distributed",
    "modules.fully_sharded",
    "internals.distributed",
    functions=["_c10d_functional::"],
    patched=[
        *(_C10D + name for name in f"{_OF_GROUPS} {_COLLECTIVES}".split()),
        _MESH + "init_device_mesh",
        *(f"{_MESH}DeviceMesh.{name}" for name in _OF_MESHES.split()),
        *(_DATA_PARALLEL + name for name in ("__init__", "forward", "register_comm_hook")),
        "torch.nn.modules.batchnorm:SyncBatchNorm.forward",
    ],
    imported=[
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.distributed._functional_collectives",
        "torch.distributed.nn.functional",
    ],
)
"""`torch.distributed` within `jax.shard_map`, and `DTensor`s."""
EXPORTING = Layer("modules.exporting.export", "modules.checkpoints")
"""Programs and weights as files."""
SELECTIONS = Layer(
    "ops.selection",
    "ops.selection_composed",
    "ops.selection_matrices",
    "ops.selection_dims",
    "ops.selection_runs",
    "ops.selection_order",
    "ops.selection_subscripts",
    "ops.lengths",
    "modules.padded",
)
"""Tensors and numbers whose length data decide: their rules, for which the registry loads it, and padded arrays."""
_OF_SCRIPTS = "script freeze optimize_for_inference trace trace_module save RecursiveScriptModule.__deepcopy__"
SCRIPTED = Layer(
    "modules.scripted",
    patched=[
        *(f"torch._C:{name}.__call__" for name in ("ScriptFunction", "ScriptMethod")),
        *(f"torch.jit:{name}" for name in _OF_SCRIPTS.split()),
    ],
)
"""TorchScript."""
_OF_LAYOUTS = """
    to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc sparse_mask crow_indices
    col_indices ccol_indices row_indices indices values is_coalesced coalesce sparse_dim dense_dim
"""
_SPARSE_FACTORIES = """
    sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
    sparse_bsc_tensor _validate_sparse_coo_tensor_args _validate_sparse_compressed_tensor_args
    _convert_indices_from_coo_to_csr
"""
SPARSE = Layer(
    "values.sparse",
    "tensors.sparse_arrays",
    "ops.sparse",
    functions=[
        *(f"torch.{name}" for name in _SPARSE_FACTORIES.split()),
        *(f"torch.Tensor.{name}" for name in _OF_LAYOUTS.split()),
        *(f"aten::{name}" for name in f"{_OF_LAYOUTS} _convert_indices_from_coo_to_csr".split()),
        "torch.sparse.spdiags",
    ],
)
"""Sparse tensors and arrays."""
_OPTIM, _SCALER = "torch.optim.optimizer:", "torch.amp.grad_scaler:GradScaler."
_SCHEDULERS = ("LRScheduler", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau", "CosineAnnealingWarmRestarts")
TRAINING = Layer(
    "modules.training.stateful",
    "calls.optimizers",
    patched=[
        _OPTIM + "Optimizer._patch_step_function",
        _OPTIM + "_global_optimizer_pre_hooks",
        *(f"torch.optim.lr_scheduler:{name}.step" for name in _SCHEDULERS),
        "torch.optim.swa_utils:AveragedModel.update_parameters",
        *(_SCALER + name for name in ("__init__", "__setstate__", "_lazy_init_scale_growth_tracker")),
        *(_SCALER + name for name in ("_unscale_grads_", "update", "_maybe_opt_step")),
    ],
)
"""Functions that change modules and optimizers, as functions of a state."""
LAYERS = [
    BRIDGE,
    COMPILED,
    CONTROL,
    DISTRIBUTED,
    EXPORTING,
    GENERATION,
    JAGGED,
    QUANTIZED,
    SCRIPTED,
    SELECTIONS,
    SPARSE,
    TRAINING,
]
"""All of them."""
