"""``torch.export.export`` in translated code."""

import torch

from ..calls.call import current
from ..modules.skeleton import copy_structure
from ..patches import runs_instead_of
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..values.valueless import StandIns, natively


@runs_instead_of(torch.export.export, with_original=True)
def _export(original, mod, args, kwargs=None, **options):
    """PyTorch exports by shapes alone, outside of the call; in the program are the call's tensors."""
    stand_ins, memo = StandIns(), {}
    for part in mod.modules() if isinstance(mod, torch.nn.Module) else ():
        members = (*part._parameters.values(), *part._buffers.values(), *vars(part).values())
        memo.update({id(x): stand_ins.tensor(x) for x in flatten(members)[0] if isinstance(x, Torchish)})
    given = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Torchish)]
    args, kwargs = stand_ins.of((args, kwargs))
    shapes = options.get("dynamic_shapes")
    if isinstance(shapes, torch.export.ShapesCollection):  # it knows tensors by their ids
        options["dynamic_shapes"] = renamed = torch.export.ShapesCollection()
        ids = {id(tensor): id(stand_ins.tensor(tensor)) for tensor in given}
        renamed._shapes = {ids.get(key, key): shape for key, shape in shapes._shapes.items()}
    with natively(current()):
        program = original(copy_structure(mod, memo) if memo else mod, args, kwargs, **options)
    for name in ("_state_dict", "_constants", "_example_inputs"):
        setattr(program, name, stand_ins.undone(getattr(program, name)))
    return program
