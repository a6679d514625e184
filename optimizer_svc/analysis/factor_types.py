"""Which elements the factors of products may have, by the facts of a target."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import ALL_FACTORS, WIDE_FACTORS
from kernelfarm.targets import TargetFacts


def factor_types(target: TargetFacts) -> tuple[DType, ...]:
    """The element types that a target multiplies in tiles."""
    if not target.has_matrix_units:
        return WIDE_FACTORS
    return tuple(dtype for dtype in ALL_FACTORS if target.multiplies(dtype.value))
