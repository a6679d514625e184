"""Images made larger or smaller: each result's place among the pixels is computed as PyTorch does.

Places are computed in f32 (in f64 for f64), for the kernels of PyTorch round them so.
Source: aten/src/ATen/native/UpSample.h and cpu/UpSampleKernel.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
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
    """An axis's extents before and after, and the factor if one was given."""

    old: Expr
    new: Expr
    factor: float | None


Taps = Callable[[PrimsBuilder, Tensor, ResizedAxis, bool], list[Tap]]
"""(lowering, image, axis, align_corners) -> pixels that each result is made of."""


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
    high = builder.apply("minimum", builder.apply("add", low, 1), _number(axis.old - 1))
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
        taps.append((builder.apply("minimum", position, _number(axis.old - 1)), weight))
    return taps


def _register(name: str, axes: int, taps: Taps, *, aligns: bool) -> None:
    def resized(
        builder: PrimsBuilder, x: Tensor, sizes: Shape, align: bool, factors: Sequence[float | None]
    ) -> Tensor:
        if aligns and not x.dtype.is_float:
            raise NotDecomposedError("interpolated integers")
        if x.rank != axes + 2 or len(sizes) != axes or len(factors) != axes:
            raise InvalidGraphError(
                f"{len(sizes)} sizes for an image {text_of(x.shape)}; expected {axes}"
            )
        if any(builder.extents.is_negative(size - 1) for size in (*sizes, *x.shape[2:])):
            raise InvalidGraphError(f"sizes {text_of(sizes)}; expected 1 or more")
        each = zip(x.shape[2:], sizes, factors, strict=True)
        found = [taps(builder, x, ResizedAxis(*axis), align) for axis in each]
        return builder.convert(
            _woven(builder, builder.widened(x) if aligns else x, found, 0), x.dtype
        )

    if aligns:
        _register_aligning(name, axes, resized)
    else:
        _register_nearest(name, axes, resized)


_Resize = Callable[[PrimsBuilder, Tensor, Shape, bool, Sequence[float | None]], Tensor]


def _register_nearest(name: str, axes: int, resized: _Resize) -> None:
    def one(
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        scales: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, False, (scales,))

    def two(
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, False, (scales_h, scales_w))

    def three(
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, False, (scales_d, scales_h, scales_w))

    def vec(
        builder: PrimsBuilder,
        input: Tensor,
        output_size: tuple[Expr, ...] | None,
        scale_factors: tuple[float, ...] | None,
    ) -> Tensor:
        sizes, factors = requested_sizes(builder, input, output_size, scale_factors)
        return resized(builder, input, sizes, False, factors)

    forms: dict[int, Callable[..., Tensor]] = {1: one, 2: two, 3: three}
    decomposes(f"aten.{name}.default")(forms[axes])
    decomposes(f"aten.{name}.vec")(vec)


def _register_aligning(name: str, axes: int, resized: _Resize) -> None:
    def one(
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, align_corners, (scales,))

    def two(
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, align_corners, (scales_h, scales_w))

    def three(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        self: Tensor,
        output_size: tuple[Expr, ...],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resized(builder, self, output_size, align_corners, (scales_d, scales_h, scales_w))

    def vec(
        builder: PrimsBuilder,
        input: Tensor,
        output_size: tuple[Expr, ...] | None,
        align_corners: bool,
        scale_factors: tuple[float, ...] | None,
    ) -> Tensor:
        sizes, factors = requested_sizes(builder, input, output_size, scale_factors)
        return resized(builder, input, sizes, align_corners, factors)

    forms: dict[int, Callable[..., Tensor]] = {1: one, 2: two, 3: three}
    decomposes(f"aten.{name}.default")(forms[axes])
    decomposes(f"aten.{name}.vec")(vec)


for _axes in (1, 2, 3):
    _register(f"upsample_nearest{_axes}d", _axes, nearest_taps, aligns=False)
    _register(f"_upsample_nearest_exact{_axes}d", _axes, nearest_exact_taps, aligns=False)
for _axes, _name in enumerate(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")):
    _register(_name, _axes + 1, linear_taps, aligns=True)
_register("upsample_bicubic2d", 2, cubic_taps, aligns=True)


def _woven(builder: PrimsBuilder, x: Tensor, found: Sequence[list[Tap]], axis: int) -> Tensor:
    """The weighted sum over the pixels of an axis of what the axes behind it give."""
    if axis == len(found):
        return x
    total: Tensor | None = None
    for positions, weight in found[axis]:
        part = _woven(builder, builder.prim("take", x, positions, dim=2 + axis), found, axis + 1)
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
    """(extents, factors), of which one is given.

    Raises:
        InvalidGraphError: both or none, or not one for each axis.
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
    """The place among the old pixels of each new one."""
    dtype = x.dtype.compute_dtype
    numbers = builder.convert(builder.iota(axis.new), dtype)
    if align:
        if axis.new == 1:
            return builder.apply("mul", numbers, 0.0)
        steps = (builder.full(_number(size - 1), dtype) for size in (axis.old, axis.new))
        return builder.apply("mul", numbers, builder.apply("div", *steps))
    centers = builder.apply("mul", builder.apply("add", numbers, 0.5), _scale(builder, axis, dtype))
    return builder.apply("sub", centers, 0.5)


def _scale(builder: PrimsBuilder, axis: ResizedAxis, dtype: DType) -> Tensor:
    """Old pixels for each new one."""
    if axis.factor is not None and axis.factor > 0.0:
        return builder.full(1.0 / axis.factor, dtype)
    old, new = (builder.full(_number(size), dtype) for size in (axis.old, axis.new))
    return builder.prim("div", old, new)


def _power_of_two(builder: PrimsBuilder, axis: ResizedAxis) -> int | None:
    """How many new pixels an old one gives, if places are exact and all the same."""
    ratio = builder.extents.simplified(axis.new // axis.old)
    if not ratio.is_constant or ratio.constant < 1 or ratio.constant & (ratio.constant - 1):
        return None
    if not builder.extents.is_same(axis.old * ratio.constant, axis.new):
        return None
    is_plain = axis.factor is None or axis.factor == ratio.constant
    return ratio.constant if is_plain else None


def _clamped(builder: PrimsBuilder, position: Tensor, extent: Expr) -> Tensor:
    return builder.apply("minimum", builder.convert(position, DType.I64), _number(extent - 1))


def _number(size: Expr) -> Number:
    return size.constant if size.is_constant else size
