"""Conversions between element types: floats truncate to integers, bools are `x != 0`."""

from __future__ import annotations

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


@decomposes("aten._to_copy.default")
def to_copy(builder: PrimsBuilder, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The elements in another type."""
    return builder.program_cast(self, dtype or self.dtype)


@decomposes("prims.convert_element_type.default")
def convert_element_type(builder: PrimsBuilder, a: Tensor, dtype: DType) -> Tensor:
    """The elements in another type."""
    return builder.program_cast(a, dtype)


@decomposes("aten.to.dtype")
def to_dtype(
    builder: PrimsBuilder,
    self: Tensor,
    dtype: DType,
    non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:
    """The elements in another type."""
    return builder.program_cast(self, dtype)


@decomposes("aten.copy.default")
def copy(builder: PrimsBuilder, self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """The source's elements in the first operand's type and shape."""
    if src.rank > self.rank:
        raise InvalidGraphError(f"a source {text_of(src.shape)} for {text_of(self.shape)}")
    return builder.expand(builder.program_cast(src, self.dtype), self.shape)
