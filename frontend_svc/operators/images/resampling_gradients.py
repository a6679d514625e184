"""Gradients of resizing: each result's gradient goes to the pixels that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def _register_nearest(name: str, axes: int, taps: Taps) -> None:
    def one(
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        scales: float | None = None,
    ) -> Tensor:
        return _gathered(builder, grad_output, (output_size, input_size), False, (scales,), taps)

    def two(  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        factors = (scales_h, scales_w)
        return _gathered(builder, grad_output, (output_size, input_size), False, factors, taps)

    def three(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        factors = (scales_d, scales_h, scales_w)
        return _gathered(builder, grad_output, (output_size, input_size), False, factors, taps)

    forms: dict[int, Callable[..., Tensor]] = {1: one, 2: two, 3: three}
    decomposes(f"aten.{name}_backward.default")(forms[axes])


def _register_aligning(name: str, axes: int, taps: Taps) -> None:
    def one(  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor:
        sizes = (output_size, input_size)
        return _gathered(builder, grad_output, sizes, align_corners, (scales,), taps)

    def two(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        sizes, factors = (output_size, input_size), (scales_h, scales_w)
        return _gathered(builder, grad_output, sizes, align_corners, factors, taps)

    def three(  # noqa: PLR0913, PLR0917  # the operator's own parameters
        builder: PrimsBuilder,
        grad_output: Tensor,
        output_size: tuple[Expr, ...],
        input_size: tuple[Expr, ...],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        sizes, factors = (output_size, input_size), (scales_d, scales_h, scales_w)
        return _gathered(builder, grad_output, sizes, align_corners, factors, taps)

    forms: dict[int, Callable[..., Tensor]] = {1: one, 2: two, 3: three}
    decomposes(f"aten.{name}_backward.default")(forms[axes])


for _axes in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_axes}d", _axes, nearest_taps)
    _register_nearest(f"_upsample_nearest_exact{_axes}d", _axes, nearest_exact_taps)
for _axes, _name in enumerate(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")):
    _register_aligning(_name, _axes + 1, linear_taps)
_register_aligning("upsample_bicubic2d", 2, cubic_taps)


def _gathered(  # what the operators say of their images
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
    """What the pixels of an axis receive from the results along it."""
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
        total = builder.prim("scatter", total, positions, updates, dims=(0,), mode="add")
    back = sorted(range(x.rank), key=lambda k: order[k])
    return builder.permute(total, back)
