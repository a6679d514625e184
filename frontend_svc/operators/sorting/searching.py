"""Binary search in sorted boundaries; membership in few elements, by comparison."""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor, number_of
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr

MAX_COMPARED = 256
"""The largest number of elements that each element is compared with."""

_MOST_STEPS = 40
"""Steps of a search in rows of symbolic length: enough for 2**40 elements."""


@decomposes("aten.bucketize.Tensor")
def bucketize(
    builder: PrimsBuilder,
    self: Tensor,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """The number of boundaries below each element, or not above it if `right`."""
    if boundaries.rank != 1:
        raise InvalidGraphError(f"boundaries {text_of(boundaries.shape)}; expected a vector")
    dtype = DType.I32 if out_int32 else DType.I64
    return insertion_positions(builder, boundaries, self, is_right=right, dtype=dtype)


@decomposes("aten.searchsorted.Tensor")
def searchsorted(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The positions at which elements belong in sorted rows."""
    if not sorted_sequence.rank:
        raise InvalidGraphError("a sequence without axes; expected one or more")
    rows = sorted_sequence if sorter is None else _sorted_by(builder, sorted_sequence, sorter)
    if rows.rank > 1 and not builder.extents.is_same_shape(rows.shape[:-1], self.shape[:-1]):
        raise InvalidGraphError(f"rows {text_of(rows.shape)} of {text_of(self.shape)}")
    dtype = DType.I32 if out_int32 else DType.I64
    return insertion_positions(builder, rows, self, is_right=right or side == "right", dtype=dtype)


@decomposes("aten.searchsorted.Scalar")
def searchsorted_scalar(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    sorted_sequence: Tensor,
    self: Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The position at which a number belongs in a sorted vector."""
    if sorted_sequence.rank != 1 or isinstance(self, Expr):
        raise NotDecomposedError("a search for a number in several rows, or for a symbolic size")
    # PyTorch converts the number to the type of the sequence.
    value = builder.full(self, sorted_sequence.dtype)
    return searchsorted(
        builder, sorted_sequence, value, out_int32=out_int32, right=right, side=side, sorter=sorter
    )


@decomposes("aten.isin.Tensor_Tensor", note="extern for many elements to test")
def isin(
    builder: PrimsBuilder,
    elements: Tensor,
    test_elements: Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is in a tensor."""
    _expect_few(numel_of(test_elements.shape))
    found = builder.reduce("any", _equal(builder, elements, test_elements), (elements.rank,))
    return builder.prim("logical_not", found) if invert else found


def _equal(builder: PrimsBuilder, elements: Tensor, tests: Tensor) -> Tensor:
    dtype = builder.promoted(elements, tests).compute_dtype
    column = builder.reshape(builder.convert(elements, dtype), (*elements.shape, ONE))
    row = builder.reshape(builder.convert(tests, dtype), (numel_of(tests.shape),))
    return builder.apply("eq", column, row)


@decomposes("aten.isin.Tensor_Scalar")
def isin_scalar(
    builder: PrimsBuilder,
    elements: Tensor,
    test_element: Number,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is equal to a number."""
    tests = builder.full(test_element, builder.promoted(elements, test_element))
    return isin(builder, elements, tests, invert=invert)


@decomposes("aten.isin.Scalar_Tensor", note="extern for many elements to test")
def scalar_isin(
    builder: PrimsBuilder,
    element: Number,
    test_elements: Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether a number is in a tensor."""
    return isin(
        builder,
        builder.full(element, builder.promoted(element, test_elements)),
        test_elements,
        invert=invert,
    )


@decomposes("aten.bucketize.Scalar")
def bucketize_scalar(
    builder: PrimsBuilder,
    self: Number,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Tensor:
    """The number of boundaries below a number, or not above it if `right`."""
    value = builder.full(self, builder.promoted(self, boundaries))
    return bucketize(builder, value, boundaries, out_int32=out_int32, right=right)


def _sorted_by(builder: PrimsBuilder, sequence: Tensor, sorter: Tensor) -> Tensor:
    if sorter.dtype is not DType.I64 or not builder.extents.is_same_shape(
        sorter.shape, sequence.shape
    ):
        raise InvalidGraphError(
            f"a sorter of {sorter.dtype!r} {text_of(sorter.shape)};"
            f" expected i64 {text_of(sequence.shape)}"
        )
    return builder.prim("gather_along", sequence, sorter, dim=sequence.rank - 1)


def insertion_positions(
    builder: PrimsBuilder, rows: Tensor, values: Tensor, *, is_right: bool, dtype: DType
) -> Tensor:
    """The positions at which values belong in sorted rows, by PyTorch's binary search.

    Each step reads the element that PyTorch reads, so that the results are equal even for rows that
    are not sorted or contain NaN.

    Shapes: rows: (n,) for values of any shape, or (..., n) for values (..., m); result as values.
    """
    compute = builder.promoted(rows, values).compute_dtype
    shape, extent = values.shape, rows.shape[-1]
    if extent == 0:
        return builder.full(0, dtype, shape)
    table, sought = builder.convert(rows, compute), builder.convert(values, compute)
    if rows.rank > 1:
        lead = numel_of(rows.shape[:-1])
        table, sought = (builder.reshape(x, (lead, x.shape[-1])) for x in (table, sought))
    low = builder.full(0, DType.I64, sought.shape)
    high = builder.full(number_of(extent), DType.I64, sought.shape)
    for _ in range(extent.constant.bit_length() if extent.is_constant else _MOST_STEPS):
        middle = builder.apply("floor_div", builder.apply("add", low, high), 2)
        inside = builder.apply("minimum", middle, number_of(extent - 1))
        reads = "gather_along" if rows.rank > 1 else "take"
        found = builder.prim(reads, table, inside, dim=table.rank - 1)
        is_beyond = builder.apply("gt" if is_right else "ge", found, sought)
        is_open = builder.apply("lt", low, high)
        lowered = builder.apply("logical_and", is_open, is_beyond)
        raised = builder.apply("logical_and", is_open, builder.prim("logical_not", is_beyond))
        high = builder.where(lowered, middle, high)
        low = builder.where(raised, builder.apply("add", middle, 1), low)
    return builder.convert(builder.reshape(low, shape), dtype)


def _expect_few(count: Expr) -> None:
    if count.is_constant and count.constant > MAX_COMPARED:
        raise NotDecomposedError(
            f"{count} elements to compare with; at most {MAX_COMPARED} decompose"
        )
