"""Histograms: each element finds its bin, and bins add up.

Source: aten/src/ATen/native/Histogram.cpp and cpu/HistogramKernel.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from frontend_svc.operators.shapes.spaced import linspace
from frontend_svc.operators.sorting.searching import insertion_places
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where elements lie along one axis of bins.

    Shapes: bins: (elements,), i64, inside the axis; is_there: (elements,), bool.
    """

    count: Expr
    bins: Tensor
    is_there: Tensor


@decomposes("aten.histc.default")
def histc(op: Lowering, self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """How many elements lie in each of evenly spaced bins."""
    line = _line(op, self)
    ends = _ends(op, line, (_finite(min), _finite(max)), 1.0)
    placed = _evenly_placed(op, line, ends, _checked(bins))
    return _counted(op, [placed], None, self.dtype)


@decomposes("aten.histogram.bins_tensor")
def histogram_of_edges(
    op: Lowering,
    self: Tensor,
    bins: Tensor,
    *,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """The weights of elements between given edges, and the edges."""
    edges = op.convert(bins, self.dtype)
    placed = _placed_between(op, _line(op, self), edges)
    counts = _counted(op, [placed], weight, self.dtype)
    return (_densities(op, counts, [edges]) if density else counts), edges


@decomposes("aten.histogram.bin_ct")
def histogram_of_count(
    op: Lowering,
    self: Tensor,
    bins: int = 100,
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """The weights of elements in evenly spaced bins, and the bins' edges."""
    line = _line(op, self)
    edges = _spaced_edges(op, line, _ends_of(op, line, range, 0), _checked(bins))
    placed = _placed_near(op, line, edges)
    counts = _counted(op, [placed], weight, self.dtype)
    return (_densities(op, counts, [edges]) if density else counts), edges


@decomposes("aten._histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    op: Lowering,
    self: Tensor,
    bins: tuple[int, ...],
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, ...]:
    """Evenly spaced edges for each coordinate of points."""
    columns = _columns(op, self, len(bins))
    return tuple(
        _spaced_edges(op, line, _ends_of(op, line, range, axis), _checked(count))
        for axis, (line, count) in enumerate(zip(columns, bins, strict=True))
    )


@decomposes("aten._histogramdd_from_bin_cts.default")
def histogramdd_of_counts(
    op: Lowering,
    self: Tensor,
    bins: tuple[int, ...],
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """The weights of points in a grid of evenly spaced bins."""
    edges = histogramdd_bin_edges(op, self, bins, range=range)
    columns = _columns(op, self, len(bins))
    placed = [_placed_near(op, x, e) for x, e in zip(columns, edges, strict=True)]
    counts = _counted(op, placed, weight, self.dtype)
    return _densities(op, counts, edges) if density else counts


@decomposes("aten._histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(
    op: Lowering,
    self: Tensor,
    bins: tuple[Tensor, ...],
    *,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """The weights of points in a grid of given edges."""
    edges = [op.convert(e, self.dtype) for e in bins]
    columns = _columns(op, self, len(bins))
    placed = [_placed_between(op, x, e) for x, e in zip(columns, edges, strict=True)]
    counts = _counted(op, placed, weight, self.dtype)
    return _densities(op, counts, edges) if density else counts


def _evenly_placed(
    op: Lowering, line: Tensor, ends: tuple[Operand, Operand], count: int
) -> _Placed:
    """By the position between two ends, as PyTorch rounds it."""
    low, high = (op.cast(end, line.dtype) for end in ends)
    offset = op.apply("mul", op.apply("sub", line, low), count)
    found = op.apply("div", offset, op.apply("sub", high, low))
    is_there = op.apply("logical_and", op.apply("ge", line, low), op.apply("le", line, high))
    # What is outside may be no number of a bin at all.
    place = op.convert(op.where(is_there, found, 0.0), DType.I64)
    return _Placed(as_expr(count), op.apply("minimum", place, count - 1), is_there)


def _placed_near(op: Lowering, line: Tensor, edges: Tensor) -> _Placed:
    """By the position between the ends, then by the edges beside it."""
    count = edges.shape[0].constant - 1
    rough = _evenly_placed(op, line, _outer(op, edges), count)
    # The search is over the edges beside the rough place: how many are not above the element.
    exact = op.apply("maximum", op.apply("sub", rough.bins, 2), -1)
    for shift in (-1, 0, 1):
        near = op.apply("add", rough.bins, shift)
        is_edge = op.apply("ge", near, 0)
        edge = op.prim("take", edges, op.apply("maximum", near, 0), dim=0)
        is_passed = op.apply("logical_and", is_edge, op.apply("le", edge, line))
        exact = op.apply("add", exact, op.convert(is_passed, DType.I64))
    inside = op.apply("minimum", op.apply("maximum", exact, 0), count - 1)
    return _Placed(rough.count, inside, rough.is_there)


def _placed_between(op: Lowering, line: Tensor, edges: Tensor) -> _Placed:
    """By how many edges are not above the element."""
    if edges.rank != 1:
        raise InvalidGraphError(f"edges {text_of(edges.shape)}; expected a vector")
    if not edges.shape[0].is_constant or edges.shape[0].constant < 2:
        raise NotDecomposedError(f"{edges.shape[0]} edges of bins; expected a number from 2 on")
    count = edges.shape[0].constant - 1
    low, high = _outer(op, edges)
    is_there = op.apply("logical_and", op.apply("ge", line, low), op.apply("le", line, high))
    passed = insertion_places(op, edges, line, is_right=True, dtype=DType.I64)
    bins = op.apply("maximum", op.apply("sub", passed, 1), 0)
    return _Placed(as_expr(count), op.apply("minimum", bins, count - 1), is_there)


def _counted(
    op: Lowering, placed: Sequence[_Placed], weight: Tensor | None, dtype: DType
) -> Tensor:
    """The sum of the weights in each bin of a grid."""
    wide = dtype.compute_dtype
    shape = tuple(p.count for p in placed)
    is_there = placed[0].is_there
    for other in placed[1:]:
        is_there = op.apply("logical_and", is_there, other.is_there)
    ones = op.full(1, wide, is_there.shape)
    amounts = ones if weight is None else op.convert(_line(op, weight), wide)
    updates = op.where(is_there, amounts, 0)
    zeros = op.full(0, wide, shape)
    axes = tuple(range(len(placed)))
    found = op.prim("scatter", zeros, *(p.bins for p in placed), updates, dims=axes, mode="add")
    return op.convert(found, dtype)


def _densities(op: Lowering, counts: Tensor, edges: Sequence[Tensor]) -> Tensor:
    """Shares of all weights for each unit of the bins' extents."""
    shares = op.apply("div", counts, op.reduce("sum", counts, range(counts.rank)))
    for axis, edge in enumerate(edges):
        count = edge.shape[0]
        upper = op.slice_axis(edge, 0, ONE, count)
        widths = op.apply("sub", upper, op.slice_axis(edge, 0, ZERO, count - 1))
        behind = (ONE,) * (counts.rank - 1 - axis)
        shares = op.apply("div", shares, op.reshape(widths, (*widths.shape, *behind)))
    return shares


def _ends_of(
    op: Lowering, line: Tensor, given: tuple[float, ...] | None, axis: int
) -> tuple[Operand, Operand]:
    if given is None:
        return _ends(op, line, (0.0, 0.0), 0.5)
    if len(given) < 2 * axis + 2:
        raise InvalidGraphError(f"{len(given)} ends; expected two for each axis")
    return _ends(op, None, (given[2 * axis], given[2 * axis + 1]), 0.5)


def _ends(
    op: Lowering, line: Tensor | None, given: tuple[float, float], margin: float
) -> tuple[Operand, Operand]:
    """The outer edges: as given if they differ, else those of the elements; never equal."""
    low, high = given
    if line is None or low != high:
        return (low - margin, high + margin) if low == high else given
    if line.shape[0] == 0:
        return low - margin, high + margin
    least, most = (op.reduce(prim, line, (0,)) for prim in ("amin", "amax"))
    is_one = op.apply("eq", least, most)
    return (
        op.where(is_one, op.apply("sub", least, margin), least),
        op.where(is_one, op.apply("add", most, margin), most),
    )


def _spaced_edges(op: Lowering, line: Tensor, ends: tuple[Operand, Operand], count: int) -> Tensor:
    return linspace(op, *ends, count + 1, dtype=line.dtype)


def _outer(op: Lowering, edges: Tensor) -> tuple[Tensor, Tensor]:
    last = edges.shape[0]
    parts = ((ZERO, ONE), (last - 1, last))
    low, high = (op.reshape(op.slice_axis(edges, 0, *part), ()) for part in parts)
    return low, high


def _line(op: Lowering, x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        raise NotDecomposedError(f"a histogram of {x.dtype!r}")
    return op.reshape(x, (numel_of(x.shape),))


def _columns(op: Lowering, points: Tensor, axes: int) -> list[Tensor]:
    """The coordinates of points, axis by axis."""
    if points.rank < 2 or not op.extents.is_same(points.shape[-1], as_expr(axes)):
        raise InvalidGraphError(f"points {text_of(points.shape)}; expected {axes} coordinates")
    count = product_of(points.shape[:-1])
    flat = op.reshape(points, (count, as_expr(axes)))
    parts = (op.slice_axis(flat, 1, as_expr(k), as_expr(k + 1)) for k in range(axes))
    return [_line(op, part) for part in parts]


def _checked(bins: int) -> int:
    if bins < 1:
        raise InvalidGraphError(f"{bins} bins; expected 1 or more")
    return bins


def _finite(number: Number) -> float:
    if isinstance(number, Expr):
        raise NotDecomposedError("bins to a symbolic size")
    return float(number)
