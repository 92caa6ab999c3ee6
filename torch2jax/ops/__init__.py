"""The rules, one file for each family of PyTorch's documentation. Importing this package registers them."""

import importlib.util

from ..rules.tables import PROVIDED
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
    dirichlet as dirichlet,
    distributions as distributions,
    dlpack as dlpack,
    elementwise as elementwise,
    exporting as exporting,
    fft as fft,
    foreach as foreach,
    gradients as gradients,
    histogram as histogram,
    indexing as indexing,
    ldl as ldl,
    linalg as linalg,
    matrix_roots as matrix_roots,
    metadata as metadata,
    mutation as mutation,
    nn as nn,
    optimizers as optimizers,
    prims as prims,
    products as products,
    profiler as profiler,
    quantization as quantization,
    random as random,
    reduction as reduction,
    scaled_products as scaled_products,
    scan as scan,
    segments as segments,
    selection as selection,
    selection_order as selection_order,
    selection_places as selection_places,
    selection_statistics as selection_statistics,
    shape as shape,
    sobol as sobol,
    sorting as sorting,
    sparse as sparse,
    special as special,
    splits as splits,
    stft as stft,
    storages as storages,
    subclasses as subclasses,
    subscript as subscript,
    values as values,
    view_copies as view_copies,
    views as views,
)

if importlib.util.find_spec("torch.ao.quantization") is not None:  # which PyTorch means to leave to torchao
    from . import observers as observers

PROVIDED.are_pytorchs = False  # what is declared from here on is the user's, and may be anything
