"""Segments of an axis: segment numbers, repeated elements, indices of triangles, reductions.

Segments follow each other without gaps. The segment of each element is a running sum of marks at
the ends of segments.
"""

from __future__ import annotations

from frontend_svc.operators.core.extents import axis_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr

MAX_SEGMENTS = 256
"""The largest number of segments that each element is compared with."""

_PRIMS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}
_NEUTRAL = {"sum": 0.0, "amax": float("-inf"), "amin": float("inf"), "prod": 1.0}
_COMBINING = {"sum": "add", "amax": "maximum", "amin": "minimum", "prod": "mul"}


def segment_numbers(builder: PrimsBuilder, ends: Tensor, total: Expr) -> Tensor:
    """The number of the segment of each of `total` elements, from the ends of the segments.

    Shapes: ends: (segments,), i64, rising, at most `total`; result: (total,), i64.
    """
    ones = builder.full(1, DType.I64, ends.shape)
    zeros = builder.full(0, DType.I64, (total + 1,))
    marks = builder.scatter(zeros, ((0,), [ends]), ones, "add")
    return builder.slice_axis(builder.prim("cumsum", marks, dim=0), 0, ZERO, total)


@decomposes("aten.repeat_interleave.Tensor", note="extern without a stated output size")
def repeat_interleave(
    builder: PrimsBuilder, repeats: Tensor, *, output_size: Expr | None = None
) -> Tensor:
    """Each position, repeated as often as a vector states."""
    if repeats.rank != 1 or repeats.dtype not in (DType.I32, DType.I64):
        raise InvalidGraphError(f"repeats {text_of(repeats.shape)}; expected a vector of integers")
    if output_size is None:
        raise NotDecomposedError("repeats whose sum is not stated: the result's size is data")
    ends = builder.prim("cumsum", builder.convert(repeats, DType.I64), dim=0)
    return builder.convert(segment_numbers(builder, ends, output_size), repeats.dtype)


@decomposes("aten.tril_indices.default")
def tril_indices(
    builder: PrimsBuilder, row: int, col: int, offset: int = 0, *, dtype: DType = DType.I64
) -> Tensor:
    """The rows and columns of the elements up to a diagonal."""
    lengths = _clamped(builder, builder.apply("add", _rows(builder, row, col), offset + 1), col)
    return _triangle(builder, lengths, None, dtype)


@decomposes("aten.triu_indices.default")
def triu_indices(
    builder: PrimsBuilder, row: int, col: int, offset: int = 0, *, dtype: DType = DType.I64
) -> Tensor:
    """The rows and columns of the elements from a diagonal on."""
    firsts = _clamped(builder, builder.apply("add", _rows(builder, row, col), offset), col)
    return _triangle(builder, builder.apply("sub", col, firsts), firsts, dtype)


def _rows(builder: PrimsBuilder, row: int, col: int) -> Tensor:
    if row < 0 or col < 0:
        raise InvalidGraphError(f"a matrix of {row} by {col}; expected extents of 0 or more")
    return builder.iota(as_expr(row))


def _clamped(builder: PrimsBuilder, x: Tensor, most: int) -> Tensor:
    return builder.apply("minimum", builder.apply("maximum", x, 0), most)


def _triangle(
    builder: PrimsBuilder, lengths: Tensor, firsts: Tensor | None, dtype: DType
) -> Tensor:
    """Indices of rows of given lengths, from their first columns on; as many as are stated."""
    (stated,) = builder.stated
    if stated.rank != 2:
        raise InvalidGraphError(f"a result {text_of(stated.shape)}; expected two axes")
    total = stated.shape[1]
    ends = builder.prim("cumsum", lengths, dim=0)
    row = segment_numbers(builder, ends, total)
    first = builder.apply("sub", ends, lengths)
    if firsts is not None:
        first = builder.apply("sub", first, firsts)
    if lengths.shape[0] is ZERO or total is ZERO:
        return builder.full(0, dtype, (as_expr(2), total))
    column = builder.apply("sub", builder.iota(total), builder.prim("take", first, row, dim=0))
    parts = (builder.reshape(x, (ONE, total)) for x in (row, column))
    return builder.convert(builder.prim("cat", *parts, dim=0), dtype)


@decomposes("aten.segment_reduce.default", note="extern for many segments")
def segment_reduce(  # noqa: PLR0913  # the operator's own parameters
    builder: PrimsBuilder,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Segments of an axis reduced, each from the initial value."""
    if reduce not in _PRIMS:
        raise InvalidGraphError(f"reduce={reduce[:40]!r}; expected {', '.join(_PRIMS)}")
    along = axis_of(axis, data.rank)
    starts, ends = _bounds(builder, data, along, lengths, offsets)
    segments = starts.shape[-1]
    if segments.is_constant and segments.constant > MAX_SEGMENTS:
        raise NotDecomposedError(f"{segments} segments; at most {MAX_SEGMENTS} decompose")
    is_inside = _membership(builder, data.shape[along], starts, ends)
    lead, rest = data.shape[:along], data.shape[along + 1 :]
    behind = (ONE,) * len(rest)
    wide = builder.reshape(builder.widened(data), (*lead, ONE, *data.shape[along:]))
    prim = _PRIMS[reduce]
    mask = builder.reshape(is_inside, (*is_inside.shape, *behind))
    found = builder.reduce(prim, builder.where(mask, wide, _NEUTRAL[prim]), (along + 1,))
    if initial is not None:
        found = builder.apply(_COMBINING[prim], found, initial)
    if reduce == "mean":
        counts = builder.convert(builder.apply("sub", ends, starts), found.dtype)
        counts = builder.reshape(counts, (*counts.shape, *behind))
        is_empty = builder.apply("eq", counts, 0.0)
        empty: Operand = float("nan") if initial is None else found
        found = builder.where(is_empty, empty, builder.apply("div", found, counts))
    return builder.convert(found, data.dtype)


def _bounds(
    builder: PrimsBuilder, data: Tensor, axis: int, lengths: Tensor | None, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The begins and ends of segments: both (axes before, segments), i64."""
    given = lengths if lengths is not None else offsets
    if given is None or (lengths is not None and offsets is not None):
        raise InvalidGraphError("lengths and offsets; expected exactly one of them")
    if given.dtype not in (DType.I32, DType.I64) or given.rank != axis + 1:
        raise InvalidGraphError(
            f"segments {text_of(given.shape)} of axis {axis}; expected integers"
        )
    if not builder.extents.is_same_shape(given.shape[:-1], data.shape[:axis]):
        raise InvalidGraphError(f"segments {text_of(given.shape)} of {text_of(data.shape)}")
    whole = builder.convert(given, DType.I64)
    if lengths is not None:
        ends = builder.prim("cumsum", whole, dim=axis)
        return builder.apply("sub", ends, whole), ends
    count = whole.shape[-1] - 1
    if builder.extents.is_negative(count):
        raise InvalidGraphError("no offsets; expected at least one")
    starts = builder.slice_axis(whole, axis, ZERO, count)
    return starts, builder.slice_axis(whole, axis, ONE, whole.shape[-1])


def _membership(builder: PrimsBuilder, extent: Expr, starts: Tensor, ends: Tensor) -> Tensor:
    """Whether each element of an axis is in each segment.

    Shapes: starts, ends: (axes before, segments); result: (axes before, segments, extent), bool.
    """
    positions = builder.iota(extent)
    begins, stops = (builder.reshape(x, (*x.shape, ONE)) for x in (starts, ends))
    return builder.apply(
        "logical_and", builder.apply("ge", positions, begins), builder.apply("lt", positions, stops)
    )
