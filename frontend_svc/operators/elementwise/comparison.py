"""Comparisons: bool results in the promoted type of the operands."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import rounded


def compare(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    """A comparison after promotion."""
    dtype = builder.promoted(left, right)
    return builder.apply(prim, rounded(builder, left, dtype), rounded(builder, right, dtype))


def _register(prim: str) -> None:
    def function(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
        return compare(builder, prim, self, other)

    decomposes(f"aten.{prim}.Tensor", f"aten.{prim}.Scalar")(function)


for _prim in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register(_prim)
