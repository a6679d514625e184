"""Comparisons in the promoted type of the operands; the results are bools."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import rounded


def compare(builder: PrimsBuilder, self: Tensor, other: Operand, *, prim: str) -> Tensor:
    """A comparison after promotion."""
    dtype = builder.promoted(self, other)
    return builder.apply(prim, rounded(builder, self, dtype), rounded(builder, other, dtype))


for _prim in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposes(f"aten.{_prim}.Tensor", f"aten.{_prim}.Scalar", fixed={"prim": _prim})(compare)
