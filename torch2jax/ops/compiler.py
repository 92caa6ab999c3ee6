"""``torch.compile`` in translated code, where JAX compiles: what was compiled runs as it was written."""

import torch

from ..patches import stands_in


@stands_in(torch, "compile")
def compile(model=None, **options):
    return (lambda model: model) if model is None else model


@stands_in("torch._dynamo.eval_frame", "_callback_from_stance")
def _callback_from_stance(callback):
    del callback  # as with torch.compiler.set_stance("force_eager")


@stands_in("torch._dynamo.eval_frame", "set_fullgraph_compiled_frame_count", may_lack=True)
def _count_frames(count):
    # With fullgraph=True, PyTorch would miss the frames that it compiled; it does not count below others. 2.11 does not
    # count at all.
    return 0
