"""Resizing of images: the coordinate of each result among the old pixels is computed as in PyTorch.

Coordinates are computed in f32 (in f64 for f64), because PyTorch's kernels round them that way.
Source: aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.images.sampling import cubic_weights
from frontend_svc.operators.windows.average_pooling import along
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr

_MOST_FACTOR = 1 << 16

Tap = tuple[Tensor, Tensor | None]
"""(positions along the axis, weights; None is 1)."""


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """The old and the new extent of an axis, and the factor if one is given."""

    old: Expr
    new: Expr
    factor: float | None


Taps = Callable[[PrimsBuilder, Tensor, ResizedAxis, bool], list[Tap]]
"""(builder, image, axis, align_corners) -> the taps: pixels that each result is made of."""


def nearest_taps(builder: PrimsBuilder, x: Tensor, axis: ResizedAxis, align: bool) -> list[Tap]:
    """The pixel that begins at or before each result."""
    numbers = builder.iota(axis.new)
    power = _power_of_two(builder, axis)
    if power is not None:
        return [(builder.apply("floor_div", numbers, power), None)]
    scaled = builder.apply(
        "mul", builder.convert(numbers, DType.F32), _scale(builder, axis, DType.F32)
    )
    return [(_clamped(builder, builder.prim("floor", scaled), axis.old), None)]


def nearest_exact_taps(
    builder: PrimsBuilder, x: Tensor, axis: ResizedAxis, align: bool
) -> list[Tap]:
    """The pixel that covers the middle of each result."""
    numbers = builder.iota(axis.new)
    power = _power_of_two(builder, axis)
    if power is not None:
        return [(builder.apply("floor_div", numbers, power), None)]
    centers = builder.apply("add", builder.convert(numbers, DType.F32), 0.5)
    scaled = builder.apply("mul", centers, _scale(builder, axis, DType.F32))
    return [(_clamped(builder, builder.prim("floor", scaled), axis.old), None)]


def linear_taps(builder: PrimsBuilder, x: Tensor, axis: ResizedAxis, align: bool) -> list[Tap]:
    """The two pixels around each result."""
    if builder.extents.is_proven_same(axis.old, axis.new):
        return [(builder.iota(axis.new), None)]
    position = _source(builder, x, axis, align)
    if not align:
        position = builder.apply("maximum", position, 0.0)
    low = _clamped(builder, builder.prim("floor", position), axis.old)
    high = builder.apply("minimum", builder.apply("add", low, 1), number_of(axis.old - 1))
    share = builder.apply("sub", position, builder.convert(low, position.dtype))
    share = builder.apply("minimum", builder.apply("maximum", share, 0.0), 1.0)
    return [(low, builder.apply("sub", 1.0, share)), (high, share)]


def cubic_taps(builder: PrimsBuilder, x: Tensor, axis: ResizedAxis, align: bool) -> list[Tap]:
    """The four pixels around each result."""
    if builder.extents.is_proven_same(axis.old, axis.new):
        return [(builder.iota(axis.new), None)]
    source = _source(builder, x, axis, align)
    low = builder.prim("floor", source)
    share = builder.prim("sub", source, low)
    first = builder.convert(low, DType.I64)
    taps: list[Tap] = []
    for shift, weight in zip((-1, 0, 1, 2), cubic_weights(builder, share), strict=True):
        position = builder.apply("maximum", builder.apply("add", first, shift), 0)
        taps.append((builder.apply("minimum", position, number_of(axis.old - 1)), weight))
    return taps


@decomposes("aten.upsample_nearest1d.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact1d.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest1d(
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    scales: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """A signal of nearest elements."""
    return _copied(builder, self, output_size, (scales,), taps)


@decomposes("aten.upsample_nearest2d.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact2d.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest2d(
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """An image of nearest pixels."""
    return _copied(builder, self, output_size, (scales_h, scales_w), taps)


@decomposes("aten.upsample_nearest3d.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact3d.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest3d(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """A volume of nearest voxels."""
    return _copied(builder, self, output_size, (scales_d, scales_h, scales_w), taps)


def upsample_nearest_vec(
    builder: PrimsBuilder,
    input: Tensor,
    output_size: tuple[Expr, ...] | None,
    scale_factors: tuple[float, ...] | None,
    *,
    taps: Taps,
    axes: int,
) -> Tensor:
    """Nearest pixels, for given extents or factors."""
    sizes, factors = requested_sizes(builder, input, output_size, scale_factors)
    _check_axes(input, axes)
    return _copied(builder, input, sizes, factors, taps)


for _axes in (1, 2, 3):
    for _name, _taps in (
        (f"upsample_nearest{_axes}d", nearest_taps),
        (f"_upsample_nearest_exact{_axes}d", nearest_exact_taps),
    ):
        decomposes(f"aten.{_name}.vec", fixed={"taps": _taps, "axes": _axes})(upsample_nearest_vec)


@decomposes("aten.upsample_linear1d.default")
def upsample_linear1d(
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    align_corners: bool,
    scales: float | None = None,
) -> Tensor:
    """A signal, interpolated linearly."""
    return _interpolated(builder, self, output_size, align_corners, (scales,), linear_taps)


@decomposes("aten.upsample_bilinear2d.default", fixed={"taps": linear_taps})
@decomposes("aten.upsample_bicubic2d.default", fixed={"taps": cubic_taps})
def upsample_interpolated2d(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """An image, interpolated linearly or by cubics."""
    return _interpolated(builder, self, output_size, align_corners, (scales_h, scales_w), taps)


@decomposes("aten.upsample_trilinear3d.default")
def upsample_trilinear3d(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """A volume, interpolated linearly."""
    factors = (scales_d, scales_h, scales_w)
    return _interpolated(builder, self, output_size, align_corners, factors, linear_taps)


@decomposes("aten.upsample_linear1d.vec", fixed={"taps": linear_taps, "axes": 1})
@decomposes("aten.upsample_bilinear2d.vec", fixed={"taps": linear_taps, "axes": 2})
@decomposes("aten.upsample_trilinear3d.vec", fixed={"taps": linear_taps, "axes": 3})
@decomposes("aten.upsample_bicubic2d.vec", fixed={"taps": cubic_taps, "axes": 2})
def upsample_interpolated_vec(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    input: Tensor,
    output_size: tuple[Expr, ...] | None,
    align_corners: bool,
    scale_factors: tuple[float, ...] | None,
    *,
    taps: Taps,
    axes: int,
) -> Tensor:
    """Interpolated pixels, for given extents or factors."""
    sizes, factors = requested_sizes(builder, input, output_size, scale_factors)
    _check_axes(input, axes)
    return _interpolated(builder, input, sizes, align_corners, factors, taps)


def _copied(
    builder: PrimsBuilder, x: Tensor, sizes: Shape, factors: Sequence[float | None], taps: Taps
) -> Tensor:
    """An image whose pixels are copies."""
    return _combined(builder, x, _resized_taps(builder, x, sizes, False, factors, taps), 0)


def _interpolated(
    builder: PrimsBuilder,
    x: Tensor,
    sizes: Shape,
    align: bool,
    factors: Sequence[float | None],
    taps: Taps,
) -> Tensor:
    """An image whose pixels are weighted sums; narrow floats are computed in f32."""
    if not x.dtype.is_float:
        raise NotDecomposedError("interpolated integers")
    found = _resized_taps(builder, x, sizes, align, factors, taps)
    return builder.convert(_combined(builder, builder.widened(x), found, 0), x.dtype)


def _resized_taps(
    builder: PrimsBuilder,
    x: Tensor,
    sizes: Shape,
    align: bool,
    factors: Sequence[float | None],
    taps: Taps,
) -> list[list[Tap]]:
    """The taps of each axis of an image."""
    axes = len(factors)
    if x.rank != axes + 2 or len(sizes) != axes:
        raise InvalidGraphError(
            f"{len(sizes)} sizes for an image {text_of(x.shape)}; expected {axes}"
        )
    if any(builder.extents.is_negative(size - 1) for size in (*sizes, *x.shape[2:])):
        raise InvalidGraphError(f"sizes {text_of(sizes)}; expected 1 or more")
    each = zip(x.shape[2:], sizes, factors, strict=True)
    return [taps(builder, x, ResizedAxis(*axis), align) for axis in each]


def _check_axes(x: Tensor, axes: int) -> None:
    if x.rank != axes + 2:
        raise InvalidGraphError(f"an image {text_of(x.shape)}; expected {axes + 2} axes")


def _combined(builder: PrimsBuilder, x: Tensor, found: Sequence[list[Tap]], axis: int) -> Tensor:
    """The weighted sum over the taps of one axis; each term combines the later axes."""
    if axis == len(found):
        return x
    total: Tensor | None = None
    for positions, weight in found[axis]:
        part = _combined(builder, builder.prim("take", x, positions, dim=2 + axis), found, axis + 1)
        if weight is not None:
            weights = along(builder, builder.convert(weight, part.dtype), axis, len(found))
            part = builder.apply("mul", part, weights)
        total = part if total is None else builder.prim("add", total, part)
    if total is None:
        raise InvalidGraphError("an axis without pixels; expected one or more")
    return total


def requested_sizes(
    builder: PrimsBuilder,
    x: Tensor,
    sizes: tuple[Expr, ...] | None,
    factors: tuple[float, ...] | None,
) -> tuple[Shape, Sequence[float | None]]:
    """(extents, factors) of the result; the request states one of them.

    Raises:
        InvalidGraphError: both or neither are stated, or not one factor for each axis.
    """
    if (sizes is None) == (factors is None):
        raise InvalidGraphError("sizes and factors; expected one of both")
    if factors is None:
        return sizes or (), (None,) * len(sizes or ())
    if len(factors) != x.rank - 2:
        raise InvalidGraphError(f"{len(factors)} factors for {x.rank - 2} axes")
    return tuple(
        _grown(extent, factor) for extent, factor in zip(x.shape[2:], factors, strict=True)
    ), factors


def _grown(extent: Expr, factor: float) -> Expr:
    if not 0.0 < factor <= _MOST_FACTOR:
        raise InvalidGraphError(f"a factor of {factor}; expected a positive one")
    if factor.is_integer():
        return extent * int(factor)
    if not extent.is_constant:
        raise NotDecomposedError("a symbolic size times a fraction")
    return as_expr(int(extent.constant * factor))


def _source(builder: PrimsBuilder, x: Tensor, axis: ResizedAxis, align: bool) -> Tensor:
    """The coordinate of each new pixel among the old ones."""
    dtype = x.dtype.compute_dtype
    numbers = builder.convert(builder.iota(axis.new), dtype)
    if align:
        if axis.new == 1:
            return builder.apply("mul", numbers, 0.0)
        steps = (builder.full(number_of(size - 1), dtype) for size in (axis.old, axis.new))
        return builder.apply("mul", numbers, builder.apply("div", *steps))
    centers = builder.apply("mul", builder.apply("add", numbers, 0.5), _scale(builder, axis, dtype))
    return builder.apply("sub", centers, 0.5)


def _scale(builder: PrimsBuilder, axis: ResizedAxis, dtype: DType) -> Tensor:
    """The number of old pixels for each new one."""
    if axis.factor is not None and axis.factor > 0.0:
        return builder.full(1.0 / axis.factor, dtype)
    old, new = (builder.full(number_of(size), dtype) for size in (axis.old, axis.new))
    return builder.prim("div", old, new)


def _power_of_two(builder: PrimsBuilder, axis: ResizedAxis) -> int | None:
    """The number of new pixels per old one if it is a power of two, so that copies are exact."""
    ratio = builder.extents.simplified(axis.new // axis.old)
    if not ratio.is_constant or ratio.constant < 1 or ratio.constant & (ratio.constant - 1):
        return None
    if not builder.extents.is_same(axis.old * ratio.constant, axis.new):
        return None
    is_plain = axis.factor is None or axis.factor == ratio.constant
    return ratio.constant if is_plain else None


def _clamped(builder: PrimsBuilder, position: Tensor, extent: Expr) -> Tensor:
    return builder.apply("minimum", builder.convert(position, DType.I64), number_of(extent - 1))
