"""The rules, one file for each family of PyTorch's documentation. Importing this package registers them.

What else acts on PyTorch's functions registers itself, too, and is imported here: the dispatch of a call knows none.
"""

import importlib.util

from ..autograd import engine as engine, forward_ad as forward_ad, function as function, hooks as hooks
from ..calls import (
    library_kernels as library_kernels,
    logical_dtypes as logical_dtypes,
    pytorch_errors as pytorch_errors,
    settings as settings,
)
from ..functional import func as func, vmap as vmap
from ..values import (
    at_once as at_once,
    known as known,
    pickled as pickled,
    python_functions as python_functions,
    sparse as sparse_values,  # noqa: F401
    valueless as valueless,
    wrapper_subclasses as wrapper_subclasses,
)
from . import (
    arithmetic as arithmetic,
    aten as aten,
    checkpoint as checkpoint,
    comparison as comparison,
    compiler as compiler,
    complex as complex,
    control_flow as control_flow,
    conversion as conversion,
    creation as creation,
    distributions as distributions,
    dlpack as dlpack,
    elementwise as elementwise,
    factorizations as factorizations,
    fft as fft,
    foreach as foreach,
    gradients as gradients,
    histogram as histogram,
    indexing as indexing,
    jagged as jagged,
    lengths as lengths,
    linalg as linalg,
    mutation as mutation,
    nn as nn,
    packed_products as packed_products,
    products as products,
    quantization as quantization,
    random as random,
    reduction as reduction,
    scaled_products as scaled_products,
    scan as scan,
    segments as segments,
    selection as selection,
    selection_composed as selection_composed,
    selection_diagonals as selection_diagonals,
    selection_dims as selection_dims,
    selection_indices as selection_indices,
    selection_order as selection_order,
    selection_padding as selection_padding,
    selection_products as selection_products,
    selection_runs as selection_runs,
    selection_statistics as selection_statistics,
    selection_subscripts as selection_subscripts,
    selection_views as selection_views,
    shape as shape,
    sorting as sorting,
    sparse as sparse,
    special as special,
    splits as splits,
    storages as storages,
    subscript as subscript,
    values as values,
    views as views,
)

if importlib.util.find_spec("torch.ao.quantization") is not None:  # which PyTorch means to leave to torchao
    from . import observers as observers
