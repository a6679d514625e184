"""Gradients of resizing: the gradient of each result is added to the pixels it was made of."""

from __future__ import annotations

from collections.abc import Sequence

from frontend_svc.operators.core.extents import Shape, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from frontend_svc.operators.images.resampling import (
    ResizedAxis,
    Tap,
    Taps,
    cubic_taps,
    linear_taps,
    nearest_exact_taps,
    nearest_taps,
)
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, Expr


@decomposes("aten.upsample_nearest1d_backward.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact1d_backward.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest1d_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    scales: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """The gradient of a signal of nearest elements."""
    return _gathered(builder, grad_output, (output_size, input_size), False, (scales,), taps)


@decomposes("aten.upsample_nearest2d_backward.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact2d_backward.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest2d_backward(  # noqa: PLR0913  # the operators' own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """The gradient of an image of nearest pixels."""
    factors = (scales_h, scales_w)
    return _gathered(builder, grad_output, (output_size, input_size), False, factors, taps)


@decomposes("aten.upsample_nearest3d_backward.default", fixed={"taps": nearest_taps})
@decomposes("aten._upsample_nearest_exact3d_backward.default", fixed={"taps": nearest_exact_taps})
def upsample_nearest3d_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """The gradient of a volume of nearest voxels."""
    factors = (scales_d, scales_h, scales_w)
    return _gathered(builder, grad_output, (output_size, input_size), False, factors, taps)


@decomposes("aten.upsample_linear1d_backward.default")
def upsample_linear1d_backward(
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    align_corners: bool,
    scales: float | None = None,
) -> Tensor:
    """The gradient of a signal that was interpolated linearly."""
    sizes = (output_size, input_size)
    return _gathered(builder, grad_output, sizes, align_corners, (scales,), linear_taps)


@decomposes("aten.upsample_bilinear2d_backward.default", fixed={"taps": linear_taps})
@decomposes("aten.upsample_bicubic2d_backward.default", fixed={"taps": cubic_taps})
def upsample_interpolated2d_backward(  # noqa: PLR0913, PLR0917  # the operators' own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    taps: Taps,
) -> Tensor:
    """The gradient of an image that was interpolated linearly or by cubics."""
    sizes, factors = (output_size, input_size), (scales_h, scales_w)
    return _gathered(builder, grad_output, sizes, align_corners, factors, taps)


@decomposes("aten.upsample_trilinear3d_backward.default")
def upsample_trilinear3d_backward(  # noqa: PLR0913, PLR0917  # the operator's own parameters
    builder: PrimsBuilder,
    grad_output: Tensor,
    output_size: tuple[Expr, ...],
    input_size: tuple[Expr, ...],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of a volume that was interpolated linearly."""
    sizes, factors = (output_size, input_size), (scales_d, scales_h, scales_w)
    return _gathered(builder, grad_output, sizes, align_corners, factors, linear_taps)


def _gathered(
    builder: PrimsBuilder,
    grad: Tensor,
    sizes: tuple[Shape, Shape],
    align: bool,
    factors: Sequence[float | None],
    taps: Taps,
) -> Tensor:
    new, old = sizes
    if grad.rank != len(factors) + 2 or len(new) != len(factors) or len(old) != grad.rank:
        raise InvalidGraphError(f"a gradient {text_of(grad.shape)} of an image {text_of(old)}")
    if not builder.extents.is_same_shape(grad.shape, (*old[:2], *new)) or not grad.dtype.is_float:
        raise InvalidGraphError(
            f"a gradient {grad.dtype!r} {text_of(grad.shape)}; expected {text_of((*old[:2], *new))}"
        )
    if any(builder.extents.is_negative(size - 1) for size in (*old[2:], *new)):
        raise InvalidGraphError(f"{text_of(old)} to {text_of(new)}; expected 1 pixel or more")
    x = builder.widened(grad)
    for number, factor in enumerate(factors):
        axis = ResizedAxis(old[2 + number], grad.shape[2 + number], factor)
        x = _gathered_gradient(builder, x, 2 + number, axis, taps(builder, x, axis, align))
    return builder.convert(x, grad.dtype)


def _gathered_gradient(
    builder: PrimsBuilder,
    x: Tensor,
    axis: int,
    sizes: ResizedAxis,
    taps: Sequence[Tap],
) -> Tensor:
    """The gradients of the pixels along one axis, from those of the results."""
    if len(taps) == 1 and builder.extents.is_proven_same(sizes.old, sizes.new):
        return x
    behind = (ONE,) * (x.rank - 1 - axis)
    order = [axis, *(k for k in range(x.rank) if k != axis)]
    shape = tuple((*x.shape[:axis], sizes.old, *x.shape[axis + 1 :])[k] for k in order)
    total = builder.full(0.0, x.dtype, shape)
    for positions, weight in taps:
        part = x
        if weight is not None:
            part = builder.apply(
                "mul",
                x,
                builder.reshape(builder.convert(weight, x.dtype), (*weight.shape, *behind)),
            )
        updates = builder.permute(part, order)
        total = builder.scatter(total, ((0,), [positions]), updates, "add")
    back = sorted(range(x.rank), key=lambda k: order[k])
    return builder.permute(total, back)
