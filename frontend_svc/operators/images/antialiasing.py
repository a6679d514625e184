"""Resizing with antialiasing: a result is made of all pixels that it covers.

Source: aten/src/ATen/native/cpu/UpSampleKernel.cpp of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.images.resampling import requested_sizes
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr

MAX_PIXELS = 256
"""The largest number of pixels along an axis that a result is made of."""

_CUBIC = -0.5
"""The parameter of the cubic filter; with antialiasing PyTorch uses that of Pillow."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """A filter: weights by the distance in pixels, and its width in pixels without scaling."""

    width: int
    weights: Callable[[PrimsBuilder, Tensor], Tensor]


def _triangle(builder: PrimsBuilder, x: Tensor) -> Tensor:
    distance = builder.prim("abs", x)
    return builder.apply("maximum", builder.apply("sub", 1.0, distance), 0.0)


def _cubic(builder: PrimsBuilder, x: Tensor) -> Tensor:
    d = builder.prim("abs", x)
    near = _polynomial(builder, d, (_CUBIC + 2.0, -(_CUBIC + 3.0), 0.0, 1.0))
    far = _polynomial(builder, d, (_CUBIC, -5.0 * _CUBIC, 8.0 * _CUBIC, -4.0 * _CUBIC))
    return builder.where(
        builder.apply("lt", d, 1.0), near, builder.where(builder.apply("lt", d, 2.0), far, 0.0)
    )


def _polynomial(builder: PrimsBuilder, x: Tensor, coefficients: Sequence[float]) -> Tensor:
    total = builder.full(coefficients[0], x.dtype, x.shape)
    for coefficient in coefficients[1:]:
        total = builder.apply("add", builder.apply("mul", total, x), coefficient)
    return total


_LINEAR = _Filter(2, _triangle)
_BICUBIC = _Filter(4, _cubic)


_NOTE = "extern for symbolic sizes and integers"


@decomposes("aten._upsample_bilinear2d_aa.default", fixed={"kernel": _LINEAR}, note=_NOTE)
@decomposes("aten._upsample_bicubic2d_aa.default", fixed={"kernel": _BICUBIC}, note=_NOTE)
def resized_to_size(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    self: Tensor,
    output_size: tuple[Expr, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    kernel: _Filter,
) -> Tensor:
    """An image resized to given extents."""
    return _resized(builder, self, output_size, align_corners, (scales_h, scales_w), kernel)


@decomposes("aten._upsample_bilinear2d_aa.vec", fixed={"kernel": _LINEAR}, note=_NOTE)
@decomposes("aten._upsample_bicubic2d_aa.vec", fixed={"kernel": _BICUBIC}, note=_NOTE)
def resized_to_size_or_scale(
    builder: PrimsBuilder,
    input: Tensor,
    output_size: tuple[Expr, ...] | None,
    align_corners: bool,
    scale_factors: tuple[float, ...] | None,
    *,
    kernel: _Filter,
) -> Tensor:
    """An image resized to given extents or by given factors."""
    sizes, factors = requested_sizes(builder, input, output_size, scale_factors)
    return _resized(builder, input, sizes, align_corners, factors, kernel)


def _resized(
    builder: PrimsBuilder,
    x: Tensor,
    sizes: Shape,
    align: bool,
    factors: Sequence[float | None],
    kernel: _Filter,
) -> Tensor:
    if x.rank != 4 or len(sizes) != 2 or len(factors) != 2:
        raise InvalidGraphError(f"{len(sizes)} sizes for an image {text_of(x.shape)}; expected 2")
    if not x.dtype.is_float:
        raise NotDecomposedError("interpolated integers")
    wide = builder.widened(x)
    for axis in (3, 2):  # columns first: PyTorch rounds between the two axes
        wide = _resized_along(
            builder, wide, axis, (sizes[axis - 2], factors[axis - 2]), align, kernel
        )
    return builder.convert(wide, x.dtype)


def _resized_along(
    builder: PrimsBuilder,
    x: Tensor,
    axis: int,
    requested: tuple[Expr, float | None],
    align: bool,
    kernel: _Filter,
) -> Tensor:
    new, factor = requested
    old = x.shape[axis]
    if builder.extents.is_proven_same(old, new):
        return x
    if not (old.is_constant and new.is_constant):
        raise NotDecomposedError("a number of pixels that depends on symbolic sizes")
    if min(old.constant, new.constant) < 1:
        raise InvalidGraphError(f"{old} pixels to {new}; expected 1 or more")
    scale = _scale(old.constant, new.constant, factor, align=align)
    positions, weights = _taps(builder, (old.constant, new), scale, kernel, x.dtype)
    taken = builder.prim("take", x, positions, dim=axis)
    behind = (ONE,) * (x.rank - 1 - axis)
    weighted = builder.apply("mul", taken, builder.reshape(weights, (*weights.shape, *behind)))
    return builder.reduce("sum", weighted, (axis + 1,))


def _scale(old: int, new: int, factor: float | None, *, align: bool) -> float:
    """The number of old pixels for each new one."""
    if align:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0.0 else old / new


def _taps(
    builder: PrimsBuilder,
    extents: tuple[int, Expr],
    scale: float,
    kernel: _Filter,
    dtype: DType,
) -> tuple[Tensor, Tensor]:
    """The pixels of each result and their weights.

    Shapes: both (results, pixels of a result), i64 (inside the axis) and a computing type.
    """
    old, new = extents
    support = kernel.width * 0.5 * max(scale, 1.0)
    most = math.ceil(support) * 2 + 1
    if most > MAX_PIXELS:
        raise NotDecomposedError(f"{most} pixels for each result; at most {MAX_PIXELS} decompose")
    numbers = builder.reshape(builder.convert(builder.iota(new), dtype), (new, ONE))
    center = builder.apply("mul", builder.apply("add", numbers, 0.5), builder.full(scale, dtype))
    first = builder.apply("maximum", _whole(builder, builder.apply("sub", center, support)), 0)
    last = builder.apply("minimum", _whole(builder, builder.apply("add", center, support)), old)
    position = builder.apply("add", first, builder.iota(as_expr(most)))
    distance = builder.apply(
        "add", builder.apply("sub", builder.convert(position, dtype), center), 0.5
    )
    inverse = 1.0 / scale if scale >= 1.0 else 1.0
    weight = kernel.weights(builder, builder.apply("mul", distance, inverse))
    weight = builder.where(builder.apply("lt", position, last), weight, 0.0)
    total = builder.reduce("sum", weight, (1,), keepdim=True)
    weight = builder.where(
        builder.apply("eq", total, 0.0), weight, builder.apply("div", weight, total)
    )
    return builder.apply("minimum", position, number_of(as_expr(old - 1))), weight


def _whole(builder: PrimsBuilder, x: Tensor) -> Tensor:
    return builder.convert(builder.apply("add", x, 0.5), DType.I64)
