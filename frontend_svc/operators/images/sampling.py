"""Images sampled between their pixels, at coordinates that are data.

Source: aten/src/ATen/native/GridSampler.h of PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.operators.core.extents import text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor, number_of
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
    """How coordinates from -1 to 1 map to pixels."""

    padding: int
    align_corners: bool


@decomposes("aten.grid_sampler_2d.default", fixed={"axes": 2})
@decomposes("aten.grid_sampler_3d.default", fixed={"axes": 3})
def grid_sampler(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    *,
    axes: int,
) -> Tensor:
    """An image sampled at the coordinates of a grid."""
    _check(builder, input, grid, (interpolation_mode, padding_mode), axes)
    if interpolation_mode == _BICUBIC and axes == 3:
        raise InvalidGraphError("cubic interpolation of volumes; expected another mode")
    mapping = _Grid(padding_mode, align_corners)
    return _sampled(builder, input, grid, interpolation_mode, mapping)


def _sampled(
    builder: PrimsBuilder, image: Tensor, grid: Tensor, mode: int, mapping: _Grid
) -> Tensor:
    axes = image.rank - 2
    wide = builder.widened(grid)
    taps: list[list[_Tap]] = []
    for axis in range(axes):
        # The grid's last axis is x, y, z; the image's are z, y, x.
        part = axes - 1 - axis
        column = builder.slice_axis(wide, wide.rank - 1, ONE * part, ONE * (part + 1))
        position = _unnormalized(builder, column, image.shape[2 + axis], mapping)
        taps.append(_taps(builder, position, image.shape[2 + axis], mode, mapping))
    total: Tensor | None = None
    for corner in itertools.product(*taps):
        value = _pixel(builder, image, [coordinate for coordinate, _ in corner], mode, mapping)
        for _, weight in corner:
            value = builder.apply("mul", value, weight)
        total = value if total is None else builder.prim("add", total, value)
    if total is None:
        raise InvalidGraphError("an image of no axes; expected two or three")
    channels_last = [0, axes + 1, *range(1, axes + 1)]
    return builder.convert(builder.permute(total, channels_last), image.dtype)


def _taps(
    builder: PrimsBuilder, position: Tensor, extent: Expr, mode: int, mapping: _Grid
) -> list[_Tap]:
    one = builder.full(1.0, position.dtype)
    if mode == _NEAREST:
        return [(builder.prim("round_even", _bounded(builder, position, extent, mapping)), one)]
    if mode == _BILINEAR:
        inside = _bounded(builder, position, extent, mapping)
        low = builder.prim("floor", inside)
        high = builder.apply("add", low, 1.0)
        return [(low, builder.prim("sub", high, inside)), (high, builder.prim("sub", inside, low))]
    low = builder.prim("floor", position)
    fraction = builder.prim("sub", position, low)
    weights = cubic_weights(builder, fraction)
    # The pixels of a cubic kernel are bounded one by one.
    positions = [builder.apply("add", low, float(shift)) for shift in (-1, 0, 1, 2)]
    return [
        (_bounded(builder, position, extent, mapping), weight)
        for position, weight in zip(positions, weights, strict=True)
    ]


def cubic_weights(builder: PrimsBuilder, fraction: Tensor) -> list[Tensor]:
    """Weights of the pixels -1, 0, 1 and 2, counted from the pixel below a coordinate."""
    rest = builder.apply("sub", 1.0, fraction)
    return [
        _cubic_outer(builder, builder.apply("add", fraction, 1.0)),
        _cubic_inner(builder, fraction),
        _cubic_inner(builder, rest),
        _cubic_outer(builder, builder.apply("add", rest, 1.0)),
    ]


def _cubic_inner(builder: PrimsBuilder, x: Tensor) -> Tensor:
    """((A + 2) * x - (A + 3)) * x * x + 1, for distances up to 1."""
    slope = builder.apply("sub", builder.apply("mul", x, _CUBIC + 2.0), _CUBIC + 3.0)
    return builder.apply("add", builder.prim("mul", builder.prim("mul", slope, x), x), 1.0)


def _cubic_outer(builder: PrimsBuilder, x: Tensor) -> Tensor:
    """((A * x - 5 * A) * x + 8 * A) * x - 4 * A, for distances from 1 to 2."""
    slope = builder.apply("sub", builder.apply("mul", x, _CUBIC), 5.0 * _CUBIC)
    slope = builder.apply("add", builder.prim("mul", slope, x), 8.0 * _CUBIC)
    return builder.apply("sub", builder.prim("mul", slope, x), 4.0 * _CUBIC)


def _unnormalized(builder: PrimsBuilder, x: Tensor, extent: Expr, mapping: _Grid) -> Tensor:
    shifted = builder.apply("add", x, 1.0)
    if mapping.align_corners:
        return builder.apply(
            "mul", builder.apply("div", shifted, 2.0), _size(builder, extent - 1, x)
        )
    scaled = builder.apply("mul", shifted, _size(builder, extent, x))
    return builder.apply("div", builder.apply("sub", scaled, 1.0), 2.0)


def _bounded(builder: PrimsBuilder, x: Tensor, extent: Expr, mapping: _Grid) -> Tensor:
    if mapping.padding == _ZEROS:
        return x
    if mapping.padding == _REFLECTION:
        x = _reflected(builder, x, extent, mapping)
    # fmax maps a NaN coordinate to the first pixel.
    return builder.apply("minimum", builder.apply("fmax", x, 0.0), _size(builder, extent - 1, x))


def _reflected(builder: PrimsBuilder, x: Tensor, extent: Expr, mapping: _Grid) -> Tensor:
    low = 0.0 if mapping.align_corners else -0.5
    span_extent = extent - 1 if mapping.align_corners else extent
    if span_extent == 0:
        return builder.full(0.0, x.dtype, x.shape)
    span = _size(builder, span_extent, x)
    distance = builder.prim("abs", builder.apply("sub", x, low))
    extra = builder.apply("fmod", distance, span)
    flips = builder.prim("floor", builder.apply("div", distance, span))
    is_even = builder.apply("eq", builder.apply("fmod", flips, 2.0), 0.0)
    there = builder.apply("add", extra, low)
    back = builder.apply("add", builder.apply("sub", span, extra), low)
    return builder.where(is_even, there, back)


def _pixel(
    builder: PrimsBuilder, image: Tensor, positions: Sequence[Tensor], mode: int, mapping: _Grid
) -> Tensor:
    """The pixels at whole coordinates, with channels last; zeros outside of the image."""
    batch = image.shape[0]
    shape = positions[0].shape[:-1]
    numbers = builder.reshape(builder.iota(batch), (batch, *([ONE] * (len(shape) - 1))))
    indices, inside = [builder.expand(numbers, shape)], None
    for axis, position in enumerate(positions):
        last = _size(builder, image.shape[2 + axis] - 1, position)
        exists = builder.prim(
            "logical_and", builder.apply("ge", position, 0.0), builder.apply("le", position, last)
        )
        inside = exists if inside is None else builder.prim("logical_and", inside, exists)
        clamped = builder.apply("minimum", builder.apply("fmax", position, 0.0), last)
        indices.append(builder.reshape(builder.convert(clamped, DType.I64), shape))
    dims = (0, *range(2, image.rank))
    found = builder.prim("gather_nd", builder.widened(image), *indices, dims=dims)
    if inside is None:
        raise InvalidGraphError("an image of no axes; expected two or three")
    return builder.where(inside, found, 0.0)


def _size(builder: PrimsBuilder, size: Expr, like: Tensor) -> Tensor:
    return builder.full(number_of(size), like.dtype)


def _check(
    builder: PrimsBuilder, image: Tensor, grid: Tensor, modes: tuple[int, int], axes: int
) -> None:
    expected = (*image.shape[:1], *grid.shape[1:-1], ONE * axes)
    if image.rank != axes + 2 or not builder.extents.is_same_shape(grid.shape, expected):
        raise InvalidGraphError(
            f"a grid {text_of(grid.shape)} for an image {text_of(image.shape)};"
            f" expected a batch axis, {axes} axes of points and {axes} coordinates"
        )
    if not all(mode in (0, 1, 2) for mode in modes):
        raise InvalidGraphError(f"interpolation and padding modes {modes}; expected 0, 1 or 2")
    if grid.dtype is not image.dtype or not image.dtype.is_float:
        raise InvalidGraphError(f"a grid of {grid.dtype!r} for {image.dtype!r}; expected one float")
    if any(extent == 0 for extent in image.shape[2:]):
        raise NotDecomposedError("an image without pixels")
