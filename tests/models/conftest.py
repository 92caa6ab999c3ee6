"""torchvision is imported by these tests, and by the libraries they use, beside a CPU build of PyTorch."""

from torch2jax.tools.models import define_vision_operators

define_vision_operators()
