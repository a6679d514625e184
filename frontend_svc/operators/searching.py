"""Places in sorted boundaries, and membership: by counting, where there are few to compare with."""

from __future__ import annotations

from frontend_svc.operators.extents import numel_of, text_of
from frontend_svc.operators.lowering import Lowering
from frontend_svc.operators.registry import NotDecomposedError, decomposes
from frontend_svc.operators.values import Number, Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.symbolic import ONE, Expr

MOST_COMPARED = 256
"""Elements that each element is compared with; a search by halves reads less of more."""


@decomposes("aten.bucketize.Tensor", note="extern for many boundaries")
def bucketize(
    op: Lowering,
    self: Tensor,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """How many boundaries are below each element, or not above it if `right`."""
    if boundaries.rank != 1:
        raise InvalidGraphError(f"boundaries {text_of(boundaries.shape)}; expected a vector")
    _expect_few(boundaries.shape[0])
    column = op.reshape(self, (*self.shape, ONE))
    return _counted(op, boundaries, column, right, DType.I32 if out_int32 else DType.I64)


@decomposes("aten.searchsorted.Tensor", note="extern for long sequences, and with a sorter")
def searchsorted(  # noqa: PLR0913  # the operator's own parameters
    op: Lowering,
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The places where elements belong in sorted rows."""
    if sorter is not None:
        raise NotDecomposedError("a sequence that is sorted by another")
    if not sorted_sequence.rank:
        raise InvalidGraphError("a sequence without axes; expected one or more")
    _expect_few(sorted_sequence.shape[-1])
    column = op.reshape(self, (*self.shape, ONE))
    rows = sorted_sequence
    if rows.rank > 1:
        if not op.extents.is_same_shape(rows.shape[:-1], self.shape[:-1]):
            raise InvalidGraphError(f"rows {text_of(rows.shape)} of {text_of(self.shape)}")
        rows = op.reshape(rows, (*rows.shape[:-1], ONE, rows.shape[-1]))
    is_right = right or side == "right"
    return _counted(op, rows, column, is_right, DType.I32 if out_int32 else DType.I64)


@decomposes("aten.searchsorted.Scalar", note="extern for long sequences, and with a sorter")
def searchsorted_scalar(  # noqa: PLR0913  # the operator's own parameters
    op: Lowering,
    sorted_sequence: Tensor,
    self: Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The place where a number belongs in a sorted vector."""
    if sorted_sequence.rank != 1 or isinstance(self, Expr):
        raise NotDecomposedError("a number in rows, or a symbolic size")
    # PyTorch makes the number a tensor of the sequence's type.
    value = op.full(self, sorted_sequence.dtype)
    return searchsorted(
        op, sorted_sequence, value, out_int32=out_int32, right=right, side=side, sorter=sorter
    )


@decomposes("aten.isin.Tensor_Tensor", note="extern for many elements to test")
def isin(
    op: Lowering,
    elements: Tensor,
    test_elements: Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is one of others."""
    _expect_few(numel_of(test_elements.shape))
    found = op.reduce("any", _equal(op, elements, test_elements), (elements.rank,))
    return op.prim("logical_not", found) if invert else found


def _equal(op: Lowering, elements: Tensor, tests: Tensor) -> Tensor:
    dtype = op.promoted(elements, tests).compute_dtype
    column = op.reshape(op.convert(elements, dtype), (*elements.shape, ONE))
    row = op.reshape(op.convert(tests, dtype), (numel_of(tests.shape),))
    return op.apply("eq", column, row)


def _counted(op: Lowering, row: Tensor, column: Tensor, is_right: bool, dtype: DType) -> Tensor:
    # As PyTorch's search: what is not on the far side is passed, so NaN belongs at the end.
    compute = op.promoted(row, column).compute_dtype
    left: Operand = op.convert(row, compute)
    is_beyond = op.apply("gt" if is_right else "ge", left, op.convert(column, compute))
    passed = op.convert(op.prim("logical_not", is_beyond), DType.I64)
    return op.convert(op.reduce("sum", passed, (passed.rank - 1,)), dtype)


def _expect_few(count: Expr) -> None:
    if count.is_constant and count.constant > MOST_COMPARED:
        raise NotDecomposedError(f"{count} elements to compare with; up to {MOST_COMPARED} are")
