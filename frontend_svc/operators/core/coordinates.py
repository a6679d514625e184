"""Coordinates of elements, as tensors."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor


def numbers_along(builder: PrimsBuilder, shape: Shape, axis: int) -> Tensor:
    """The coordinate of each element of a shape on one axis; i64."""
    positions = builder.iota(shape[axis])
    return builder.prim("broadcast_in_dim", positions, dims=(axis,), shape=shape)
