"""PyTorch's recorders of operators, such as `make_fx`, which do not see JAX's transformations."""

from ..internals.modes import TorchDispatchModeKey, get_dispatch_mode

__all__ = ["expect_unrecorded"]

_KEY = TorchDispatchModeKey.PROXY


def expect_unrecorded(what: str) -> None:
    """Refuses what a recorder would take the result of for a constant.

    Raises:
        NotImplementedError: one is at work.
    """
    if get_dispatch_mode(_KEY) is not None:
        raise NotImplementedError(
            f"got {what} within make_fx, which would record its result as a constant; wanted operators alone. Call "
            "make_fx in PyTorch, outside of the translated call, and translate the module that it gives"
        )
