"""The operators at the bottom of PyTorch's decompositions, and functions that are written in them."""

import torch
import torch._prims
import torch._refs

prims_module = torch._prims
"""The module that defines ``torch.ops.prims``: their overloads are among its names."""

torch_block_diag = torch._refs.block_diag
"""`torch.block_diag` in Python, of tensors one by one."""

torch_stft = torch._refs.stft
"""`torch.stft` in Python."""
