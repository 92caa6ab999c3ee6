"""``torch.export.export`` in translated code."""

import torch

from ..calls.module import copy_structure
from ..calls.native import StandIns, natively
from ..seams import runs_instead_of
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from ..translation import current


@runs_instead_of(torch.export.export, with_original=True)
def _export(original, mod, args, kwargs=None, **options):
    """PyTorch exports by shapes alone, outside of the call; in the program are the call's tensors."""
    stand_ins, memo = StandIns(), {}
    for part in mod.modules() if isinstance(mod, torch.nn.Module) else ():
        held = (*part._parameters.values(), *part._buffers.values(), *vars(part).values())
        memo.update({id(x): stand_ins.tensor(x) for x in flatten(held)[0] if isinstance(x, Torchish)})
    args, kwargs = stand_ins.of((args, kwargs))
    with natively(current()):
        program = original(copy_structure(mod, memo) if memo else mod, args, kwargs, **options)
    for name in ("_state_dict", "_constants", "_example_inputs"):
        setattr(program, name, stand_ins.undone(getattr(program, name)))
    return program
