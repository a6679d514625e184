"""Type promotion equals PyTorch's for every pair of operands."""

from __future__ import annotations

import itertools

import pytest
import torch

from frontend_svc.operators.core.promotion import (
    Category,
    number_dtype,
    promote,
    result_dtype,
)
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
NUMBERS = (True, 3, 2.5)

Operand = torch.Tensor | bool | int | float


def operands() -> list[Operand]:
    """A tensor with axes and one without axes of every type, and a number of every kind."""
    with_axes = [torch.ones(2, dtype=dtype) for dtype in TYPES]
    without_axes = [torch.ones((), dtype=dtype) for dtype in TYPES]
    return [*with_axes, *without_axes, *NUMBERS]


def categorized(operand: Operand) -> tuple[Category, DType]:
    if not isinstance(operand, torch.Tensor):
        return Category.NUMBER, number_dtype(operand)
    category = Category.AXES if operand.dim() else Category.NO_AXES
    return category, dtype_from_torch(operand.dtype)


def test_two_operands_promote_as_result_type_says() -> None:
    for left, right in itertools.product(operands(), repeat=2):
        if not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor):
            continue
        expected = dtype_from_torch(torch.result_type(left, right))
        got = result_dtype([categorized(left), categorized(right)])
        assert got is expected, f"{left!r} with {right!r}: {got}, PyTorch says {expected}"


def test_types_alone_promote_as_promote_types_says() -> None:
    for left, right in itertools.product(TYPES, repeat=2):
        expected = dtype_from_torch(torch.promote_types(left, right))
        assert promote(dtype_from_torch(left), dtype_from_torch(right)) is expected


def test_three_operands_promote_as_torch_where_and_addcmul_do() -> None:
    kinds = [torch.ones(shape, dtype=dtype) for shape in ((2,), ()) for dtype in TYPES[::2]]
    for a, b, c in itertools.product(kinds, repeat=3):
        if torch.bool in (a.dtype, b.dtype, c.dtype):
            continue
        expected = dtype_from_torch(torch.addcmul(a, b, c).dtype)
        assert result_dtype([categorized(a), categorized(b), categorized(c)]) is expected


def test_float8_promotes_with_nothing_but_itself() -> None:
    assert promote(DType.F8E5M2, DType.F8E5M2) is DType.F8E5M2
    with pytest.raises(InvalidGraphError, match="explicit conversion"):
        promote(DType.F8E5M2, DType.F32)
