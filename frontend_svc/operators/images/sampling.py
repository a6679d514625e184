"""Images read between their pixels, at coordinates that are data.

Source: aten/src/ATen/native/GridSampler.h of PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_CUBIC = -0.75
"""PyTorch's parameter of the cubic kernel."""

_Tap = tuple[Tensor, Tensor]
"""(whole coordinate as a float, weight) along one axis."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """How coordinates from -1 to 1 name pixels."""

    padding: int
    align_corners: bool


def _register(axes: int) -> None:
    def grid_sampler(
        op: Lowering,
        input: Tensor,
        grid: Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> Tensor:
        _check(op, input, grid, (interpolation_mode, padding_mode), axes)
        if interpolation_mode == _BICUBIC and axes == 3:
            raise InvalidGraphError("cubic interpolation of volumes; expected another")
        return _sampled(op, input, grid, interpolation_mode, _Grid(padding_mode, align_corners))

    decomposes(f"aten.grid_sampler_{axes}d.default")(grid_sampler)


for _axes in (2, 3):
    _register(_axes)


def _sampled(op: Lowering, image: Tensor, grid: Tensor, mode: int, how: _Grid) -> Tensor:
    axes = image.rank - 2
    wide = op.widened(grid)
    taps: list[list[_Tap]] = []
    for axis in range(axes):
        # The grid's last axis is x, y, z; the image's are z, y, x.
        part = axes - 1 - axis
        column = op.slice_axis(wide, wide.rank - 1, ONE * part, ONE * (part + 1))
        position = _unnormalized(op, column, image.shape[2 + axis], how)
        taps.append(_taps(op, position, image.shape[2 + axis], mode, how))
    total: Tensor | None = None
    for corner in itertools.product(*taps):
        value = _pixel(op, image, [place for place, _ in corner], mode, how)
        for _, weight in corner:
            value = op.apply("mul", value, weight)
        total = value if total is None else op.prim("add", total, value)
    if total is None:
        raise InvalidGraphError("an image of no axes; expected two or three")
    channels_last = [0, axes + 1, *range(1, axes + 1)]
    return op.convert(op.permute(total, channels_last), image.dtype)


def _taps(op: Lowering, position: Tensor, extent: Expr, mode: int, how: _Grid) -> list[_Tap]:
    one = op.full(1.0, position.dtype)
    if mode == _NEAREST:
        return [(op.prim("round_even", _bounded(op, position, extent, how)), one)]
    if mode == _BILINEAR:
        inside = _bounded(op, position, extent, how)
        low = op.prim("floor", inside)
        high = op.apply("add", low, 1.0)
        return [(low, op.prim("sub", high, inside)), (high, op.prim("sub", inside, low))]
    low = op.prim("floor", position)
    fraction = op.prim("sub", position, low)
    weights = cubic_weights(op, fraction)
    # A cubic kernel's pixels are bounded one by one.
    places = [op.apply("add", low, float(shift)) for shift in (-1, 0, 1, 2)]
    return [
        (_bounded(op, place, extent, how), weight)
        for place, weight in zip(places, weights, strict=True)
    ]


def cubic_weights(op: Lowering, fraction: Tensor) -> list[Tensor]:
    """Weights of the pixels -1, 0, 1 and 2 from the pixel below a place."""
    rest = op.apply("sub", 1.0, fraction)
    return [
        _cubic_outer(op, op.apply("add", fraction, 1.0)),
        _cubic_inner(op, fraction),
        _cubic_inner(op, rest),
        _cubic_outer(op, op.apply("add", rest, 1.0)),
    ]


def _cubic_inner(op: Lowering, x: Tensor) -> Tensor:
    """((A + 2) * x - (A + 3)) * x * x + 1, for distances up to 1."""
    slope = op.apply("sub", op.apply("mul", x, _CUBIC + 2.0), _CUBIC + 3.0)
    return op.apply("add", op.prim("mul", op.prim("mul", slope, x), x), 1.0)


def _cubic_outer(op: Lowering, x: Tensor) -> Tensor:
    """((A * x - 5 * A) * x + 8 * A) * x - 4 * A, for distances from 1 to 2."""
    slope = op.apply("sub", op.apply("mul", x, _CUBIC), 5.0 * _CUBIC)
    slope = op.apply("add", op.prim("mul", slope, x), 8.0 * _CUBIC)
    return op.apply("sub", op.prim("mul", slope, x), 4.0 * _CUBIC)


def _unnormalized(op: Lowering, x: Tensor, extent: Expr, how: _Grid) -> Tensor:
    shifted = op.apply("add", x, 1.0)
    if how.align_corners:
        return op.apply("mul", op.apply("div", shifted, 2.0), _size(op, extent - 1, x))
    scaled = op.apply("mul", shifted, _size(op, extent, x))
    return op.apply("div", op.apply("sub", scaled, 1.0), 2.0)


def _bounded(op: Lowering, x: Tensor, extent: Expr, how: _Grid) -> Tensor:
    if how.padding == _ZEROS:
        return x
    if how.padding == _REFLECTION:
        x = _reflected(op, x, extent, how)
    # fmax: a coordinate that is no number is the first pixel's.
    return op.apply("minimum", op.apply("fmax", x, 0.0), _size(op, extent - 1, x))


def _reflected(op: Lowering, x: Tensor, extent: Expr, how: _Grid) -> Tensor:
    low = 0.0 if how.align_corners else -0.5
    span_extent = extent - 1 if how.align_corners else extent
    if span_extent == 0:
        return op.full(0.0, x.dtype, x.shape)
    span = _size(op, span_extent, x)
    distance = op.prim("abs", op.apply("sub", x, low))
    extra = op.apply("fmod", distance, span)
    flips = op.prim("floor", op.apply("div", distance, span))
    is_even = op.apply("eq", op.apply("fmod", flips, 2.0), 0.0)
    there = op.apply("add", extra, low)
    back = op.apply("add", op.apply("sub", span, extra), low)
    return op.where(is_even, there, back)


def _pixel(op: Lowering, image: Tensor, places: Sequence[Tensor], mode: int, how: _Grid) -> Tensor:
    """Pixels at whole coordinates, channels last; zeros outside of the image."""
    batch = image.shape[0]
    shape = places[0].shape[:-1]
    numbers = op.reshape(op.iota(batch), (batch, *([ONE] * (len(shape) - 1))))
    indices, inside = [op.expand(numbers, shape)], None
    for axis, place in enumerate(places):
        last = _size(op, image.shape[2 + axis] - 1, place)
        exists = op.prim("logical_and", op.apply("ge", place, 0.0), op.apply("le", place, last))
        inside = exists if inside is None else op.prim("logical_and", inside, exists)
        clamped = op.apply("minimum", op.apply("fmax", place, 0.0), last)
        indices.append(op.reshape(op.convert(clamped, DType.I64), shape))
    dims = (0, *range(2, image.rank))
    found = op.prim("gather_nd", op.widened(image), *indices, dims=dims)
    if inside is None:
        raise InvalidGraphError("an image of no axes; expected two or three")
    return op.where(inside, found, 0.0)


def _size(op: Lowering, size: Expr, like: Tensor) -> Tensor:
    number = size.constant if size.is_constant else size
    return op.full(number, like.dtype)


def _check(op: Lowering, image: Tensor, grid: Tensor, modes: tuple[int, int], axes: int) -> None:
    wanted = (*image.shape[:1], *grid.shape[1:-1], ONE * axes)
    if image.rank != axes + 2 or not op.extents.is_same_shape(grid.shape, wanted):
        raise InvalidGraphError(
            f"a grid {text_of(grid.shape)} for an image {text_of(image.shape)};"
            f" expected batches, {axes} axes of places and {axes} coordinates"
        )
    if not all(mode in (0, 1, 2) for mode in modes):
        raise InvalidGraphError(f"interpolation and padding modes {modes}; expected 0, 1 or 2")
    if grid.dtype is not image.dtype or not image.dtype.is_float:
        raise InvalidGraphError(f"a grid of {grid.dtype!r} for {image.dtype!r}; expected one float")
    if any(extent == 0 for extent in image.shape[2:]):
        raise NotDecomposedError("an image without pixels")
