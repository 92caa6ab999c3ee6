"""`make_tensor` of tests that run translated: PyTorch itself draws the values.

It is no part of what is tested, and eager JAX would compile a generator for every shape and range of a sample.
"""

import torch
import torch.testing
from torch.utils._pytree import tree_map_only

__all__ = ["install"]


def install() -> None:
    """Exchanges PyTorch's maker of samples, in this process; before anything imports it by its name."""
    original = torch.testing.make_tensor

    def make_tensor(*args, **kwargs) -> torch.Tensor:
        from torch2jax.runtime.translation import current

        call = current()
        if call is None or torch.device(kwargs.get("device") or torch.get_default_device()).type != "cpu":
            return original(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.item, (args, kwargs))  # sizes that a test has drawn
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.enable_grad():
            made = original(*args, **kwargs)
        try:
            return call.lift_own(made)
        except TypeError:  # a dtype that JAX lacks: an error where the test meets it
            return original(*args, **kwargs)

    torch.testing.make_tensor = torch.testing._creation.make_tensor = make_tensor
