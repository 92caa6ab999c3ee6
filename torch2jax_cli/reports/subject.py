"""The model that a report is of."""

from typing import Any

from rich.filesize import decimal

from torch2jax.tools import Subject

__all__ = ["of_subject", "summary"]


def of_subject(subject: Subject) -> dict[str, Any]:
    """The model: its name, its inputs and the size of its parameters."""
    parameters = [] if subject.module is None else list(subject.module.parameters())
    return {
        "model": subject.name,
        "inputs": subject.describe_inputs(),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "note": subject.note or None,
    }


def summary(subject: Subject) -> str:
    """The inputs of a model, and the size of its parameters."""
    parts = [subject.describe_inputs()]
    if subject.module is not None:
        parameters = list(subject.module.parameters())
        size = decimal(sum(parameter.nbytes for parameter in parameters))
        parts.append(f"{sum(parameter.numel() for parameter in parameters):,} parameters ({size})")
    return " · ".join(parts)
