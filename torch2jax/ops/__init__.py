"""The rules, one file for each family of PyTorch's documentation. Importing this package registers them.

What else acts on PyTorch's functions registers itself, too, and is imported here: the dispatch of a call knows none.
"""

from ..calls import (
    library_kernels as library_kernels,
    logical_dtypes as logical_dtypes,
    pytorch_errors as pytorch_errors,
    settings as settings,
)
from ..transforms import (
    engine as engine,
    forward_ad as forward_ad,
    func as func,
    function as function,
    hooks as hooks,
    vmap as vmap,
)
from ..values import (
    at_once as at_once,
    known as known,
    pickled as pickled,
    python_functions as python_functions,
    valueless as valueless,
    wrapper_subclasses as wrapper_subclasses,
)
from . import (
    arithmetic as arithmetic,
    aten as aten,
    checkpoint as checkpoint,
    comparison as comparison,
    compiler as compiler,
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
    indexing as indexing,
    linalg as linalg,
    mutation as mutation,
    nn as nn,
    products as products,
    random as random,
    reduction as reduction,
    scan as scan,
    shape as shape,
    sorting as sorting,
    special as special,
    storages as storages,
    subscript as subscript,
    values as values,
    views as views,
)
