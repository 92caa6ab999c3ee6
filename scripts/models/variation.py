"""Values for parameters that a model begins with at a constant, so that gradients and results tell something."""

import torch

__all__ = ["vary"]

_SCALE = 0.1


def vary(model: torch.nn.Module) -> None:
    """Moves by small random numbers, always the same, what begins with all elements equal.

    These are the parameters of norms, gates, routers and layers that begin as zeros: behind a zero nothing has a
    gradient, and routers tie. Running statistics move as well.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return _SCALE * torch.randn(tensor.shape, generator=generator).to(tensor)

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
                parameter += noise(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += noise(buffer)
            elif name.endswith("running_var"):
                buffer *= 1 + noise(buffer).abs()
