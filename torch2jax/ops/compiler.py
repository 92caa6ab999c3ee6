"""PyTorch's compilers and profilers in translated code: ``torch.compile``, ``torch.export``, ``torch.profiler``."""

import jax
import torch
from torch.autograd import profiler

from ..modules.skeleton import copy_structure
from ..runtime.patches import replaces, runs_instead_of
from ..runtime.translation import current
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..values.valueless import Placeholders, natively


@replaces(torch, "compile")
def compile(model=None, **options):
    return (lambda model: model) if model is None else model


@replaces("torch._dynamo.eval_frame", "_callback_from_stance")
def _callback_from_stance(callback):
    del callback  # as with torch.compiler.set_stance("force_eager")


@replaces("torch._dynamo.eval_frame", "set_fullgraph_compiled_frame_count", may_lack=True)
def _count_frames(count):
    # With fullgraph=True, PyTorch would miss the frames that it compiled; it does not count below others. 2.11 does not
    # count at all.
    return 0


@runs_instead_of(torch.export.export, with_original=True)
def _export(original, mod, args, kwargs=None, **options):
    """Exports in PyTorch, by shapes alone and outside of the call; the program has the call's tensors."""
    placeholders, memo = Placeholders(), {}
    for part in mod.modules() if isinstance(mod, torch.nn.Module) else ():
        members = (*part._parameters.values(), *part._buffers.values(), *vars(part).values())
        memo.update({id(x): placeholders.tensor(x) for x in flatten(members)[0] if isinstance(x, Torchish)})
    given = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Torchish)]
    args, kwargs = placeholders.of((args, kwargs))
    shapes = options.get("dynamic_shapes")
    if isinstance(shapes, torch.export.ShapesCollection):  # it knows tensors by their ids
        options["dynamic_shapes"] = renamed = torch.export.ShapesCollection()
        ids = {id(tensor): id(placeholders.tensor(tensor)) for tensor in given}
        renamed._shapes = {ids.get(key, key): shape for key, shape in shapes._shapes.items()}
    with natively(current()):
        program = original(copy_structure(mod, memo) if memo else mod, args, kwargs, **options)
    for name in ("_state_dict", "_constants", "_example_inputs"):
        setattr(program, name, placeholders.undone(getattr(program, name)))
    return program


@replaces(profiler.record_function, "__enter__")
def _enter(self):
    self._scope = jax.named_scope(self.name)
    self._scope.__enter__()
    return self


@replaces(profiler.record_function, "__exit__")
def _exit(self, exc_type, exc_value, traceback):
    self._scope.__exit__(exc_type, exc_value, traceback)
