"""Run PyTorch code in JAX."""

from . import ops as ops  # registers the rules
from .convert import j2t, t2j
from .errors import NoRuleError, TracedValueError
from .promotion import Promotion
from .registry import implements, implements_tensors

__all__ = ["NoRuleError", "Promotion", "TracedValueError", "implements", "implements_tensors", "j2t", "t2j"]
