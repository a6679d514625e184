"""Comparisons: bool results in the promoted type of the operands."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import rounded


def compare(op: Lowering, prim: str, left: Operand, right: Operand) -> Tensor:
    """A comparison after promotion."""
    dtype = op.promoted(left, right)
    return op.apply(prim, rounded(op, left, dtype), rounded(op, right, dtype))


def _register(prim: str) -> None:
    def function(op: Lowering, self: Tensor, other: Operand) -> Tensor:
        return compare(op, prim, self, other)

    decomposes(f"aten.{prim}.Tensor", f"aten.{prim}.Scalar")(function)


for _prim in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register(_prim)
