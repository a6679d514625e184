"""Histograms: the bin of each element is computed, and the weights of each bin are added up.

Source: aten/src/ATen/native/Histogram.cpp and cpu/HistogramKernel.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from frontend_svc.operators.shapes.spaced import linspace
from frontend_svc.operators.sorting.searching import insertion_positions
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, as_expr, product_of


@dataclass(frozen=True, slots=True)
class _Binned:
    """The bins of elements along one axis; `is_there` is false for elements outside of all bins.

    Shapes: bins: (elements,), i64, inside the axis; is_there: (elements,), bool.
    """

    count: Expr
    bins: Tensor
    is_there: Tensor


@decomposes("aten.histc.default")
def histc(
    builder: PrimsBuilder, self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0
) -> Tensor:
    """The number of elements in each of evenly spaced bins."""
    line = _line(builder, self)
    ends = _ends(builder, line, (_finite(min), _finite(max)), 1.0)
    binned = _evenly_binned(builder, line, ends, _checked(bins))
    return _counted(builder, [binned], None, self.dtype)


@decomposes("aten.histogram.bins_tensor")
def histogram_of_edges(
    builder: PrimsBuilder,
    self: Tensor,
    bins: Tensor,
    *,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """The weights of elements between given edges, and the edges."""
    edges = builder.convert(bins, self.dtype)
    binned = _binned_between(builder, _line(builder, self), edges)
    counts = _counted(builder, [binned], weight, self.dtype)
    return (_densities(builder, counts, [edges]) if density else counts), edges


@decomposes("aten.histogram.bin_ct")
def histogram_of_count(
    builder: PrimsBuilder,
    self: Tensor,
    bins: int = 100,
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """The weights of elements in evenly spaced bins, and the bins' edges."""
    line = _line(builder, self)
    edges = _spaced_edges(builder, line, _ends_of(builder, line, range, 0), _checked(bins))
    binned = _binned_near(builder, line, edges)
    counts = _counted(builder, [binned], weight, self.dtype)
    return (_densities(builder, counts, [edges]) if density else counts), edges


@decomposes("aten._histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    builder: PrimsBuilder,
    self: Tensor,
    bins: tuple[int, ...],
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, ...]:
    """Evenly spaced edges for each coordinate of points."""
    columns = _columns(builder, self, len(bins))
    return tuple(
        _spaced_edges(builder, line, _ends_of(builder, line, range, axis), _checked(count))
        for axis, (line, count) in enumerate(zip(columns, bins, strict=True))
    )


@decomposes("aten._histogramdd_from_bin_cts.default")
def histogramdd_of_counts(
    builder: PrimsBuilder,
    self: Tensor,
    bins: tuple[int, ...],
    *,
    range: tuple[float, ...] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """The weights of points in a grid of evenly spaced bins."""
    edges = histogramdd_bin_edges(builder, self, bins, range=range)
    columns = _columns(builder, self, len(bins))
    binned = [_binned_near(builder, x, e) for x, e in zip(columns, edges, strict=True)]
    counts = _counted(builder, binned, weight, self.dtype)
    return _densities(builder, counts, edges) if density else counts


@decomposes("aten._histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(
    builder: PrimsBuilder,
    self: Tensor,
    bins: tuple[Tensor, ...],
    *,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """The weights of points in a grid of given edges."""
    edges = [builder.convert(e, self.dtype) for e in bins]
    columns = _columns(builder, self, len(bins))
    binned = [_binned_between(builder, x, e) for x, e in zip(columns, edges, strict=True)]
    counts = _counted(builder, binned, weight, self.dtype)
    return _densities(builder, counts, edges) if density else counts


def _evenly_binned(
    builder: PrimsBuilder, line: Tensor, ends: tuple[Operand, Operand], count: int
) -> _Binned:
    """Bins by the position between two ends, rounded as in PyTorch."""
    low, high = (builder.cast(end, line.dtype) for end in ends)
    offset = builder.apply("mul", builder.apply("sub", line, low), count)
    found = builder.apply("div", offset, builder.apply("sub", high, low))
    is_there = builder.apply(
        "logical_and", builder.apply("ge", line, low), builder.apply("le", line, high)
    )
    # For an element outside of the ends, the quotient may be no valid integer.
    position = builder.convert(builder.where(is_there, found, 0.0), DType.I64)
    return _Binned(as_expr(count), builder.apply("minimum", position, count - 1), is_there)


def _binned_near(builder: PrimsBuilder, line: Tensor, edges: Tensor) -> _Binned:
    """Bins by the position between the ends, corrected by the edges beside it."""
    count = edges.shape[0].constant - 1
    rough = _evenly_binned(builder, line, _outer(builder, edges), count)
    # Count the edges beside the rough bin that are not above the element.
    exact = builder.apply("maximum", builder.apply("sub", rough.bins, 2), -1)
    for shift in (-1, 0, 1):
        near = builder.apply("add", rough.bins, shift)
        is_edge = builder.apply("ge", near, 0)
        edge = builder.prim("take", edges, builder.apply("maximum", near, 0), dim=0)
        is_passed = builder.apply("logical_and", is_edge, builder.apply("le", edge, line))
        exact = builder.apply("add", exact, builder.convert(is_passed, DType.I64))
    inside = builder.apply("minimum", builder.apply("maximum", exact, 0), count - 1)
    return _Binned(rough.count, inside, rough.is_there)


def _binned_between(builder: PrimsBuilder, line: Tensor, edges: Tensor) -> _Binned:
    """Bins by the number of edges that are not above the element."""
    if edges.rank != 1:
        raise InvalidGraphError(f"edges {text_of(edges.shape)}; expected a vector")
    if not edges.shape[0].is_constant or edges.shape[0].constant < 2:
        raise NotDecomposedError(f"{edges.shape[0]} edges of bins; expected at least 2")
    count = edges.shape[0].constant - 1
    low, high = _outer(builder, edges)
    is_there = builder.apply(
        "logical_and", builder.apply("ge", line, low), builder.apply("le", line, high)
    )
    passed = insertion_positions(builder, edges, line, is_right=True, dtype=DType.I64)
    bins = builder.apply("maximum", builder.apply("sub", passed, 1), 0)
    return _Binned(as_expr(count), builder.apply("minimum", bins, count - 1), is_there)


def _counted(
    builder: PrimsBuilder, binned: Sequence[_Binned], weight: Tensor | None, dtype: DType
) -> Tensor:
    """The sum of the weights in each bin of a grid."""
    wide = dtype.compute_dtype
    shape = tuple(p.count for p in binned)
    is_there = binned[0].is_there
    for other in binned[1:]:
        is_there = builder.apply("logical_and", is_there, other.is_there)
    ones = builder.full(1, wide, is_there.shape)
    amounts = ones if weight is None else builder.convert(_line(builder, weight), wide)
    updates = builder.where(is_there, amounts, 0)
    zeros = builder.full(0, wide, shape)
    axes = tuple(range(len(binned)))
    # Without weights, each update adds 1, so the order does not matter.
    found = builder.scatter(
        zeros, (axes, [p.bins for p in binned]), updates, "add", is_order_free=weight is None
    )
    return builder.convert(found, dtype)


def _densities(builder: PrimsBuilder, counts: Tensor, edges: Sequence[Tensor]) -> Tensor:
    """Shares of the total weight, per unit of the bins' widths."""
    shares = builder.apply("div", counts, builder.reduce("sum", counts, range(counts.rank)))
    for axis, edge in enumerate(edges):
        count = edge.shape[0]
        upper = builder.slice_axis(edge, 0, ONE, count)
        widths = builder.apply("sub", upper, builder.slice_axis(edge, 0, ZERO, count - 1))
        behind = (ONE,) * (counts.rank - 1 - axis)
        shares = builder.apply("div", shares, builder.reshape(widths, (*widths.shape, *behind)))
    return shares


def _ends_of(
    builder: PrimsBuilder, line: Tensor, given: tuple[float, ...] | None, axis: int
) -> tuple[Operand, Operand]:
    if given is None:
        return _ends(builder, line, (0.0, 0.0), 0.5)
    if len(given) < 2 * axis + 2:
        raise InvalidGraphError(f"{len(given)} ends; expected 2 for each axis")
    return _ends(builder, None, (given[2 * axis], given[2 * axis + 1]), 0.5)


def _ends(
    builder: PrimsBuilder, line: Tensor | None, given: tuple[float, float], margin: float
) -> tuple[Operand, Operand]:
    """The outer edges: the given ones if they differ, else those of the elements; never equal."""
    low, high = given
    if line is None or low != high:
        return (low - margin, high + margin) if low == high else given
    if line.shape[0] == 0:
        return low - margin, high + margin
    least, most = (builder.reduce(prim, line, (0,)) for prim in ("amin", "amax"))
    is_one = builder.apply("eq", least, most)
    return (
        builder.where(is_one, builder.apply("sub", least, margin), least),
        builder.where(is_one, builder.apply("add", most, margin), most),
    )


def _spaced_edges(
    builder: PrimsBuilder, line: Tensor, ends: tuple[Operand, Operand], count: int
) -> Tensor:
    return linspace(builder, *ends, count + 1, dtype=line.dtype)


def _outer(builder: PrimsBuilder, edges: Tensor) -> tuple[Tensor, Tensor]:
    last = edges.shape[0]
    parts = ((ZERO, ONE), (last - 1, last))
    low, high = (builder.reshape(builder.slice_axis(edges, 0, *part), ()) for part in parts)
    return low, high


def _line(builder: PrimsBuilder, x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        raise NotDecomposedError(f"a histogram of {x.dtype!r}")
    return builder.reshape(x, (numel_of(x.shape),))


def _columns(builder: PrimsBuilder, points: Tensor, axes: int) -> list[Tensor]:
    """The coordinates of points, axis by axis."""
    if points.rank < 2 or not builder.extents.is_same(points.shape[-1], as_expr(axes)):
        raise InvalidGraphError(f"points {text_of(points.shape)}; expected {axes} coordinates")
    count = product_of(points.shape[:-1])
    flat = builder.reshape(points, (count, as_expr(axes)))
    parts = (builder.slice_axis(flat, 1, as_expr(k), as_expr(k + 1)) for k in range(axes))
    return [_line(builder, part) for part in parts]


def _checked(bins: int) -> int:
    if bins < 1:
        raise InvalidGraphError(f"{bins} bins; expected 1 or more")
    return bins


def _finite(number: Number) -> float:
    if isinstance(number, Expr):
        raise NotDecomposedError("bins to a symbolic size")
    return float(number)
