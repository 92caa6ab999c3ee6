"""`torch.ao.quantization`."""

from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

__all__ = ["LearnableFakeQuantize"]

LearnableFakeQuantize = _LearnableFakeQuantize
"""The module whose scale and zero point are parameters."""
