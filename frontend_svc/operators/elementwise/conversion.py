"""Conversions between element types: floats to integers truncate, anything to bool is `!= 0`."""

from __future__ import annotations

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


@decomposes("aten._to_copy.default")
def to_copy(op: Lowering, self: Tensor, *, dtype: DType | None = None) -> Tensor:
    """The elements in another type."""
    return op.convert(self, dtype or self.dtype)


@decomposes("prims.convert_element_type.default")
def convert_element_type(op: Lowering, a: Tensor, dtype: DType) -> Tensor:
    """The elements in another type."""
    return op.convert(a, dtype)


@decomposes("aten.to.dtype")
def to_dtype(
    op: Lowering, self: Tensor, dtype: DType, non_blocking: bool = False, copy: bool = False
) -> Tensor:
    """The elements in another type."""
    return op.convert(self, dtype)


@decomposes("aten.copy.default")
def copy(op: Lowering, self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """The source's elements in the first operand's type and shape."""
    if src.rank > self.rank:
        raise InvalidGraphError(f"a source {text_of(src.shape)} for {text_of(self.shape)}")
    return op.expand(op.convert(src, self.dtype), self.shape)
