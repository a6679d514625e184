"""Images resized with as many pixels for each result as it covers.

Source: aten/src/ATen/native/cpu/UpSampleKernel.cpp of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
from frontend_svc.operators.images.resampling import asked_sizes
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr

MOST_PIXELS = 256
"""Pixels that a result is made of along an axis."""

_CUBIC = -0.5
"""PyTorch's parameter of the cubic filter, here that of Pillow."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """Weights by the distance in pixels; `width` pixels lie under the filter without scaling."""

    width: int
    weights: Callable[[Lowering, Tensor], Tensor]


def _triangle(op: Lowering, x: Tensor) -> Tensor:
    distance = op.prim("abs", x)
    return op.apply("maximum", op.apply("sub", 1.0, distance), 0.0)


def _cubic(op: Lowering, x: Tensor) -> Tensor:
    d = op.prim("abs", x)
    near = _polynomial(op, d, (_CUBIC + 2.0, -(_CUBIC + 3.0), 0.0, 1.0))
    far = _polynomial(op, d, (_CUBIC, -5.0 * _CUBIC, 8.0 * _CUBIC, -4.0 * _CUBIC))
    return op.where(op.apply("lt", d, 1.0), near, op.where(op.apply("lt", d, 2.0), far, 0.0))


def _polynomial(op: Lowering, x: Tensor, coefficients: Sequence[float]) -> Tensor:
    total = op.full(coefficients[0], x.dtype, x.shape)
    for coefficient in coefficients[1:]:
        total = op.apply("add", op.apply("mul", total, x), coefficient)
    return total


_LINEAR = _Filter(2, _triangle)
_BICUBIC = _Filter(4, _cubic)


def _register(name: str, kernel: _Filter) -> None:
    def resized(
        op: Lowering,
        self: Tensor,
        output_size: tuple[Expr, ...],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return _resized(op, self, output_size, align_corners, (scales_h, scales_w), kernel)

    def resized_by(
        op: Lowering,
        input: Tensor,
        output_size: tuple[Expr, ...] | None,
        align_corners: bool,
        scale_factors: tuple[float, ...] | None,
    ) -> Tensor:
        sizes, factors = asked_sizes(op, input, output_size, scale_factors)
        return _resized(op, input, sizes, align_corners, factors, kernel)

    note = "extern for symbolic sizes and integers"
    decomposes(f"aten.{name}.default", note=note)(resized)
    decomposes(f"aten.{name}.vec", note=note)(resized_by)


_register("_upsample_bilinear2d_aa", _LINEAR)
_register("_upsample_bicubic2d_aa", _BICUBIC)


def _resized(  # what the operators say of their images
    op: Lowering,
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
    wide = op.widened(x)
    for axis in (3, 2):  # columns first, as PyTorch rounds between the two
        wide = _resized_along(op, wide, axis, (sizes[axis - 2], factors[axis - 2]), align, kernel)
    return op.convert(wide, x.dtype)


def _resized_along(  # one axis of the above
    op: Lowering,
    x: Tensor,
    axis: int,
    asked: tuple[Expr, float | None],
    align: bool,
    kernel: _Filter,
) -> Tensor:
    new, factor = asked
    old = x.shape[axis]
    if op.extents.is_proven_same(old, new):
        return x
    if not (old.is_constant and new.is_constant):
        raise NotDecomposedError("a number of pixels that depends on symbolic sizes")
    if min(old.constant, new.constant) < 1:
        raise InvalidGraphError(f"{old} pixels to {new}; expected 1 or more")
    scale = _scale(old.constant, new.constant, factor, align=align)
    places, weights = _taps(op, (old.constant, new), scale, kernel, x.dtype)
    taken = op.prim("take", x, places, dim=axis)
    behind = (ONE,) * (x.rank - 1 - axis)
    weighted = op.apply("mul", taken, op.reshape(weights, (*weights.shape, *behind)))
    return op.reduce("sum", weighted, (axis + 1,))


def _scale(old: int, new: int, factor: float | None, *, align: bool) -> float:
    """Old pixels for each new one."""
    if align:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0.0 else old / new


def _taps(  # one axis of the above
    op: Lowering,
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
    if most > MOST_PIXELS:
        raise NotDecomposedError(f"{most} pixels for each result; up to {MOST_PIXELS} are")
    numbers = op.reshape(op.convert(op.iota(new), dtype), (new, ONE))
    center = op.apply("mul", op.apply("add", numbers, 0.5), op.full(scale, dtype))
    first = op.apply("maximum", _whole(op, op.apply("sub", center, support)), 0)
    last = op.apply("minimum", _whole(op, op.apply("add", center, support)), old)
    place = op.apply("add", first, op.iota(as_expr(most)))
    distance = op.apply("add", op.apply("sub", op.convert(place, dtype), center), 0.5)
    inverse = 1.0 / scale if scale >= 1.0 else 1.0
    weight = kernel.weights(op, op.apply("mul", distance, inverse))
    weight = op.where(op.apply("lt", place, last), weight, 0.0)
    total = op.reduce("sum", weight, (1,), keepdim=True)
    weight = op.where(op.apply("eq", total, 0.0), weight, op.apply("div", weight, total))
    return op.apply("minimum", place, number_of(as_expr(old - 1))), weight


def _whole(op: Lowering, x: Tensor) -> Tensor:
    return op.convert(op.apply("add", x, 0.5), DType.I64)
