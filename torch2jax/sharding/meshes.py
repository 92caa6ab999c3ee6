"""Meshes of named axes, and the number of devices along an axis."""

import math
from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from ..tensors.traced import is_traced

__all__ = ["Axes", "expect_axes", "names_of", "resolve", "size_of"]

Axes = str | tuple[str, ...] | None
"""One or several axes of a mesh, or none."""


def resolve(mesh: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
    """The mesh, or the one in force.

    Raises:
        ValueError: there is none.
    """
    if mesh is not None:
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        raise ValueError("no mesh was given, and none is in force: pass mesh=, or enter `with jax.set_mesh(mesh):`")
    if is_traced(jax.lax.full((), 0)):  # which devices they are, a trace does not tell
        return abstract
    concrete = jax.sharding.get_mesh()
    return abstract if concrete.empty else concrete


def names_of(axes: Axes) -> tuple[str, ...]:
    """The names of axes, also of one or none."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def expect_axes(mesh: Mesh | AbstractMesh, **axes: Axes) -> None:
    """Refuses axes, by what they are for, that cannot all be used.

    Raises:
        ValueError: the mesh has no such axis, or one is given twice.
    """
    given = [name for each in axes.values() for name in names_of(each)]
    for name in given:
        if name not in mesh.axis_names:
            raise ValueError(f"got the axis {name!r}; the mesh has {', '.join(map(repr, mesh.axis_names))}")
        if given.count(name) > 1:
            listed = ", ".join(f"{purpose}={each!r}" for purpose, each in axes.items())
            raise ValueError(f"got {listed}; wanted different axes")


def size_of(mesh: Any, axes: Iterable[str]) -> int:
    """The number of devices along some axes."""
    return math.prod(mesh.shape[axis] for axis in axes)
