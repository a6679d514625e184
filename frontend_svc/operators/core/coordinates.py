"""Coordinates of elements, as tensors."""

from __future__ import annotations

from frontend_svc.operators.core.extents import Shape
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor


def numbers_along(builder: PrimsBuilder, shape: Shape, axis: int) -> Tensor:
    """For each element of a shape its place on one axis; i64."""
    line = builder.iota(shape[axis])
    return builder.prim("broadcast_in_dim", line, dims=(axis,), shape=shape)
