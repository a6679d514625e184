"""PyTorch's type promotion: the element type in which mixed operands are computed.

Operands have three categories of decreasing priority: tensors with axes, tensors without axes, and
Python numbers. A lower category matters only if its kind (bool < integer < float) is higher.

Source: c10/core/ScalarType.h and aten/src/ATen/native/TypeProperties.cpp of PyTorch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

DEFAULT_FLOAT = DType.F32
"""The type of Python floats, and of integers where PyTorch needs a float (its default dtype)."""

DEFAULT_INTEGER = DType.I64
"""The type of Python integers."""


class Category(enum.Enum):
    """The priority of an operand's element type in promotion."""

    AXES = "tensor with axes"
    NO_AXES = "tensor without axes"
    NUMBER = "Python number"


_SIGNED = (DType.I8, DType.I16, DType.I32, DType.I64)
_FLOAT8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})


def promote(left: DType, right: DType) -> DType:
    """The smallest type for elements of both types, as `torch.promote_types` returns.

    Raises:
        InvalidGraphError: a float8 type with another type; PyTorch refuses that too.
    """
    if left is right:
        return left
    if left in _FLOAT8 or right in _FLOAT8:
        raise InvalidGraphError(
            f"{left!r} and {right!r} do not promote; expected an explicit conversion"
        )
    if left.is_float or right.is_float:
        return _promote_float(left, right)
    return _promote_integer(left, right)


def result_dtype(operands: Iterable[tuple[Category, DType]]) -> DType:
    """The element type in which operands of these categories and types are computed.

    Raises:
        InvalidGraphError: no operand, or a float8 type with another type.
    """
    found: dict[Category, DType] = {}
    for category, dtype in operands:
        held = found.get(category)
        found[category] = dtype if held is None else promote(held, dtype)
    numbers = found.get(Category.NUMBER)
    return _combine(
        found.get(Category.AXES), _combine_optional(found.get(Category.NO_AXES), numbers)
    )


def number_dtype(value: object) -> DType:
    """The type of a Python number; size expressions count as integers."""
    if isinstance(value, bool):
        return DType.BOOL
    return DEFAULT_FLOAT if isinstance(value, float) else DEFAULT_INTEGER


def float_dtype(dtype: DType) -> DType:
    """The result type of functions such as `sin`: floats stay, other types become f32."""
    return dtype if dtype.is_float else DEFAULT_FLOAT


def sum_dtype(dtype: DType) -> DType:
    """The result type of sums and products: floats stay, other types become i64."""
    return dtype if dtype.is_float else DEFAULT_INTEGER


def _promote_float(left: DType, right: DType) -> DType:
    if not right.is_float:
        return left
    if not left.is_float:
        return right
    if DType.F64 in (left, right):
        return DType.F64
    # f16 with bf16 gives f32, as does anything with f32.
    return DType.F32


def _promote_integer(left: DType, right: DType) -> DType:
    if left is DType.BOOL:
        return right
    if right is DType.BOOL:
        return left
    if DType.U8 in (left, right):
        other = right if left is DType.U8 else left
        return DType.I16 if other is DType.I8 else other
    return max(left, right, key=_SIGNED.index)


def _combine(higher: DType | None, lower: DType | None) -> DType:
    combined = _combine_optional(higher, lower)
    if combined is None:
        raise InvalidGraphError("an operator without operands; expected at least one tensor")
    return combined


def _combine_optional(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_float:
        return higher
    if higher is DType.BOOL or lower.is_float:
        return promote(higher, lower)
    return higher
