"""Operands of decompositions: tensors of the Prims graph under construction, and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import TensorType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor value of the Prims graph under construction."""

    id: int
    type: TensorType

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents, outermost first."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.type.shape)


Number = Union[bool, int, float, Expr]
"""A Python number, or a size expression."""

Operand = Union[Tensor, bool, int, float, Expr]
"""A tensor or a number."""


def number_of(size: Expr) -> Number:
    """A size as an operand of arithmetic."""
    return size.constant if size.is_constant else size
