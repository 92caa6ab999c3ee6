"""PyTorch's compiler. Slow to import, which also notes PyTorch's makers of tensors, as they are then."""

import torch._dynamo
from torch._dynamo import exc

disable = torch._dynamo.disable
"""A function that the compiler leaves alone."""

UncapturedHigherOrderOpError = exc.UncapturedHigherOrderOpError
"""The error for a function that an operator of control flow cannot take."""
