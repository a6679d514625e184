"""The largest elements of windows that begin at random positions; the numbers are an operand.

Source: aten/src/ATen/native/FractionalMaxPool2d.cpp and FractionalMaxPool3d.cpp of PyTorch.
"""

from __future__ import annotations

from frontend_svc.operators.core.extents import numel_of, text_of
from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import ONE, as_expr, product_of

_SAMPLE_OF_AXIS = {2: (1, 0), 3: (0, 1, 2)}
"""The index of the random number of each axis, outermost axis first."""


_NOTE = "extern for symbolic sizes"


@decomposes("aten.fractional_max_pool2d.default", fixed={"axes": 2}, note=_NOTE)
@decomposes("aten.fractional_max_pool3d.default", fixed={"axes": 3}, note=_NOTE)
def fractional_max_pool(
    builder: PrimsBuilder,
    self: Tensor,
    kernel_size: tuple[int, ...],
    output_size: tuple[int, ...],
    random_samples: Tensor,
    *,
    axes: int,
) -> tuple[Tensor, Tensor]:
    """The largest elements of windows of the last axes, and their positions."""
    x, kernel, sizes = self, kernel_size, output_size
    if x.rank not in (axes + 1, axes + 2) or len(kernel) != axes or len(sizes) != axes:
        raise InvalidGraphError(f"windows {kernel} of {text_of(x.shape)}; expected {axes} axes")
    if not x.dtype.is_float or min(*kernel, *sizes) < 1:
        raise InvalidGraphError(f"{sizes} windows {kernel} of {x.dtype!r}; expected 1 or more")
    old = x.shape[-axes:]
    if not all(extent.is_constant for extent in old):
        raise NotDecomposedError("windows at random positions of a symbolic axis")
    lead = x.shape[:-axes]
    rows = numel_of(lead)
    random = builder.reshape(builder.convert(random_samples, x.dtype), (rows, as_expr(axes)))
    position = builder.full(0, DType.I64)
    for axis, which in enumerate(_SAMPLE_OF_AXIS[axes]):
        share = builder.slice_axis(random, 1, as_expr(which), as_expr(which + 1))
        extent = old[axis].constant
        first = _firsts(builder, share, extent, sizes[axis], kernel[axis])
        reached = builder.apply(
            "add", builder.reshape(first, (*first.shape, ONE)), builder.iota(as_expr(kernel[axis]))
        )
        shape = [rows, *([ONE] * (2 * axes))]
        shape[1 + axis], shape[1 + axes + axis] = as_expr(sizes[axis]), as_expr(kernel[axis])
        position = builder.apply(
            "add", builder.apply("mul", position, extent), builder.reshape(reached, tuple(shape))
        )
    count, taps = product_of([as_expr(n) for n in sizes]), product_of([as_expr(n) for n in kernel])
    flat = builder.reshape(x, (rows, numel_of(old)))
    found = builder.prim(
        "gather_along", flat, builder.reshape(position, (rows, count * taps)), dim=1
    )
    windows = builder.reshape(builder.widened(found), (rows, count, taps))
    best = builder.reduce("amax", windows, (2,))
    which_tap = builder.reshape(builder.reduce("argmax", windows, (2,)), (rows, count, ONE))
    where = builder.prim(
        "gather_along", builder.reshape(position, (rows, count, taps)), which_tap, dim=2
    )
    expected = (*lead, *(as_expr(n) for n in sizes))
    return builder.reshape(builder.convert(best, x.dtype), expected), builder.reshape(
        where, expected
    )


def _firsts(builder: PrimsBuilder, share: Tensor, extent: int, count: int, taps: int) -> Tensor:
    """The first position of each window of each row; the last window ends with the axis.

    Shapes: share: (rows, 1); result: (rows, count), i64.
    """
    if extent < taps:
        raise InvalidGraphError(f"windows of {taps} on {extent} elements; expected no more")
    last = extent - taps
    if count == 1:
        return builder.full(last, DType.I64, (share.shape[0], ONE))
    wide = builder.widened(share)
    step = builder.full(last, wide.dtype)
    alpha = builder.apply("div", step, count - 1)
    numbers = builder.convert(builder.iota(as_expr(count)), wide.dtype)
    reached = builder.convert(
        builder.apply("mul", builder.apply("add", wide, numbers), alpha), DType.I64
    )
    begun = builder.convert(builder.apply("mul", wide, alpha), DType.I64)
    is_last = builder.apply("eq", builder.iota(as_expr(count)), count - 1)
    return builder.where(is_last, last, builder.apply("sub", reached, begun))
