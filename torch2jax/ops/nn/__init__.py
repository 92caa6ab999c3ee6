"""Rules of ``torch.nn.functional``."""

from . import (
    activation as activation,
    attention as attention,
    convolution as convolution,
    detection as detection,
    detectors as detectors,
    dropout as dropout,
    embedding as embedding,
    flex_attention as flex_attention,
    linear as linear,
    loss as loss,
    normalization as normalization,
    pooling as pooling,
    recurrent as recurrent,
    vision as vision,
)
