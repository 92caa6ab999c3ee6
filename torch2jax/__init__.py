"""Run PyTorch code in JAX."""

from . import ops as ops  # registers the rules
from .convert import j2t, t2j
from .errors import NoRuleError, TracedValueError
from .registry import implements, implements_tensors
from .promotion import Promotion

__all__ = ["NoRuleError", "Promotion", "TracedValueError", "implements", "implements_tensors", "j2t", "t2j"]
